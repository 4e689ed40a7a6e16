"""Measures how many conversations a change of membership moves: python -m tests.integration.measure_moves

By hashing alone, of 5,000 conversations on an idle fleet, as a router sees it that remembers nothing.
"""

from __future__ import annotations

import random
import sys

from router.policies import load_policy
from tests.router.views import ask_for, fleet_of, names_of

_CONVERSATIONS = 5000


def homes(names: list[str]) -> list[str]:
    """Return where each conversation begins."""
    policy = load_policy("affinity", {"use_digests": False})
    fleet = fleet_of(names)
    draw = random.Random(1)
    asks = [ask_for([draw.randrange(50_000) for _ in range(160)]) for _ in range(_CONVERSATIONS)]
    return [policy.rank(ask, fleet, 0.0)[0].name for ask in asks]


def main() -> None:
    """Print, for some sizes, the share that moves, what is ideal, and how many move between old ones."""
    for count in (4, 16, 64, 256):
        before, after = homes(names_of(count)), homes(names_of(count + 1))
        newcomer = f"replica-{count}"
        moved = [new for old, new in zip(before, after, strict=True) if old != new]
        between = sum(name != newcomer for name in moved)
        sys.stdout.write(
            f"{count} -> {count + 1}: {len(moved) / _CONVERSATIONS:.1%} moved (ideal {1 / (count + 1):.1%}),"
            f" {between} between old ones\n"
        )


if __name__ == "__main__":
    main()
