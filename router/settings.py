"""How a program starts: options from one TOML file, the environment and flags, read once; and its log."""

from __future__ import annotations

import logging
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Self, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

log = logging.getLogger("kvring.settings")

# All programs' prefixes: variables with another one's longer prefix are not this one's.
_PREFIXES = ("KVRING_", "KVRING_REPLICA_")
_DELIMITER = "__"
# What Kubernetes tells of each Service in the environment of pods: one called kvring-x has such names too.
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?$")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


class SettingsError(ValueError):
    """The options cannot be used; the message says which and why, a line each."""


# Names of replicas: also fit for hosts, labels and headers.
NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"


class Options(BaseModel):
    """Base of a group of options: they never change, and there are no others."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Settings(BaseSettings):
    """Base of a program's options. Environment: the prefix, then names joined by two underscores."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_nested_delimiter=_DELIMITER, nested_model_default_partial_update=True
    )

    @classmethod
    def load(cls, file: Path | None = None, flags: dict[str, Any] | None = None) -> Self:
        """Read `file`, the environment and `flags` (nested, as in the file); SettingsError if unfit."""
        _refuse_misspelt(cls)
        try:
            table = tomllib.loads(file.read_text()) if file else {}
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SettingsError(f"cannot read {file}: {error}") from error

        # A class of its own carries the file's table, since sources are chosen by class.
        class Loaded(cls):  # type: ignore[misc, valid-type]
            @classmethod
            def settings_customise_sources(
                cls,
                settings_cls: type[BaseSettings],
                init_settings: PydanticBaseSettingsSource,
                env_settings: PydanticBaseSettingsSource,
                dotenv_settings: PydanticBaseSettingsSource,
                file_secret_settings: PydanticBaseSettingsSource,
            ) -> tuple[PydanticBaseSettingsSource, ...]:
                return (init_settings, env_settings, InitSettingsSource(settings_cls, table))

        try:
            loaded = Loaded(**(flags or {}))
            values = {name: getattr(loaded, name) for name in cls.model_fields}
            return cast(Self, cls.model_construct(**values))
        except ValidationError as error:
            lines = [
                f"{'.'.join(str(part) for part in problem['loc']) or 'options'}: {problem['msg']}"
                for problem in error.errors()
            ]
            raise SettingsError("\n".join(lines)) from error


def _refuse_misspelt(program: type[Settings]) -> None:
    """SettingsError for variables that are meant as options of `program` and are none: they had no effect.

    So meant are those with two underscores, and those that lack only these. Of others there is a warning.
    """
    prefix = program.model_config.get("env_prefix") or ""
    others = tuple(one for one in _PREFIXES if one != prefix and one.startswith(prefix))
    joined = {_plain(path): path for path in _paths(program)}
    refused = []
    for variable, value in sorted(os.environ.items()) if prefix else ():
        # Case does not count, as it does not where they are read.
        name = variable.upper()
        if not name.startswith(prefix) or name.startswith(others) or _is_service_link(name, value):
            continue
        told = name.removeprefix(prefix).lower()
        if _is_option(program, told.split(_DELIMITER)):
            continue
        if (meant := joined.get(_plain(told))) is not None:
            refused.append(f"the environment variable {variable} is no option: it is {prefix}{meant.upper()}")
        elif _DELIMITER in told:
            refused.append(f"the environment variable {variable} is no option")
        else:
            log.warning("the environment variable %s is no option, and counts for nothing", variable)
    if refused:
        raise SettingsError("\n".join(refused))


def _is_option(options: type[BaseModel], path: list[str]) -> bool:
    first, *deeper = path
    field = options.model_fields.get(first)
    if field is None or not deeper:
        return field is not None
    kinds = _kinds(field.annotation)
    # Below a table are names of one's own.
    return any(
        _is_option(kind, deeper) if issubclass(kind, BaseModel) else issubclass(kind, Mapping)
        for kind in kinds
    )


def _paths(options: type[BaseModel]) -> Iterator[str]:
    """Yield the names of all options, whole groups among them, as variables have them."""
    for name, field in options.model_fields.items():
        yield name
        for kind in _kinds(field.annotation):
            if issubclass(kind, BaseModel):
                yield from (f"{name}{_DELIMITER}{path}" for path in _paths(kind))


def _kinds(annotation: Any) -> list[type]:
    """Return the classes that a field's value may have, without what they hold."""
    union = get_origin(annotation) in (Union, UnionType)
    kinds = (get_origin(one) or one for one in (get_args(annotation) if union else (annotation,)))
    return [kind for kind in kinds if isinstance(kind, type)]


def _plain(name: str) -> str:
    """Return a name without the number of its underscores."""
    return re.sub("_+", "_", name).strip("_")


def _is_service_link(name: str, value: str) -> bool:
    if name.endswith("_PORT"):
        return _SERVICE_ADDRESS.match(value) is not None
    return _SERVICE_LINK.search(name) is not None


def start_log(level: str, formatter: logging.Formatter | None = None) -> None:
    """Log to stderr from now on, as every program of kvring does; called once, where it starts.

    Without a `formatter`, lines are text: time, level, logger and message.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter or logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def flag_tree(pairs: dict[str, Any]) -> dict[str, Any]:
    """Nest dotted names: {"listen.port": 1} becomes {"listen": {"port": 1}}. None values are left out."""
    tree: dict[str, Any] = {}
    for name, value in pairs.items():
        if value is None:
            continue
        *path, leaf = name.split(".")
        table = tree
        for part in path:
            table = table.setdefault(part, {})
        table[leaf] = value
    return tree
