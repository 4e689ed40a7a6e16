"""`kvring doctor`: says what is wrong with a configuration or a live fleet, and how to mend it."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.commands.fail import Unfit


@click.command("doctor")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The routers' TOML file. Its replicas are asked from here; KVRING_... counts as for a router.",
)
@click.option("--url", default="", help="A live router: its control port, where it has one of its own.")
@click.option(
    "--api-url", default="", help="Where clients come in, if elsewhere: an ingress, a load balancer."
)
@click.option(
    "--probe/--no-probe",
    default=False,
    show_default=True,
    help="Send up to 3 small requests for each model, to see what comes from cache and whether streams flow.",
)
@click.option("--api-key", help="For --api-url or --url.  [default: OPENAI_API_KEY]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    config: Path | None, url: str, api_url: str, probe: bool, api_key: str | None, as_json: bool
) -> None:
    """Check a configuration, a live fleet, or best both; changes nothing.

    Exit code 0: nothing is wrong, though there may be warnings; 1: something is wrong; 2: it cannot be run.
    """
    import logging
    import os
    from collections.abc import Sequence

    import orjson

    from loadgen.doctor.examine import Options, examine
    from loadgen.doctor.probe import PROMPT_WORDS, REQUESTS
    from loadgen.doctor.reach import shown as address
    from loadgen.doctor.show import shown
    from loadgen.interrupt import Interrupted, run_interruptible
    from loadgen.sheet import show

    url, api_url = _address(url, "--url"), _address(api_url, "--api-url")
    if config is None and not url and not (api_url and probe):
        raise Unfit("give --config, --url or both; or --api-url with --probe")
    # Everything worth a word is in the findings.
    logging.getLogger("kvring").addHandler(logging.NullHandler())

    def announce(where: str, models: Sequence[str]) -> None:
        told = f"sending up to {REQUESTS} requests of about {PROMPT_WORDS} tokens for"
        click.echo(f"{told} {', '.join(models)} to {address(where)}", err=True)

    key = api_key or os.environ.get("OPENAI_API_KEY")
    try:
        diagnosis = run_interruptible(examine(Options(config, url, api_url, probe, key), announce))
    except Interrupted as interrupted:
        raise SystemExit(interrupted.exit_code) from None
    if as_json:
        click.echo(orjson.dumps(diagnosis.to_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        show(shown(diagnosis))
    if not diagnosis.well:
        raise SystemExit(1)


def _address(url: str, option: str) -> str:
    from urllib.parse import urlsplit

    if not url:
        return ""
    try:
        parts = urlsplit(url)
        fit = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fit = False
    if not fit:
        raise Unfit(f"{option}: an address begins with http:// or https://, such as http://127.0.0.1:8080")
    return url.rstrip("/").removesuffix("/v1")
