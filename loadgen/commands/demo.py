"""`kvring demo`: a real model, three replicas, two policies, one table."""

from __future__ import annotations

import click

from loadgen.commands.fail import Failed


@click.command("demo")
def command() -> None:
    """Drive the same chats through round_robin and affinity, and show the difference in a few minutes."""
    from rich.console import Console

    from loadgen.children import LaunchError
    from loadgen.demo import DemoError, DemoPlan, demonstrate
    from loadgen.interrupt import Interrupted, run_interruptible

    try:
        run_interruptible(demonstrate(DemoPlan(), Console()))
    except (LaunchError, DemoError) as error:
        raise Failed(str(error)) from error
    except Interrupted as interrupted:
        raise SystemExit(interrupted.exit_code) from None
