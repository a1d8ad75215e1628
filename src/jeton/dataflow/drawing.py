"""Pictures of a plan: a list of its operators as text, and its graph as SVG.

The graph is laid out in layers, from inputs at the top to outputs at the bottom. An edge that skips
layers passes through a place of its own in each of them, so that it crosses no box. Feedback runs
around the side, as a dashed line. Colours are those of the page, light or dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Final

import pyarrow as pa

from jeton.dataflow.column_use import needs_of
from jeton.dataflow.pacts import Exchange, Pact, SpreadExchange
from jeton.dataflow.plan import InputPlan, OperatorPlan, waiting

_BOX: Final = 34.0
_GAP: Final = 26.0
_BELOW: Final = 44.0
_LETTER: Final = 7.2
"""The height of a box, the gap between boxes, that between layers, and the width of a letter."""
_LIVE_BOX: Final = 82.0
_LIVE_WIDTH: Final = 168.0
"""The height and the least width of a box that has room for three lines of numbers."""


def plan_text(
    flow: str, operators: Sequence[OperatorPlan], handles: Mapping[tuple[str, str], int]
) -> str:
    """One line for each operator: its number, name, inputs, and the columns of its outputs.

    Another one names those that wait for times to pass, since batches on Spark are sorted for them.
    """
    roles = _roles(handles)
    rows = [
        (f"{plan.index}", plan.name, _origin(plan, operators, roles.get(plan.index)), _made(plan))
        for plan in operators
    ]
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(3)]
    lines = [
        f"  {number:>{widths[0]}} {name:<{widths[1]}}  {origin:<{widths[2]}}  {made}".rstrip()
        for number, name, origin, made in rows
    ]
    inputs = [index for index, role in roles.items() if role == "input"]
    waits = [f"{plan.index} {plan.name}" for plan in waiting(operators, inputs)]
    if waits:
        lines.append(f"Waits for times to pass: {', '.join(waits)}")
    return "\n".join([f"Flow {flow!r}", *lines])


def plan_svg(
    flow: str,
    operators: Sequence[OperatorPlan],
    handles: Mapping[tuple[str, str], int],
    *,
    live: bool = False,
) -> str:
    """The graph of a plan as an SVG element, for notebooks.

    With ``live``, it is for a page that fills it: each box has the operator's number in
    ``data-operator``, three empty lines of text of the class ``live``, and a bar of the class
    ``busy`` and of no width along its lower edge.
    """
    roles = _roles(handles)
    layout = _Layout(operators, _LIVE_BOX if live else _BOX, _LIVE_WIDTH if live else 0.0)
    parts = [layout.edges()]
    for plan in operators:
        box = layout.boxes[plan.index]
        role = roles.get(plan.index)
        about = "\n".join(
            part
            for part in (_origin(plan, operators, role), _made(plan), str(plan.defined or ""))
            if part
        )
        parts.append(
            f'<g data-operator="{plan.index}"><title>{escape(about)}</title>'
            f'<rect x="{box.x - box.width / 2:.1f}" y="{box.y:.1f}" '
            f'width="{box.width:.1f}" height="{layout.box}" rx="{17 if role else 4}" '
            f'fill="currentColor" fill-opacity="{0.14 if role else 0.05}" '
            'stroke="currentColor" stroke-opacity=".6"/>'
            f'<text x="{box.x:.1f}" y="{box.y + 22:.1f}" text-anchor="middle" '
            f'fill="currentColor">{escape(plan.name)}</text>'
            + "".join(
                f'<text class="live" x="{box.x:.1f}" y="{box.y + below:.1f}" '
                'text-anchor="middle" font-size="11" fill="currentColor"></text>'
                for below in ((39, 54, 69) if live else ())
            )
            + (
                f'<rect class="busy" x="{box.x - box.width / 2 + 6:.1f}" '
                f'y="{box.y + layout.box - 7:.1f}" width="0" height="3" rx="1.5" '
                f'data-most="{box.width - 12:.1f}"/>'
                if live
                else ""
            )
            + "</g>"
        )
    width, height = layout.width, layout.height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="Flow {escape(flow)}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        'style="max-width:100%;height:auto" font-family="ui-monospace,monospace" font-size="12">'
        f"{''.join(parts)}</svg>"
    )


@dataclass
class _Box:
    """A box of an operator, or a place through which an edge passes."""

    layer: int
    width: float
    y: float
    above: list[_Box] = field(default_factory=list)
    x: float = 0.0


@dataclass
class _Edge:
    """A line from one box through places to another, with the way that records take."""

    path: list[_Box]
    label: str
    back: bool = False


class _Layout:
    """Where boxes and lines go."""

    def __init__(
        self, operators: Sequence[OperatorPlan], box_height: float, least_width: float
    ) -> None:
        self.box = box_height
        self.boxes: dict[int, _Box] = {}
        self._layers: list[list[_Box]] = []
        self._edges: list[_Edge] = []
        for plan, layer in zip(operators, _layers(operators), strict=True):
            width = max(least_width, len(plan.name) * _LETTER + 26)
            self.boxes[plan.index] = self._add(_Box(layer, width, self._y(layer)))
        for plan in operators:
            for port in plan.inputs:
                for source in port.sources:
                    self._connect(
                        self.boxes[source.operator],
                        self.boxes[plan.index],
                        _way(port.pact),
                        back=source.operator >= plan.index,
                    )
        self._place()

    @property
    def height(self) -> float:
        """The height of the picture."""
        return self._y(max(1, len(self._layers))) - _BELOW + 10

    def edges(self) -> str:
        """The lines and what is written beside them."""
        return "".join(
            self._feedback(edge) if edge.back else self._line(edge) for edge in self._edges
        )

    def _y(self, layer: int) -> float:
        return 10.0 + layer * (self.box + _BELOW)

    def _add(self, box: _Box) -> _Box:
        while len(self._layers) <= box.layer:
            self._layers.append([])
        self._layers[box.layer].append(box)
        return box

    def _connect(self, source: _Box, target: _Box, label: str, *, back: bool) -> None:
        path = [source]
        if not back:
            for layer in range(source.layer + 1, target.layer):
                passage = self._add(_Box(layer, 8.0, self._y(layer), [path[-1]]))
                path.append(passage)
            target.above.append(path[-1])
        self._edges.append(_Edge([*path, target], label, back))

    def _place(self) -> None:
        """Give each box its place in its layer, below those that it follows."""
        for layer in self._layers:
            layer.sort(key=lambda box: _mean([above.x for above in box.above]))
            at = 0.0
            for box in layer:
                wanted = _mean([above.x for above in box.above]) if box.above else 0.0
                box.x = max(at + box.width / 2, wanted)
                at = box.x + box.width / 2 + _GAP
        boxes = [box for layer in self._layers for box in layer]
        left = min((box.x - box.width / 2 for box in boxes), default=0.0)
        for box in boxes:
            box.x += 10.0 - left
        self._right = max((box.x + box.width / 2 for box in boxes), default=0.0)
        labels = max((len(edge.label) for edge in self._edges), default=0)
        self.width = self._right + 10 + labels * _LETTER
        if any(edge.back for edge in self._edges):
            self.width += 30

    def _line(self, edge: _Edge) -> str:
        source, target = edge.path[0], edge.path[-1]
        points = [(source.x, source.y + self.box)]
        for passage in edge.path[1:-1]:
            points += [(passage.x, passage.y), (passage.x, passage.y + self.box)]
        points.append((target.x, target.y))
        drawn = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
        for (x, y), (to_x, to_y) in pairwise(points):
            middle = (y + to_y) / 2
            drawn += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = points[-1]
        (from_x, _), (to_x, _) = points[-2], points[-1]
        label = _label(edge.label, (from_x + 3 * to_x) / 4 + 5, y - 8)
        return _path(drawn) + _arrow(x, y) + label

    def _feedback(self, edge: _Edge) -> str:
        source, target = edge.path[0], edge.path[-1]
        side = self._right + 20
        start, end = source.y + self.box / 2, target.y + self.box / 2
        from_x, to_x = source.x + source.width / 2, target.x + target.width / 2
        drawn = (
            f"M{from_x:.1f} {start:.1f}C{side} {start:.1f} {side} {end:.1f} {to_x:.1f} {end:.1f}"
        )
        return _path(drawn, dashed=True) + _label(edge.label, side - 10, (start + end) / 2)


def _layers(operators: Sequence[OperatorPlan]) -> list[int]:
    """The layer of each operator: below all that it reads from, except for feedback."""
    layers: list[int] = []
    readers: dict[int, list[int]] = {}
    for plan in operators:
        sources = [source.operator for port in plan.inputs for source in port.sources]
        # Operators are numbered as they were added: only feedback comes from a later one.
        above = [layers[source] for source in sources if source < plan.index]
        layers.append(max(above, default=-1) + 1)
        for source in sources:
            readers.setdefault(source, []).append(plan.index)
    for plan in operators:
        sources = [source.operator for port in plan.inputs for source in port.sources]
        if sources and min(sources) > plan.index:
            # An operator that only takes records back stands right above the start of its loop.
            below = [layers[reader] for reader in readers.get(plan.index, ())]
            layers[plan.index] = max(0, min(below, default=1) - 1)
    return layers


def _path(drawn: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<path d="{drawn}" fill="none" stroke="currentColor" stroke-opacity=".6"{dashes}/>'


def _arrow(x: float, y: float) -> str:
    return (
        f'<path d="M{x - 4:.1f} {y - 7:.1f}L{x:.1f} {y:.1f}L{x + 4:.1f} {y - 7:.1f}" fill="none" '
        'stroke="currentColor" stroke-opacity=".6"/>'
    )


def _label(text: str, x: float, y: float) -> str:
    if not text:
        return ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" fill="currentColor" '
        f'fill-opacity=".75">{escape(text)}</text>'
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _roles(handles: Mapping[tuple[str, str], int]) -> dict[int, str]:
    """The operators that are ends of the flow, and of which kind."""
    return {index: what for (what, _), index in handles.items() if what in ("input", "output")}


def _origin(plan: OperatorPlan, operators: Sequence[OperatorPlan], role: str | None) -> str:
    """Where an operator's records come from, and how."""
    if role == "input":
        return f"input, times in {plan.time_name!r}{_needed(plan, operators)}"
    ports = [text for text in (_port(port, operators) for port in plan.inputs) if text]
    origin = f"from {'; '.join(ports)}" if ports else "source"
    return f"output, {origin}" if role == "output" else origin


