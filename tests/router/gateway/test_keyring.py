"""Keyring: known keys have names, all others have none, and bad files are refused by line."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from router.gateway.keyring import Keyring, key_line


def _file(directory: Path, *lines: str) -> Path:
    path = directory / "keys"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_keys_are_known_in_either_header(tmp_path: Path) -> None:
    lines = ("# who may ask", "", key_line("kvr_a", "shop"), f"  {key_line('kvr_b', 'lab@x')}  # till May")
    keyring = Keyring.load(_file(tmp_path, *lines))
    assert len(keyring) == 2
    assert keyring.name_of(b"Bearer kvr_a", None) == "shop"
    assert keyring.name_of(b"bEARER  kvr_b ", None) == "lab@x"
    assert keyring.name_of(None, b"kvr_b") == "lab@x"
    # An SDK's placeholder in one header, the key in the other.
    assert keyring.name_of(b"Bearer none", b"kvr_a") == "shop"


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [
        (None, None),
        (b"", b""),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"kvr_a", None),
        (b"Basic kvr_a", None),
        (b"Bearer kvr_", None),
        (b"Bearer kvr_aa", None),
        (b"Bearer \xff\xfe", b"\x00"),
        (None, b"Bearer kvr_a"),
        # A digest is no key: who reads the file cannot ask by it.
        (b"Bearer " + sha256(b"kvr_a").hexdigest().encode(), sha256(b"kvr_a").digest()),
    ],
)
def test_others_have_no_name(tmp_path: Path, authorization: bytes | None, x_api_key: bytes | None) -> None:
    keyring = Keyring.load(_file(tmp_path, key_line("kvr_a", "shop")))
    assert keyring.name_of(authorization, x_api_key) is None


def test_without_a_file_anybody_may_ask() -> None:
    keyring = Keyring.open()
    assert keyring.name_of(None, None) == ""
    assert keyring.refresh() is False


def test_an_empty_file_lets_nobody_in(tmp_path: Path) -> None:
    assert Keyring.load(_file(tmp_path)).name_of(b"Bearer ", b"") is None


@pytest.mark.parametrize(
    "line",
    [
        "kvr_secret",
        "sha256:abc shop",
        f"sha256:{'0' * 64}",
        f"sha256:{'g' * 64} shop",
        f"sha256:{'0' * 64} two words",
        f"sha256:{'0' * 64} {'n' * 65}",
        f"md5:{'0' * 64} shop",
    ],
)
def test_a_bad_line_is_told_by_its_number_and_never_shown(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match="line 3") as caught:
        Keyring.load(_file(tmp_path, key_line("kvr_a", "shop"), "# fine", line))
    assert "secret" not in str(caught.value)


def test_a_key_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 2: the key of 'shop' again"):
        Keyring.load(_file(tmp_path, key_line("kvr_a", "shop"), key_line("kvr_a", "lab")))


def test_too_many_keys_are_refused(tmp_path: Path) -> None:
    lines = (f"sha256:{number:064x} n" for number in range(100_001))
    with pytest.raises(ValueError, match="line 100001"):
        Keyring.load(_file(tmp_path, *lines))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="UTF-8"):
        Keyring.load(path)
    with pytest.raises(OSError, match="absent"):
        Keyring.load(tmp_path / "absent")


def test_a_changed_file_is_taken_up_and_a_bad_one_once_refused(tmp_path: Path) -> None:
    keyring = Keyring.load(_file(tmp_path, key_line("kvr_a", "shop")))
    assert keyring.refresh() is False
    # As a mounted Secret changes: another file under the name.
    new = tmp_path / "new"
    new.write_text(key_line("kvr_b", "lab"), encoding="utf-8")
    os.replace(new, tmp_path / "keys")
    assert keyring.refresh() is True
    assert keyring.name_of(b"Bearer kvr_a", None) is None
    assert keyring.name_of(b"Bearer kvr_b", None) == "lab"
    _file(tmp_path, "nonsense")
    with pytest.raises(ValueError, match="line 1"):
        keyring.refresh()
    assert keyring.refresh() is False
    assert keyring.name_of(b"Bearer kvr_b", None) == "lab"
    (tmp_path / "keys").unlink()
    with pytest.raises(OSError, match="keys"):
        keyring.refresh()
    assert keyring.name_of(b"Bearer kvr_b", None) == "lab"


def test_a_file_that_could_not_be_read_once_is_read_later(tmp_path: Path) -> None:
    path = _file(tmp_path, key_line("kvr_a", "shop"))
    keyring = Keyring.load(path)
    new = tmp_path / "new"
    new.write_text(key_line("kvr_b", "lab"), encoding="utf-8")
    path.unlink()
    # There, and of another signature, but for now nothing that can be read.
    path.mkdir()
    for _ in range(2):
        with pytest.raises(IsADirectoryError):
            keyring.refresh()
    path.rmdir()
    new.rename(path)
    assert keyring.refresh() is True
    assert keyring.name_of(b"Bearer kvr_a", None) is None
