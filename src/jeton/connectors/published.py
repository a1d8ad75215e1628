"""Published: up to which version sinks have made the rows of a long-lived query visible.

That is marked beside the checkpoint. Marked rows belong to their readers: files may be moved or
deleted then, and the query does not need them again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from jeton.connectors.sinks import Sink, SinkContext
from jeton.connectors.waiting import Waiting
from jeton.core.errors import SnapshotError
from jeton.storage.earlier_formats import MARK
from jeton.storage.files import Files

if TYPE_CHECKING:
    from jeton.storage.version import Checkpoint


class Published:
    """The sinks of a query, at the driver.

    >>> import pyarrow as pa, tempfile
    >>> from jeton.storage.checkpoints import Checkpoints
    >>> from jeton.connectors.sinks import Parquet
    >>> store, sink = Checkpoints(tempfile.mkdtemp()), Parquet(tempfile.mkdtemp())
    >>> writer = sink.open(SinkContext("3f9a", worker=0))
    >>> writer.write(pa.table({"n": [1, 2]}))
    >>> made = store.commit(7, [], flow="f", meta={"sinks": {"rows": writer.stage(7)}})
    >>> published = Published(store.files, {"rows": sink})
    >>> published.begin("3f9a", 1)
    >>> published.show(made)
    >>> for name in sink.files.names(sink.path):
    ...     sink.files.remove(sink.path / name)
    >>> again = Published(store.files, {"rows": sink})
    >>> again.begin("3f9a", 2)
    >>> again.recover(made)  # they were there: that will do
    """

    def __init__(
        self,
        files: Files,
        sinks: Mapping[str, Sink],
        *,
        at_driver: bool = False,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """For sinks that workers write to, or for those ``at_driver``, which have own marks."""
        self._files = files
        self._folder = files.root / ("delivered" if at_driver else "shown")
        self._at_driver = at_driver
        self._sinks = dict(sinks)
        self._contexts = {name: SinkContext("", output=name, files=files) for name in self._sinks}
        for context in self._contexts.values() if wait is not None else ():
            assert wait is not None
            context.wait = wait

    @property
    def waiting(self) -> list[Waiting]:
        """The rows of committed versions that sinks have not taken."""
        return [context.waiting for context in self._contexts.values()]

    def begin(self, query: str, attempt: int) -> None:
        """An attempt at a query begins."""
        for context in self._contexts.values():
            context.query, context.attempt = query, attempt

    def show(self, made: Checkpoint, *, again: bool = True) -> None:
        """Make the rows of a version visible, and mark that it is done.

        ``again`` says whether another driver may have done so, in part.
        """
        staged = self._staged(made)
        for name, sink in self._sinks.items():
            context = self._contexts[name]
            context.again = again
            try:
                sink.commit(context, made.version, staged.get(name, []))
            finally:
                context.again = True
        if self._sinks:
            self._mark(made)

    def clean(self, made: Checkpoint) -> None:
        """Have sinks delete what was staged for a version, which is marked as published."""
        staged = self._staged(made)
        for name, sink in self._sinks.items():
            sink.clean(self._contexts[name], staged.get(name, []))

    def recover(self, found: Checkpoint | None) -> None:
        """Before an attempt: publish what a crash left unpublished, undo what goes beyond it."""
        if found is not None and not self._has(found):
            try:
                self.show(found)
            except Exception:
                # The previous holder of the lease may have done it meanwhile, and cleaned up.
                if not self._has(found):
                    raise
        # Only after that: several outputs may be in one place.
        for name, sink in self._sinks.items():
            sink.roll_back(self._contexts[name], 0 if found is None else found.version)

    def require_none_owed(self, found: Checkpoint, others: Collection[str]) -> None:
        """An error if outputs that now have sinks of another kind have unpublished rows."""
        if self._has(found):
            return
        owed = [name for name, items in self._staged(found).items() if items and name in others]
        if owed:
            kind = "at the driver, such as a Callback," if self._at_driver else "of the workers"
            raise SnapshotError(
                f"rows of version {found.version} in {self._files.root} were made for a sink "
                f"{kind} of outputs {owed}, which has not got them yet, and the sink of now "
                "cannot take them. Start the query with a sink as before, or, to do without these "
                "rows, with none for that output, until there is a new checkpoint"
            )

    # Inside

    def _staged(self, made: Checkpoint) -> dict[str, list[Any]]:
        """The staged rows for sinks of this kind; an output may have had another kind before."""
        at_driver = made.meta.get("at_driver", ())
        staged = made.meta["sinks"].items()
        return {name: items for name, items in staged if (name in at_driver) == self._at_driver}

    def _has(self, found: Checkpoint) -> bool:
        """Whether this version was published, or a later one.

        A later version of an earlier epoch proves nothing: it was given up before this one.
        """
        # Its own mark is looked for by name: a listing may leave out what is new.
        if any(map(self._files.exists, self._paths(found.version, found.epoch))):
            return True
        return any(v >= found.version and e >= found.epoch for v, e in self._marks())

    def _mark(self, made: Checkpoint) -> None:
        before, mark = self._marks(), (made.version, made.epoch)
        # Empty, so that it is there or not, and cannot be torn; twice, since a file may be lost.
        for path in self._paths(*mark):
            self._files.write(path, [])
        for other in before:
            # Not those of a successor, if this driver was stopped meanwhile.
            if (other[1], other[0]) < (made.epoch, made.version):
                for path in self._paths(*other):
                    self._files.delete(path)

    def _marks(self) -> set[tuple[int, int]]:
        found = map(MARK.fullmatch, self._files.names(self._folder))
        return {(int(match[1]), int(match[2])) for match in found if match is not None}

    def _paths(self, version: int, epoch: int) -> list[PurePosixPath]:
        name = f"{version:012d}-{epoch}"
        return [self._folder / name, self._folder / f"{name}.copy"]
