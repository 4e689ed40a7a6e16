"""`kvring up`: a whole fleet on this machine until Ctrl-C."""

from __future__ import annotations

from typing import Literal

import click

from loadgen.commands.fail import Failed


@click.command("up")
@click.option("--replicas", type=click.IntRange(1, 64), default=3, show_default=True, help="How many.")
@click.option(
    "--runner",
    type=click.Choice(["torch", "echo"]),
    default="torch",
    show_default=True,
    help="torch runs the model that comes along; echo repeats a text, at the pace of a GPU.",
)
@click.option("--policy", default="affinity", show_default=True, help="How the router ranks replicas.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8080,
    show_default=True,
    help="The router's; 0 is a free one.",
)
def command(replicas: int, runner: Literal["torch", "echo"], policy: str, port: int) -> None:
    """Run replicas and a router on this machine, until Ctrl-C."""
    from loadgen.children import LaunchError
    from loadgen.interrupt import Interrupted, run_interruptible
    from loadgen.up import keep_up

    try:
        run_interruptible(keep_up(replicas, runner, policy, port, click.echo))
    except LaunchError as error:
        raise Failed(str(error)) from error
    except Interrupted:
        click.echo("All processes have ended.")
