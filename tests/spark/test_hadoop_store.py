"""Hadoop's FileSystem as a store: through the session's JVM, and through one of our own."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from secrets import token_hex

import pytest
from pyspark.sql import SparkSession

from jeton.errors import NoAtomicCreate, StoreRefused
from jeton.spark import hadoop_store, store_access
from jeton.spark.hadoop_store import INLINE, HadoopStore
from jeton.storage import store_settings
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.files import Files
from jeton.storage.stores import store_of
from tests.storage.racing import races
from tests.storage.stored_rows import newest, read, write
from tests.storage.webhdfs_server import NameNode, webhdfs_server


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path) -> Iterator[HadoopStore]:
    """A file system with a mount of a folder."""
    before, name = store_settings.current(), f"mount{token_hex(4)}"
    key = f"fs.viewfs.mounttable.{name}.link./data"
    spark.conf.set(key, tmp_path.as_uri())
    store_access.adopt(spark)
    yield HadoopStore("viewfs", name)
    spark.conf.unset(key)
    store_settings.use(before)


DATA = PurePosixPath("/data")


@pytest.mark.parametrize("size", [0, 5, INLINE, INLINE + 1, 3 * INLINE])
def test_files_are_what_was_written(store: HadoopStore, tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    path = DATA / "ü b" / "50% #1?.bin"
    store.write(path, [content[:3], memoryview(content)[3:size]] if size else [])
    assert store.read(path) == content[:size]
    assert (tmp_path / "ü b" / path.name).read_bytes() == content[:size]
    assert store.names(path.parent) == [path.name]
    assert store.folders(DATA) == ["ü b"]
    assert store.is_folder(path.parent)
    assert not store.is_folder(path)
    info = store.info(path)
    assert info is not None
    assert info.size == size
    for start, length in ((0, 2), (1, size), (size, 1), (size + 10, 4)):
        assert store.read_at(path, start, length) == content[:size][start : start + length]
    with store.local_copy(path) as copy:
        assert Path(copy).read_bytes() == content[:size]
    for _ in range(2):
        store.remove(path)
    assert store.info(path) is None
    assert store.names(path.parent) == []
    assert store.names(DATA / "nowhere") == []
    with pytest.raises(FileNotFoundError, match=r"50% #1\?\.bin is not there"):
        store.read(path)


def test_a_file_moves_whole_and_once(store: HadoopStore) -> None:
    store.write(DATA / "a", [b"before"])
    store.write(DATA / ".a", [b"here"])
    for _ in range(2):
        store.move(DATA / ".a", DATA / "a")
    assert store.read(DATA / "a") == b"here"
    store.remove(DATA / "a")
    with pytest.raises(FileNotFoundError):
        store.move(DATA / ".a", DATA / "a")


def test_of_all_that_create_a_file_one_succeeds(store: HadoopStore, tmp_path: Path) -> None:
    won: list[int] = []
    barrier = threading.Barrier(4)

    def run(me: int) -> None:
        for number in range(5):
            barrier.wait()
            try:
                store.put(DATA / str(number), f"{me} {number}".encode())
            except FileExistsError:
                continue
            won.append(number)

    threads = [threading.Thread(target=run, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [0, 1, 2, 3, 4]
    assert sorted(store.names(DATA)) == ["0", "1", "2", "3", "4"]


def test_a_rename_for_hdfs_fails_if_the_name_is_taken(store: HadoopStore) -> None:
    """The call that HDFS carries out in one step."""
    for name, text in (("a", b"one"), ("b", b"two")):
        store.write(DATA / f".{name}", [text])
    store._rename_once(DATA / ".a", DATA / "entry", b"one")
    with pytest.raises(FileExistsError, match="/data/entry is there already"):
        store._rename_once(DATA / ".b", DATA / "entry", b"two")
    assert store.read(DATA / "entry") == b"one"
    # An answer that was lost: it is there under its new name.
    store._rename_once(DATA / ".a", DATA / "entry", b"one")


@pytest.fixture
def name_node(spark: SparkSession) -> Iterator[tuple[str, NameNode]]:
    """A cluster with HDFS's rename, which only Java can reach: its address, and its files."""
    before = store_settings.current()
    with webhdfs_server() as found:
        store_access.adopt(spark)
        yield found
    store_settings.use(before)


