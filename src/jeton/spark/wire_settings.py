"""Settings of the wire: whether there is TLS between machines, and which ports and addresses.

By default this follows Spark. A cluster that authenticates or encrypts its own connections expects
the same of Jeton's, so a flow on it runs with TLS or not at all.
"""

from __future__ import annotations

import importlib.util
import logging
import ssl
from dataclasses import dataclass, field
from typing import Any, Final

from jeton.core.errors import GraphError
from jeton.mesh.binding import Binding, port_range

log = logging.getLogger(__name__)

TLS: Final = "spark.jeton.tls.enabled"
PORTS: Final = "spark.jeton.port.range"
DRIVER_PORTS: Final = "spark.jeton.driver.port.range"
BIND: Final = "spark.jeton.bindAddress"
CLIENT_HOST: Final = "spark.jeton.client.host"
"""Where tasks reach this program, under Spark Connect."""
CLIENT_BIND: Final = "spark.jeton.client.bindAddress"
"""Where this program listens under Spark Connect, if its machine does not have that address."""

_HARDENED: Final = (
    "spark.authenticate",
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
    "spark.ssl.standalone.enabled",
    "spark.ssl.ui.enabled",
    "spark.ssl.historyServer.enabled",
)
"""Settings by which a cluster says that its network is not to be trusted."""


@dataclass(frozen=True)
class WireSettings:
    """How the workers of one flow reach each other and the driver."""

    tls: bool = False
    workers: Binding = field(default_factory=Binding)
    """Where workers listen."""


def wire_settings(conf: Any, tls: bool | None) -> WireSettings:
    """The settings of the wire, from Spark's configuration and the call of a flow.

    >>> wire_settings({"spark.jeton.port.range": "40000-40100"}, tls=None)
    WireSettings(tls=False, workers=Binding(address=None, ports=(40000, 40100)))
    >>> wire_settings({"spark.authenticate": "true"}, tls=None).tls
    True
    """
    return WireSettings(_wants_tls(conf, tls), _binding(conf, BIND, PORTS))


def driver_binding(conf: Any) -> Binding:
    """Where the driver listens: as Spark's own settings say, and in the range of ports."""
    return _binding(conf, "spark.driver.bindAddress", DRIVER_PORTS)


def client_binding(conf: Any) -> Binding:
    """Where a client of Spark Connect listens: the driver's own settings are those of the server.

    >>> client_binding({"spark.driver.bindAddress": "10.0.0.1"})
    Binding(address=None, ports=None)
    """
    return _binding(conf, CLIENT_BIND, DRIVER_PORTS)


def _binding(conf: Any, address: str, ports: str) -> Binding:
    found = conf.get(ports, None)
    return Binding(conf.get(address, None), None if found is None else port_range(found, ports))


def _wants_tls(conf: Any, tls: bool | None) -> bool:
    hardened = [name for name in _HARDENED if conf.get(name, None) == "true"]
    said = conf.get(TLS, None)
    if tls is None and said is not None:
        if said not in ("true", "false"):
            raise GraphError(f"{TLS} is {said!r}: it takes true or false")
        tls = said == "true"
    if tls is None and not hardened:
        return False
    if tls is False:
        if hardened:
            log.warning(
                "%s is true, but TLS is turned off for this flow: its rows travel between machines "
                "as plain text",
                hardened[0],
            )
        return False
    _require_tls(f"{hardened[0]} is true" if tls is None else "TLS is asked for")
    return True


def _require_tls(reason: str) -> None:
    """Refuse to go on where there can be no TLS."""
    if not ssl.HAS_TLSv1_3:
        raise GraphError(
            f"{reason}, but the Python of the driver has no TLS 1.3 ({ssl.OPENSSL_VERSION}): use "
            "one with a newer OpenSSL, or run with tls=False on a network that you trust"
        )
    if importlib.util.find_spec("cryptography") is None:
        raise GraphError(
            f"{reason}, but certificates cannot be made: install the package cryptography at the "
            "driver (pip install 'jeton[tls]'), or run with tls=False on a network that you trust"
        )
