"""Options: strict, bounded, explained, and read from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from replica.options import ReplicaOptions
from router.settings import SettingsError
from router.wire.report import PrefillCost


def test_every_option_says_why_its_default() -> None:
    def walk(model: type[BaseModel], path: str) -> list[str]:
        missing = []
        for name, field in model.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                missing += walk(kind, f"{path}{name}.")
            elif not field.description:
                missing.append(f"{path}{name}")
        return missing

    assert walk(ReplicaOptions, "") == []


@pytest.mark.parametrize(
    "flags",
    [
        {"unknown": 1},
        {"port": 70_000},
        {"runner": "other"},
        {"name": "no spaces"},
        {"scheduler": {"max_running": 100, "max_batch_tokens": 50}},
        {"echo": {"fill": "x"}},
        {"model_directory": ""},
        {"torch": {"device": "tpu"}},
    ],
)
def test_what_does_not_fit_is_refused(flags: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        ReplicaOptions.load(flags=flags)


def test_flags_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "replica.toml"
    file.write_text('port = 1\nmodel = "a"\n[echo]\nblock_count = 5\ndecode_seconds = 0.5\n')
    monkeypatch.setenv("KVRING_REPLICA_PORT", "2")
    monkeypatch.setenv("KVRING_REPLICA_ECHO__BLOCK_COUNT", "6")
    options = ReplicaOptions.load(file, {"port": 3})
    assert (options.port, options.model) == (3, "a")
    assert (options.echo.block_count, options.echo.decode_seconds) == (6, 0.5)


def test_the_estimate_starts_where_it_is_told_or_where_the_runner_is() -> None:
    given = {"base_seconds": 1.0, "per_token_seconds": 0.5, "per_token_context_seconds": 0.0}
    assert ReplicaOptions.load(flags={"prefill": given}).prefill_start() == PrefillCost(1.0, 0.5, 0.0)
    echo = ReplicaOptions.load(flags={"runner": "echo", "echo": {"prefill": given}})
    assert echo.prefill_start() == PrefillCost(1.0, 0.5, 0.0)
    assert ReplicaOptions.load().prefill_start().per_token_seconds > 0


def test_names_that_can_be_collided_are_not_trusted_with_kv() -> None:
    with pytest.raises(SettingsError, match="xxh3 is for routers only"):
        ReplicaOptions.load(flags={"runner": "echo", "model_directory": "", "chain": {"algorithm": "xxh3"}})
