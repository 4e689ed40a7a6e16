"""`kvring key`: what it prints lets its holder in."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from loadgen.cli import kvring
from router.gateway.keyring import Keyring


def _invoke(name: str) -> Result:
    return CliRunner().invoke(kvring, ["key", name], prog_name="kvring")


def test_a_key_fits_its_line(tmp_path: Path) -> None:
    first, second = (_invoke(name).output.splitlines() for name in ("shop", "lab"))
    path = tmp_path / "keys"
    path.write_text(f"{first[1]}\n{second[1]}\n", encoding="utf-8")
    keyring = Keyring.load(path)
    assert first[0].startswith("kvr_")
    assert first[0] != second[0]
    assert keyring.name_of(b"Bearer " + first[0].encode(), None) == "shop"
    assert keyring.name_of(None, second[0].encode()) == "lab"


def test_an_unfit_name_is_refused() -> None:
    result = _invoke("two words")
    assert result.exit_code == 2
    assert "names are" in result.output
    assert "kvr_" not in result.output
