"""Loads what a replica needs before it can serve: the model, its tokenizer, and what prefills cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from replica.batch import Runner
from replica.calibrate import calibrate
from replica.load import PrefillMeter
from replica.options import ReplicaOptions
from replica.prepare import read_end_ids, read_sampling_defaults
from replica.runner.echo import EchoRunner
from router.chain.chain import TOKEN_BYTES, unpack_tokens
from router.chain.namer import ChainNamer
from router.chain.tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True)
class Loaded:
    """What takes long to make. `end_ids` and `defaults` are those that the model comes with."""

    runner: Runner
    meter: PrefillMeter
    namer: ChainNamer
    end_ids: frozenset[int]
    defaults: Mapping[str, float]


def load(options: ReplicaOptions) -> Loaded:
    """Load; takes long. ValueError or OSError where a model cannot be had or read."""
    directory = _directory(options.model_directory)
    tokenizer = ModelTokenizer.from_directory(directory) if directory else None
    namer = ChainNamer(options.chain.algorithm, options.chain.seed, options.chain.block_tokens, tokenizer)
    end_ids = read_end_ids(directory, tokenizer) if directory and tokenizer else frozenset[int]()
    defaults = read_sampling_defaults(directory) if directory else {}
    meter = PrefillMeter(options.prefill_start())
    if options.runner == "echo":
        # Its costs are what it is told.
        return Loaded(_echo(options, tokenizer), meter, namer, end_ids, defaults)
    if directory is None:
        raise ValueError("the torch runner needs a model directory")
    runner = _torch(options, directory)
    calibrate(runner, meter)
    return Loaded(runner, meter, namer, end_ids, defaults)


def _directory(configured: str) -> Path | None:
    if configured == "bundled":
        from replica.model.bundled import bundled_model_directory

        return bundled_model_directory()
    return Path(configured) if configured else None


def _echo(options: ReplicaOptions, tokenizer: ModelTokenizer | None) -> EchoRunner:
    echo = options.echo
    text = echo.filler.encode()
    packed = tokenizer.encode(echo.filler) if tokenizer else text + b" " * (-len(text) % TOKEN_BYTES)
    return EchoRunner(
        unpack_tokens(packed),
        prefill=echo.prefill.cost(),
        decode_seconds=echo.decode_seconds,
        block_tokens=options.chain.block_tokens,
        block_count=echo.block_count,
        context_tokens=echo.context_tokens,
    )


def _torch(options: ReplicaOptions, directory: Path) -> Runner:
    # Imported here alone: everything else of the replica runs without torch.
    from replica.runner.torch_runner import TorchRunner

    return TorchRunner(directory, options.torch, options.chain.block_tokens)
