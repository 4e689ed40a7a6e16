"""`kvring router`: runs the router in this process."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.commands.fail import Failed, Unfit
from loadgen.flags import read_flags
from router.settings import SettingsError


@click.command("router")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with options; environment variables (KVRING_...) and flags go before it.",
)
@click.option("--listen", metavar="HOST:PORT", help="Where to listen (listen.host, listen.port).")
@click.option(
    "--replica",
    "replicas",
    metavar="NAME=URL",
    multiple=True,
    help="A replica of a static fleet; once for each (fleet.replicas).",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    help="Processes that serve the port, about one a core (listen.workers).",
)
@click.option("--policy", metavar="NAME", help="How replicas are ranked (policy.name).")
@click.option(
    "--set",
    "sets",
    metavar="NAME=VALUE",
    multiple=True,
    help="Any option by its dotted name; the value is TOML.",
)
def command(
    config: Path | None,
    listen: str | None,
    replicas: tuple[str, ...],
    workers: int | None,
    policy: str | None,
    sets: tuple[str, ...],
) -> None:
    """Run the router until SIGTERM or Ctrl-C."""
    from router.app import Router
    from router.config import RouterConfig
    from router.lifetime import run_workers
    from router.policies import PolicyError

    host, port = _address(listen) if listen is not None else (None, None)
    named = {
        "listen.host": host,
        "listen.port": port,
        "listen.workers": workers,
        "policy.name": policy,
        "fleet.replicas": [_replica(replica) for replica in replicas] or None,
    }
    try:
        flags = read_flags(sets, named)
        run_workers(Router, lambda: RouterConfig.load(config, flags), config)
    except (SettingsError, PolicyError) as error:
        raise Unfit(str(error)) from error
    except (OSError, ValueError) as error:
        raise Failed(f"the router cannot run: {error}") from error


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        raise click.BadParameter(f"{listen!r} is not HOST:PORT", param_hint="--listen")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)


def _replica(replica: str) -> dict[str, str]:
    name, equals, url = replica.partition("=")
    if not equals or not name or not url:
        raise click.BadParameter(f"{replica!r} is not NAME=URL", param_hint="--replica")
    return {"name": name, "url": url}
