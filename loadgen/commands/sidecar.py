"""`kvring sidecar`: follows the KV events of the engine in its pod, and serves digests to routers."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.commands.fail import Failed, Unfit
from loadgen.flags import read_flags
from router.settings import SettingsError


@click.command("sidecar")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The routers' TOML file: chain, models and fleet.events must be theirs.",
)
@click.option("--engine", metavar="URL", default="http://127.0.0.1:8000", show_default=True)
@click.option(
    "--events",
    metavar="ENDPOINT",
    default="",
    help="Where the engine publishes, such as tcp://127.0.0.1:5557; asked of it unless given.",
)
@click.option("--replay", metavar="ENDPOINT", default="", help="Where it replays; goes with --events.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; a pod's is 0.0.0.0.")
@click.option("--port", type=int, help="Where to listen.  [default: fleet.events.sidecar_port]")
@click.option(
    "--set",
    "sets",
    metavar="NAME=VALUE",
    multiple=True,
    help="Any option of the file by its dotted name; the value is TOML.",
)
def command(
    config: Path | None,
    engine: str,
    events: str,
    replay: str,
    host: str,
    port: int | None,
    sets: tuple[str, ...],
) -> None:
    """Follow the KV events of an engine (vLLM, SGLang) and serve GET /digest until SIGTERM or Ctrl-C.

    Routers read it with fleet.events.source = "sidecar".
    """
    from pydantic import ValidationError

    from router.config import RouterConfig
    from router.sidecar.app import run
    from router.sidecar.options import SidecarOptions

    if replay and not events:
        raise click.UsageError("--replay goes with --events")
    try:
        options = RouterConfig.load(config, read_flags(sets, {}))
        listen = options.fleet.events.sidecar_port if port is None else port
        sidecar = SidecarOptions(engine=engine, events=events, replay=replay, host=host, port=listen)
        run(options, sidecar)
    except ValidationError as error:
        problem = error.errors()[0]
        raise Unfit(f"--{problem['loc'][0]}: {problem['msg']}") from error
    except SettingsError as error:
        raise Unfit(str(error)) from error
    except (OSError, ValueError) as error:
        raise Failed(f"the sidecar cannot run: {error}") from error
