"""One replica's load as this router knows it: the last report, and the leases that no report covers yet."""

from __future__ import annotations

from dataclasses import dataclass

from router.placement.view import LoadView
from router.wire.report import LoadReport


@dataclass(eq=False, slots=True)
class Lease:
    """One in-flight request counted on a replica. `work_seconds` is the prefill expected of it."""

    work_seconds: float
    at: float
    open: bool = True


class LoadBook:
    """Counts leases and merges reports. Times are the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._report: LoadReport | None = None
        self._reported_at = 0.0
        self._in_flight = 0
        self._dispatched = 0
        # In order of dispatch: leases whose work is in no report yet.
        self._unreported: dict[Lease, None] = {}
        self._unreported_seconds = 0.0

    @property
    def in_flight(self) -> int:
        """Open leases."""
        return self._in_flight

    @property
    def work_seconds(self) -> float:
        """The work last reported, 0 without a report."""
        return self._report.work_seconds if self._report else 0.0

    def open(self, work_seconds: float, now: float) -> Lease:
        """Count a request that is about to be sent."""
        lease = Lease(work_seconds, now)
        self._in_flight += 1
        self._dispatched += 1
        self._unreported[lease] = None
        self._unreported_seconds += work_seconds
        return lease

    def close(self, lease: Lease) -> None:
        """Count a request out, however it ended. Closing twice counts once."""
        if lease.open:
            lease.open = False
            self._in_flight -= 1
            self._settle(lease)

    def answered(self, lease: Lease, report: LoadReport | None, now: float) -> None:
        """Note that an answer to `lease` began, and the report it brought, made after the request came in."""
        if report is not None:
            self.reported(report, lease.at, now)

    def began(self, lease: Lease) -> None:
        """Note the first byte of an answer: where nothing is reported, it tells that the prefill is over."""
        if self._report is None:
            self._settle(lease)

    def reported(self, report: LoadReport, covers_until: float, now: float) -> None:
        """Take a report that covers all leases opened up to `covers_until`; an older one is ignored."""
        if self._report is not None and report.sequence < self._report.sequence:
            return
        self._report = report
        self._reported_at = now
        while self._unreported:
            lease = next(iter(self._unreported))
            if lease.at > covers_until:
                break
            self._settle(lease)

    def forget_report(self) -> None:
        """Forget what was reported: the replica started anew, or says nothing any more."""
        self._report = None

    def view(self, now: float) -> LoadView:
        """Return the load view at `now`."""
        report = self._report
        if report is None:
            return LoadView(0.0, now, self._unreported_seconds, self._in_flight, self._dispatched)
        return LoadView(
            report.work_seconds,
            self._reported_at,
            self._unreported_seconds,
            self._in_flight,
            self._dispatched,
            report.running,
            report.waiting,
        )

    def _settle(self, lease: Lease) -> None:
        if lease in self._unreported:
            del self._unreported[lease]
            # An empty book is exactly zero, whatever rounding left.
            left = self._unreported_seconds - lease.work_seconds
            self._unreported_seconds = max(0.0, left) if self._unreported else 0.0
