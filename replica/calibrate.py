"""Calibration: a few prefills before the first request, so that a replica reports what it really costs."""

from __future__ import annotations

from time import monotonic

from replica.batch import Batch, Runner, Sampling, Work
from replica.load import PrefillMeter, PrefillShape

# The first is thrown away: a model's first step also pays for what is set up once.
_LENGTHS_TOKENS = (32, 32, 256, 64)


def calibrate(runner: Runner, meter: PrefillMeter) -> None:
    """Run prefills of some lengths, and let the meter learn from them.

    A replica that has not computed anything yet would report costs from its configuration, and seem faster,
    or slower, than its peers that have. Nothing of it stays: the blocks it writes to have no names.
    """
    room = min(runner.context_tokens, runner.block_count * runner.block_tokens)
    for number, length in enumerate(_LENGTHS_TOKENS):
        tokens = min(length, room)
        blocks = range(-(-tokens // runner.block_tokens))
        work = Work(0, [1] * tokens, 0, list(blocks), True, Sampling())
        began = monotonic()
        runner.run(Batch((work,)))
        if number > 0:
            meter.learn(PrefillShape.of(tokens, 0), 0, monotonic() - began)
