"""A long-lived count on Spark: workers read files as they appear; a restart resumes."""

import json
import tempfile
from pathlib import Path

import jeton as jt
from jeton.connectors import sinks, sources
from jeton.spark import local_session


def counts() -> jt.Flow:
    """How often each word has come so far."""
    flow = jt.Flow("counts")
    words = flow.input("words", schema={"time": int, "word": str})
    flow.output("counts", words.key_by("word").running().count())
    return flow


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    (folder / "in").mkdir()
    for number, words in enumerate([["to", "be", "or"], ["not", "to", "be"]]):
        rows = [json.dumps({"time": number, "word": word}) for word in words]
        (folder / "in" / f"{number}.json").write_text("\n".join(rows))
    query = counts().start(
        local_session(2),
        sources={"words": sources.Files(folder / "in", format="json", end=True)},
        sinks={"counts": sinks.Memory()},
        checkpoint=folder / "checkpoint",
        workers=2,
    )
    query.await_termination(60)
    query.table("counts").select("word", "count").orderBy("word", "count").show()
