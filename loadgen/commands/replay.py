"""`kvring replay`: drives a trace against a live fleet, and shows what the simulator says beside it."""

from __future__ import annotations

from typing import Any

import click

from loadgen.commands.fail import Failed, Unfit
from loadgen.commands.model_options import options_of, read_options
from loadgen.flags import read_flags
from loadgen.replay.options import ReplayOptions


@click.command("replay")
@options_of(ReplayOptions)
@click.option(
    "--set",
    "sets",
    metavar="NAME=VALUE",
    multiple=True,
    help="Any option of the simulated fleet (routers=2, cost.base_seconds=0.02); the value is TOML.",
)
@click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, help="Sent as a bearer token.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects instead of a table.")
def command(sets: tuple[str, ...], api_key: str | None, as_json: bool, **values: Any) -> None:
    """Drive a trace against a live fleet, with prompts that share blocks as the trace says.

    The same trace then runs through the simulator, with as many replicas as have answered and one router
    unless told otherwise. The exit code is 1 if any request failed.
    """
    import orjson
    from rich.console import Console

    from loadgen.interrupt import Interrupted, run_interruptible
    from loadgen.replay.figures import side_by_side
    from loadgen.replay.progress import replay_progress
    from loadgen.replay.replay import ReplayError, compare, replay_live, scenario_of, shortened
    from loadgen.traces.catalog import open_trace
    from loadgen.traces.trace import TraceError

    options = read_options(ReplayOptions, values)
    changes = read_flags(sets, {})
    errors = Console(stderr=True)
    try:
        trace = shortened(open_trace(options.trace), options)
        # Told before the fleet is asked anything.
        scenario_of(trace, options, 1, changes)
        with replay_progress(trace, errors) as on_answer:
            live = run_interruptible(replay_live(trace, options, api_key, on_answer))
        figures = compare(live, options, changes)
    except (TraceError, ReplayError) as error:
        raise Unfit(str(error)) from error
    except Interrupted as interrupted:
        raise SystemExit(interrupted.exit_code) from None
    if as_json:
        listed = [run.to_json() for run in figures]
        click.echo(orjson.dumps(listed, option=orjson.OPT_INDENT_2).decode())
    else:
        Console().print(side_by_side(figures))
    failed = next((one.answer for one in live.replayed if one.answer.error is not None), None)
    if failed is not None:
        count = sum(one.answer.error is not None for one in live.replayed)
        raise Failed(f"{count} requests failed, the first by {failed.error}: {failed.message}")
