"""What was measured in Mooncake's traces: distributions, each by its values at `draws.MEASURED_AT`.

A request counts as the next turn of the last one that had its deepest shared block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionMix:
    """How sessions of a trace run.

    `lone_tokens` and `first_tokens` are the lengths of the first prompts of sessions with one turn and with
    more. `goes_on` is the chance of another turn behind the first, the second, ... and the last number's
    behind all later ones; it is raised over what was counted, since the end of a trace cuts sessions short.
    A next turn mostly keeps the whole prompt before it, and is longer by `growth_tokens`. With a chance that
    depends on the prompt's length (`parts_from`: from so many tokens on, so likely) it shares only a part,
    a share `kept` of the prompt before it, and is `ratio` times as long. `shared_tokens` begin every prompt.
    """

    sessions_per_second: float
    shared_tokens: int
    goes_on: Sequence[float]
    lone_tokens: Sequence[float]
    first_tokens: Sequence[float]
    lone_output_tokens: Sequence[float]
    output_tokens: Sequence[float]
    gap_seconds: Sequence[float]
    growth_tokens: Sequence[float]
    parts_from: Sequence[tuple[int, float]]
    kept: Sequence[float]
    ratio: Sequence[float]


CONVERSATION = SessionMix(
    sessions_per_second=7373 / 3537,
    shared_tokens=512,
    goes_on=(0.33, 0.45, 0.54, 0.61, 0.63, 0.7, 0.77, 0.77, 0.8, 0.8, 0.82),
    lone_tokens=(
        *(891, 896, 900, 930, 1261, 2857, 4720, 6509, 9736, 15202, 25663, 40305, 69551, 94410, 126195),
    ),
    first_tokens=(
        *(892, 1133, 1300, 2018, 3876, 5207, 6893, 9223, 12496, 17477, 25379, 33610, 54960, 72759, 122891),
    ),
    lone_output_tokens=(1, 8, 20, 88, 205, 291, 349, 396, 443, 496, 581, 676, 849, 1022, 2000),
    output_tokens=(1, 12, 28, 108, 217, 291, 351, 402, 452, 510, 608, 720, 921, 1238, 2000),
    gap_seconds=(0, 30, 42, 60, 75, 96, 123, 162, 222, 318, 483, 615, 1031, 1477, 3030),
    growth_tokens=(-392, 20, 64, 192, 313, 395, 471, 553, 684, 1290, 4599, 7339, 11877, 16994, 91918),
    parts_from=((0, 0.003), (2000, 0.024), (5000, 0.1), (10_000, 0.3), (40_000, 0.15)),
    kept=(
        *(0.015, 0.053, 0.069, 0.099, 0.132, 0.174, 0.218, 0.292),
        *(0.404, 0.539, 0.889, 0.935, 0.959, 0.975, 0.99),
    ),
    ratio=(
        *(0.174, 0.507, 0.609, 0.722, 0.838, 0.931, 0.993, 1.026),
        *(1.075, 1.158, 1.381, 1.681, 2.376, 2.827, 7.721),
    ),
)

SYNTHETIC = SessionMix(
    sessions_per_second=2211 / 1022,
    shared_tokens=0,
    goes_on=(0.23, 0.87, 0.86, 0.85, 0.85, 0.8, 0.8),
    lone_tokens=(13, 19, 22, 30, 42, 74, 169, 543, 3532, 15769, 19624, 24428, 34815, 41155, 134773),
    first_tokens=(
        *(13, 826, 2961, 5851, 13776, 16689, 19494, 25734, 31588, 37139, 43741, 52690, 57404, 66146, 191374),
    ),
    lone_output_tokens=(1, 17, 43, 114, 168, 212, 251, 291, 331, 387, 513, 664, 770, 782, 842),
    output_tokens=(2, 2, 2, 4, 7, 10, 15, 23, 39, 68, 117, 213, 394, 532, 893),
    gap_seconds=(0, 2.5, 6, 14.3, 27.3, 44, 64.7, 96.3, 136.3, 195.4, 294.4, 405.2, 518.7, 607.8, 792.8),
    growth_tokens=(-460, -38, -9, -3, -1, 0, 0, 1, 4, 9, 104, 360, 757, 923, 1814),
    parts_from=((0, 0.03), (5000, 0.14), (10_000, 0.19), (20_000, 0.4), (40_000, 0.32)),
    kept=(
        *(0.008, 0.898, 0.921, 0.952, 0.96, 0.964, 0.968, 0.971),
        *(0.973, 0.977, 0.983, 0.985, 0.988, 0.989, 0.991),
    ),
    ratio=(
        *(0.843, 0.967, 0.975, 0.983, 0.99, 0.994, 0.998, 0.999),
        *(1, 1.003, 1.012, 1.02, 1.034, 1.047, 1.249),
    ),
)
