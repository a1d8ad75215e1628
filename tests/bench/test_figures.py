"""Figures, verdicts and the report, from synthetic runs."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from jeton.cli import main
from jeton_evaluation.bench import plan
from jeton_evaluation.bench.claims import CLAIMS, GOALS, Claim
from jeton_evaluation.bench.figures import STYLES, draw_all
from jeton_evaluation.bench.report import nexmark, summary
from jeton_evaluation.bench.runs import Runs
from tests.bench.synthetic import Line, changed, everything, links, words

PANELS = {
    "wordcount-quantum": 9,
    "wordcount-weak-scaling": 4,
    "wordcount-strong-scaling": 4,
    "chain-length": 4,
    "chain-workers": 4,
    "wordcount-sustained": 1,
    "traffic": 2,
    "migration": 1,
}
"""The number of panels of each figure."""


def ids(drawing: Path, start: str) -> list[str]:
    """The ids of a drawing's groups that begin like this."""
    names = (each.get("id", "") for each in ET.parse(drawing).iter())
    return [name for name in names if name.startswith(start)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    runs = folder / "runs.jsonl"
    runs.write_text("".join(json.dumps(line) + "\n" for line in everything()))
    assert main(["bench", "figures", "--runs", str(runs), "--out", str(folder)]) == 0
    return folder


def test_every_figure_has_all_its_panels(drawn: Path) -> None:
    for name, panels in PANELS.items():
        assert len(ids(drawn / f"{name}.svg", f"{name}-panel-")) == panels
        assert (drawn / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert {path.stem for path in drawn.glob("*.svg")} == set(PANELS)


def test_every_mechanism_has_a_curve_and_latencies_have_the_noise(drawn: Path) -> None:
    for name, mechanisms in (("wordcount-quantum", plan.PAPER), ("chain-length", STYLES)):
        for mechanism in mechanisms:
            found = ids(drawn / f"{name}.svg", f"curve-{name}-{mechanism}")
            assert len(found) == PANELS[name]
    assert len(ids(drawn / "wordcount-quantum.svg", "noise-")) == 6  # none at the medians
    assert len(ids(drawn / "chain-length.svg", "noise-")) == 2


def test_every_plan_of_a_migration_has_a_curve_and_its_maximum(drawn: Path) -> None:
    drawing = drawn / "migration.svg"
    plans = ("all-at-once", "batched", "fluid")
    assert ids(drawing, "curve-migration-") == [f"curve-migration-{plan}-0" for plan in plans]
    text = drawing.read_text()
    for label in ("all at once: at most 900 ms", "batched: at most 200 ms", "fluid: at most 50 ms"):
        assert label in text


def test_runs_that_did_not_finish_have_a_bar(drawn: Path) -> None:
    quantum, chain = drawn / "wordcount-quantum.svg", drawn / "chain-length.svg"
    assert len(ids(quantum, "dnf-wordcount-quantum-notifications")) == 9
    assert len(ids(quantum, "dnf-wordcount-quantum-watermarks-x")) == 3  # at the highest load
    assert ids(quantum, "dnf-wordcount-quantum-tokens") == []
    assert len(ids(chain, "dnf-chain-length-watermarks-x")) == 2
    assert ids(chain, "dnf-chain-length-tokens") == []


def test_bars_stop_at_a_run_that_finished(tmp_path: Path) -> None:
    def gap(line: Line) -> Line | None:
        if line.get("quantum_log2") == 10 and line["rate_per_worker"] == plan.HIGH:
            line["dnf"] = False
        return line if line.get("mechanism") == "notifications" else None

    draw_all(Runs(changed(gap)), tmp_path)
    bars = ids(tmp_path / "wordcount-quantum.svg", "dnf-wordcount-quantum-notifications")
    assert len(bars) == 12


def test_a_run_that_did_not_finish_has_no_point(tmp_path: Path) -> None:
    lines = [
        {**links("tokens", 8, plan.MANY_TIMES), "run": "a"},
        {**links("tokens", 16, plan.MANY_TIMES), "run": "b", "dnf": True},
    ]
    [drawing] = [each for each in draw_all(Runs(lines), tmp_path) if each.stem == "chain-length"]
    curves = [
        group
        for group in ET.parse(drawing).iter()
        if group.get("id", "").startswith("curve-chain-length-tokens")
    ]
    # One marker in each of the two rows of panels.
    assert sum(each.tag.endswith("use") for curve in curves for each in curve.iter()) == 2


def test_the_same_runs_give_the_same_bytes(drawn: Path, tmp_path: Path) -> None:
    chains = [line for line in everything() if line["experiment"] == "chain"]
    for drawing in draw_all(Runs(chains), tmp_path):
        assert drawing.read_bytes() == (drawn / drawing.name).read_bytes()


def test_figures_without_runs_are_left_out(tmp_path: Path) -> None:
    lines = [line for line in everything() if line["experiment"] == "traffic"]
    assert [path.stem for path in draw_all(Runs(lines), tmp_path)] == ["traffic"]


def test_without_runs_the_command_says_how_to_make_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "figures", "--runs", str(tmp_path / "none.jsonl"), "--out", str(tmp_path)])
    assert "jeton bench sweep" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


