"""`kvring picker`: runs an endpoint picker for gateways with Envoy in this process."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.commands.fail import Failed, Unfit
from loadgen.flags import read_flags
from router.settings import SettingsError


@click.command("picker")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with options, the same as a router's; environment variables (KVRING_...) go before it.",
)
@click.option(
    "--set",
    "sets",
    metavar="NAME=VALUE",
    multiple=True,
    help="Any option by its dotted name; the value is TOML.",
)
def command(config: Path | None, sets: tuple[str, ...]) -> None:
    """Run an endpoint picker (ext_proc) until SIGTERM or Ctrl-C.

    Listens on picker.port for Envoys, on picker.health_port for health checks, and on control.port, 9090
    unless told, for metrics and probes.
    """
    try:
        from router.picker.app import EndpointPicker
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("envoy", "grpc", "grpc_health", "google"):
            raise
        raise Failed("a picker needs more packages: pip install 'kvring[picker]'") from error
    from router.config import RouterConfig
    from router.lifetime import run
    from router.policies import PolicyError

    try:
        flags = read_flags(sets, {})
        run(EndpointPicker, lambda: RouterConfig.load(config, flags), config)
    except (SettingsError, PolicyError) as error:
        raise Unfit(str(error)) from error
    except (OSError, ValueError) as error:
        raise Failed(f"the picker cannot run: {error}") from error
