"""The namers of all models: by a model's own tokenizer where there is one, else by bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from router.chain.chain import ChainIdentity
from router.chain.namer import ChainNamer
from router.chain.options import ChainOptions
from router.chain.tokenizer import ModelTokenizer


class Namers:
    """One namer for each model with a tokenizer, and one by bytes for all others. Thread-safe."""

    def __init__(self, chain: ChainOptions, tokenizer_directories: Mapping[str, Path]) -> None:
        """Load the tokenizers; FileNotFoundError or ValueError where one cannot be read."""
        self.by_bytes = ChainNamer(chain.algorithm, chain.seed, chain.block_tokens, None)
        self._by_model = {
            model: ChainNamer(
                chain.algorithm,
                chain.seed,
                chain.block_tokens,
                ModelTokenizer.from_directory(directory),
            )
            for model, directory in tokenizer_directories.items()
        }

    def by_tokens(self, model: str) -> ChainNamer | None:
        """Return the namer by the model's own tokenizer; None where there is none."""
        return self._by_model.get(model)

    def identity_of(self, model: str) -> ChainIdentity:
        """Return the identity of the chain that prompts of `model` get."""
        return self._by_model.get(model, self.by_bytes).identity
