"""Prompts for benchmarks: conversations with a few system prompts, each known up to its last turn, or new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from router.chain.chain import Chain
from router.chain.namer import ChainNamer
from router.chain.options import ChainOptions
from router.placement.ask import Ask

MODEL = "m"
_SYSTEMS = 8
_SYSTEM_SHARE = 1 / 8
_LAST_TURN_SHARE = 3 / 4
# One conversation in so many is new.
_NEW_EVERY = 5
_BLOCK_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was asked before (None for a new one), and what the chain of the next prompt is."""

    before: Ask | None
    chain: Chain
    spread: bytes

    def ask(self) -> Ask:
        """Make the ask for the next prompt anew."""
        return Ask(MODEL, self.chain.prompt_tokens, self.spread, self.chain)


def namer_of(block_tokens: int) -> ChainNamer:
    """Return a namer as a router has it by default."""
    options = ChainOptions(block_tokens=block_tokens)
    return ChainNamer(options.algorithm, options.seed, block_tokens, None)


def conversations(namer: ChainNamer, count: int, prompt_tokens: int, seed: int = 0) -> Sequence[Conversation]:
    """Return `count` conversations, all of whose next prompts are `prompt_tokens` long.

    An eighth of each is one of a few system prompts; four in five were asked before, at three quarters of
    the length.
    """
    draw = Random(seed)
    preamble = int(prompt_tokens * _SYSTEM_SHARE)
    systems = [draw.randbytes(preamble * _BLOCK_BYTES_PER_TOKEN) for _ in range(_SYSTEMS)]

    def chain(data: bytes) -> Chain:
        names = namer.algorithm.name_blocks(namer.root, data, namer.block_bytes, {}, 0)
        return namer.chain_of(data, names, preamble * _BLOCK_BYTES_PER_TOKEN)

    made = []
    for number in range(count):
        spread = draw.randbytes(16)
        rest = prompt_tokens - preamble
        data = draw.choice(systems) + draw.randbytes(rest * _BLOCK_BYTES_PER_TOKEN)
        before = None
        if number % _NEW_EVERY:
            length = max(1, int(prompt_tokens * _LAST_TURN_SHARE))
            before = Ask(MODEL, length, spread, chain(data[: length * _BLOCK_BYTES_PER_TOKEN]))
        made.append(Conversation(before, chain(data), spread))
    return made
