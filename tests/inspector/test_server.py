"""The server of pages: who gets an answer, and what the buttons do."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import pytest

import jeton as jt
from jeton.runtime.in_process import Run
from tests.inspector.driven import driven, stuck


def ask(
    url: str, path: str = "", *, method: str = "GET", body: Any = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    text = None if body is None else json.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, parts.path + path, text, named)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), {k.lower(): v for k, v in answer.getheaders()}
    connection.close()
    return found


def act(url: str, button: str, **arguments: Any) -> tuple[int, Any]:
    status, text, _ = ask(
        url,
        "act",
        method="POST",
        body={"act": button, "arguments": arguments},
        content_type="application/json",
    )
    return status, json.loads(text)


@pytest.fixture
def run() -> Any:
    flow = jt.Flow("echo")
    flow.output("out", flow.input("in", lateness=0).map(lambda batch: batch))
    with flow.open(workers=2) as run:
        yield run


def test_a_page_needs_its_secret(run: Run) -> None:
    url = run.inspect()
    status, text, headers = ask(url)
    assert (status, "<!doctype html>" in text) == (200, True)
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
    root = url.removesuffix(url.rsplit("/", 2)[1] + "/")
    for path in ("", "nothing/", f"{url.rsplit('/', 2)[1][:-1]}x/", "nothing/metrics"):
        assert ask(root + path)[0] == 404
    for path in ("graph", "snapshot", "metrics"):
        assert ask(url, path)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil", ""])
def test_a_request_that_names_another_host_is_refused(run: Run, host: str) -> None:
    assert ask(run.inspect(), Host=host)[0] == 404


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "[::1]:80", "127.0.0.1"])
def test_names_of_this_machine_are_welcome(run: Run, host: str) -> None:
    assert ask(run.inspect(), Host=host)[0] == 200


def test_acts_are_posts_of_the_page_itself(run: Run) -> None:
    url = run.inspect()
    body = {"act": "why", "arguments": {}}
    post: dict[str, Any] = {"method": "POST", "body": body}
    assert ask(url, "act")[0] == 405
    assert ask(url, "act", **post, content_type="text/plain")[0] == 400
    other = {"content_type": "application/json", "origin": "http://evil.example"}
    assert ask(url, "act", **post, **other)[0] == 400
    own = {"content_type": "application/json", "origin": url[: url.index("/", 8)]}
    assert ask(url, "act", **post, **own)[0] == 200
    assert ask(url, "act", method="POST", body=["why"], content_type="application/json")[0] == 400
    long = {"act": "why", "arguments": {"name": "x" * 100_000}}
    assert ask(url, "act", method="POST", body=long, content_type="application/json")[0] == 400


def test_buttons_say_why_they_cannot_be_used(run: Run) -> None:
    url = run.inspect()
    run.monitor.look()
    reasons = json.loads(ask(url, "snapshot")[1])["reasons"]
    assert reasons["why"] is None
    assert reasons["checkpoint"] == "it takes no checkpoints"
    assert act(url, "checkpoint") == (409, {"error": "checkpoint: it takes no checkpoints"})
    status, answer = act(url, "dance")
    assert (status, "there is no button 'dance'" in answer["error"]) == (409, True)
    status, answer = act(url, "pause", at="noon")
    assert (status, "neither an integer nor a timestamp" in answer["error"]) == (409, True)


def test_why_pause_step_and_resume(run: Run) -> None:
    url = run.inspect()
    run.input("in", worker=0).send({"time": [3], "n": [1]})
    run.input("in", worker=1).advance_to(100)
    run.run_to_rest()
    _, answer = act(url, "why", name="out")
    assert answer["places"][0]["holders"][0]["what"] == "input"
    assert act(url, "pause", at="5") == (200, {"text": "paused at 5"})
    run.input("in", worker=0).send({"time": [4, 7, 9], "n": [2, 3, 4]})
    run.run_to_rest()
    assert run.results()["out"]["n"].to_pylist() == [1, 2]
    _, held = act(url, "in_flight")
    assert [row[held["columns"].index("rows")] for row in held["rows"]] == ["2"]
    assert act(url, "step") == (200, {"text": "paused at 7"})
    assert act(url, "step", at="8") == (200, {"text": "paused at 8"})
    assert run.results()["out"]["n"].to_pylist() == [1, 2, 3]
    assert act(url, "resume")[0] == 200
    run.run_to_rest()
    assert run.results()["out"]["n"].to_pylist() == [1, 2, 3, 4]


def test_the_page_of_a_run_ends_with_it(run: Run) -> None:
    url = run.inspect()
    assert run.inspect() == url
    run.close()
    assert ask(url)[0] == 404


def test_snapshots_stream_while_another_thread_drives_the_run() -> None:
    with driven(stuck()) as run:
        parts = urlsplit(run.inspect())
        connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        connection.request("GET", parts.path + "events")
        answer = connection.getresponse()
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        snapshots: list[dict[str, Any]] = []
        while not snapshots or snapshots[-1]["frontiers"]["means"]["value"] in (None, 0.0):
            line = answer.readline().decode()
            if line.startswith("data: {"):
                snapshots.append(json.loads(line[6:]))
        answer.close()
        connection.close()
        last = snapshots[-1]
        assert [each["name"] for each in last["operators"]][:2] == ["readings", "mean"]
        assert len(last["workers"]) == 2


def test_names_are_escaped_in_the_picture() -> None:
    flow = jt.Flow("<script>")
    flow.output("</text><script>alert(1)</script>", flow.input("a & b"))
    with flow.open() as run:
        graph = json.loads(ask(run.inspect(), "graph")[1])
    assert "<script" not in graph["svg"]
    assert "a &amp; b" in graph["svg"]


def test_prometheus_reads_the_metrics() -> None:
    flow = jt.Flow("counts")
    flow.output("out", flow.input("in", lateness=0).key_by("n").running().count())
    with flow.open() as run:
        url = run.inspect()
        run.input("in").send({"time": [3, 7], "n": [1, 1]})
        run.run_to_rest()
        run.monitor.look()
        status, text, headers = ask(url, "metrics")
    assert (status, headers["content-type"].startswith("text/plain; version=0.0.4")) == (200, True)
    lines = text.splitlines()
    assert 'jeton_rows_in_total{query="counts",worker="0"} 2' in lines
    assert 'jeton_frontier{query="counts",place="out"} 7' in lines
    assert 'jeton_operator_records_in_total{query="counts",worker="0",operator="count"} 2' in lines


def test_pages_share_one_server_at_one_address() -> None:
    flow = jt.Flow("echo")
    flow.output("out", flow.input("in"))
    with flow.open() as one, flow.open() as other, flow.open() as third:
        first, second = urlsplit(one.inspect()), urlsplit(other.inspect())
        assert first.netloc == second.netloc
        assert first.path != second.path
        elsewhere = urlsplit(third.inspect(host="localhost"))
        assert elsewhere.port != first.port
        assert ask(third.inspect())[0] == 200


def test_without_the_extra_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "import jeton as jt\n"
        "flow = jt.Flow('f'); flow.output('o', flow.input('i'))\n"
        "with flow.open() as run:\n"
        "    run.inspect()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "the live page needs uvicorn, which is not installed: pip install 'jeton[inspect]'" in (
        done.stderr
    )
