"""Kafka: what its source and its sinks share: clients, and words for their errors."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Final

from jeton.core.errors import GraphError, JetonError

log = logging.getLogger("jeton.kafka")

TIMEOUT: Final = 30.0
"""Seconds for one question to the brokers."""

QUIET: Final = 10.0
"""Seconds for which the same message is not logged again."""


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


def client(kind: str, servers: str, config: Mapping[str, Any], **settings: Any) -> Any:
    """A `Consumer` or a `Producer`, whose log goes to that of Python."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise GraphError(
            "Kafka needs the package confluent-kafka: pip install 'jeton[kafka]'"
        ) from error
    made = {"bootstrap.servers": servers, **settings, **config}
    return getattr(confluent_kafka, kind)(made, logger=_client_log)


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
