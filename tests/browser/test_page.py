"""The live page in a browser: what it shows moves, and its buttons do what they say."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import jeton as jt
from tests.browser.proxy import proxied
from tests.inspector.driven import driven, stuck

if TYPE_CHECKING:
    from playwright.sync_api import Page

Visit = Callable[..., "Page"]


def operator(page: Page, name: str) -> str:
    """The box of an operator, as a selector."""
    return f'#graph g[aria-label="Operator {name}"]'


def changes(page: Page, selector: str) -> tuple[str, str]:
    """The text of an element now, and once it is another."""
    found = page.locator(selector)
    before = found.inner_text()
    # Not a string to be evaluated: the page's policy forbids that.
    for _ in range(600):
        if found.inner_text() != before:
            break
        page.wait_for_timeout(100)
    return before, found.inner_text()


def reached(frontier: str) -> float:
    """How far a frontier is that the page shows: nowhere, while it is at the start."""
    return -math.inf if frontier == "start" else int(frontier)


def test_the_graph_is_there_and_frontiers_move(visit: Visit) -> None:
    with driven(stuck()) as run:
        page = visit(run.inspect())
        page.wait_for_selector("body[data-snapshots]")
        assert page.title() == "sensors <&> – Jeton"
        boxes = page.locator("#graph g[data-operator]")
        assert boxes.count() == len(run.flow.operators)
        named = [boxes.nth(at).get_attribute("aria-label") for at in range(boxes.count())]
        assert named == [f"Operator {plan.name}" for plan in run.flow.operators]
        facts = '#frontiers div:has(dt:text-is("Frontier at means")) dd'
        before, after = changes(page, facts)
        assert reached(after) > reached(before)
        assert page.locator("#workers tbody tr").count() == 2
        assert page.locator("#line path").count() == 3
        assert page.locator("#status").inner_text() == "running"
        assert page.locator("#checkpoint").is_disabled()
        assert page.locator("#checkpoint").get_attribute("title") == (
            "Checkpoint: it takes no checkpoints"
        )


def test_a_stuck_token_is_found_by_clicking(visit: Visit) -> None:
    with driven(stuck()) as run:
        page = visit(run.inspect())
        page.wait_for_selector(f"{operator(page, 'keeper')}.holds")
        page.locator(operator(page, "high")).click()
        holder = page.locator('#holders .holder[data-what="token"]').first
        text = holder.inner_text()
        assert "'keeper' holds 2 tokens at 0 on workers 0 and 1" in text
        assert "kept.append(ref.retain())" in text
        assert page.locator("#chosen").inner_text().lower() == "high"
        page.wait_for_selector('#rows h3:text-is("Latest rows: 10 rows")')


def test_the_operator_that_holds_back_is_named(visit: Visit) -> None:
    with driven(stuck()) as run:
        page = visit(run.inspect())
        page.wait_for_selector(f"{operator(page, 'keeper')}.worst")
        assert page.locator("#graph g.worst").count() == 1
        assert page.locator("#verdict").inner_text().startswith("keeper holds the flow back")
        page.locator("#verdict button").click()
        assert page.locator("#chosen").inner_text().lower() == "keeper"


def test_pause_step_and_resume(visit: Visit) -> None:
    with driven(stuck()) as run:
        page = visit(run.inspect())
        page.wait_for_selector("body[data-snapshots]")
        assert page.locator("#step").is_disabled()
        page.locator("#pause").click()
        page.wait_for_selector("#step:enabled")
        status = page.locator("#status")
        assert status.inner_text().startswith("paused at ")
        paused_at = run.paused_at
        page.locator("#step").click()
        page.wait_for_selector(f'#status:text-is("paused at {paused_at + 1}")')
        # At the end of a window there would be no state.
        later = paused_at + 5 if paused_at % 10 != 5 else paused_at + 6
        page.locator("#at").fill(str(later))
        page.locator("#step").click()
        page.wait_for_selector(f'#status:text-is("paused at {later}")')
        page.locator(operator(page, "mean")).click()
        # The rows go and come once more when the step has answered.
        page.wait_for_selector('#rows h3:has-text("State") ~ table tbody tr')
        page.locator("#resume").click()
        page.wait_for_selector('#status:text-is("running")')
        assert run.paused_at is None


def test_why_is_asked_for_the_time_that_was_given(visit: Visit) -> None:
    with driven(stuck()) as run:
        page = visit(run.inspect())
        page.wait_for_selector(f"{operator(page, 'keeper')}.holds")
        page.wait_for_function("() => now.frontiers.means.value > 10")
        page.locator("#at").fill("10")
        page.locator("#why").click()
        page.wait_for_selector('#holders h3:text-is("What holds results at 10")')
        text = page.locator("#holders").inner_text()
        assert "'means' is complete up to 10" in text
        assert "'keeper' holds 2 tokens at 0" in text


def test_what_was_asked_is_asked_again_after_an_act(visit: Visit) -> None:
    with driven(stuck()) as run:
        page = visit(run.inspect())
        page.wait_for_selector("body[data-snapshots]")
        page.locator(operator(page, "mean")).click()
        page.wait_for_selector('#rows h3:has-text("Latest rows")')
        page.locator("#pause").click()
        page.wait_for_selector('#holders .holder[data-what="breakpoint"]')
        page.locator("#resume").click()
        page.wait_for_selector("#holders h3")
        page.wait_for_selector('#holders .holder[data-what="breakpoint"]', state="detached")
        # An input has no port, so its box has the time that it has reached.
        box = page.locator(f"{operator(page, 'readings')} text.live").nth(1)
        assert int(box.text_content() or "") >= 0


def test_the_reason_of_a_failure_is_shown(visit: Visit) -> None:
    flow = jt.Flow("failing")
    flow.output(
        "out", flow.input("in", lateness=0).map(lambda batch: {"n": batch["none"]}, name="broken")
    )
    with flow.open() as run:
        run.monitor.every = 0.05
        page = visit(run.inspect())
        page.wait_for_selector("body[data-snapshots]")
        run.input("in").send({"time": [1]})
        with pytest.raises(jt.errors.MissingColumn):
            run.run_to_rest()
        page.wait_for_selector('#status:text-is("failed")')
        page.wait_for_selector("#verdict:has-text(\"no column 'none'\")")


def test_state_moves_between_workers(visit: Visit) -> None:
    with driven(stuck()) as run:
        page = visit(run.inspect())
        page.wait_for_selector("#migrate:enabled")
        page.keyboard.press("m")
        page.wait_for_selector("#moving[open]")
        assert page.locator("#rebalance").is_hidden()
        page.locator("#giver").select_option("1")
        page.locator("#taker").select_option("0")
        page.locator("#plan").fill("1024")
        page.locator("#move").click()
        page.wait_for_selector('#said:text-is("2048 bins are moving from worker 1 to worker 0")')
        page.wait_for_selector('#workers tbody tr:first-child td:nth-child(10):text-is("4096")')
        assert run.placement[1] == []


def test_keys_and_buttons_wait_for_the_first_snapshot(visit: Visit) -> None:
    with driven(stuck()) as run:
        page = visit(run.inspect())
        held = [re.compile("/events$"), re.compile("/snapshot$")]
        for address in held:
            page.route(address, lambda route: route.abort())
        page.reload()
        page.wait_for_selector('#status:text-is("lost the connection")')
        assert page.locator(".tools button:enabled").count() == 0
        # As a browser does that keeps the state of buttons over a reload.
        page.evaluate("() => document.querySelectorAll('button').forEach(b => b.disabled = false)")
        for name in ("why", "pause", "step", "resume", "checkpoint", "migrate"):
            page.keyboard.press(name[0])
            page.locator(f"#{name}").click()
        page.locator("#at").press("Enter")
        page.locator(operator(page, "mean")).click()
        assert page.locator("#chosen").inner_text().lower() == "mean"
        assert page.locator("#said").inner_text() == ""
        for address in held:
            page.unroute(address)
        page.wait_for_selector("body[data-snapshots]")
        page.keyboard.press("m")
        page.wait_for_selector("#moving[open]")


def test_it_works_behind_a_proxy_with_a_path_that_keeps_events_back(visit: Visit) -> None:
    with driven(stuck()) as run, proxied(run.inspect()) as url:
        page = visit(url.removesuffix("/"))
        page.wait_for_selector("body[data-snapshots]")
        before, after = changes(page, '#frontiers div:has(dt:text-is("Frontier at means")) dd')
        assert reached(after) > reached(before)
        page.locator("#pause").click()
        page.wait_for_selector('#said:has-text("paused at")')
        page.wait_for_selector("#resume:enabled")
        page.locator("#resume").click()
        page.wait_for_selector('#status:text-is("running")')


def test_selected_text_stays_until_it_is_copied(visit: Visit) -> None:
    with driven(stuck()) as run:
        page = visit(run.inspect())
        page.wait_for_selector("body[data-snapshots]")
        select = "() => getSelection().selectAllChildren(document.querySelector('#frontiers dd'))"
        page.evaluate(select)
        chosen = page.evaluate("() => getSelection().toString()")
        changes(page, "#clock")
        assert page.evaluate("() => getSelection().toString()") == chosen
        page.evaluate("() => getSelection().removeAllRanges()")
        changes(page, "#frontiers")


def test_an_error_of_a_button_is_shown(visit: Visit) -> None:
    with driven(stuck()) as run:
        page = visit(run.inspect())
        page.wait_for_selector("body[data-snapshots]")
        page.locator("#at").fill("noon")
        page.locator("#pause").click()
        page.wait_for_selector("#said.bad")
        assert "neither an integer nor a timestamp" in page.locator("#said").inner_text()


def test_operators_and_buttons_are_reached_by_keys(visit: Visit) -> None:
    with driven(stuck()) as run:
        page = visit(run.inspect())
        page.wait_for_selector("body[data-snapshots]")
        page.locator(operator(page, "readings")).focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.locator("#chosen").inner_text().lower() == "mean"
        page.keyboard.press("w")
        page.wait_for_selector('#holders h3:text-is("Why")')


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window_has_nothing_beside_it(visit: Visit, scheme: str) -> None:
    with driven(stuck()) as run:
        page = visit(run.inspect(), viewport={"width": 360, "height": 700}, color_scheme=scheme)
        page.wait_for_selector("body[data-snapshots]")
        page.locator(operator(page, "mean")).click()
        width = page.evaluate("() => document.documentElement.scrollWidth")
        assert width <= 360
        colour = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, re.findall(r"\d+", colour))) > 3 * 128
        assert light is (scheme == "light")


def test_the_page_says_that_the_run_has_ended(visit: Visit) -> None:
    with driven(stuck()) as run:
        page = visit(run.inspect())
        page.wait_for_selector("body[data-snapshots]")
    page.wait_for_selector('#status:text-is("ended")')
