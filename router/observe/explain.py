"""Explain: a decision as JSON, with the words that say why one replica was chosen and the next was not."""

from __future__ import annotations

from typing import Any

from router.observe.decisions import Record
from router.observe.outcome import Outcome
from router.placement.ask import Choice


def explanation(record: Record) -> dict[str, Any]:
    """Return all that is known of a decision; `outcome` is null until a replica has answered."""
    first, second = (*record.choices, None, None)[:2]
    return {
        "at": record.at,
        "policy": record.policy,
        "model": record.model,
        "tier": record.tier,
        "prompt_tokens": record.prompt_tokens,
        "preamble_tokens": record.preamble_tokens,
        "blocks": record.blocks,
        "block_tokens": record.block_tokens,
        "seen_tokens": record.sight.seen_tokens,
        "replicas": record.replicas,
        "ranking": [_ranked(record, place, one) for place, one in enumerate(record.choices, 1)],
        "chosen": first.name if first else None,
        "runner_up": second.name if second else None,
        "why": _why(first, second),
        "outcome": _outcome(record, record.outcome) if record.outcome and record.outcome.status else None,
    }


def brief(request_id: str, record: Record) -> dict[str, Any]:
    """Return a decision in short; `status` is null until it has ended."""
    first, second = (*record.choices, None, None)[:2]
    outcome = record.outcome
    ended = outcome if outcome and outcome.status else None
    return {
        "at": record.at,
        "request_id": request_id,
        "model": record.model,
        "prompt_tokens": record.prompt_tokens,
        "chosen": first.name if first else None,
        "runner_up": second.name if second else None,
        "reason": first.reason if first else "",
        "why": _why(first, second),
        "expected_tokens": first.expected_tokens if first else 0,
        # Another than the chosen one where that could not be reached.
        "replica": ended.replica or None if ended else None,
        "hit_tokens": ended.hit_tokens if ended else None,
        "status": ended.status if ended else None,
        "result": ended.result if ended else None,
        "misses": ended.misses.to_json() if ended and ended.misses else None,
    }


def why(chosen: Choice, runner_up: Choice) -> str:
    """Say in one sentence what tipped the scales."""
    wait = runner_up.wait_seconds - chosen.wait_seconds
    prefill = runner_up.prefill_seconds - chosen.prefill_seconds
    hit = chosen.expected_tokens - runner_up.expected_tokens
    parts = [
        f"waits {_milliseconds(wait)} {'longer' if wait > 0 else 'less'}" if _tells(wait) else "",
        f"computes {_milliseconds(prefill)} {'longer' if prefill > 0 else 'less'}" if _tells(prefill) else "",
        f"is expected to hold {abs(hit)} tokens {'less' if hit > 0 else 'more'}" if hit else "",
    ]
    told = ", ".join(part for part in parts if part) or "is predicted alike"
    if wait + prefill > 0 or not _tells(wait + prefill):
        return f"{runner_up.name} {told}"
    # Predicted faster, and yet second: what the policy prefers beside time decided.
    return f"{runner_up.name} {told}, but {chosen.name} is preferred ({chosen.reason or 'by the policy'})"


def _why(chosen: Choice | None, runner_up: Choice | None) -> str:
    return why(chosen, runner_up) if chosen and runner_up else "there was no other replica"


def _ranked(record: Record, place: int, choice: Choice) -> dict[str, Any]:
    return {
        "place": place,
        "replica": choice.name,
        "expected_tokens": choice.expected_tokens,
        "digest_tokens": record.sight.told_by(choice.name),
        "wait_seconds": choice.wait_seconds,
        "prefill_seconds": choice.prefill_seconds,
        "score": choice.score,
        "reason": choice.reason,
    }


def _outcome(record: Record, outcome: Outcome) -> dict[str, Any]:
    served = next((one for one in record.choices if one.name == outcome.replica), None)
    return {
        "request_id": outcome.request_id,
        "replica": outcome.replica or None,
        "status": outcome.status,
        "result": outcome.result,
        "attempts": outcome.attempts,
        "prompt_tokens": outcome.prompt_tokens,
        "expected_tokens": outcome.expected_tokens,
        "hit_tokens": outcome.hit_tokens,
        "predicted_seconds": served.wait_seconds + served.prefill_seconds if served else None,
        "streamed": outcome.streamed,
        "first_byte_seconds": outcome.first_byte_seconds,
        "total_seconds": outcome.total_seconds,
        "misses": outcome.misses.to_json() if outcome.misses else None,
    }


def _tells(seconds: float) -> bool:
    return abs(seconds) >= 0.0005


def _milliseconds(seconds: float) -> str:
    return f"{abs(seconds) * 1000:,.0f} ms"