def _needed(plan: OperatorPlan, operators: Sequence[OperatorPlan]) -> str:
    """The columns and rows that a flow uses: a source need not read others."""
    needs, declared = needs_of(operators, plan.index), plan.schemas[0] if plan.schemas else None
    used = "" if needs.condition is None else f" where {needs.condition}"
    if needs.columns is not None and (declared is None or needs.columns < set(declared.names)):
        names = sorted(needs.columns) if declared is None else declared.names
        read = [name for name in names if name in needs.columns]
        return f", uses {', '.join(read) or 'nothing else'}{used}"
    return used and f", uses all{used}"


def _port(port: InputPlan, operators: Sequence[OperatorPlan]) -> str:
    names = [f"{source.operator} {operators[source.operator].name}" for source in port.sources]
    way = _way(port.pact)
    return f"{', '.join(names)}{way and ' '}{way}"


def _way(pact: Pact) -> str:
    """How records reach an input, if they leave their worker."""
    if pact.local:
        return ""
    if isinstance(pact, Exchange):
        keys = (key if isinstance(key, str) else None for key in pact.key)
        named = ", ".join("a function" if key is None else repr(key) for key in keys)
        spread = f"spread={pact.spread}" if isinstance(pact, SpreadExchange) else ""
        return "by " + ", ".join(part for part in (named, spread) if part)
    return f"by {type(pact).__name__}"


def _made(plan: OperatorPlan) -> str:
    """The columns of an operator's outputs, as far as they are known."""
    known = [_columns(schema) for schema in plan.schemas if schema is not None]
    return f"→ {' | '.join(known)}" if any(known) else ""


def _columns(schema: pa.Schema) -> str:
    return ", ".join(
        f"{one.name}: {'unknown' if pa.types.is_null(one.type) else one.type}" for one in schema
    )
