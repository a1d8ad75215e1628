"""Store settings: endpoints and credentials, from Hadoop's configuration or the usual chains.

Settings have the names that Hadoop gives them, such as ``fs.s3a.access.key``: Spark has them as
``spark.hadoop.fs.s3a.access.key``. The driver takes them from its session, and they travel to the
workers with the code of their tasks, in the same way as Spark's own. What they do not say comes
from each process's environment: variables ``AWS_*``, ``AZURE_*`` and ``GOOGLE_*``, AWS's file of
credentials, the identity of the machine.
"""

from __future__ import annotations

import configparser
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from jeton.storage.store import StoreRefused

_PROVIDER: Final = "fs.s3a.aws.credentials.provider"
_BY_CHAIN: Final = (
    "DefaultAWSCredentialsProviderChain",
    "DefaultCredentialsProvider",
    "EnvironmentVariableCredentialsProvider",
    "IAMInstanceCredentialsProvider",
    "InstanceProfileCredentialsProvider",
    "ContainerCredentialsProvider",
    "EC2ContainerCredentialsProviderWrapper",
    "ProfileCredentialsProvider",
    "ProfileAWSCredentialsProvider",
    "WebIdentityTokenCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider",
)
_BY_KEYS: Final = ("SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider")
_ANONYMOUS: Final = "AnonymousAWSCredentialsProvider"
_ENCRYPTION: Final = {"SSE-S3": "AES256", "AES256": "AES256", "SSE-KMS": "aws:kms"}


@dataclass(frozen=True)
class StoreSettings:
    """Settings of Hadoop's; its representation shows no value, since some are secrets.

    >>> settings = StoreSettings({"fs.s3a.secret.key": "s", "fs.s3a.bucket.logs.endpoint": "a:1"})
    >>> settings
    <StoreSettings: fs.s3a.bucket.logs.endpoint, fs.s3a.secret.key>
    >>> settings.of_bucket("endpoint", "logs"), settings.of_bucket("endpoint", "other")
    ('a:1', None)
    """

    values: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<StoreSettings: {', '.join(sorted(self.values)) or 'none'}>"

    @staticmethod
    def of_spark(settings: Mapping[str, str]) -> StoreSettings:
        """Those among settings of Spark's.

        >>> StoreSettings.of_spark({"spark.hadoop.fs.s3a.endpoint": "a", "spark.ui.port": "1"})
        <StoreSettings: fs.s3a.endpoint>
        """
        prefix = "spark.hadoop."
        pairs = settings.items()
        return StoreSettings({k.removeprefix(prefix): v for k, v in pairs if k.startswith(prefix)})

    def get(self, key: str) -> str | None:
        """The value of a setting; nothing if it is not set or empty."""
        return self.values.get(key, "").strip() or None

    def of_bucket(self, key: str, bucket: str) -> str | None:
        """The value of a setting of S3A's for a bucket: its own, or the one for all."""
        return self.get(f"fs.s3a.bucket.{bucket}.{key}") or self.get(f"fs.s3a.{key}")

    def of_account(self, key: str, host: str) -> str | None:
        """The value of a setting of Azure's for an account: its own, or the one for all."""
        return self.get(f"fs.azure.{key}.{host}") or self.get(f"fs.azure.{key}")


_current = StoreSettings()


def use(settings: StoreSettings) -> None:
    """Have this process reach stores with these settings from now on."""
    global _current
    _current = settings


def current() -> StoreSettings:
    """The settings of this process."""
    return _current


Options = dict[str, Any]
"""Arguments of the constructor of a store of `obstore`."""


