"""How a program starts: options from one TOML file, the environment and flags, read once; and its log."""

from __future__ import annotations

import logging
import sys
import tomllib
from pathlib import Path
from typing import Any, Self, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)


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
        frozen=True, extra="forbid", env_nested_delimiter="__", nested_model_default_partial_update=True
    )

    @classmethod
    def load(cls, file: Path | None = None, flags: dict[str, Any] | None = None) -> Self:
        """Read `file`, the environment and `flags` (nested, as in the file); SettingsError if unfit."""
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
