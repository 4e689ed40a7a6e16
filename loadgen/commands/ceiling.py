"""`kvring ceiling`: what any cache could hold of a request log or a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.commands.fail import Unfit

if TYPE_CHECKING:
    from loadgen.sheet import Part

_SIZES = "Sizes of the cache in blocks, by commas.  [default: powers of two up to the working set]"


@click.command("ceiling")
@click.argument("source", metavar="FILE|TRACE")
@click.option("--cache-blocks", metavar="N,...", help=_SIZES)
@click.option("--replicas", default="1,2,4,8,16,32,64", metavar="N,...", show_default=True)
@click.option(
    "--block-tokens",
    type=click.IntRange(1, 4096),
    default=16,
    show_default=True,
    help="Of a log's prompts; a trace has its own.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with the model's tokenizer.json and chat template; without, 4 bytes are a token.",
)
@click.option(
    "--max-blocks",
    type=click.IntRange(1024, 1 << 32),
    default=16 * 1024 * 1024,
    show_default=True,
    help="Different blocks remembered, at 8 bytes and more each; older ones are forgotten, and said to be.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(
    source: str,
    cache_blocks: str | None,
    replicas: str,
    block_tokens: int,
    tokenizer: Path | None,
    max_blocks: int,
    as_json: bool,
) -> None:
    """Tell the token hit ratio that caches could reach on FILE, a request log, or on TRACE.

    One cache without limit, LRU caches by size, and replicas picked at random; of a log, also which places
    in which messages keep its prompts from sharing more, and what each costs.
    """
    import orjson

    from loadgen.sheet import show
    from loadgen.traces.trace import TraceError

    sizes = _numbers(cache_blocks, "--cache-blocks") if cache_blocks else ()
    counts = _numbers(replicas, "--replicas")
    try:
        if _is_trace(source):
            value, shown = _of_trace(source, sizes, counts, max_blocks)
        else:
            value, shown = _of_log(Path(source), sizes, counts, max_blocks, block_tokens, tokenizer)
    except (TraceError, OSError, ValueError) as error:
        raise Unfit(str(error)) from error
    if as_json:
        click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
    else:
        show(shown)


def _of_trace(
    source: str, sizes: tuple[int, ...], counts: tuple[int, ...], max_blocks: int
) -> tuple[dict[str, Any], list[Part]]:
    from loadgen.ceiling.bound import BoundMeter
    from loadgen.ceiling.sessions import session_breaks
    from loadgen.ceiling.tables import bound_tables, break_table
    from loadgen.traces.catalog import open_trace

    trace = open_trace(source)
    meter = BoundMeter(trace.block_tokens, sizes, counts, max_blocks)
    for request in trace.requests:
        meter.add(trace.full_blocks(request), request.prompt_tokens)
    bound = meter.bound()
    breaks = session_breaks(trace)
    value = {"source": trace.name, **bound.to_json(), "sessions": breaks.to_json() if breaks else None}
    shown: list[Part] = [*bound_tables(trace.name, bound)]
    return value, [*shown, break_table(breaks)] if breaks else shown


def _of_log(
    path: Path,
    sizes: tuple[int, ...],
    counts: tuple[int, ...],
    max_blocks: int,
    block_tokens: int,
    tokenizer: Path | None,
) -> tuple[dict[str, Any], list[Part]]:
    from loadgen.ceiling.bound import BoundMeter
    from loadgen.ceiling.logs import measure_log
    from loadgen.ceiling.prompts import PromptNamer
    from loadgen.ceiling.tables import bound_tables, layout_tables
    from loadgen.traces.request_log import read_requests

    meter = BoundMeter(block_tokens, sizes, counts, max_blocks)
    measure = measure_log(read_requests(path), PromptNamer(block_tokens, tokenizer), meter)
    shown: list[Part] = [*bound_tables(path.name, measure.bound), *layout_tables(measure.layout)]
    return {"source": path.name, **measure.to_json()}, shown


def _is_trace(source: str) -> bool:
    """Tell a trace from a log by its first line."""
    from loadgen.traces.catalog import SHIPPED
    from loadgen.traces.lines import read_lines

    if source in SHIPPED and not Path(source).exists():
        return True
    first = next(read_lines(Path(source)), (0, b""))[1]
    return b'"hash_ids"' in first and b'"messages"' not in first


def _numbers(text: str, flag: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1 or max(numbers) > 1 << 40 or len(numbers) > 256:
        raise Unfit(f"{flag}: whole numbers from 1 on, by commas")
    return numbers
