"""Files of JSON lines: their last lines, and times that are texts."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

import jeton as jt
from jeton.cluster.worker_io import WorkerSources
from jeton.connectors.sources import Files
from jeton.runtime.agent import Agent
from tests.helpers import planned

NINE = datetime.datetime(2024, 5, 1, 9)


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2024-05-01T09:00:00", NINE),
        ("2024-05-01 09:00:00", NINE),
        ("2024-05-01T09:00:00Z", NINE),
        ("2024-05-01T09:00:00.250", NINE + datetime.timedelta(milliseconds=250)),
    ],
)
def test_times_of_json_lines(tmp_path: Path, text: str, time: datetime.datetime, end: str) -> None:
    (tmp_path / "one.json").write_text(f'{{"at": "{text}", "user": "ann"}}{end}')
    flow = jt.Flow("visits")
    schema = {"at": datetime.datetime, "user": str}
    flow.output("out", flow.input("visits", time="at", schema=schema))
    agent = Agent(flow)
    sources = {"visits": Files(tmp_path, format="json", end=True)}
    feed = WorkerSources(agent, sources, planned(sources))
    while not feed.ended:
        feed.read(busy=False)
    while agent.worker.has_work:
        agent.worker.step()
    [batch] = agent.worker.handles[flow.handle("output", "out")]
    assert batch.to_arrow().to_pylist() == [{"at": time, "user": "ann"}]


def test_a_last_line_without_an_end_is_read_without_a_schema(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"at": "2024-05-01T09:00:00", "n": 1}')
    reader = Files(tmp_path, format="json", end=True).open("0/1", None)
    records = reader.read()
    assert records is not None
    assert records.to_pylist() == [{"at": NINE, "n": 1}]
