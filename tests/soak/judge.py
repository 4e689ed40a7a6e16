"""The judge of the soak: what paths, clients and the router's log say of each request must fit together."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tests.soak.clients import Clients
from tests.soak.faults import HARMFUL, Kind
from tests.soak.garbage import SMUGGLED
from tests.soak.path import Attempt

# One loop sees one connection's end and the next one's beginning within this, in any order.
_ORDER_SECONDS = 0.5
# The router's bound on what is a connection that was closed already, and what a busy machine adds.
_STALE_SECONDS = 0.5 + _ORDER_SECONDS
_TURNED_AWAY = (429, 503)
_LINE = re.compile(r" kvring\.access.* request_id=(\S+) .* status=(\d+) result=(\S+) ")
# Errors of the router's own making, where nobody can serve.
_NOBODY = ("no_replica", "overloaded_error")


def verdict(
    attempts: Sequence[Attempt], clients: Clients, troubles: Sequence[tuple[float, float]]
) -> list[str]:
    """Return all that must not be; `troubles` are from when to when something befell a path or a replica."""
    by_id: defaultdict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_id[attempt.request_id].append(attempt)
    known = {*clients.asker.asked, "soak-garbage"}
    faults = [f"{id}: a replica saw it, and nobody sent it" for id in by_id.keys() - known]
    if SMUGGLED in by_id:
        faults.append("a request was smuggled")
    for id, tries in by_id.items():
        if id in clients.asker.asked:
            faults += (f"{fault}: {tries}" for fault in _tries(id, tries, clients.asker.asked[id]))
    for id, (status, code, began_at, ended_at) in clients.errors.items():
        troubled = any(began <= ended_at and ended >= began_at for began, ended in troubles)
        faults += _error(id, status, code, by_id.get(id, []), troubled)
    return faults


def _tries(id: str, tries: Sequence[Attempt], streamed: bool) -> Iterator[str]:
    """Say where a request was sent on that might have run, or run still."""
    # May have begun a generation that is not known to have been none; and whether a stream of it began.
    ran, begun = 0, False
    for before, after in pairwise(tries):
        what = f"{id}: sent to {after.replica} after {before.replica}, which "
        begun = begun or (streamed and before.status == 200 and not before.answered)
        if after.began_at < before.ended_at - _ORDER_SECONDS and not before.unseen:
            yield what + "still had it"
        if before.answered and before.status not in _TURNED_AWAY and not begun:
            yield what + f"had answered {before.status}"
        elif before.answered and before.status == 200:
            yield what + "had answered it all"
        elif begun:
            # It goes on from where the client is, which may be its very start.
            continue
        elif after.resumed:
            yield what + "had not begun to stream"
        elif before.status in _TURNED_AWAY:
            ran += before.fault.kind is Kind.SAID_503_RAN
        elif before.told_bytes and not _torn(before):
            yield what + "had begun to answer"
        elif before.started:
            stale = before.reused and before.ended_at - before.began_at < _STALE_SECONDS
            if not (stale or before.disturbed):
                yield what + "may have run it"
            ran += not stale
    if ran > 1:
        yield f"{id}: may have run {ran + 1} times"


def _torn(attempt: Attempt) -> bool:
    """Say whether its connection was reset: then nobody knows what of the last bytes has arrived."""
    return not attempt.answered and (attempt.fault.kind is Kind.RESET or attempt.disturbed)


def _error(id: str, status: int, code: str, tries: Sequence[Attempt], troubled: bool) -> Iterator[str]:
    """Say where a client saw an error and nothing befell its request."""
    if any(one.fault.kind in HARMFUL or one.disturbed for one in tries):
        return
    if code == "context_length_exceeded":
        # As was asked for.
        return
    if troubled and not tries:
        # Sent into a connection that was reset before anybody read it.
        return
    if status == 503 and code in _NOBODY and not any(one.started for one in tries):
        return
    yield f"{id}: {status} {code} for no reason: {tries}"


def books(log: Sequence[str], clients: Clients) -> list[str]:
    """Return where the access log does not have each request once, and as its client saw it."""
    lines = [found.groups() for line in log if (found := _LINE.search(line))]
    counts = Counter(id for id, _, _ in lines if id in clients.asker.asked)
    ends: Mapping[str, tuple[str, str]] = {id: (status, result) for id, status, result in lines}
    faults = [f"{id}: {count} lines in the log" for id, count in counts.items() if count != 1]
    faults += [f"{id}: answered, and not in the log" for id in clients.answered - counts.keys()]
    for id in clients.answered & counts.keys():
        status, code, *_ = clients.errors.get(id, (200, ""))
        if ends[id][0] != str(status) or (ends[id][1] == "ok") is not (code == ""):
            faults.append(f"{id}: seen as {status} {code}, booked as {ends[id]}")
    return faults
