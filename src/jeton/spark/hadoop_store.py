"""Hadoop's file systems, for stores that only Java can reach: HDFS, ViewFs and others.

The driver calls the FileSystem of its session's JVM. Workers have no way to that of their executor,
so each starts a small JVM of its own when it first needs one, with the jars of Spark and the
settings of the session; it ends with the worker. Larger files pass through a temporary file, since
Py4J is slow with bytes.
"""

from __future__ import annotations

import atexit
import glob
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from secrets import token_hex
from tempfile import NamedTemporaryFile
from typing import Any, Final

import pyarrow as pa

from jeton.storage import store_settings
from jeton.storage.local_store import UNREADY, link, refusal
from jeton.storage.store import FileInfo, Store, StoreRefused
from jeton.storage.store_settings import StoreSettings

log = logging.getLogger(__name__)

INLINE: Final = 64 << 10
"""Bytes up to which a file passes through Py4J itself."""
ATOMIC: Final = ("hdfs", "webhdfs", "swebhdfs", "ofs", "o3fs", "abfs", "abfss")
"""Schemes whose rename is one step that fails if the new name is taken."""
_JAVA_OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_REFUSALS: Final = (
    "AccessControlException",
    "AccessDeniedException",
    "UnsupportedFileSystemException",
    "UnknownHostException",
    "NotInMountpointException",
    "ParentNotDirectoryException",
    "KerberosAuthException",
)
_MISSING: Final = ("FileNotFoundException", "NoSuchFileException")
_TAKEN: Final = "FileAlreadyExistsException"


