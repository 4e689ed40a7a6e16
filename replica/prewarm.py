"""Prewarm: a prefix that another replica held is computed into this one's cache, for nobody yet."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from replica.batch import Sampling
from replica.prepare import Preparer
from replica.sequence import Finish, Sequence
from replica.service import Service
from router.chain.keys import Keys
from router.chain.prompt import MAX_SALT_CHARACTERS
from router.wire.body import parse_body
from router.wire.errors import ApiError, Source

_RETRY_AFTER_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Prefix:
    """What `POST /prefill` asks for."""

    tokens: array[int]
    salt: str | None


@dataclass(frozen=True, slots=True)
class Prewarmer:
    """Computes prefixes for the served `model`. With `caching` off there is nowhere to keep them."""

    service: Service
    preparer: Preparer
    executor: Executor
    model: str
    caching: bool

    async def read(self, raw: bytes) -> Sequence:
        """Make the sequence of a body, away from the event loop, as it is never short and never urgent."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.executor, lambda: self.sequence(parse_body(raw)))

    def sequence(self, body: Mapping[str, Any]) -> Sequence:
        """Make the sequence of a request's body; ApiError 400 if it is none or too long for the context.

        Only whole blocks are kept, so that what fills none is left out.
        """
        prefix = read_prefix(body)
        length = len(prefix.tokens)
        if length > self.preparer.context_tokens:
            raise ApiError(
                400,
                f"this model's maximum context length is {self.preparer.context_tokens} tokens, not {length}",
                code="context_length_exceeded",
                param="tokens",
            )
        if max(prefix.tokens) >= self.preparer.vocabulary:
            raise ApiError(400, f"token ids must be below {self.preparer.vocabulary}", param="tokens")
        namer = self.preparer.namer
        keys = Keys(self.model, salt=prefix.salt)
        names = list(namer.chain_of_tokens(prefix.tokens, keys).names)
        tokens = prefix.tokens[: len(names) * namer.block_tokens].tolist()
        return Sequence(
            tokens=tokens,
            prompt_tokens=len(tokens),
            names=names,
            keys=keys.keyed_blocks(namer.block_tokens),
            sampling=Sampling(),
            max_tokens=0,
            salt=prefix.salt,
            prewarm=True,
        )

    def admit(self) -> None:
        """ApiError where nothing is kept (409), or where requests wait, who go first (503)."""
        if not self.caching:
            raise ApiError(409, "prefix caching is off here", source=Source.REPLICA, code="caching_off")
        self.service.admit_prewarm()

    async def compute(self, sequence: Sequence) -> dict[str, int]:
        """Compute what is not held yet; return the wire form of what was and what was not."""
        length = len(sequence.tokens)
        if self.service.engine.held(sequence.names) == len(sequence.names):
            return {"computed_tokens": 0, "cached_tokens": length}
        output = await self.service.prewarm(sequence)
        if output.finish is Finish.ERROR:
            raise ApiError(
                500, "the replica failed to compute this", source=Source.REPLICA, code="engine_error"
            )
        if output.finish is not Finish.COMPUTED:
            raise ApiError(
                503,
                "requests went first",
                source=Source.REPLICA,
                code="busy",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        return {"computed_tokens": length - output.cached_tokens, "cached_tokens": output.cached_tokens}


def read_prefix(body: Mapping[str, Any]) -> Prefix:
    """Read the body of /prefill; ApiError 400 that names the field at fault."""
    given, salt = body.get("tokens"), body.get("salt")
    if salt is not None and not (isinstance(salt, str) and 0 < len(salt) <= MAX_SALT_CHARACTERS):
        raise ApiError(400, f"'salt' must be text of 1 to {MAX_SALT_CHARACTERS} characters", param="salt")
    if isinstance(given, list) and given:
        try:
            # Checked in C; booleans pass for numbers there, and harm nobody.
            return Prefix(array("I", given), salt)
        except (TypeError, OverflowError):
            pass
    raise ApiError(400, "'tokens' must be a list of token ids, and not empty", param="tokens")