def test_files_of_a_name_node(name_node: tuple[str, NameNode]) -> None:
    root, node = name_node
    files = Files(f"{root}/data")
    place = files.root / "ü b" / "1.bin"
    for content in (b"", b"one", b"x" * (2 * INLINE)):
        files.write(place, [content])
        assert files.read(place) == node.read(place) == content
    assert files.names(place.parent) == ["1.bin"]
    assert files.folders(files.root) == ["ü b"]
    files.move(place, files.root / "2.bin")
    assert node.read(files.root / "2.bin") == content
    files.put(files.root / "a", b"mine")
    with pytest.raises(FileExistsError, match="/data/a is there already"):
        files.put(files.root / "a", b"yours")
    assert node.read(files.root / "a") == b"mine"
    assert sorted(files.names(files.root)) == ["2.bin", "a"]
    with pytest.raises(StoreRefused, match="/data/a is a file"):
        files.write(files.root / "a" / "b", [b""])


def test_of_all_that_rename_a_file_one_succeeds(name_node: tuple[str, NameNode]) -> None:
    root, node = name_node
    barrier, won = threading.Barrier(4), list[int]()

    def run(me: int) -> None:
        files = Files(f"{root}/data")
        for number in range(10):
            barrier.wait()
            try:
                files.put(files.root / str(number), f"{me} {number}".encode())
            except FileExistsError:
                continue
            won.append(number)

    threads = [threading.Thread(target=run, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(10))
    assert node.renames == 10


@pytest.mark.parametrize("times", [2, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("where", ["name node", "disk"])
def test_of_two_drivers_one_wins(
    store: HadoopStore, name_node: tuple[str, NameNode], where: str, times: int
) -> None:
    root = name_node[0] if where == "name node" else store.uri(DATA)
    superseded = races(f"{root}/races", times)
    if times > 50:
        print(f"{times} races, {superseded} superseded, {where}: {name_node[1].refused} refused")
        assert superseded


def test_stores_without_an_atomic_rename_are_refused(
    store: HadoopStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere(HadoopStore):
        """As if what is mounted were another store."""

        _fs = property(lambda self: Resolving(super()._fs))

    class Resolving:
        def __init__(self, fs: object) -> None:
            self._fs = fs

        def __getattr__(self, name: str) -> object:
            return getattr(self._fs, name)

        def resolvePath(self, path: object) -> object:
            return store._hadoop.jvm.org.apache.hadoop.fs.Path("s3n://bucket/x")

    elsewhere = Elsewhere(store.scheme, store.authority)
    with pytest.raises(NoAtomicCreate, match="Hadoop's s3n: cannot create a file only if"):
        elsewhere.put(DATA / "a", b"")
    assert store.names(DATA) == []


def test_what_hadoop_refuses_is_said(spark: SparkSession) -> None:
    store_access.adopt(spark)
    for uri, text in (
        ("nosuch://host/path", "UnsupportedFileSystemException"),
        (f"viewfs://{token_hex(4)}/path", "Hadoop"),
    ):
        files = Files(uri)
        with pytest.raises((StoreRefused, OSError), match=text):
            files.names(files.root)


def test_checkpoints_are_committed(store: HadoopStore, tmp_path: Path) -> None:
    path = f"viewfs://{store.authority}/data/checkpoint"
    write(Checkpoints(path), 1, {1: 1, 2: 2})
    write(Checkpoints(path), 2, {1: 5})
    assert read(newest(Checkpoints(path))) == {1: 5}
    assert read(newest(Checkpoints(tmp_path / "checkpoint"))) == {1: 5}


def test_a_process_without_a_session_starts_a_jvm_that_ends_with_it(tmp_path: Path) -> None:
    """As a worker does; it is killed, so that it cannot tidy up."""
    program = f"""
import os, signal, sys
from pathlib import PurePosixPath
from jeton.spark.store_access import use
from jeton.storage.files import Files
from jeton.storage.store_settings import StoreSettings
use(StoreSettings({{"fs.viewfs.mounttable.own.link./data": {tmp_path.as_uri()!r}}}))
files = Files("viewfs://own/data")
files.write(files.root / "a", [b"x" * {2 * INLINE}])
print(len(files.read(files.root / "a")), flush=True)
os.system(f"pgrep -P {{os.getpid()}} java")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    length, java = done.stdout.split()
    assert int(length) == 2 * INLINE
    gone = threading.Event()
    for _ in range(600):
        if not Path(f"/proc/{java}").exists():
            break
        gone.wait(0.1)
    assert not Path(f"/proc/{java}").exists()


def test_a_machine_without_java_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(StoreRefused, match=r"hdfs: is reached through Java, .* finds no Java"):
        hadoop_store._launch("hdfs")


def test_paths_of_databricks_are_mounts_where_there_are_mounts() -> None:
    assert repr(store_of("dbfs:/tmp/x")) == "<HadoopStore dbfs://>"