class HadoopStore(Store):
    """A file system of Hadoop's, by its scheme and authority.

    >>> import tempfile
    >>> store, folder = HadoopStore("file", ""), PurePosixPath(tempfile.mkdtemp())
    >>> store.write(folder / "a" / "first.txt", [b"here"])
    >>> store.read(folder / "a" / "first.txt"), store.names(folder / "a")
    (b'here', ['first.txt'])
    """

    def __init__(self, scheme: str, authority: str) -> None:
        self.scheme = scheme
        self.authority = authority

    def __repr__(self) -> str:
        return f"<HadoopStore {self.scheme}://{self.authority}>"

    def uri(self, path: PurePosixPath) -> str:
        """A path with its scheme and authority."""
        return f"{self.scheme}://{self.authority}{path}"

    def names(self, folder: PurePosixPath) -> list[str]:
        """The names of all files in a folder."""
        return [str(each.getPath().getName()) for each in self._listed(folder) if each.isFile()]

    def folders(self, folder: PurePosixPath) -> list[str]:
        """The names of all folders in a folder."""
        return [
            str(each.getPath().getName()) for each in self._listed(folder) if each.isDirectory()
        ]

    def is_folder(self, path: PurePosixPath) -> bool:
        """Whether there is a folder, which may be empty."""
        try:
            with self._clear("look at", path):
                return bool(self._fs.getFileStatus(self._path(path)).isDirectory())
        except FileNotFoundError:
            return False

    def info(self, path: PurePosixPath) -> FileInfo | None:
        """The properties of a file."""
        try:
            with self._clear("look at", path):
                found = self._fs.getFileStatus(self._path(path))
                if not found.isFile():
                    return None
                when = datetime.fromtimestamp(found.getModificationTime() / 1e3, UTC)
                return FileInfo(int(found.getLen()), when)
        except FileNotFoundError:
            return None

    def read(self, path: PurePosixPath) -> bytes:
        """All bytes of a file."""
        with self._clear("read", path):
            size = int(self._fs.getFileStatus(self._path(path)).getLen())
        return bytes(self.read_at(path, 0, size))

    def read_at(self, path: PurePosixPath, start: int, size: int) -> pa.Buffer:
        """Some bytes of a file: fewer if it is shorter."""
        with self._clear("read", path):
            place = self._path(path)
            size = min(size, int(self._fs.getFileStatus(place).getLen()) - start)
            if size <= 0:
                return pa.py_buffer(b"")
            source = self._fs.open(place)
            try:
                source.seek(start)
                if size <= INLINE:
                    return pa.py_buffer(source.readNBytes(size))
                with NamedTemporaryFile(prefix="jeton-") as spool:
                    java = self._hadoop.jvm
                    target = java.java.io.FileOutputStream(spool.name)
                    try:
                        java.org.apache.commons.io.IOUtils.copyLarge(source, target, 0, size)
                    finally:
                        target.close()
                    return pa.py_buffer(spool.read())
            finally:
                source.close()

    def write(self, path: PurePosixPath, buffers: Sequence[Any]) -> None:
        """Write a file, and have it written to disks."""
        with self._clear("write", path):
            java = self._hadoop.jvm
            target = self._fs.create(self._path(path), True)
            try:
                if sum(memoryview(buffer).nbytes for buffer in buffers) <= INLINE:
                    target.write(b"".join(map(bytes, buffers)))
                else:
                    with NamedTemporaryFile(prefix="jeton-") as spool:
                        for buffer in buffers:
                            spool.write(buffer)
                        spool.flush()
                        source = java.java.io.FileInputStream(spool.name)
                        try:
                            java.org.apache.commons.io.IOUtils.copyLarge(source, target)
                        finally:
                            source.close()
                target.hsync()
            finally:
                target.close()

    def put(self, path: PurePosixPath, data: bytes) -> None:
        """Create a file under another name, and rename it, which fails if the name is taken."""
        unready = path.with_name(f"{path.name}.{token_hex(4)}{UNREADY}")
        self.write(unready, [data])
        try:
            with self._clear("create", path):
                real = self._fs.resolvePath(self._path(unready)).toUri()
            if real.getScheme() == "file":
                # Of Java's rename on a disk, two can succeed: a hard link is made once.
                beside = PurePosixPath(real.getPath())
                link(beside, beside.with_name(path.name))
            elif real.getScheme() in ATOMIC:
                self._rename_once(unready, path, data)
            else:
                raise refusal(self.uri(path.parent), f"Hadoop's {real.getScheme()}:")
        finally:
            with suppress(OSError):
                self.remove(unready)

    def move(self, path: PurePosixPath, to: PurePosixPath) -> None:
        """Rename a file."""
        try:
            self._rename(path, to, "OVERWRITE")
        except FileNotFoundError:
            if self.info(to) is None:
                raise

    def remove(self, path: PurePosixPath) -> None:
        """Delete a file."""
        with self._clear("delete", path):
            self._fs.delete(self._path(path), False)

    # Inside

    @property
    def _hadoop(self) -> _Hadoop:
        return _Hadoop.of(self.scheme)

    @property
    def _fs(self) -> Any:
        hadoop = self._hadoop
        uri = hadoop.jvm.java.net.URI(f"{self.scheme}://{self.authority}/")
        return hadoop.jvm.org.apache.hadoop.fs.FileSystem.get(uri, hadoop.conf)

    def _path(self, path: PurePosixPath) -> Any:
        # From its parts, so that nothing in it is taken for a quotation.
        authority = self.authority or None
        return self._hadoop.jvm.org.apache.hadoop.fs.Path(self.scheme, authority, str(path))

    def _listed(self, folder: PurePosixPath) -> list[Any]:
        try:
            with self._clear("list", folder):
                return list(self._fs.listStatus(self._path(folder)))
        except FileNotFoundError:
            return []

    def _rename_once(self, path: PurePosixPath, to: PurePosixPath, data: bytes) -> None:
        """Rename a file unless the name is taken: then `FileExistsError`."""
        try:
            self._rename(path, to, "NONE")
        except FileExistsError:
            raise FileExistsError(f"{self.uri(to)} is there already") from None
        except OSError:
            # It may have been carried out although the answer was lost.
            if self.info(path) is not None or self.info(to) is None or self.read(to) != data:
                raise

    def _rename(self, path: PurePosixPath, to: PurePosixPath, option: str) -> None:
        with self._clear("rename", path):
            hadoop = self._hadoop
            fs = hadoop.jvm.org.apache.hadoop.fs
            uri = hadoop.jvm.java.net.URI(f"{self.scheme}://{self.authority}/")
            kind = fs.Options.Rename
            options = hadoop.gateway.new_array(kind, 1)
            options[0] = getattr(kind, option)
            context = fs.FileContext.getFileContext(uri, hadoop.conf)
            context.rename(self._path(path), self._path(to), options)

    @contextmanager
    def _clear(self, act: str, path: PurePosixPath) -> Iterator[None]:
        """Java's errors as those of files."""
        from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

        try:
            yield
        except Py4JJavaError as error:
            kind = str(error.java_exception.getClass().getSimpleName())
            text = str(error.java_exception.getMessage()).partition("\n")[0]
            where = self.uri(path)
            if kind in _MISSING:
                raise FileNotFoundError(f"{where} is not there") from None
            if kind == _TAKEN:
                raise FileExistsError(f"{where} is there already") from None
            if kind in _REFUSALS:
                raise StoreRefused(
                    f"{where}: Hadoop refused to {act} it: {kind}: {text}. Mend the path, the "
                    "rights, or spark.hadoop.fs.* of the session"
                ) from None
            raise OSError(f"{where}: Hadoop failed to {act} it: {kind}: {text}") from None
        except Py4JError as error:
            raise OSError(f"{self.uri(path)}: Java did not answer: {error}") from None


