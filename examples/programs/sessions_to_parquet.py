"""Visits from JSON files on Spark: sessions to Parquet, late clicks to files of their own."""

import json
import os
import tempfile
from pathlib import Path

import jeton as jt
from jeton.spark import local_session
from jeton.spark.streaming import parquet_writer


def visits(schema) -> jt.Flow:
    """A visit ends when its user has not clicked for 30 seconds."""
    flow = jt.Flow("visits")
    clicks = flow.input("clicks", time="at", schema=schema, lateness="10s")
    flow.output("visits", clicks.key_by("user").session_window("30s").count(name="clicks"))
    flow.output("late", clicks.late)
    return flow


if __name__ == "__main__":
    inbox, folder = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    files = [["00:05 ann", "00:20 ann", "01:40 bob"], ["00:15 ann", "01:50 bob"], ["09:00 eve"]]
    for number, clicks in enumerate(files):
        path = inbox / f"{number}.json"
        rows = [{"at": f"2024-05-06 10:{click[:5]}", "user": click[6:]} for click in clicks]
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (number, number))  # Spark reads the oldest file first
    spark = local_session(2)
    source = spark.readStream.schema("at timestamp, user string").option("maxFilesPerTrigger", 1)
    stream = source.json(str(inbox))
    frames = visits(stream.schema).on_spark({"clicks": stream}, workers=2)
    writers = {name: parquet_writer(folder / name) for name in ("visits", "late")}
    frames.write_stream(
        writers, checkpoint=folder / "checkpoint", trigger={"availableNow": True}
    ).awaitTermination()
    for name in writers:
        spark.read.parquet(str(folder / name)).drop("batch").orderBy("user").show()
