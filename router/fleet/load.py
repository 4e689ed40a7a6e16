"""One replica's load as this router knows it: the last report, and the leases that no report covers yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from router.fleet.backlog import Backlog
from router.fleet.board import Board
from router.placement.view import Column, LoadView
from router.wire.report import LoadReport

_MEAN_GAIN = 0.05


@dataclass(eq=False, slots=True)
class Lease:
    """One in-flight request counted on a replica. `work_seconds` is the prefill expected of it.

    `behind_seconds` is what was sent there before it, as far as known, and no report covered yet; `queued` is
    how many queued before it.
    """

    work_seconds: float
    at: float
    prompt_tokens: int = 0
    behind_seconds: float = 0.0
    queued: int = 0
    open: bool = True


class LoadBook:
    """Counts leases and merges reports, on one slot of the board. Times are seconds of the caller's clock.

    `factor` is by how much seconds that the replica reports are to be multiplied to compare with others'.
    """

    def __init__(self, board: Board, slot: int) -> None:
        self.factor = 1.0
        self._enter(board, slot)
        self._report: LoadReport | None = None
        self.backlog = Backlog()
        self._in_flight = 0
        self._in_flight_tokens = 0
        # The same of other routers that share theirs; what is owed, with when that was told.
        self._others_in_flight = 0
        # Others' as these told or as it reported, whichever is more.
        self._elsewhere = 0
        self._others_tokens = 0
        self._others_owed: Sequence[tuple[float, float]] = ()
        # Of that, what is in no estimate of the replica's work.
        self._others_seconds = 0.0
        self._covered_until = float("-inf")
        # Others' work as estimated from what an engine tells: it holds what others owe there.
        self._estimated_seconds = 0.0
        # In order of dispatch: leases whose work is in no report yet.
        self._unreported: dict[Lease, None] = {}
        self._unreported_seconds = 0.0
        # What prefills dispatched here took on average, as expected.
        self._mean_seconds = 0.0
        self.heard_at = float("-inf")

    @property
    def report(self) -> LoadReport | None:
        """The last report."""
        return self._report

    @property
    def mean_seconds(self) -> float:
        """Expected seconds of a prefill sent here, averaged over the last ones."""
        return self._mean_seconds

    @property
    def waiting_for_answers(self) -> int:
        """Leases whose answer has not begun, or that no report covers."""
        return len(self._unreported)

    @property
    def in_flight(self) -> int:
        """Open leases of this router."""
        return self._in_flight

    @property
    def requests(self) -> int:
        """Requests there, as far as known: this router's, and others' as these or the replica told."""
        return self._in_flight + self._elsewhere

    @property
    def in_flight_tokens(self) -> int:
        """The prompts of these."""
        return self._in_flight_tokens

    @property
    def unreported_seconds(self) -> float:
        """Prefill expected of leases that no report covers."""
        return self._unreported_seconds

    @property
    def work_seconds(self) -> float:
        """The work last reported, 0 without a report."""
        return self._report.work_seconds if self._report else 0.0

    def open(self, work_seconds: float, now: float, prompt_tokens: int = 0) -> Lease:
        """Count a request that is about to be sent."""
        behind = self._unreported_seconds + self._others_seconds
        lease = Lease(work_seconds, now, prompt_tokens, behind, self.backlog.queued)
        self._in_flight += 1
        self._in_flight_tokens += prompt_tokens
        self.backlog.sent += 1
        self._show_counts()
        self._dispatched_shown[self._slot] += 1
        self._unreported[lease] = None
        gain = _MEAN_GAIN if self._mean_seconds else 1.0
        self._mean_seconds += gain * (work_seconds - self._mean_seconds)
        self._owe(self._unreported_seconds + work_seconds)
        return lease

    def close(self, lease: Lease) -> None:
        """Count a request out, however it ended. Closing twice counts once."""
        if lease.open:
            lease.open = False
            self.backlog.ended += 1
            self._in_flight -= 1
            self._in_flight_tokens -= lease.prompt_tokens
            self._show_counts()
            self._settle(lease)

    def served(self, lease: Lease, now: float) -> None:
        """Note that an answer came to its end, as it should."""
        self.backlog.served(now - lease.at, lease.queued)

    def answered(self, lease: Lease, report: LoadReport | None, now: float) -> None:
        """Note that an answer to `lease` began, and the report it brought, made after the request came in."""
        if report is not None:
            self.reported(report, lease.at, now)

    def began(self, lease: Lease) -> None:
        """Note the first byte of an answer: where nothing is reported, it tells that the prefill is over."""
        if self._report is None:
            self._settle(lease)

    def estimated(self, work_seconds: float, running: int, waiting: int, kv_usage: float, now: float) -> None:
        """Take what an engine tells that reports no seconds: others' work, estimated; ours stays owed."""
        self.heard_at = now
        self._note(work_seconds, now, running, waiting, kv_usage)
        self._tell_backlog(running, waiting, now)
        self._estimated_seconds = work_seconds
        self._weigh_others()

    def reported(self, report: LoadReport, covers_until: float, now: float) -> None:
        """Take a report that covers all leases opened up to `covers_until`; an older one is ignored."""
        if self._report is not None and report.sequence < self._report.sequence:
            return
        self._report = report
        self.heard_at = now
        self._note(report.work_seconds * self.factor, now, report.running, report.waiting, report.kv_usage)
        self._tell_backlog(report.running, report.waiting, now)
        self._estimated_seconds = 0.0
        self._covers(covers_until)
        while self._unreported:
            lease = next(iter(self._unreported))
            if lease.at > covers_until:
                break
            self._settle(lease)

    def forget_report(self) -> None:
        """Forget what was reported: the replica started anew, or says nothing any more."""
        self._report = None
        self.heard_at = float("-inf")
        self.backlog = Backlog()
        self._covered_until = float("-inf")
        self._estimated_seconds = 0.0
        self.others(0, 0, ())
        self._note(0.0, inf, 0, 0, 0.0)

    def others(self, in_flight: int, tokens: int, owed: Sequence[tuple[float, float]]) -> None:
        """Take what other routers have here now, in place of what they had.

        `owed` are seconds of prefill that no report covered when that was told, each with when it was.
        """
        self._others_in_flight, self._others_tokens = in_flight, tokens
        self._elsewhere = max(in_flight, self.backlog.others)
        self._others_owed = [one for one in owed if one[1] > self._covered_until]
        self._show_counts()
        self._weigh_others()

    def leave(self) -> None:
        """Leave the board; leases that are still open count on a board of their own."""
        board = Board()
        self._enter(board, board.take())

    def view(self, now: float) -> LoadView:
        """Return the load view at `now`."""
        return self._board.load_view(self._slot, now)

    def _enter(self, board: Board, slot: int) -> None:
        self._board = board
        self._slot = slot
        columns = board.columns
        # Two or three of these are written at each step of a request: looked up once.
        self._owed_shown = columns[Column.OWN_WORK_SECONDS]
        self._in_flight_shown = columns[Column.IN_FLIGHT]
        self._tokens_shown = columns[Column.IN_FLIGHT_TOKENS]
        self._dispatched_shown = columns[Column.DISPATCHED]
        self._load_shown = (
            columns[Column.WORK_SECONDS],
            columns[Column.REPORTED_AT],
            columns[Column.RUNNING],
            columns[Column.WAITING],
            columns[Column.KV_USAGE],
        )

    def _note(self, work: float, at: float, running: int, waiting: int, usage: float) -> None:
        slot = self._slot
        works, times, runs, waits, usages = self._load_shown
        works[slot] = work
        times[slot] = at
        runs[slot] = running
        waits[slot] = waiting
        usages[slot] = usage

    def _tell_backlog(self, running: int, waiting: int, now: float) -> None:
        self.backlog.told(running, waiting, self._in_flight, now)
        self._elsewhere = max(self._others_in_flight, self.backlog.others)

    def _settle(self, lease: Lease) -> None:
        if lease in self._unreported:
            del self._unreported[lease]
            # An empty book is exactly zero, whatever rounding left.
            left = self._unreported_seconds - lease.work_seconds
            self._owe(max(0.0, left) if self._unreported else 0.0)

    def _owe(self, seconds: float) -> None:
        self._unreported_seconds = seconds
        self._owed_shown[self._slot] = seconds + self._others_seconds

    def _weigh_others(self) -> None:
        owed = sum(seconds for seconds, _ in self._others_owed)
        self._others_seconds = max(0.0, owed - self._estimated_seconds)
        self._owe(self._unreported_seconds)

    def _show_counts(self) -> None:
        slot = self._slot
        self._in_flight_shown[slot] = self._in_flight + self._others_in_flight
        self._tokens_shown[slot] = self._in_flight_tokens + self._others_tokens

    def _covers(self, until: float) -> None:
        """What others owed until then is in what the replica told."""
        self._covered_until = max(self._covered_until, until)
        if self._others_owed:
            self._others_owed = [one for one in self._others_owed if one[1] > self._covered_until]
            self._weigh_others()