class _Hadoop:
    """Hadoop's classes in a JVM, and the configuration for them."""

    _current: _Hadoop | None = None
    _lock = threading.Lock()

    def __init__(self, gateway: Any, conf: Any, settings: StoreSettings) -> None:
        self.gateway = gateway
        self.jvm = gateway.jvm
        self.settings = settings
        made = self.jvm.org.apache.hadoop.conf.Configuration
        self.conf = made() if conf is None else made(conf)
        for key, value in settings.values.items():
            self.conf.set(key, value)

    @classmethod
    def of(cls, scheme: str) -> _Hadoop:
        """That of this process: the session's at the driver, one of its own elsewhere."""
        from pyspark import SparkContext

        context: Any = SparkContext._active_spark_context
        settings = store_settings.current()
        with cls._lock:
            gateway = _own_gateway(scheme) if context is None else context._gateway
            found = cls._current
            if found is None or found.gateway is not gateway or found.settings != settings:
                conf = None if context is None else context._jsc.hadoopConfiguration()
                found = cls._current = cls(gateway, conf, settings)
            return found


_own: tuple[int, Any] | None = None
"""The process that has started a JVM of its own, and the way to it."""


def _own_gateway(scheme: str) -> Any:
    global _own
    # A forked process must not use the connections of the one that it came from.
    if _own is None or _own[0] != os.getpid():
        _own = os.getpid(), _launch(scheme)
    return _own[1]


def _launch(scheme: str) -> Any:
    """Start a JVM that ends with this process."""
    from py4j.java_gateway import (  # type: ignore[import-untyped]
        GatewayParameters,
        JavaGateway,
        launch_gateway,
    )

    classpath, java = _classpath(), _java()
    jars = [jar for jar in glob.glob(classpath) if "py4j" in os.path.basename(jar)]
    if java is None or not classpath or not (jars or ":" in classpath):
        raise StoreRefused(
            f"{scheme}: is reached through Java, but this process on {os.uname().nodename} finds "
            f"{'no Java' if java is None else 'no jars of Spark'}: set JAVA_HOME and SPARK_HOME "
            "for the executors (spark.executorEnv.…), or use a store that needs no Java "
            "(s3:, gs:, abfs:)"
        )
    configured = os.environ.get("HADOOP_CONF_DIR")
    port, token = launch_gateway(
        jarpath=jars[0] if jars else classpath.split(":")[0],
        classpath=f"{configured}:{classpath}" if configured else classpath,
        java_path=java,
        javaopts=list(_JAVA_OPTIONS),
        die_on_exit=True,
        enable_auth=True,
    )
    log.info("process %d started a JVM of its own for %s:", os.getpid(), scheme)
    parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
    gateway = JavaGateway(gateway_parameters=parameters)
    atexit.register(gateway.shutdown, raise_exception=False)
    return gateway


def _classpath() -> str:
    """The jars of Spark: beside PySpark, or those that the executor of this worker has."""
    import pyspark

    for home in (os.environ.get("SPARK_HOME"), os.path.dirname(pyspark.__file__)):
        if home and glob.glob(f"{home}/jars/py4j-*.jar"):
            return f"{home}/jars/*"
    for process in _ancestors():
        with suppress(OSError, ValueError, IndexError):
            words = Path(f"/proc/{process}/cmdline").read_text().split("\0")
            for option in ("-cp", "-classpath"):
                if option in words:
                    return words[words.index(option) + 1]
        with suppress(OSError):
            for entry in Path(f"/proc/{process}/environ").read_text().split("\0"):
                if entry.startswith("CLASSPATH="):
                    return entry.removeprefix("CLASSPATH=")
    return ""


def _java() -> str | None:
    """A `java` command: of the environment, or that of the executor of this worker."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(f"{home}/bin/java", os.X_OK):
        return f"{home}/bin/java"
    if (found := shutil.which("java")) is not None:
        return found
    for process in _ancestors():
        with suppress(OSError):
            command = os.readlink(f"/proc/{process}/exe")
            if os.path.basename(command) == "java":
                return command
    return None


def _ancestors() -> list[int]:
    """The processes that this one descends from; an executor is the parent of its daemon."""
    found = [os.getppid()]
    with suppress(OSError, ValueError, IndexError):
        while len(found) < 4 and found[-1] > 1:
            stat = Path(f"/proc/{found[-1]}/stat").read_text()
            found.append(int(stat.rpartition(")")[2].split()[1]))
    return found
