"""The server of pages: who gets an answer, and what the buttons do."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import pytest

import jeton as jt
from jeton.inspector.prometheus import exposition
from jeton.runtime.in_process import Run
from jeton.runtime.monitor import Observation
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


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1234", "[::1]:80", "127.0.0.1", "10.1.2.3:4711"]
)
def test_names_of_this_machine_are_welcome(run: Run, host: str) -> None:
    assert ask(run.inspect(), Host=host)[0] == 200


def test_names_of_a_proxy_are_welcome_if_they_are_known(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JETON_INSPECT_HOSTS", "hub.example, Other.example")
    url = run.inspect()
    assert ask(url, Host="HUB.example:443")[0] == ask(url, Host="other.example")[0] == 200
    assert ask(url, Host="evil.example")[0] == 404


def test_an_address_without_its_slash_leads_to_the_page_behind_any_path(run: Run) -> None:
    url = run.inspect()
    status, text, _ = ask(url.removesuffix("/"))
    assert (status, f'content="0; url={url.rsplit("/", 2)[1]}/"' in text) == (200, True)
    assert ask(f"{url[: url.index('/', 8)]}/nothing")[0] == 404


def test_acts_come_through_proxies_and_not_from_other_sites(run: Run) -> None:
    url = run.inspect()
    post: dict[str, Any] = {"method": "POST", "body": {"act": "why", "arguments": {}}}
    post["content_type"] = "application/json"
    origin = {"origin": "https://hub.example"}
    for forwarded in (
        {"x_forwarded_host": "inner.example, hub.example"},
        {"forwarded": 'by="1.2.3.4";for=5.6.7.8;host="hub.example";proto=https'},
        {"sec_fetch_site": "same-origin"},
    ):
        assert ask(url, "act", **post, **origin, **forwarded)[0] == 200
    for foreign in (
        origin,
        {**origin, "x_forwarded_host": "hub.example.evil"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": url[: url.index("/", 8)]},
    ):
        assert ask(url, "act", **post, **foreign)[0] == 400


def test_state_moves_by_a_button(run: Run) -> None:
    url = run.inspect()
    run.input("in").send({"time": [1], "n": [1]})
    run.run_to_rest()
    for given, error in (
        ({}, "choose the worker"),
        ({"from": "0", "to": "7"}, "there is no worker 7: there are 2"),
        ({"from": "0", "to": "0"}, "no bins for another worker"),
        ({"from": "x", "to": "1"}, "'x' is not the number of a worker"),
        ({"from": "0", "to": "1", "plan": "sudden"}, "how many bins move at a time, not 'sudden'"),
    ):
        status, answer = act(url, "migrate", **given)
        assert (status, error in answer["error"]) == (409, True), answer
    status, answer = act(url, "migrate", **{"from": "0", "to": "1"})
    assert (status, answer["text"]) == (200, "2048 bins are moving from worker 0 to worker 1")
    run.run_to_rest()
    run.monitor.look()
    shown = json.loads(ask(url, "snapshot")[1])
    assert (shown["bins"], shown["migration"]) == ({"0": 0, "1": 4096}, None)
    flow = jt.Flow("alone")
    flow.output("out", flow.input("in"))
    with flow.open() as alone:
        assert "there is no other worker" in act(alone.inspect(), "migrate")[1]["error"]


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


def test_requests_that_are_not_whole_or_too_deep_are_refused(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    parts = urlsplit(run.inspect())
    head = f"POST {parts.path}act HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    for body in ("[" * 20_000, '{"a":' * 5_000):
        with socket.create_connection((parts.hostname, parts.port), 60) as connection:
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
    with socket.create_connection((parts.hostname, parts.port), 60) as connection:
        connection.sendall(f"{head}content-length: 99\r\n\r\n[".encode())
    assert act(run.inspect(), "why")[0] == 200
    assert not caplog.records


def test_arguments_of_programs_are_understood_or_named(run: Run) -> None:
    url = run.inspect()
    assert act(url, "pause", at=5) == (200, {"text": "paused at 5"})
    for name, arguments, says in (
        ("step", {"at": 7.5}, "7.5 is neither an integer nor a timestamp"),
        ("step", {"at": True}, "True is neither an integer nor a timestamp"),
        ("state", {}, "state: name an operator"),
        ("sample", {}, "sample: name an operator"),
    ):
        status, answer = act(url, name, **arguments)
        assert (status, says in answer["error"]) == (409, True), answer


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
    run.input("in", worker=1).advance_to(5)
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


def test_the_metrics_follow_the_grammar_of_prometheus() -> None:
    flow = jt.Flow('a "b" \\ \n c')
    flow.output("out", flow.input("in", lateness=0).key_by("n").running().count())
    with flow.open(workers=2) as run:
        url = run.inspect()
        for time in (3, 7):
            for worker in range(2):
                run.input("in", worker=worker).send({"time": [time], "n": [1]})
            run.run_to_rest()
        run.monitor.look()
        lines = ask(url, "metrics")[1].splitlines()
    label = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
    sample = re.compile(rf"([a-z_]+)\{{({label}(?:,{label})*)\}} (-?[0-9.e+-]+)")
    kinds: dict[str, str] = {}
    seen: dict[tuple[str, str], float] = {}
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split()
            assert family not in kinds, "a family comes once, with all its samples"
            kinds[family] = kind
        elif not line.startswith("# HELP "):
            found = sample.fullmatch(line)
            assert found is not None, line
            name, labels, value = found.groups()
            family = list(kinds)[-1]
            histogram = kinds[family] == "histogram"
            assert name in {f"{family}_{part}" for part in ("bucket", "sum", "count")} or (
                name == family and not histogram
            )
            assert kinds[family] != "counter" or family.endswith("_total")
            assert (name, labels) not in seen
            seen[name, labels] = float(value)
    ends = [f'query="a \\"b\\" \\\\ \\n c",worker="{n}",output="out"' for n in range(2)]
    for end in ends:
        whole = seen["jeton_latency_seconds_count", end]
        assert seen["jeton_latency_seconds_bucket", f'{end},le="+Inf"'] == whole > 0
        buckets = [n for (name, labels), n in seen.items() if "_bucket" in name and end in labels]
        assert buckets == sorted(buckets)


def test_a_query_is_up_while_it_starts_again_and_its_counts_never_go_back() -> None:
    def at(status: str, rows: int, before: int = 0) -> dict[str, float]:
        metrics = {"rows_in": rows, "queued": 3, "peak_rss_mb": 2}
        reports = {0: {"metrics": metrics, "frontiers": {}}} if rows else {}
        now = Observation(
            status=status, reports=reports, before={0: {"rows_in": before, "queued": 5}}
        )
        lines = (line for line in exposition("q", now).splitlines() if line[0] != "#")
        return {name: float(value) for name, _, value in (each.rpartition(" ") for each in lines)}

    ran, rescales, again = at("running", 100), at("rescaling", 0, 120), at("running", 10, 120)
    for found in (ran, rescales, again):
        assert found['jeton_up{query="q"}'] == 1
        assert sum(found[name] for name in found if name.startswith("jeton_status")) == 1
    assert rescales['jeton_status{query="q",status="rescaling"}'] == 1
    rows = 'jeton_rows_in_total{query="q",worker="0"}'
    assert (ran[rows], rows in rescales, again[rows]) == (100, False, 130)
    assert again['jeton_queued_messages{query="q",worker="0"}'] == 3
    assert again['jeton_peak_rss_bytes{query="q",worker="0"}'] == 2 << 20
    for status in ("ended", "failed"):
        assert at(status, 100)['jeton_up{query="q"}'] == 0
