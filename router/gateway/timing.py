"""How long an answer's prefill took: as the replica tells, or as its first byte does."""

from __future__ import annotations

from router.fleet.load import Lease
from router.gateway.usage import AnswerReader


def prefill_seconds(
    reader: AnswerReader, lease: Lease, reports: bool, first_byte_at: float | None
) -> float | None:
    """Return the seconds of a prefill; None where nothing tells.

    `reports` is whether the replica reports its load, `first_byte_at` when a stream began, None for answers
    that come whole: their first byte comes after their last token. What this router had sent there before,
    and was not answered yet, would be a wait of unknown length: then a first byte tells nothing.
    """
    if reader.prefill_seconds is not None:
        return reader.prefill_seconds
    if reports or first_byte_at is None or lease.behind_seconds > 0:
        return None
    return first_byte_at - lease.at
