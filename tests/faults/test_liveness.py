"""A busy peer is never lost, and a dead machine is noticed, on a real network."""

from __future__ import annotations

import pytest

from jeton.mesh.liveness import Keepalive
from tests.faults.peers_over_network import Fault, Load, can_have_machines, stall

BRIEF = Keepalive(idle=1, interval=1, probes=2)
needs_machines = pytest.mark.skipif(
    not can_have_machines(), reason="network namespaces need root and iproute2"
)


def test_a_peer_that_stalls_is_not_lost() -> None:
    """For twice the time after which a machine would be given up, with its window closed."""
    outcome = stall("stopped", 2.0 * BRIEF.patience, keepalive=BRIEF, machines=False)
    assert outcome.hit
    assert outcome.complete, outcome


@needs_machines
def test_a_machine_that_vanishes_is_noticed() -> None:
    outcome = stall("cable pulled", load="full", keepalive=BRIEF, limit=60.0)
    assert outcome.hit
    assert "the machine of worker 1 does not answer" in outcome.errors[0], outcome


@pytest.mark.long
@needs_machines
@pytest.mark.parametrize("seconds", [10.0, 31.0, 60.0])
@pytest.mark.parametrize("load", ["flowing", "full"])
@pytest.mark.parametrize("fault", ["busy", "stopped"])
def test_a_peer_that_stalls_for_long_is_not_lost(fault: Fault, load: Load, seconds: float) -> None:
    if fault == "busy" and load == "flowing":
        pytest.skip("a busy worker does not read")
    outcome = stall(fault, seconds, load=load)
    assert outcome.hit
    assert outcome.complete, outcome


@pytest.mark.long
@needs_machines
@pytest.mark.parametrize("load", ["idle", "flowing", "full"])
def test_a_machine_that_vanishes_is_noticed_within_a_minute(load: Load) -> None:
    outcome = stall("cable pulled", load=load)
    assert outcome.hit
    for worker, error in outcome.errors.items():
        assert f"the machine of worker {1 - worker} does not answer" in error
    assert set(outcome.errors) == ({0} if load == "full" else {0, 1})
    assert max(outcome.noticed.values()) < 60.0, outcome


@pytest.mark.long
@needs_machines
def test_a_short_break_of_the_network_is_survived() -> None:
    outcome = stall("cable pulled for a while", 15.0, load="flowing")
    assert outcome.hit
    assert outcome.complete, outcome
