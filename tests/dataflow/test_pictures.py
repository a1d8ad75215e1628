"""Flows, batches and results as people see them: text, tables and graphs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest

import jeton as jt

SVG = "{http://www.w3.org/2000/svg}"


def large() -> jt.Flow:
    """A flow of more than 20 operators, with a join, a loop and edges that skip layers."""
    flow = jt.Flow("large")
    left = flow.input("left", schema={"k": int, "v": float})
    right = flow.input("right", schema={"k": int, "w": float})
    stream: jt.Stream = left
    for _ in range(5):
        stream = stream.filter(lambda batch: batch["v"] > 0).with_columns(
            v=lambda batch: batch["v"] * 2
        )
    small, big = stream.branch(lambda batch: batch["v"] > 3)
    joined = small.key_by("k").join(right.key_by("k"))
    flow.output("joined", joined)
    flow.output("raw", left)
    flow.output("counts", joined.key_by("k").running().count())

    def body(inside: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
        again, done = inside.branch(lambda batch: batch["v"] > 100)
        return again.map(lambda batch: {"k": batch["k"], "v": batch["v"] * 2}), done

    flow.output("large", big.iterate(body))
    return flow


def boxes(picture: str) -> dict[str, tuple[float, float, float, float]]:
    """The name and the edges of each box: left, top, right, bottom."""
    found = {}
    for group in ET.fromstring(picture).iter(f"{SVG}g"):
        box, text = group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        assert box is not None
        assert text is not None
        x, y, width, height = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        found[text.text or ""] = (x, y, x + width, y + height)
    return found


def test_a_flow_is_drawn_with_a_box_for_each_operator() -> None:
    flow = large()
    picture = flow._repr_html_()
    found = boxes(picture)
    assert set(found) == {plan.name for plan in flow.operators}
    assert len(found) >= 20
    _, _, width, height = (float(part) for part in ET.fromstring(picture).attrib["viewBox"].split())
    for left, top, right, bottom in found.values():
        assert left >= 0
        assert top >= 0
        assert right <= width
        assert bottom <= height


def test_boxes_do_not_overlap_and_records_flow_downwards() -> None:
    flow = large()
    found = boxes(flow._repr_html_())
    for one, other in combinations(found.values(), 2):
        apart = one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]
        assert apart
    for plan in flow.operators:
        for port in plan.inputs:
            for source in port.sources:
                if source.operator < plan.index:
                    assert found[flow.operators[source.operator].name][3] < found[plan.name][1]


def test_a_picture_has_the_colours_of_the_page() -> None:
    drawn = ET.fromstring(large()._repr_html_())
    colours = {
        value
        for element in drawn.iter()
        for name, value in element.attrib.items()
        if name in ("fill", "stroke")
    }
    assert colours == {"none", "currentColor"}


def test_a_loop_is_a_dashed_line() -> None:
    assert large()._repr_html_().count("stroke-dasharray") == 1


def test_names_are_escaped() -> None:
    flow = jt.Flow("a < b")
    flow.output("<out>", flow.input("<in>"))
    assert set(boxes(flow._repr_html_())) == {"<in>", "<out>"}


def test_an_empty_flow_has_a_picture() -> None:
    assert boxes(jt.Flow("empty")._repr_html_()) == {}


def test_explain_has_inputs_keys_and_columns(capsys: pytest.CaptureFixture[str]) -> None:
    flow = jt.Flow("sales")
    items = flow.input("items", time="at", schema={"seller": int, "item": str})
    people = flow.input("people", schema={"id": int, "name": str})
    flow.output("sales", items.key_by("seller").join(people.key_by("id")))
    flow.output("all", flow.input("more").exchange(lambda batch: batch["n"]).broadcast())
    flow.explain()
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "Flow 'sales'"
    assert [re.split(r"  +", line.strip()) for line in lines] == [
        ["0 items", "input, times in 'at'", "→ seller: int64, item: string"],
        ["1 people", "input, times in 'time'", "→ id: int64, name: string"],
        [
            "2 join",
            "from 0 items by 'seller'; 1 people by 'id'",
            "→ seller: int64, item: string, name: string",
        ],
        ["3 sales", "output, from 2 join"],
        ["4 more", "input, times in 'time'"],
        ["5 exchange", "from 4 more by a function"],
        ["6 broadcast", "from 5 exchange by Broadcast"],
        ["7 all", "output, from 6 broadcast"],
        ["Waits for times to pass: 2 join"],
    ]


def test_a_batch_shows_rows_types_and_their_number() -> None:
    batch = jt.Batch({"word": ["to", None], "n": [1.5, 2.0]}, times=[3, 12])
    assert repr(batch).splitlines() == [
        "Batch of 2 rows",
        " time word        n",
        "int64 string double",
        "    3 to        1.5",
        "   12 null        2",
    ]


def test_only_the_first_rows_are_shown() -> None:
    batch = jt.Batch({"n": list(range(1200))}, times=list(range(1200)))
    assert repr(batch).startswith("Batch of 1,200 rows\n")
    assert repr(batch).endswith("… and 1190 more")
    assert batch._repr_html_().count("<tr>") == 11


def test_html_of_a_result_has_each_output_and_escapes_values() -> None:
    flow = jt.Flow("copy")
    flow.output("first", flow.input("rows"))
    flow.output("second", flow.input("more"))
    result = flow.run({"rows": {"time": [1], "a": ["<b>"]}, "more": {"time": [1, 2]}})
    page = ET.fromstring(f"<div>{result._repr_html_()}</div>")
    texts = ["".join(table.itertext()) for table in page.iter("table")]
    assert len(texts) == 2
    assert "<b>" in texts[0]
    assert "Output 'second': 2 rows" in "".join(page.itertext())
