"""`kvring gate`: holds a live address to the hit ratio that it had; for continuous integration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from loadgen.commands.fail import Failed, Unfit
from loadgen.commands.model_options import options_of, read_options
from loadgen.gate.options import GateOptions


@click.command("gate")
@options_of(GateOptions)
@click.option(
    "--cases",
    type=click.Path(path_type=Path),
    help="Request log to send instead of the built-in conversations, in the order of its lines.",
)
@click.option("--baseline", type=click.Path(path_type=Path), help="File with the ratio to hold.")
@click.option("--write-baseline", is_flag=True, help="Write what is measured to the baseline file.")
@click.option("--absent-is-zero", is_flag=True, help="Take answers that do not tell cached tokens for zero.")
@click.option("--api-key", help="[default: OPENAI_API_KEY, or ANTHROPIC_API_KEY with --api anthropic]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    cases: Path | None,
    baseline: Path | None,
    write_baseline: bool,
    absent_is_zero: bool,
    api_key: str | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Send the same cases several times; hold the median hit ratio to a baseline minus a tolerance.

    Exit code 0: it holds, or there is no baseline to hold; 1: it is below; 2: it cannot be measured.
    """
    import orjson
    from rich.console import Console

    from loadgen.gate.baseline import BaselineError, judge
    from loadgen.gate.baseline import write_baseline as write
    from loadgen.gate.cases import CaseError
    from loadgen.gate.run import GateError, measure
    from loadgen.gate.tables import measured_table
    from loadgen.interrupt import Interrupted, run_interruptible
    from loadgen.load import LoadError
    from loadgen.traces.trace import TraceError

    options = read_options(GateOptions, values)
    if write_baseline and baseline is None:
        raise Unfit("--write-baseline needs --baseline, the file to write")
    key = api_key or os.environ.get("ANTHROPIC_API_KEY" if options.api == "anthropic" else "OPENAI_API_KEY")
    console = Console(stderr=True)

    def on_request(run: int, done: int) -> None:
        if console.is_terminal:
            console.print(f"run {run + 1}/{options.runs}, request {done}", end="\r", highlight=False)

    try:
        chosen = _cases(cases, options, key)
        measured = run_interruptible(measure(chosen, options, key, absent_is_zero, on_request))
        verdict = None
        if write_baseline and baseline is not None:
            write(baseline, measured)
        elif baseline is not None:
            verdict = judge(baseline, measured, options.tolerance)
    except (BaselineError, CaseError, GateError, LoadError, TraceError, OSError) as error:
        raise Unfit(str(error)) from error
    except Interrupted as interrupted:
        raise SystemExit(interrupted.exit_code) from None
    if as_json:
        value = measured.to_json()
        if verdict is not None:
            value |= {"baseline": verdict.baseline, "tolerance": verdict.tolerance, "holds": verdict.holds}
        click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
    else:
        Console().print(measured_table(measured, verdict))
    if verdict is not None and not verdict.holds:
        raise Failed(
            f"the hit ratio is {verdict.measured:.1%}; its baseline is {verdict.baseline:.1%},"
            f" and {verdict.tolerance:.1%} below is allowed"
        )


def _cases(path: Path | None, options: GateOptions, api_key: str | None) -> Any:
    import asyncio

    from loadgen.gate.cases import CaseError, built_in_cases, cases_of_file
    from loadgen.load import first_model

    if path is not None:
        return cases_of_file(path)
    if not options.model and options.api == "anthropic":
        raise CaseError("name a model with --model")
    return built_in_cases(options, options.model or asyncio.run(first_model(options.url, api_key)))
