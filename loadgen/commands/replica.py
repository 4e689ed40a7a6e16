"""`kvring replica`: runs one replica in this process."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.commands.fail import Failed, Unfit
from loadgen.flags import read_flags
from router.settings import SettingsError


@click.command("replica")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with options; environment variables (KVRING_REPLICA_...) and flags go before it.",
)
@click.option("--name", help="Stable name; routers place by it (name).")
@click.option("--host", help="Where to listen (host).")
@click.option("--port", type=int, help="Where to listen; 0 takes a free port (port).")
@click.option("--model", help="Name that clients ask for (model).")
@click.option("--model-directory", help="A Hugging Face model directory, or 'bundled' (model_directory).")
@click.option("--runner", type=click.Choice(["torch", "echo"]), help="echo has no model (runner).")
@click.option(
    "--set",
    "sets",
    metavar="NAME=VALUE",
    multiple=True,
    help="Any option by its dotted name; the value is TOML.",
)
def command(config: Path | None, sets: tuple[str, ...], **named: str | int | None) -> None:
    """Run one replica until SIGTERM or Ctrl-C."""
    from replica.app import run
    from replica.model.bundled_gguf import BundledModelMissing
    from replica.options import ReplicaOptions

    try:
        run(ReplicaOptions.load(config, read_flags(sets, named)))
    except SettingsError as error:
        raise Unfit(str(error)) from error
    except (OSError, ValueError, ImportError, BundledModelMissing) as error:
        raise Failed(f"the replica cannot run: {error}") from error
