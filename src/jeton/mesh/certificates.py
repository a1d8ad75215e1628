"""Certificates of a query: made at its start, and good for nothing else.

The driver makes an authority of its own for each plan, has it sign one certificate for the driver
and one for all workers, and forgets the authority's key. Both ends of a connection trust this
authority and no other. Workers' credentials travel in the task's code, beside the query's secret.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

VALID_FOR: Final = dt.timedelta(days=366)
"""How long certificates are good: a plan of Structured Streaming uses the same ones throughout."""
SKEW: Final = dt.timedelta(days=1)
"""How much the clocks of machines may differ."""


@dataclass(frozen=True)
class Credentials:
    """A certificate with its key, and the authority that the other end's must be signed by."""

    authority: str
    certificate: str
    key: str = field(repr=False)
    """The private key, which is never printed."""
    plan: int
    """The number of the plan, which is part of the names that certificates are for."""

    @property
    def driver_name(self) -> str:
        """The name in the driver's certificate, by which its server also finds the plan."""
        return f"driver.{self.plan}.jeton.internal"

    @property
    def worker_name(self) -> str:
        """The name in the workers' certificate."""
        return f"worker.{self.plan}.jeton.internal"


def issue(
    plan: int, *, now: dt.datetime | None = None, valid_for: dt.timedelta = VALID_FOR
) -> tuple[Credentials, Credentials]:
    """New credentials of a plan's driver and of its workers; needs the package cryptography.

    >>> driver, worker = issue(7)
    >>> driver.authority == worker.authority, driver.key == worker.key
    (True, False)
    >>> worker.worker_name, "PRIVATE" in repr(worker)
    ('worker.7.jeton.internal', False)
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    begin = (now or dt.datetime.now(dt.UTC)) - SKEW
    end = begin + SKEW + valid_for
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"jeton plan {plan}")])
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())

    def signed(
        subject: x509.Name,
        key: EllipticCurvePrivateKey,
        extensions: list[tuple[x509.ExtensionType, bool]],
    ) -> Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id), False
            )
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(authority_key, hashes.SHA256())

    def usage(*, signs: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not signs,
            key_cert_sign=signs,
            crl_sign=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )

    authority = signed(
        authority_name,
        authority_key,
        [(x509.BasicConstraints(ca=True, path_length=0), True), (usage(signs=True), True)],
    )

    def credentials(role: str, purposes: list[x509.ObjectIdentifier]) -> Credentials:
        key = ec.generate_private_key(ec.SECP256R1())
        name = f"{role}.{plan}.jeton.internal"
        certificate = signed(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            key,
            [
                (x509.BasicConstraints(ca=False, path_length=None), True),
                (usage(signs=False), True),
                (x509.ExtendedKeyUsage(purposes), False),
                (x509.SubjectAlternativeName([x509.DNSName(name)]), False),
            ],
        )
        return Credentials(_pem(authority), _pem(certificate), _key_pem(key), plan)

    # A worker cannot pass for the driver: its certificate is for another name.
    server, client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    return credentials("driver", [server]), credentials("worker", [server, client])


def _pem(certificate: Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()


def _key_pem(key: EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
