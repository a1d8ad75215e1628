"""The agent: one worker, and the loop around it, the same on every host.

Each turn it reads from a *feed*, steps the worker, hands rows to a *sink*, and stays in touch with
the driver: it reports, and obeys commands. A host gives it these and the connections to its peers:
the tasks of Spark, or the in-process host, whose schedule may be random.

An agent steps its worker while there is something to do, spins briefly when there is not, since an
answer may be microseconds away, and then blocks, so that an idle query costs next to nothing.
"""

from __future__ import annotations

import math
import os
import resource
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from jeton.core.errors import FlowStalled, GraphError, JetonError, TimeError
from jeton.dataflow.plan import progress_graph
from jeton.progress.graph import ProgressGraph
from jeton.progress.relay import Hops, in_groups
from jeton.runtime.attachments import Feed, NoFeed, NoSink, PartWriter, Sink
from jeton.runtime.breakpoints import Breakpoints, to_bytes
from jeton.runtime.commands import Command, Connection, NotDone, QuiescentCommand
from jeton.runtime.metrics import WorkerMetrics, begin_to_count, measure, operator_metrics, plain
from jeton.runtime.network import Alone, Peers
from jeton.runtime.quiescence import STALL
from jeton.runtime.why import Question
from jeton.runtime.worker import Worker
from jeton.runtime.worker_facts import Heads, collect
from jeton.state.snapshot import Snapshot

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow

SPIN: Final = 100e-6
"""Seconds to poll again and again before blocking."""
ALERT: Final = 0.01
"""Seconds after something happened in which it is worth spinning."""
MOST_OUT: Final = 8 << 20
"""Bytes waiting for one peer from which on sources are not invoked."""
MOST_QUEUED: Final = 4096
"""Messages waiting in inputs from which on no more data is read from peers."""
MOST_QUEUED_BYTES: Final = 64 << 20
"""The same in bytes, as far as they can be estimated."""
BEAT: Final = 0.5
"""Seconds between signs of life to the peers, and the longest time to block."""
REPORT: Final = 0.2
"""Seconds between reports to the driver, and between looks for its commands."""
REPORT_OPERATORS: Final = 1.0
"""Seconds between reports that have the operators too."""
GLANCE: Final = 0.001
"""Seconds between looks for a command that is about to come."""
FIRST_WORD: Final = 2.0
"""Seconds for which a worker of a stalled flow that holds no tokens lets others say so."""
LAST_PATIENCE: Final = 0.005
"""Seconds between looks for a command, when there is nothing to do without it."""

WAITS: Final = ""
TAKES_A_TURN: Final = "takes a turn"
READS: Final = "reads from the source"
WRITES: Final = "writes to the sink"
OBEYS: Final = "carries out a command"
"""Acts of an agent, as the end of a sentence."""


