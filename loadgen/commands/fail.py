"""How commands fail: one clear message and an exit code, never a traceback."""

from __future__ import annotations

import click


class Unfit(click.ClickException):
    """The options cannot be used."""

    exit_code = 2


class Failed(click.ClickException):
    """The command could not do what it was asked for."""

    exit_code = 1
