"""`kvring load`: drives a workload against an address and reports on it."""

from __future__ import annotations

from typing import Any

import click

from loadgen.commands.fail import Failed
from loadgen.commands.model_options import options_of, read_options
from loadgen.load_options import LoadOptions


@click.command("load")
@options_of(LoadOptions)
@click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, help="Sent as a bearer token.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON instead of a table.")
def command(api_key: str | None, as_json: bool, **values: Any) -> None:
    """Drive a workload against an OpenAI-compatible address. The exit code is 1 if any request failed.

    Sizes in tokens are approximate, since text is made by words.
    """
    import orjson
    from rich.console import Console

    from loadgen.interrupt import Interrupted, run_interruptible
    from loadgen.load import LoadError, load
    from loadgen.progress import turn_progress
    from loadgen.report import summarise
    from loadgen.table import comparison

    options = read_options(LoadOptions, values)
    try:
        # Progress goes to stderr, so that the report can be piped.
        with turn_progress(options.workload, options.requests, Console(stderr=True)) as on_turn:
            run = run_interruptible(load(options, api_key, on_turn))
    except LoadError as error:
        raise Failed(str(error)) from error
    except Interrupted as interrupted:
        raise SystemExit(interrupted.exit_code) from None
    summary = summarise(run)
    if as_json:
        click.echo(orjson.dumps(summary.to_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        Console().print(comparison({options.workload: summary}))
    failed = next((turn.answer for turn in run.turns if turn.answer.error is not None), None)
    if failed is not None:
        raise Failed(f"{summary.errors} requests failed, the first by {failed.error}: {failed.message}")
