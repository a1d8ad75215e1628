"""A Kafka cluster in this process, for tests and benchmarks: librdkafka's own mock.

It speaks Kafka's protocol on a port of this machine, so that clients in any process can use it.
Records of a partition are kept up to 5 MB or 100,000 of them. It takes transactions, but does not
isolate them: records of a transaction are visible before it is committed, and after it was aborted.
Nor does it refuse a producer whose transactional id another one has taken over.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from types import TracebackType
from typing import Any


class MockKafka:
    """A cluster of one broker.

    >>> with MockKafka({"words": 2}) as kafka:
    ...     from confluent_kafka import Producer
    ...
    ...     topics = Producer({"bootstrap.servers": kafka.servers}).list_topics(timeout=10).topics
    >>> len(topics["words"].partitions)
    2
    """

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        lib = self._lib = _library()
        text = ctypes.create_string_buffer(512)
        config = lib.rd_kafka_conf_new()
        lib.rd_kafka_conf_set(config, b"log_level", b"0", text, len(text))
        self._client = lib.rd_kafka_new(0, config, text, len(text))
        if not self._client:
            raise RuntimeError(f"librdkafka has no client: {text.value.decode()}")
        self._cluster = lib.rd_kafka_mock_cluster_new(self._client, 1)
        self.servers: str = lib.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        for name, partitions in (topics or {}).items():
            self.create(name, partitions)

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        error = self._lib.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)
        if error:
            raise RuntimeError(f"topic {topic!r} could not be created: error {error}")

    def close(self) -> None:
        """End the cluster."""
        if self._cluster:
            self._lib.rd_kafka_mock_cluster_destroy(self._cluster)
            self._lib.rd_kafka_destroy(self._client)
            self._cluster = None

    def __enter__(self) -> MockKafka:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _library() -> Any:
    """The library that the package confluent-kafka brings, with the functions used here."""
    import confluent_kafka  # loads it

    spec = importlib.util.find_spec("confluent_kafka")
    assert spec is not None
    assert spec.origin is not None
    assert confluent_kafka.libversion()
    folder = Path(spec.origin).parent.parent / "confluent_kafka.libs"
    [path] = folder.glob("librdkafka*.so*")
    lib = ctypes.CDLL(str(path))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set", number, [pointer, text, text, text, ctypes.c_size_t]),
        ("rd_kafka_new", pointer, [number, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, number]),
        ("rd_kafka_mock_cluster_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", number, [pointer, text, number, number]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib
