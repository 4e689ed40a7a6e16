"""Evidence: why tokens were not hit in one run, from what is true at the moment of each decision."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.simulate.replica import Replica
from loadgen.simulate.workload import Request
from router.observe.attribution import Cause, Evidence, attribute

# For so long a replica that left is why something missed: about what a cache keeps that nobody asks for.
_DEPARTED_SECONDS = 600.0


class Uncached:
    """Sums the uncached tokens of a run by cause. Knows all caches, and all that was ever computed.

    What a replica held when it left counts as held by one that departed for ten minutes. By then it would
    have been evicted in a fleet that had stayed as it was; so `evicted` it is called from then on.
    """

    def __init__(self, replicas: Sequence[Replica], block_tokens: int) -> None:
        """`replicas` may grow; those that left stay in it, with the caches they had."""
        self._replicas = replicas
        self._block_tokens = block_tokens
        self._computed: set[bytes] = set()
        self._tokens = dict.fromkeys(Cause, 0)

    def decided(self, request: Request, chosen: Replica, told_tokens: int, now: float) -> Evidence:
        """Say what is true of a prompt now; `told_tokens` misled whoever chose, if they are not there."""
        block, names = self._block_tokens, request.names
        elsewhere = departed = 0
        for one in self._replicas:
            if not one.gone:
                if one is not chosen:
                    elsewhere = max(elsewhere, one.held_blocks(names))
            elif now - one.left_at <= _DEPARTED_SECONDS:
                departed = max(departed, one.held_blocks(names))
        seen = next((depth for depth, name in enumerate(names) if name not in self._computed), len(names))
        return Evidence(
            prompt_tokens=request.prompt_tokens,
            block_tokens=block,
            hit_tokens=0,
            told=told_tokens,
            held_elsewhere=elsewhere * block,
            held_by_departed=departed * block,
            evicted=0,
            seen=seen * block,
        )

    def computed(self, request: Request) -> None:
        """Note that all of a prompt has been computed once."""
        self._computed.update(request.names)

    def ended(self, evidence: Evidence, hit_tokens: int) -> None:
        """Count what was not hit, now that it is known what was."""
        for cause, tokens in attribute(evidence._replace(hit_tokens=hit_tokens)):
            self._tokens[cause] += tokens

    def by_cause(self) -> dict[str, int]:
        """Return the causes that have tokens."""
        return {cause.value: tokens for cause, tokens in self._tokens.items() if tokens}
