"""`kvring key`: a new API key, and the line that lets a router know it."""

from __future__ import annotations

import secrets

import click

from loadgen.commands.fail import Unfit

_PREFIX = "kvr_"
_RANDOM_BYTES = 32


@click.command("key")
@click.argument("name")
def command(name: str) -> None:
    """Make an API key for NAME: the key first, then its line for the router's auth.keys_file.

    The line holds a digest only. The key is shown once, and kept nowhere.
    """
    from router.gateway.keyring import key_line

    key = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    try:
        line = key_line(key, name)
    except ValueError as error:
        raise Unfit(str(error)) from error
    click.echo(key)
    click.echo(line)
