"""`kvring simulate`: a fleet in virtual time, routed by the router's own policies over a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loadgen.commands.fail import Unfit
from loadgen.flags import read_flags

_FILE_COLUMNS = 160


@click.command("simulate")
@click.option("--trace", "traces", multiple=True, default=("conversation",), show_default=True)
@click.option(
    "--policy",
    "policies",
    default="round_robin,affinity",
    show_default=True,
    help="Names, by commas; a dotted name is one of your own. With options: 'affinity:use_digests=false'.",
)
@click.option("--replicas", type=int, default=16, show_default=True)
@click.option("--routers", type=int, default=4, show_default=True)
@click.option(
    "--load-staleness-seconds", type=float, default=0.25, show_default=True, help="0 is always exact."
)
@click.option("--digest-seconds", type=float, default=2.0, show_default=True)
@click.option(
    "--cache-factor",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Size of all caches together, as a multiple of the study's.",
)
@click.option("--cache-blocks", type=int, help="Blocks of each replica's cache, instead.")
@click.option(
    "--utilisation",
    type=click.FloatRange(min=0, max=10, min_open=True),
    default=0.7,
    show_default=True,
    help="The trace is played so fast that round robin keeps replicas this busy with prefills.",
)
@click.option("--time-scale", type=float, help="Play it this many times as fast, instead.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many seeds.")
@click.option("--first-seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--change",
    "changes",
    multiple=True,
    metavar="SECONDS:COUNT",
    help="At that time COUNT empty replicas join (+2), or the last ones fail at once (-1).",
)
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=VALUE", help="Any other field of a scenario, as TOML."
)
@click.option("--oracle/--no-oracle", default=True, show_default=True, help="Compare with the oracle.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Runs side by side.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects instead of a table.")
@click.option("--report", type=click.Path(file_okay=False, path_type=Path), help="Write a page with plots.")
@click.option(
    "--decisions", type=click.Path(dir_okay=False, path_type=Path), help="Write every decision, as JSONL."
)
def command(
    traces: tuple[str, ...],
    policies: str,
    changes: tuple[str, ...],
    sets: tuple[str, ...],
    cache_factor: float,
    utilisation: float,
    seeds: int,
    first_seed: int,
    oracle: bool,
    jobs: int,
    as_json: bool,
    report: Path | None,
    decisions: Path | None,
    **fleet: Any,
) -> None:
    """Simulate a fleet over a trace, and compare policies.

    TRACE is conversation, synthetic, toolagent_recon, hotspot, agent, or a file in Mooncake's form. The
    policies are the router's own. Prefill costs, queues and caches are modelled; see the README for what is
    not. A policy's runs and the oracle's share a seed: names of replicas, and which router gets what.
    """
    import orjson
    from rich.console import Console

    from loadgen.progress import count_progress
    from loadgen.simulate.simulate import Plan, SimulationError, run_plan
    from loadgen.simulate.table import records_table
    from loadgen.traces.trace import TraceError

    given = {name: value for name, value in fleet.items() if value is not None}
    given["changes"] = [_change(change) for change in changes]
    given |= read_flags(sets, {})
    plan = Plan(
        traces=[name for names in traces for name in names.split(",")],
        policies=[_policy(policy) for policy in policies.split(",")],
        seeds=range(first_seed, first_seed + seeds),
        cache_factor=cache_factor,
        utilisation=utilisation,
        fleet=given,
        oracle=oracle,
        jobs=jobs,
    )
    _check_writable(report, decisions)
    try:
        with count_progress(Console(stderr=True)) as progress:
            results = run_plan(plan, progress)
    except (SimulationError, TraceError) as error:
        raise Unfit(str(error)) from error
    if decisions is not None:
        with decisions.open("wb") as file:
            file.writelines(orjson.dumps(one) + b"\n" for one in results.decisions())
    if report is not None:
        from loadgen.report_page.page import write_page

        page = write_page(results.records, report)
        click.echo(f"wrote {page}", err=True)
    if as_json:
        click.echo(orjson.dumps(list(results.records), option=orjson.OPT_INDENT_2).decode())
    else:
        # In a file or a pipe nothing is cut.
        Console(width=None if Console().is_terminal else _FILE_COLUMNS).print(records_table(results.records))


def _check_writable(report: Path | None, decisions: Path | None) -> None:
    """Find out before the work, which may take long, whether its results can be kept."""
    try:
        if decisions is not None:
            decisions.open("ab").close()
        if report is not None:
            report.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unfit(f"cannot write {error.filename}: {error.strerror}") from error


def _policy(text: str) -> Any:
    """Read NAME or NAME:OPTION=VALUE:OPTION=VALUE."""
    from loadgen.simulate.simulate import policy_choice

    name, *options = text.strip().split(":")
    return policy_choice((name, read_flags(options, {})))


def _change(text: str) -> dict[str, float]:
    at, _, count = text.partition(":")
    try:
        return {"at_seconds": float(at), "count": int(count)}
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not SECONDS:COUNT", param_hint="--change") from error
