"""Rollback of a streaming query by one micro-batch, when its newest state is damaged."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from jeton.core.errors import SnapshotError
from jeton.spark.internals import skips_repeated_batches
from jeton.spark.query_location import QueryLocation, folder_of
from jeton.spark.query_log import QueryLog
from jeton.spark.store_access import adopt_active
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.chunk_format import CorruptCheckpoint

log = logging.getLogger(__name__)


def roll_back(
    checkpoint: str | os.PathLike[str],
    *,
    flow: str | None = None,
    state: str | os.PathLike[str] | None = None,
) -> int | None:
    """Return a stopped query to the state before its last micro-batch, if the newest is damaged.

    Spark then runs the last micro-batch again, with the same rows, and hands it to the sink again:
    with writers that overwrite a micro-batch, as `parquet_writer` does, every row is there once.
    Returns that micro-batch, or nothing if all is well.

    Args:
        checkpoint: The query's checkpoint location.
        flow: The flow to look after; by default all that ran in the last micro-batch.
        state: Where the state is, if ``on_spark`` had ``checkpoint=``.

    `SnapshotError` if it cannot be mended so: the state is lost further back; the sink leaves out
    micro-batches that it has, as Spark's file sink does; or the sink may have the next micro-batch
    already, of which Spark does not know, so that it would be planned anew with other rows.

    >>> import tempfile
    >>> roll_back(tempfile.mkdtemp()) is None
    True
    """
    checkpoint = os.fspath(checkpoint)
    adopt_active()
    spark_log = QueryLog(checkpoint)
    done = max(spark_log.done, default=-1)
    query = spark_log.query
    if done < 0 or query is None:
        return None
    location = QueryLocation(checkpoint, None if state is None else os.fspath(state), query)
    stores = location.stores()
    damaged = [
        store
        for store in _looked_after(stores, flow, done)
        if not _is_well(store, spark_log, done, checkpoint)
    ]
    if not damaged:
        return None
    for store in damaged:
        if skips_repeated_batches(_sink_of(store)):
            raise SnapshotError(
                f"the state after micro-batch {done} in {store.root} is damaged. The query's sink "
                "has that micro-batch and leaves it out if it comes again, so that the flow would "
                "not run: start anew with another checkpoint location and another folder of the "
                "sink"
            )
    unfinished = [batch for batch in spark_log.planned if batch > done]
    for store in stores.values():
        run = sorted({*unfinished} & {*store.versions()})
        if run:
            raise SnapshotError(
                f"the state after micro-batch {done} in {checkpoint} is damaged, but micro-batch "
                f"{run[0]} has been run, so that the sink may have it although Spark does not know "
                "that. Spark would plan it anew, with other rows: start anew with another "
                "checkpoint location"
            )
    log.warning("the query in %s goes back: it does micro-batch %d again", checkpoint, done)
    # The flow has not got through these, so that no sink has them: they can be planned anew.
    for batch in unfinished:
        spark_log.forget_plan(batch)
    spark_log.forget_end(done)
    return done


def _looked_after(
    stores: Mapping[str, Checkpoints], flow: str | None, done: int
) -> list[Checkpoints]:
    """The state that has to be well for the query to go on."""
    if flow is not None:
        own = stores.get(folder_of(flow))
        return [] if own is None else [own]
    # Folders of flows that the query had once do not matter.
    took_part = [store for store in stores.values() if done in store.versions()]
    return took_part or list(stores.values())


def _is_well(store: Checkpoints, spark_log: QueryLog, done: int, checkpoint: str) -> bool:
    """Whether the next micro-batch has what it needs; an error if not even the last one has."""
    try:
        found = store.latest(below=done + 1)
    except CorruptCheckpoint:
        found = None
    whole = -1 if found is None else found.version
    newest = max((version for version in store.versions() if version <= done), default=-1)

    def nothing_since(end: int) -> bool:
        return all(spark_log.brought_nothing(batch) for batch in range(whole + 1, end))

    if newest == whole and nothing_since(done + 1):
        return True
    if nothing_since(done):
        return False
    least = "none" if whole < 0 else f"only that after micro-batch {whole}"
    raise SnapshotError(
        f"of the state after micro-batch {done} in {checkpoint} {least} is whole, which is too far "
        "back for Spark to do the rest again: start anew with another checkpoint location"
    )


def _sink_of(store: Checkpoints) -> str:
    """The sink that a version was made for, as the newest manifest has it that can be read."""
    for version in sorted(store.versions(), reverse=True):
        try:
            return str(store.load(version).meta.get("sink", ""))
        except CorruptCheckpoint:
            continue
    return ""
