"""How long the prompts of others will compute on a replica that tells requests and tokens, not seconds."""

from __future__ import annotations

from collections.abc import Callable

from router.engines.engine import EngineLoad


def others_work_seconds(
    load: EngineLoad,
    own_waiting: int,
    own_mean_seconds: float,
    seconds_of_tokens: Callable[[float], float],
) -> float:
    """Return the seconds of prefill that requests of others wait for on this replica.

    `own_waiting` is how many of this router's requests wait there: their work is known, and not to be counted
    again. `own_mean_seconds` is what a prefill of this router's costs on average there: others' are taken to
    be alike. `seconds_of_tokens` prices one prompt of so many uncached tokens.

    Where the engine tells the tokens that wait, each waiting request is taken to have an equal part of them;
    where it does not, each is taken to cost the mean. Reports and own counts are of different moments, so
    that more own requests than waiting ones are simply none of others.
    """
    others = max(0, load.waiting - max(0, own_waiting))
    if load.waiting_tokens is None:
        return others * max(0.0, own_mean_seconds)
    if load.waiting == 0:
        # The rest of a prompt that is computed in chunks: of whom is not known, ours where we wait for one.
        alone = own_waiting <= 0 and load.waiting_tokens > 0
        return max(0.0, seconds_of_tokens(load.waiting_tokens)) if alone else 0.0
    return others * max(0.0, seconds_of_tokens(load.waiting_tokens / load.waiting))
