"""Kafka: what its source and its sinks share: clients, and words for their errors."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Final

from jeton.core import checks
from jeton.core.errors import GraphError, JetonError

log = logging.getLogger("jeton.kafka")

TIMEOUT: Final = 30.0
"""Seconds for one question to the brokers."""

QUIET: Final = 10.0
"""Seconds for which the same message is not logged again."""


_RELIED_ON: Final = {
    "auto.offset.reset": "start= and lost= of the source say where to read",
    "enable.partition.eof": "sources and sinks need to hear of the ends of partitions",
    "transactional.id": "each query and output has its own",
    "enable.idempotence": "records would be lost or repeated without",
}
"""Settings that a user cannot change, and why."""


class RepeatsFilter(logging.Filter):
    """Drops a message that is the same as one within ten seconds before it.

    A client that cannot connect says so many times a second.

    >>> seen = RepeatsFilter()
    >>> def passes(text, clock):
    ...     return seen.filter(logging.makeLogRecord({"msg": text, "created": clock}))
    >>> passes("b:1 refused (after 0ms)", 1.0), passes("b:1 refused (after 2ms)", 5.0)
    (True, False)
    >>> passes("b:2 refused (after 0ms)", 6.0), passes("b:1 refused (after 1ms)", 12.0)
    (True, True)
    """

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message passes."""
        text = record.getMessage().partition(" (after ")[0]
        if record.created - self._latest.get(text, -math.inf) < QUIET:
            return False
        if len(self._latest) >= 1000:
            self._latest.clear()
        self._latest[text] = record.created
        return True


_client_log = logging.getLogger("jeton.kafka.client")
_client_log.addFilter(RepeatsFilter())


class KafkaFailed(JetonError):
    """Kafka did not do what a source or a sink asked it for."""


def settings_of(servers: Any, config: Mapping[str, Any] | None, what: str) -> dict[str, Any]:
    """The settings that a user has given; an error if connectors rely on others.

    >>> settings_of("b:9092", {"auto.offset.reset": "earliest"}, "a source of Kafka")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: config= of a source of Kafka must not set 'auto.offset.reset': ...
    """
    if not isinstance(servers, str):
        raise GraphError(
            f"the servers of {what} are text, 'host:port' with commas between them, not "
            f"{checks.described(servers)}"
        )
    found = dict(config or {})
    for name, why in _RELIED_ON.items():
        if name in found:
            raise GraphError(f"config= of {what} must not set {name!r}: {why}")
    return found


def client(kind: str, servers: str, config: Mapping[str, Any], **settings: Any) -> Any:
    """A `Consumer` or a `Producer`, whose log goes to that of Python."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise GraphError(
            "Kafka needs the package confluent-kafka: pip install 'jeton[kafka]'"
        ) from error
    made = {"bootstrap.servers": servers, **settings, **config}
    try:
        return getattr(confluent_kafka, kind)(made, logger=_client_log)
    except confluent_kafka.KafkaException as error:
        raise GraphError(
            f"Kafka does not take the settings in config=: {described(error)}"
        ) from error


def consumer(servers: str, config: Mapping[str, Any], **settings: Any) -> Any:
    """A consumer that keeps no offsets with Kafka: checkpoints have them."""
    return client(
        "Consumer",
        servers,
        config,
        **{
            "group.id": "jeton",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # Records that were deleted before they were read are an error, not a jump.
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            **settings,
        },
    )


def described(error: Any) -> str:
    """An error of Kafka's in one line."""
    found = error.args[0] if getattr(error, "args", ()) else error
    return " ".join(str(found.str() if hasattr(found, "str") else found).split())
