"""Where listening sockets are bound: at which address, and at which ports."""

from __future__ import annotations

import errno
import random
import socket
from dataclasses import dataclass
from typing import Final

from jeton.core.errors import GraphError, JetonError

_NOT_HERE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@dataclass(frozen=True)
class Binding:
    """How to listen at a host that others know by an address which this machine may not have.

    >>> with Binding(address="127.0.0.1").listen("192.0.2.1") as sock:
    ...     print(sock.getsockname()[0])
    127.0.0.1
    """

    address: str | None = None
    """Bound instead of the host, where the machine does not have the host's address itself."""
    ports: tuple[int, int] | None = None
    """The first and the last port to choose from; by default the system chooses any."""

    def listen(self, host: str) -> socket.socket:
        """A listening socket: at the host's own address if this machine has it."""
        try:
            return self._at(host)
        except OSError as error:
            missing = isinstance(error, socket.gaierror) or error.errno in _NOT_HERE
            if self.address is None or not missing:
                raise
        return self._at(self.address)

    def _at(self, host: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        if self.ports is None:
            return socket.create_server((host, 0), family=family)
        first, last = self.ports
        # Processes on one machine try the same ports: not all in the same order.
        start = random.randrange(last - first + 1)
        for port in (*range(first + start, last + 1), *range(first, first + start)):
            try:
                return socket.create_server((host, port), family=family)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        raise JetonError(
            f"all ports from {first} to {last} of {host} are taken: give a wider range with "
            "spark.jeton.port.range (workers) or spark.jeton.driver.port.range (the driver)"
        )


def port_range(text: str, setting: str) -> tuple[int, int]:
    """The first and the last port of a setting's value.

    >>> port_range("40000-40100", "spark.jeton.port.range")
    (40000, 40100)
    """
    first, _, last = text.partition("-")
    try:
        ports = int(first), int(last or first)
    except ValueError:
        ports = 0, 0
    if not 0 < ports[0] <= ports[1] < 1 << 16:
        raise GraphError(f"{setting} is {text!r}, which is not a range of ports like 40000-40100")
    return ports