class Agent:
    """One worker of a flow, and the loop that drives it.

    >>> import jeton as jt
    >>> flow = jt.Flow("counts")
    >>> flow.output("counts", flow.input("words").key_by("word").running().count())
    >>> agent = Agent(flow)
    >>> words = agent.worker.handles[flow.handle("input", "words")]
    >>> words.send({"word": ["a", "b"]})
    >>> words.close()
    >>> agent.run()
    >>> agent.metrics().rows_in, agent.is_complete
    (2, True)
    >>> agent.close()
    """

    def __init__(
        self,
        flow: Flow,
        peers: Peers | None = None,
        *,
        index: int = 0,
        workers: int = 1,
        restore: Snapshot | None = None,
        clock: Callable[[], float] = time.monotonic,
        graph: ProgressGraph | None = None,
        measured: bool = False,
        memory_budget: int | None = None,
        hops: Hops = in_groups,
    ) -> None:
        """``measured`` keeps the time spent in each operator, and what goes in and out of it.

        ``hops`` says how progress gets to the others: through relays, if there are many.
        """
        self.flow = flow
        self.peers: Peers = Alone() if peers is None else peers
        self.feed: Feed = NoFeed()
        self.sink: Sink = NoSink()
        self.driver: Connection | None = None
        """The connection to the driver, where there is one to report to and to obey."""
        self.parts: PartWriter | None = None
        """The writer of checkpoints, if it takes any."""
        self.is_stopped = False
        """Whether the loop ends at once."""
        self.expects_command = False
        """Whether the driver has said that its next command comes at once."""
        self._clock = clock
        self._on_thread = get_ident()
        self._process = f"process {os.getpid()} on {socket.gethostname()}"
        self._line = _Line(self.peers)
        self.worker = Worker(
            flow.operators,
            progress_graph(flow.operators) if graph is None else graph,
            index=index,
            workers=workers,
            network=self._line,
            clock=clock,
            wake=self._wake,
            restore=restore,
            bins=flow.bins,
            domain=flow.domain,
            memory_budget=memory_budget,
            hops=hops,
            connected=begin_to_count if measured else None,
        )
        if measured:
            measure(self.worker)
        self.peers.attach(self.worker)
        self.breakpoints = Breakpoints(self.worker, flow)
        """The breakpoint that holds its inputs, if one is set."""
        handles = self.worker.handles
        ends = [(what, handles[flow.handle(what, name)]) for what, name in flow.handles()]
        self._inputs = [handle for what, handle in ends if what == "input"]
        self._sources = [handle for what, handle in ends if what in ("input", "sequencer")]
        self._reports = False
        self._began = time.monotonic()
        """By the wall's clock, which that of a simulation need not follow."""
        self._cpu_began = time.process_time()
        self._beaten = self._busy_at = clock()
        self._reported = self._reported_operators = -math.inf
        self.act: str | None = None
        """The present act of its thread, for a `BusyWatch`; ``None`` outside of its turns."""
        self.turns_taken = 0
        self.looks: list[str] = []
        """Its act whenever a `BusyWatch` looked."""
        self.heads: Heads = {}
        """The first messages of its queues when it looked last."""
        self._seen_bytes = 0
        self._congested = False
        self._told_complete = False
        self._stalled_at: float | None = None
        self._due: deque[QuiescentCommand] = deque()
        self._deferred: deque[Command] = deque()
        """Commands that wait for the end of a round, since a worker at rest must not act."""
        self._round: _Round | None = None
        self._rounds_done = 0
        self._latest = 0
        """The number of the latest command that needs all workers at rest."""
        self._counted = self._counts()

    def attach(
        self,
        *,
        feed: Feed | None = None,
        sink: Sink | None = None,
        driver: Connection | None = None,
        parts: PartWriter | None = None,
        reports: bool = True,
    ) -> None:
        """Begin to read, write, report and obey: once for each run of the loop."""
        self.feed = NoFeed() if feed is None else feed
        self.sink = NoSink() if sink is None else sink
        self.driver = driver
        self.parts = parts
        self._reports = reports
        self._began, self._cpu_began = time.monotonic(), time.process_time()
        self._busy_at = self._clock()
        self._reported = -math.inf if reports else self._busy_at
        self._reported_operators = -math.inf
        for operator in self.worker.operators:
            operator.reset_counts()
        self.is_stopped = self._told_complete = False
        self._latest = 0
        self._counted = self._counts()

    def rejoin(self, peers: Peers) -> None:
        """Go on with the same peers over other connections, once all have come to rest."""
        self.peers = peers
        self._line.lead_through(self.peers)
        self._due.clear()
        self._end_round()
        self._seen_bytes = self._rounds_done = 0
        self.peers.attach(self.worker)

    # The loop

    def run(self) -> None:
        """Take turns until the flow is complete or the driver says stop, then end in order."""
        for _ in self.turns():
            pass
        if self.parts is None:
            self.act = WRITES
            self.sink.write()
            self.act = None
        while self.sink.is_full:
            self.keep_in_touch()
            if self.driver is not None:
                self.driver.has_news(REPORT / 2)
        self.sink.finish()
        self.report()

    def turns(self) -> Iterator[None]:
        """Take turns, one for each item, until the flow is complete or the driver says stop."""
        while not self.is_over:
            self.turn(block=None)
            yield

    def step(self, random: Random | None = None) -> bool:
        """Take a turn without reading or waiting, if a turn may do something now.

        This is for a host with a schedule of its own. With ``random``, the worker invokes only
        some operators, in any order.
        """
        worker = self.worker
        if self.driver is not None:
            return self.is_ready and self.turn(random=random, reading=False)
        if self.breakpoints.at is not None:
            worker.hold_sources(self.breakpoints.is_full)
        if not worker.has_work:
            return False
        self._on_thread = get_ident()
        self.act = TAKES_A_TURN
        worker.step(random)
        self.act = None
        return True

    def catch_up(self) -> bool:
        """Take a step for records that wait for state on disk, if there are any."""
        if not self.worker.catch_up():
            return False
        self._on_thread = get_ident()
        self.worker.step()
        return True

    def turn(
        self, *, block: float | None = 0.0, random: Random | None = None, reading: bool = True
    ) -> bool:
        """Receive, read, step, write, obey: once. Returns whether anything happened.

        If nothing did, it spins briefly and then blocks for up to ``block`` seconds, or until it
        is worth reading again or looking for a command.
        """
        self._on_thread = get_ident()
        self.act = WAITS
        did = self._poll(0.0)
        self.act = TAKES_A_TURN
        worker = self.worker
        if self.breakpoints.at is not None and worker.tracker.is_complete:
            # All inputs have ended, so that no worker holds a token there.
            self.breakpoints.resume()
        held_up = self.is_held_up
        worker.hold_sources(held_up or self._round is not None or self.breakpoints.is_full)
        did = (reading and not held_up and self.read()) or did
        if worker.has_work or (not did and worker.catch_up()):
            worker.step(random)
            did = True
        elif not did and not self._rests():
            if block is None:
                block = self._patience()
            if block > 0.0:
                self.act = WAITS
                did = self._wait(block)
        if did:
            self._busy_at = self._clock()
            # While a peer still rests, rows that come after a snapshot must not pass for its own.
            if self._round is None:
                self.act = WRITES
                self.sink.write()
            if self.breakpoints.watches:
                self._look_for_match()
        if self.driver is not None or self._due or self._round is not None:
            self.keep_in_touch()
            self.act = OBEYS
            self._take_part(did)
        self.act = None
        return did

    def read(self) -> bool:
        """Read from the feed, unless the worker rests or the sink is full."""
        if self._round is not None or self.sink.is_full or self.breakpoints.stops_reading:
            return False
        before, self.act = self.act, READS
        did = self.feed.read(self.worker.has_work)
        self.act = before
        return did

    def close(self) -> None:
        """End the run, on success or failure."""
        self.worker.close()

    @property
    def is_complete(self) -> bool:
        """Whether nothing can ever happen again, on any worker."""
        worker = self.worker
        # A relay that knows it still has to tell the others.
        return worker.tracker.is_complete and not self.breakpoints.holds and not worker.must_forward

    @property
    def is_over(self) -> bool:
        """Whether the loop ends; with checkpoints, the driver ends it after the last of them."""
        if self.parts is None and self._round is None and self.is_complete:
            return True
        return self.is_stopped

    @property
    def is_ready(self) -> bool:
        """Whether a step may do something now: for a host with a schedule of its own."""
        driver = self.driver
        if driver is None or self.worker.has_work:
            return self.worker.has_work
        return not self.is_over and (
            bool(self.worker.held) or self.is_engaged or self._must_tell or driver.has_news()
        )

    @property
    def is_at_rest(self) -> bool:
        """Whether there is nothing to do here, and nothing to read, unless a peer acts."""
        return (
            (self.feed.ended or self.breakpoints.stops_reading)
            and not self.worker.has_work
            and not self.worker.held
            and not self.worker.threads_expected
        )

    @property
    def is_held_up(self) -> bool:
        """Whether enough is under way, here or at a peer, for sources to wait."""
        peers = self.peers
        # Sources go on only after a good part has gone, so that they do not stop and go.
        self._congested = peers.backlog > (MOST_OUT // 2 if self._congested else MOST_OUT)
        peers.announce(self._congested)
        return self._congested or bool(peers.busy_peers)

    @property
    def held_up_by(self) -> str:
        """Why sources wait, as the end of a sentence; empty if they do not."""
        peers = self.peers
        if self._congested:
            return f"waits to send: {peers.backlog:,} bytes for one peer are not received yet"
        busy = " and ".join(str(peer) for peer in sorted(peers.busy_peers))
        return f"reads no sources, since worker {busy} does not keep up" if busy else ""

    @property
    def thread(self) -> int:
        """The thread that drives it."""
        return self._on_thread

    # Reports

    def metrics(self, *, operators: bool = True) -> WorkerMetrics:
        """The counts of this worker since it was attached, with its operators or without."""
        peers, before = self.peers, self._counted
        rows_in, late = self._counts()
        return WorkerMetrics(
            worker=self.worker.index,
            rows_in=rows_in - before[0],
            rows_out=self.sink.rows,
            late=late - before[1],
            rejected=self.feed.rejected,
            messages=peers.messages,
            bytes_in=peers.message_bytes,
            progress_batches=peers.progress_batches,
            progress_bytes=peers.progress_bytes,
            queued=self.worker.queued,
            backlog=peers.backlog,
            held_up=self._congested or bool(peers.busy_peers),
            sink_full=self.sink.is_full,
            seconds=round(time.monotonic() - self._began, 3),
            cpu_seconds=round(time.process_time() - self._cpu_began, 4),
            peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            operators=operator_metrics(self.worker) if operators else (),
        )

    def frontiers(self) -> dict[str, list[Any]]:
        """For each output and probe the least times that may still pass there."""
        worker, flow = self.worker, self.flow
        found = {}
        for what, name in flow.handles():
            if what in ("output", "probe"):
                node = worker.graph.nodes[flow.handle(what, name)]
                found[name] = plain(worker.tracker.least_anywhere(node.inputs[0]))
        return found

    def report(self, *, operators: bool = True) -> None:
        """Report this worker's frontiers and metrics to the driver."""
        if self.driver is not None and self._reports:
            self.driver.send("report", **self.reported(operators=operators))

    def reported(self, *, operators: bool = True) -> dict[str, Any]:
        """How far this worker is: frontiers, metrics, inputs, and the unit of all times."""
        return {
            "frontiers": self.frontiers(),
            "metrics": self.metrics(operators=operators).to_json(),
            "inputs": self.feed.state(),
            "unit": self.worker.units.unit,
            "process": self._process,
        }

    def _counts(self) -> tuple[int, int]:
        """Records that were sent to inputs, and those of them that were late."""
        handles = self._inputs
        return (
            sum(getattr(handle, "sent_count", 0) for handle in handles),
            sum(getattr(handle, "late_count", 0) for handle in handles),
        )

    # Commands

    def keep_in_touch(self) -> None:
        """Report to the driver, and look for its commands, if it is time to."""
        driver = self.driver
        if driver is None:
            return
        now = self._clock()
        is_time = now - self._reported > REPORT
        if is_time:
            self._reported = now
            operators = now - self._reported_operators > REPORT_OPERATORS
            if operators:
                self._reported_operators = now
            self.report(operators=operators)
            # Rows that were written a while ago may have to be committed.
            if self._round is None:
                self.sink.write()
        if is_time or self._awaits_command or self.peers.rounds.begun > self._rounds_done:
            while driver.has_news():
                news = driver.receive()
                if news is None:
                    raise JetonError("the driver has gone, or has given this attempt up")
                self.obey(Command.from_json(news[0]))

    def obey(self, command: Command) -> None:
        """Do what a command says, or begin to."""
        command.obey(self)

    def rest_for(self, command: QuiescentCommand) -> None:
        """Come to rest with all workers, and do a command then; once, if it is sent again."""
        if not command.number or command.number > self._latest:
            self._latest = max(self._latest, command.number)
            self._due.append(command)

    def defer(self, command: Command) -> None:
        """Obey a command when those that need all workers at rest are done."""
        self._deferred.append(command)

    def resume(self) -> None:
        """Leave a rest that a command holds, once all workers do."""
        if self._round is not None and self._round.holds:
            self._leave(self._round)

    def _look_for_match(self) -> None:
        """Pause at rows that match what the driver looks for, and report them."""
        found = self.breakpoints.matched()
        if found is not None and self.driver is not None:
            if self.breakpoints.at is None:
                # If all inputs have ended, there is nothing left to pause.
                with suppress(GraphError, TimeError):
                    self.breakpoints.pause(None, found.reason)
            said: dict[str, Any] = {"output": found.output, "reason": found.reason}
            if found.error is not None:
                said["error"] = str(found.error)
            payload = b"" if found.rows is None else to_bytes(found.rows)
            self.driver.send("matched", payload, **said)

    @property
    def is_engaged(self) -> bool:
        """Whether a command is under way that needs all workers at rest."""
        return bool(self._due) or self._round is not None

    @property
    def rests_for(self) -> str:
        """The command that it rests for, as the end of a sentence; empty if it does not."""
        round_ = self._round
        seconds = 0.0 if round_ is None else self._clock() - round_.began
        # Those that take a moment only are not worth a word.
        if round_ is None or seconds < 1.0:
            return ""
        return f"rests for a command, {round_.command.kind!r}, for {seconds:.1f} s"

    @property
    def is_held(self) -> bool:
        """Whether all workers rest, and this one stays so until it is let go."""
        return self._round is not None and self._round.holds

    @property
    def _awaits_command(self) -> bool:
        return (
            self.feed.awaits_command
            or self._told_complete
            or self.sink.is_full
            or self.is_held
            or self.breakpoints.at is not None
            or self.worker.migration is not None
            or self.expects_command
        )

    @property
    def _must_tell(self) -> bool:
        """Whether the driver has to hear that there is a last checkpoint to take."""
        return self.parts is not None and self.is_complete and not self._told_complete

    def _take_part(self, did: bool) -> None:
        """Begin a round, do what it is for once all rest, or end it once all are ready."""
        round_ = self._round
        if self.parts is None:
            if round_ is None and not self._due:
                return
        else:
            self.parts.check()
        if round_ is None:
            if self._due and not (self._due[0].settle and (did or self.worker.has_work)):
                self._begin(self._due.popleft())
            elif self._must_tell:
                self._told_complete = True
                if self.worker.index == 0 and self.driver is not None:
                    self.driver.send("complete")
        elif round_.leaves:
            if self.peers.rounds.all_ready(round_.number):
                self._end_round()
                round_.finish(self._clock())
                while self._deferred and not self.is_engaged:
                    self.obey(self._deferred.popleft())
        elif round_.holds:
            # Not at once: the host may have to take rows first, that what is finished relies on.
            round_.finish(self._clock())
        elif self.peers.rounds.all_rest(round_.number):
            # If a worker gave up, what it did since may have come together with this.
            self._do(round_, rests=not self.worker.has_work)
        elif self._clock() > round_.deadline:
            self._do(round_, rests=False)

    def _begin(self, command: QuiescentCommand) -> None:
        self._round = _Round(self, command, self._clock())
        self.worker.hold_sources(True)
        self.worker.timers.wait = True
        self.peers.rounds.begin(command.number)

    def _do(self, round_: _Round, *, rests: bool) -> None:
        round_.do(rests)
        if round_.command.hold and rests:
            round_.holds = True
        else:
            self._leave(round_)

    def _leave(self, round_: _Round) -> None:
        round_.holds, round_.leaves = False, True
        self.peers.rounds.say_ready(round_.number)

    def _end_round(self) -> None:
        if self._round is not None:
            self._rounds_done = self._round.number
            self._round = None
        self.worker.timers.wait = False

    def _rests(self) -> bool:
        """Tell the peers that this worker rests, if it should; whether all of them do now."""
        round_ = self._round
        if round_ is None or round_.holds or round_.leaves:
            return False
        if not self.worker.threads_expected:
            self.peers.say_rest(round_.number)
        return self.peers.rounds.all_rest(round_.number)

    # Waiting

    def _patience(self) -> float:
        """How long to block, if nothing happens: until it is worth reading or looking again."""
        now, round_ = self._clock(), self._round
        if self._due:
            return GLANCE if self._due[0].settle else 0.0
        if round_ is not None and not round_.holds:
            return min(BEAT, max(0.0, round_.deadline - now))
        if round_ is not None and not round_.is_finished:
            return 0.0
        if round_ is not None or self.feed.awaits_command:
            return GLANCE
        most = BEAT if self.driver is None else REPORT / 2
        if self._awaits_command:
            most = LAST_PATIENCE
        if self._congested or self.peers.busy_peers or self.sink.is_full:
            return most
        if self.breakpoints.stops_reading:
            return most
        return min(most, self.feed.patience(now - self._busy_at))

    def _wait(self, block: float) -> bool:
        if self.is_held and self.driver is not None:
            # There is nothing to do before the driver's next word.
            self.driver.has_news(block)
            return self._poll(0.0)
        self.peers.pause(False)
        timer = self.worker.timers.next
        now = self._clock()
        if timer is not None:
            block = min(block, max(0.0, timer - now))
        # Where nothing has happened for long, nothing is likely to happen in a moment either.
        spun = now + min(SPIN, block) if now - self._busy_at < ALERT else now
        while self._clock() < spun:
            if self._poll(0.0):
                return True
        return self._poll(block)

    def _poll(self, timeout: float) -> bool:
        peers = self.peers
        self.turns_taken += 1
        if self.turns_taken % 16 == 0 or peers.message_bytes - self._seen_bytes > MOST_OUT:
            self._seen_bytes = peers.message_bytes
            peers.pause(self._has_enough(peers))
        did = peers.poll(timeout)
        now = self._clock()
        if now - self._beaten > BEAT:
            self._beaten = now
            peers.beat()
            if self._has_stalled:
                peers.say_rest(STALL)
                if peers.rounds.all_rest(STALL):
                    self._say_stalled(now)
        return did

    @property
    def _has_stalled(self) -> bool:
        """Whether this worker will not act again unless another one does."""
        worker = self.worker
        return not (
            self.is_complete
            or self.breakpoints.at is not None
            or worker.migration is not None
            or self._round is not None
            or worker.has_work
            or worker.held
            or worker.timers.next is not None
            or worker.threads_expected
            or not all(handle.closed for handle in self._sources)
        )

    def _say_stalled(self, now: float) -> None:
        facts = collect([self])
        # One that holds tokens can name their lines: let it speak first.
        if self._stalled_at is None and not facts[0].tokens:
            self._stalled_at = now
        if self._stalled_at is None or now - self._stalled_at > FIRST_WORD:
            held = Question(self.flow, self.worker.graph, facts).stalled()
            raise FlowStalled(f"all workers came to rest but the flow is not complete: {held}")

    def _has_enough(self, peers: Peers) -> bool:
        """Whether enough waits in inputs for no more to be read from peers."""
        # If operators leave their input alone, what they wait for may be still to come.
        if not self.worker.has_work:
            return False
        queued = self.worker.queued
        size = peers.message_bytes / max(peers.messages_in, 1)
        return queued > MOST_QUEUED or queued * size > MOST_QUEUED_BYTES

    def _wake(self) -> None:
        """Something was posted: from another thread, this one may have to be woken."""
        if get_ident() != self._on_thread:
            self.peers.wake()


class _Round:
    """A worker's part in a command that all do at rest."""

    def __init__(self, agent: Agent, command: QuiescentCommand, now: float) -> None:
        self.command = command
        self.number = command.number
        self.deadline = math.inf if command.patience is None else now + command.patience
        self.holds = self.leaves = False
        self._agent = agent
        self.began = now
        self._why: str | None = None
        self._found: Any = None
        self.is_finished = False

    def do(self, rests: bool) -> None:
        if not rests:
            self._why = f"worker {self._agent.worker.index} did not come to rest"
            return
        try:
            self._found = self.command.at_rest(self._agent)
        except NotDone as error:
            self._why = error.message

    def finish(self, now: float) -> None:
        """Do what is slow, once."""
        if not self.is_finished:
            self.is_finished = True
            if self._why is None:
                self.command.finish(self._agent, self._found, now - self.began)
            else:
                self.command.missed(self._agent, self._why)


class _Line:
    """A worker's network: its peers, in whose place others may come."""

    def __init__(self, peers: Peers) -> None:
        self.lead_through(peers)

    def lead_through(self, peers: Peers) -> None:
        self.send_message = peers.send_message
        self.send_progress = peers.send_progress
