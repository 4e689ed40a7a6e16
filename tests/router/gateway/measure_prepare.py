"""What it takes to prepare a request, from its bytes to the ask: microseconds of CPU by size, printed.

    python -m tests.router.gateway.measure_prepare [DIRECTORY_OF_A_TOKENIZER]

By bytes: an xxh3 chain of 256-byte blocks, of chats never seen before and of one chat again and again. By
tokens: a sha256 chain of 16-token blocks, of chats that were never seen and of their next turns, whose new
text (two messages of 400 characters) is tokenised alone for comparison. All threads are counted, the best of
several runs is shown. Looks at layouts, which a sample of requests gets, are shown apart.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import orjson

from router.chain.options import ChainOptions
from router.config import LayoutOptions, LimitOptions, ModelOptions
from router.gateway.prepare import Preparer
from router.observe.layout.watch import LayoutWatch
from tests.tiny_tokenizer import write_tiny_tokenizer

PATH = "/v1/chat/completions"
RUNS = 25
SIZES = ((200, 2), (4096, 2), (16_384, 2), (16_384, 16), (131_072, 2), (131_072, 64), (200_000, 250))
HISTORIES = ((4096, 400), (4096, 4000), (16_384, 400), (16_384, 4000), (65_536, 800), (65_536, 4000))
_WORDS = ("the river runs to sea and mountain of evening light where 42 boats wait", "a quick, brown fox.")
_DRAW = random.Random(2026)
_TEXT = " ".join(word for _ in range(200_000) for word in _DRAW.choice(_WORDS).split()[: _DRAW.randint(1, 9)])


def text(characters: int) -> str:
    """Return some text that differs from all others."""
    start = _DRAW.randrange(len(_TEXT) - characters)
    return (_DRAW.randbytes(4).hex() + _TEXT[start : start + characters])[:characters]


def chat(count: int, characters: int) -> list[dict[str, Any]]:
    """Return so many messages of so many characters."""
    roles = ("user", "assistant")
    return [{"role": roles[index % 2], "content": text(characters)} for index in range(count)]


def body(messages: Sequence[dict[str, Any]]) -> bytes:
    """Return a request's body."""
    return orjson.dumps({"model": "m", "messages": messages, "max_tokens": 16})


def body_of(size: int, count: int) -> bytes:
    """Return a body of about `size` bytes in `count` messages."""
    return body(chat(count, (size - 49 - 34 * count) // count))


def preparer(
    algorithm: str, block_tokens: int, sample_share: float, directory: Path | None = None
) -> Preparer:
    """Return what prepares."""
    chain = ChainOptions.model_validate({"algorithm": algorithm, "block_tokens": block_tokens})
    models = {"m": ModelOptions(tokenizer_directory=directory)} if directory else {}
    return Preparer(chain, models, LimitOptions(), LayoutWatch(LayoutOptions(sample_share=sample_share)))


async def timed(prepares: Preparer, bodies: Sequence[bytes]) -> float:
    """Return microseconds a body."""
    started = process_time()
    for raw in bodies:
        await prepares.prepare(PATH, raw, None)
    return (process_time() - started) / len(bodies) * 1e6


async def by_bytes() -> Iterator[str]:
    """Return the rows of the byte tier."""
    prepares = preparer("xxh3", 64, 1e-9)
    rows = []
    for size, count in SIZES:
        number = max(6, 100_000 // size)
        cold = min(
            [await timed(prepares, [body_of(size, count) for _ in range(number)]) for _ in range(RUNS)]
        )
        again = [body_of(size, count)] * number
        repeat = min([await timed(prepares, again) for _ in range(RUNS)])
        rows.append(f"bytes  {size:7} bytes in {count:3} messages: new {cold:8.1f}, again {repeat:8.1f}")
    prepares.close()
    return iter(rows)


async def looks() -> Iterator[str]:
    """Return what looking at layouts costs a request, on average, at the default share."""
    rows = []
    for size, count in ((200, 2), (16_384, 16), (131_072, 64)):
        costs = []
        for share in (1e-9, LayoutOptions().sample_share):
            prepares = preparer("xxh3", 64, share)
            bodies = [body_of(size, count) for _ in range(600)]
            costs.append(await timed(prepares, bodies))
            prepares.close()
        rows.append(f"looks  {size:7} bytes in {count:3} messages: {costs[1] - costs[0]:8.1f} on average")
    return iter(rows)


async def by_tokens(directory: Path) -> Iterator[str]:
    """Return the rows of the token tier."""
    prepares = preparer("sha256", 16, 1e-9, directory)
    rows = []
    for tokens, characters in HISTORIES:
        cold, following, alone = [], [], []
        for _ in range(RUNS):
            history = chat(tokens * 4 // characters | 1, characters)
            cold.append(await timed(prepares, [body(history)]))
            for _ in range(3):
                history += [
                    {"role": "assistant", "content": text(400)},
                    {"role": "user", "content": text(400)},
                ]
                raw = body(history)
                following.append(await timed(prepares, [raw]))
            alone.append(await timed(prepares, [body(chat(2, 400))]))
        rows.append(
            f"tokens {tokens:7} of history, {characters:4} characters a message: new {min(cold):9.1f}, "
            f"next turn {min(following):8.1f}, its text alone {min(alone):8.1f}"
        )
    prepares.close()
    return iter(rows)


async def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(sys.argv[1]) if sys.argv[1:] else write_tiny_tokenizer(Path(scratch) / "model")
        for measure in (by_bytes(), looks(), by_tokens(directory)):
            for row in await measure:
                sys.stdout.write(f"{row} us\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
