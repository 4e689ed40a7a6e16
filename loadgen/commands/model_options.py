"""Command-line options made from a pydantic model: its names, defaults and descriptions are written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from loadgen.commands.fail import Unfit

_Model = TypeVar("_Model", bound=BaseModel)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def options_of(model: type[BaseModel]) -> Callable[[_Function], _Function]:
    """Decorate a command with an option for each field of `model`."""

    def decorate(function: _Function) -> _Function:
        for name, field in reversed(model.model_fields.items()):
            option = click.option(
                f"--{name.replace('_', '-')}",
                name,
                type=_type(field),
                default=field.default,
                show_default=field.default is not None,
                help=field.description,
            )
            function = option(function)
        return function

    return decorate


def read_options(model: type[_Model], values: dict[str, Any]) -> _Model:
    """Build the model; what breaks a bound ends the command with a line for each value."""
    try:
        return model(**values)
    except ValidationError as error:
        lines = [
            f"--{str(problem['loc'][0]).replace('_', '-')}: {problem['msg']}" for problem in error.errors()
        ]
        raise Unfit("\n".join(lines)) from error


def _type(field: FieldInfo) -> click.Choice[str] | type[int] | type[float] | type[str]:
    if get_origin(field.annotation) is Literal:
        return click.Choice(get_args(field.annotation))
    if field.annotation is int:
        return int
    return float if field.annotation is float else str
