"""`kvring trace`: generates traces, imports them from logs, and tells what one is like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from loadgen.commands.fail import Unfit
from loadgen.commands.model_options import options_of, read_options
from loadgen.traces.generate.kinds import KINDS, Kind
from loadgen.traces.importers.arrivals import ArrivalOptions
from loadgen.traces.trace import Trace, TraceError

_Function = TypeVar("_Function", bound=Callable[..., Any])

_OUT = click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="File to write, in Mooncake's form; compressed if it ends in .gz or .xz.",
)
_FILE = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_TOKENIZER = click.option(
    "--tokenizer",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with the model's tokenizer.json; without one, four bytes count as a token.",
)


def _block_tokens(default: int) -> Callable[[_Function], _Function]:
    return click.option(
        "--block-tokens",
        type=click.IntRange(1, 4096),
        default=default,
        show_default=True,
        help="Tokens in a block.",
    )


@click.group("trace")
def command() -> None:
    """Generate traces of requests, import them from logs, and tell what one is like."""


@command.group("generate")
def generate() -> None:
    """Generate a trace of one kind from a seed; the same options and seed give the same file."""


def _generator(name: str, kind: Kind) -> click.Command:
    @click.command(name, help=kind.about)
    @click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of it all.")
    @_OUT
    @options_of(kind.options)
    def generator(seed: int, out: Path, **values: Any) -> None:
        options = read_options(kind.options, values)
        try:
            _write(kind.generate(options, seed), out)
        except TraceError as error:
            raise Unfit(str(error)) from error

    return generator


for _name, _kind in KINDS.items():
    generate.add_command(_generator(_name, _kind))


@command.group("import")
def import_() -> None:
    """Import a trace from what others have logged. Files may be plain, gzipped or xz-compressed."""


@import_.command("requests")
@_FILE
@_OUT
@_TOKENIZER
@_block_tokens(16)
@click.option(
    "--output-tokens",
    type=click.IntRange(0, 1_000_000),
    default=200,
    show_default=True,
    help="Length of answers, which a log of requests does not hold; a request's own limit may be lower.",
)
@options_of(ArrivalOptions)
def import_requests(
    file: Path, out: Path, tokenizer: Path | None, block_tokens: int, output_tokens: int, **values: Any
) -> None:
    """Import bodies of requests, one JSON object a line: bare, with timestamps, or OpenAI batch files.

    Arrivals are drawn only if the log does not tell the times of all its requests.
    """
    from loadgen.traces.importers.naming import PromptNaming
    from loadgen.traces.importers.requests import import_requests as run
    from loadgen.traces.request_log import BadLines

    arrivals = read_options(ArrivalOptions, values)
    bad = BadLines()
    try:
        _write(run(file, PromptNaming(block_tokens, tokenizer), arrivals, output_tokens, bad), out)
    except TraceError as error:
        raise Unfit(str(error)) from error
    _tell(bad.count, bad.first)


@import_.command("chats")
@_FILE
@_OUT
@_TOKENIZER
@_block_tokens(16)
@click.option(
    "--max-chats",
    type=click.IntRange(1, 500_000),
    default=10_000,
    show_default=True,
    help="Only so many chats are read, from the first on.",
)
@options_of(ArrivalOptions)
def import_chats(
    file: Path, out: Path, tokenizer: Path | None, block_tokens: int, max_chats: int, **values: Any
) -> None:
    """Import ShareGPT-style chats: a list of {"conversations": [{"from", "value"}, ...]}, or one a line."""
    from loadgen.traces.importers.chats import import_chats as run
    from loadgen.traces.importers.naming import PromptNaming
    from loadgen.traces.request_log import BadLines

    arrivals = read_options(ArrivalOptions, values)
    bad = BadLines()
    try:
        _write(run(file, PromptNaming(block_tokens, tokenizer), arrivals, max_chats, bad), out)
    except TraceError as error:
        raise Unfit(str(error)) from error
    _tell(bad.count, bad.first)


@import_.command("azure")
@_FILE
@_OUT
@_block_tokens(512)
def import_azure(file: Path, out: Path, block_tokens: int) -> None:
    """Import an Azure CSV (TIMESTAMP, ContextTokens, GeneratedTokens): no prompts share anything."""
    from loadgen.traces.importers.azure import import_azure as run
    from loadgen.traces.request_log import BadLines

    bad = BadLines()
    try:
        _write(run(file, block_tokens, bad=bad), out)
    except TraceError as error:
        raise Unfit(str(error)) from error
    _tell(bad.count, bad.first)


@command.command("info")
@click.argument("trace", metavar="NAME|FILE")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def info(trace: str, as_json: bool) -> None:
    """Tell what a trace is like: a shipped one by its name, or a file in Mooncake's form."""
    import orjson

    from loadgen.traces.catalog import open_trace
    from loadgen.traces.summary import summarise

    try:
        summary = summarise(open_trace(trace))
    except TraceError as error:
        raise Unfit(str(error)) from error
    if as_json:
        click.echo(orjson.dumps(summary.to_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo("\n".join(f"{label:<24}{figure}" for label, figure in summary.lines()))


def _write(trace: Trace, out: Path) -> None:
    from loadgen.traces.mooncake import write_mooncake

    write_mooncake(trace, out)
    click.echo(
        f"{len(trace.requests):,} requests over {trace.duration_seconds():,.0f} s are in {out}", err=True
    )


def _tell(count: int, first: list[str]) -> None:
    if count:
        click.echo(f"{count} lines could not be used, the first: {first[0]}", err=True)