class Balance(HTMLParser):
    """Checks that elements are closed in order, and collects ids, classes and references."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.classes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("href", "xlink:href", "src"):
                self.references.append(value or "")
            elif name == "class":
                self.classes.append(value or "")
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(drawn: Path) -> None:
    page = (drawn / "index.html").read_text()
    found = Balance()
    found.feed(page)
    assert found.open == []
    assert found.tags.count("svg") == len(PANELS)
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert all(each.startswith("#") for each in found.references)
    inside = [*(each[1:] for each in found.references), *re.findall(r"url\(#([^)]*)\)", page)]
    assert set(inside) <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page
    assert "a slow &lt;one&gt;" in page


def test_page_and_readme_have_every_claim_and_goal(drawn: Path) -> None:
    page, readme = ((drawn / name).read_text() for name in ("index.html", "README.md"))
    for claim in (*CLAIMS, *GOALS):
        assert claim.text.replace("'", "&#x27;") in page
        assert claim.text in readme
    found = Balance()
    found.feed(page)
    verdicts = sum(found.classes.count(each) for each in ("holds", "fails", "unknown"))
    assert verdicts == len(CLAIMS) + len(GOALS)
    for name in PANELS:
        assert f"({name}.svg)" in readme
    widths = {line.count("|") for line in readme.splitlines() if line.startswith("| 1M |")}
    assert widths == {12}


def test_the_table_of_a_query_is_the_papers() -> None:
    *_, rows = nexmark(Runs(everything()), "q4")
    assert [(row[0], row[1]) for row in rows[:3]] == [("1M", "1"), ("1M", "2"), ("2M", "1")]
    assert rows[0][2:] == ("0.50", "1.50", "5.00", "DNF", "DNF", "DNF", "0.30", "0.90", "3.00")


# Verdicts


def verdict(claims: Iterable[Claim], text: str, lines: list[Line]) -> str:
    [claim] = [each for each in claims if text in each.text]
    word, seen = claim.judge(Runs(lines))
    assert seen
    return word


def test_runs_like_the_papers_give_its_verdicts() -> None:
    """All hold, except where the synthetic runs differ on purpose or more cores are needed."""
    words = {claim.text: claim.judge(Runs(everything()))[0] for claim in CLAIMS}
    failing = [text for text, word in words.items() if word == "does not hold"]
    assert [text.split()[0:4] for text in failing] == [
        ["For", "this", "simplest", "of"],
        ["At", "8M", "records/s", "per"],
        ["Where", "notifications", "carry", "that"],
        ["At", "that", "load", "watermarks"],
        ["With", "the", "finest", "quantum,"],
    ]
    assert list(words.values()).count("could not be tested at 2 cores") == 2
    assert {goal.judge(Runs(everything()))[0] for goal in GOALS} == {"holds"}


def test_without_runs_nothing_is_judged() -> None:
    found = {claim.judge(Runs([]))[0] for claim in (*CLAIMS, *GOALS)}
    assert found == {"not measured", "could not be tested at 2 cores"}


def when(**wanted: Any) -> Callable[[Line], bool]:
    return lambda line: all(line.get(name) == value for name, value in wanted.items())


CHAIN_256 = when(experiment="chain", length=256, workers=2)
TOKENS_8 = when(experiment="wordcount", mechanism="tokens", quantum_log2=8, workers=2)
NOTIFICATIONS_12 = when(mechanism="notifications", quantum_log2=12)
TOKENS_12 = when(mechanism="tokens", quantum_log2=12)
FLIPS: list[tuple[str, Callable[[Line], bool], Line, str]] = [
    ("Tokens avoid collapse", when(mechanism="tokens", quantum_log2=8), {"dnf": True}, "does not"),
    ("Tokens avoid collapse", when(mechanism="tokens"), {"p50_ms": 900.0}, "does not"),
    ("cope with any quantum", TOKENS_8, {"dnf": True}, "does not"),
    ("collapse for fine quanta", when(mechanism="notifications"), {"dnf": False}, "does not"),
    ("Below saturation", when(mechanism="notifications"), {"p50_ms": 0.5}, "does not"),
    ("lower worst case", when(mechanism="tokens"), {"max_ms": 4.5}, "holds"),
    ("no mechanism copes", when(quantum_log2=8), {"dnf": True}, "holds"),
    ("finer quanta than", when(mechanism="notifications"), {"dnf": False}, "does not"),
    ("p999 is the better", when(mechanism="notifications"), {"p999_ms": 0.1}, "holds"),
    ("p999 is the better", when(mechanism="notifications"), {"dnf": True}, "could not"),
    ("slightly higher median", when(mechanism="watermarks-x"), {"p50_ms": 0.3}, "holds"),
    ("scale alike", when(mechanism="notifications", workers=1), {"p50_ms": 0.5}, "does not"),
    ("at no scale", when(mechanism="notifications", workers=1), {"dnf": False}, "does not"),
    ("at no scale", when(mechanism="watermarks-x", workers=1), {"dnf": True}, "does not"),
    ("needs three of them", when(quantum_log2=8), {"dnf": True}, "holds"),
    ("an idle chain hardly matters", CHAIN_256, {"p50_ms": 0.5}, "does not"),
    ("an idle chain hardly matters", CHAIN_256, {"dnf": True}, "does not"),
    ("three are almost", when(mechanism="watermarks-p"), {"p50_ms": 0.6}, "does not"),
    ("in proportion to the length", CHAIN_256, {"p50_ms": 6.3}, "does not"),
    ("in proportion to the length", CHAIN_256, {"p50_ms": 6.5}, "holds"),
    ("in proportion to the length", CHAIN_256, {"p50_ms": 102.0}, "holds"),
    ("in proportion to the length", CHAIN_256, {"p50_ms": 103.0}, "does not"),
    ("in proportion to the length", CHAIN_256, {"p50_ms": 0.8 * 32**2}, "does not"),
    ("in proportion to the length", CHAIN_256, {"dnf": True}, "does not"),
    ("on long chains", CHAIN_256, {"dnf": False}, "could not"),
    ("on long chains", CHAIN_256, {"dnf": True}, "does not"),
    ("number of workers hardly", CHAIN_256, {"p50_ms": 0.5}, "does not"),
    ("length times the number", when(mechanism="watermarks-x"), {"marks": 56}, "does not"),
    ("length times the number", when(workers=64), {"progress_batches": 5}, "does not"),
    ("Q4 notifications collapse", when(query="q4"), {"dnf": False}, "does not"),
    ("Q4 tokens are competitive", when(mechanism="tokens"), {"p50_ms": 0.9}, "does not"),
    ("On Q7 all finish", when(query="q7", mechanism="tokens"), {"p50_ms": 0.6}, "does not"),
    ("On Q7 all finish", when(query="q7", workers=1), {"dnf": True}, "does not"),
]
GOAL_FLIPS: list[tuple[str, Callable[[Line], bool], Line, str]] = [
    ("sustains 20M", when(sustained=True), {"rate_per_worker": 19e6}, "does not"),
    ("median at 4M", TOKENS_8, {"p50_ms": 0.31}, "does not"),
    ("median at 4M", TOKENS_8, {"dnf": True}, "does not"),
    ("p999 there", TOKENS_8, {"p999_ms": 0.81}, "does not"),
    ("at least 0.9", when(sustained=True, quantum_log2=16), {"rate_per_worker": 3e7}, "does not"),
    ("1.5 times the median", CHAIN_256, {"p50_ms": 0.31}, "does not"),
    ("250K timestamps", CHAIN_256, {"p50_ms": 0.47}, "does not"),
    ("250K timestamps", CHAIN_256, {"dnf": True}, "does not"),
    ("Notifications collapse", NOTIFICATIONS_12, {"dnf": False}, "does not"),
    ("Notifications collapse", TOKENS_12, {"dnf": True}, "does not"),
    ("Watermarks-X degrade", CHAIN_256, {"p50_ms": 0.3}, "does not"),
    ("idle query", when(experiment="idle"), {"cpu_most": 0.021}, "does not"),
    ("fluid's greatest", when(plan="fluid"), {"max_ms": 181.0}, "does not"),
    ("fluid's greatest", when(plan="batched"), {"max_ms": 9999.0}, "holds"),
    ("Ten times", when(system="slow"), {"records_per_s": 3e6}, "does not"),
    ("Ten times", when(system="bytewax batches"), {"records_per_s": 15e6}, "holds"),
    ("Twice", when(system="bytewax batches"), {"records_per_s": 15e6}, "does not"),
    ("Twice", when(system="slow"), {"records_per_s": 3e6}, "holds"),
]


@pytest.mark.parametrize(
    ("claims", "text", "chosen", "new", "word"),
    [
        *((CLAIMS, *flip) for flip in FLIPS),
        *((GOALS, *flip) for flip in GOAL_FLIPS),
    ],
)
def test_verdicts_follow_the_runs(
    claims: list[Claim], text: str, chosen: Callable[[Line], bool], new: Line, word: str
) -> None:
    lines = changed(lambda line: {**line, **new} if chosen(line) else line)
    assert lines != everything()
    assert verdict(claims, text, lines).startswith(word)


def test_a_run_that_was_repeated_counts_once() -> None:
    first = {**words("tokens", 8, plan.HIGH), "run": "a", "dnf": True}
    second = {**first, "dnf": False}
    assert Runs([first, second]).where("wordcount")["dnf"].to_list() == [False]


def test_the_best_peer_is_that_of_the_median_round_and_a_wrong_answer_is_named() -> None:
    rounds = [
        {**line, "records_per_s": line["records_per_s"] * factor, "run": f"{line['system']} {at}"}
        for line in everything()
        if line["experiment"] == "peers"
        for at, factor in enumerate((1.0, 1.0, 100.0 if line["system"] == "slow" else 1.0))
    ]
    [claim] = [goal for goal in GOALS if goal.text.startswith("Ten times")]
    verdict, seen = claim.judge(Runs(rounds))
    assert verdict == "holds"
    assert "wrong" not in seen
    for line in rounds:
        line["correct"] = line["system"] == "jeton"
    assert "of slow, whose answer is wrong" in claim.judge(Runs(rounds))[1]


def test_the_summary_names_commit_and_date_of_each_experiment() -> None:
    def machine(commit: str, date: str) -> Line:
        return {"experiment": "machine", "cpu": "x", "cores": 2, "commit": commit, "date": date}

    lines = [
        machine("old", "2026-11-15 18:25 UTC"),
        {"run": "a", "experiment": "memory"},
        {"run": "b", "experiment": "idle"},
        machine("new", "2026-11-18 10:44 UTC"),
        {"run": "a", "experiment": "memory"},
    ]
    said = summary(Runs(lines))
    assert "Measured on x, 2 cores: idle at old (2026-11-15); memory at new (2026-11-18)." in said