def s3_options(settings: StoreSettings, bucket: str) -> Options:
    """The endpoint and the credentials of a bucket on S3, or on a store with S3's protocol.

    >>> settings = StoreSettings(
    ...     {
    ...         "fs.s3a.endpoint": "minio:9000",
    ...         "fs.s3a.path.style.access": "true",
    ...         "fs.s3a.connection.ssl.enabled": "false",
    ...         "fs.s3a.endpoint.region": "eu-west-1",
    ...     }
    ... )
    >>> options = s3_options(settings, "data")
    >>> options["endpoint"], options["virtual_hosted_style_request"], options["region"]
    ('http://minio:9000', False, 'eu-west-1')
    """

    def get(key: str) -> str | None:
        return settings.of_bucket(key, bucket)

    endpoint = get("endpoint") or _environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    region = get("endpoint.region") or _region_in(endpoint)
    region = region or _environment("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
    options: Options = {"region": region, "virtual_hosted_style_request": False}
    if endpoint is not None:
        if "://" not in endpoint:
            secure = (get("connection.ssl.enabled") or "true").lower() != "false"
            endpoint = f"{'https' if secure else 'http'}://{endpoint}"
        scheme, _, host = endpoint.rstrip("/").partition("://")
        by_host = (get("path.style.access") or "").lower() != "true" and _has_names(host)
        # A name with a dot does not match the certificate for all buckets.
        if by_host and get("endpoint") is not None and "." not in bucket:
            host = f"{bucket}.{host}"
            options["virtual_hosted_style_request"] = True
        options["endpoint"] = f"{scheme}://{host}"
    if (encryption := get("encryption.algorithm")) is not None:
        known = _ENCRYPTION.get(encryption)
        if known is None:
            raise StoreRefused(
                f"fs.s3a.encryption.algorithm is {encryption!r} for bucket {bucket!r}, which is "
                f"not supported here: set one of {sorted(_ENCRYPTION)}, or let the bucket encrypt"
            )
        options["server_side_encryption"] = known
        if known == "aws:kms" and (key := get("encryption.key")) is not None:
            options["sse_kms_key_id"] = key
    if (get("requester.pays.enabled") or "").lower() == "true":
        options["request_payer"] = True
    return options | _s3_credentials(settings, bucket)


def _s3_credentials(settings: StoreSettings, bucket: str) -> Options:
    access, secret = (settings.of_bucket(key, bucket) for key in ("access.key", "secret.key"))
    token = settings.of_bucket("session.token", bucket)
    providers = settings.of_bucket(_PROVIDER.removeprefix("fs.s3a."), bucket)
    names = [each.strip().rsplit(".", 1)[-1] for each in (providers or "").split(",") if each]
    if names and names[0] == _ANONYMOUS:
        return {"skip_signature": True}
    if (access is None) != (secret is None):
        raise StoreRefused(
            f"of fs.s3a.access.key and fs.s3a.secret.key for bucket {bucket!r} only one is set"
        )
    if access is None and names and not any(name in (*_BY_CHAIN, *_BY_KEYS) for name in names):
        raise StoreRefused(
            f"{_PROVIDER} for bucket {bucket!r} is {providers}, which only Java can ask: set "
            "fs.s3a.access.key and fs.s3a.secret.key, or unset it to have the environment's "
            "credentials used"
        )
    if access is None and not _environment(
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ):
        access, secret, token = _profile()
    if access is None or secret is None:
        return {}
    # A provider, since a token in the environment belongs to other keys.
    return {"credential_provider": _Keys(access, secret, token)}


@dataclass(frozen=True, repr=False)
class _Keys:
    access: str
    secret: str
    token: str | None

    def __call__(self) -> Any:
        found: dict[str, Any] = {"access_key_id": self.access, "secret_access_key": self.secret}
        return found | ({"token": self.token} if self.token else {}) | {"expires_at": None}


def _profile() -> tuple[str | None, str | None, str | None]:
    """The keys in AWS's credentials file, if it has some for this profile."""
    path = _environment("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials"
    parser = configparser.RawConfigParser()
    try:
        parser.read(path)
    except configparser.Error as error:
        raise StoreRefused(f"the credentials in {path} cannot be read: {error}") from error
    profile = _environment("AWS_PROFILE") or "default"
    if not parser.has_section(profile):
        return None, None, None
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    access, secret, token = (parser.get(profile, name, fallback=None) for name in names)
    return access, secret, token


def gcs_options(settings: StoreSettings, bucket: str) -> Options:
    """The endpoint and the credentials of a bucket on Google's cloud.

    >>> gcs_options(StoreSettings({"fs.gs.storage.root.url": "http://127.0.0.1:4443/"}), "data")
    {'base_url': 'http://127.0.0.1:4443'}
    """
    options: Options = {}
    if (url := settings.get("fs.gs.storage.root.url")) is not None:
        options["base_url"] = url.rstrip("/")
    kind = (settings.get("fs.gs.auth.type") or "").upper()
    if kind == "UNAUTHENTICATED":
        return options | {"skip_signature": True}
    for prefix in ("fs.gs.auth.", "google.cloud.auth."):
        if (path := settings.get(f"{prefix}service.account.json.keyfile")) is not None:
            return options | {"service_account": path}
    if kind not in ("", "APPLICATION_DEFAULT", "COMPUTE_ENGINE", "SERVICE_ACCOUNT_JSON_KEYFILE"):
        raise StoreRefused(
            f"fs.gs.auth.type is {kind} for bucket {bucket!r}, which only Java can do: set "
            "fs.gs.auth.service.account.json.keyfile, or unset it"
        )
    return options


def azure_options(settings: StoreSettings, host: str) -> Options:
    """The endpoint and the credentials of an account on Azure, by its host.

    >>> host = "acct.dfs.core.windows.net"
    >>> settings = StoreSettings({f"fs.azure.account.key.{host}": "a2V5"})
    >>> azure_options(settings, host)
    {'account_name': 'acct', 'account_key': 'a2V5'}
    """
    account, _, rest = host.partition(".")
    options: Options = {"account_name": account}
    endpoint = _environment("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    if endpoint is not None:
        options["endpoint"] = endpoint
    elif rest and rest != "dfs.core.windows.net":
        options["endpoint"] = f"https://{account}.{rest.replace('dfs.', 'blob.', 1)}"

    def get(key: str) -> str | None:
        return settings.of_account(key, host)

    if (key := get("account.key")) is not None:
        return options | {"account_key": key}
    if (token := get("sas.fixed.token")) is not None:
        return options | {"sas_key": token.lstrip("?")}
    if get("account.oauth2.client.secret") is not None:
        options["client_id"] = get("account.oauth2.client.id")
        options["client_secret"] = get("account.oauth2.client.secret")
        found = re.match(r"(https?://[^/]+)/([^/]+)/", get("account.oauth2.client.endpoint") or "")
        if found is None:
            raise StoreRefused(
                f"fs.azure.account.oauth2.client.endpoint for {host} must be of the form "
                "https://login.microsoftonline.com/<tenant>/oauth2/token"
            )
        return options | {"authority_host": found[1], "tenant_id": found[2]}
    if (tenant := get("account.oauth2.msi.tenant")) is not None:
        options["tenant_id"] = tenant
    if (client := get("account.oauth2.client.id")) is not None:
        options["client_id"] = client
    return options


def _environment(*names: str) -> str | None:
    """The first of some variables that is set."""
    return next((value for name in names if (value := os.environ.get(name))), None)


def _region_in(endpoint: str | None) -> str | None:
    found = re.search(r"\bs3[.-]([a-z]{2}-[a-z-]+-\d)\.amazonaws\.com", endpoint or "")
    return None if found is None else found[1]


def _has_names(host: str) -> bool:
    """Whether a host can have one more name before its own."""
    name = host.rsplit(":", 1)[0].strip("[]")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name != "localhost"
    return False
