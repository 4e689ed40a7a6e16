"""API keys: who may ask, known by digests alone, so that the file of keys gives none of them away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

_MOST_KEYS = 100_000
# More than so many lines of names, comments and digests take.
_MOST_BYTES = 32 * 1024 * 1024
_LINE = re.compile(r"sha256:([0-9a-fA-F]{64})[ \t]+([A-Za-z0-9](?:[A-Za-z0-9._@-]{0,62}[A-Za-z0-9])?)")
_BEARER = b"bearer "

# When a file was written, its size, and which file it is.
_Signature = tuple[int, int, int]


class Keyring:
    """Tells the name that a key stands for. Several keys may have one name, as while they are exchanged."""

    def __init__(self, path: Path | None, names: Mapping[bytes, str], signature: _Signature | None) -> None:
        """`names` are by the SHA-256 digests of keys; without a `path` anybody may ask."""
        self._path = path
        self._names = names
        self._signature = signature

    @classmethod
    def open(cls) -> Keyring:
        """Return the keyring that lets anybody in, namelessly."""
        return cls(None, {}, None)

    @classmethod
    def load(cls, path: Path) -> Keyring:
        """Read a file of lines `sha256:HEX NAME`, with comments from # on.

        OSError where it cannot be read, ValueError with the line's number where it is not such a file.
        """
        signature = _signature(path)
        return cls(path, _read(path), signature)

    def __len__(self) -> int:
        return len(self._names)

    def name_of(self, authorization: bytes | None, x_api_key: bytes | None) -> str | None:
        """Return whose key these headers bear, empty where anybody may ask; None where it is nobody's."""
        if self._path is None:
            return ""
        # A look-up takes longer for some digests than for others. That tells nothing of use: who tries keys
        # cannot choose their digests, and to know a digest's first bits does not lead to a key of 256 bits.
        if authorization is not None and authorization[:7].lower() == _BEARER:
            name = self._names.get(sha256(authorization[7:].strip()).digest())
            if name is not None:
                return name
        if x_api_key is not None:
            return self._names.get(sha256(x_api_key).digest())
        return None

    def refresh(self) -> bool:
        """Take up the file where it has changed; say whether it was. Meant for a thread beside the loop.

        Errors as of `load`, ValueError once for each change: the keys from before then go on.
        """
        if self._path is None or (signature := _signature(self._path)) == self._signature:
            return False
        try:
            # Bound at once and whole: whoever looks a key up meanwhile sees the old or the new.
            self._names = _read(self._path)
        except ValueError:
            # Seen, and unfit. What could not be read is looked at again: it may revoke keys.
            self._signature = signature
            raise
        self._signature = signature
        return True


def key_line(key: str, name: str) -> str:
    """Return the line for a file of keys; ValueError where the name is not fit for one."""
    line = f"sha256:{sha256(key.encode()).hexdigest()} {name}"
    if not _LINE.fullmatch(line):
        raise ValueError("names are 1 to 64 of A-Z a-z 0-9 . _ @ -, a letter or digit first and last")
    return line


def _signature(path: Path) -> _Signature:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> dict[bytes, str]:
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{path}: larger than {_MOST_BYTES} bytes")
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8") from error
    return _parse(lines, path)


def _parse(lines: Iterable[str], path: Path) -> dict[bytes, str]:
    names: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            # Never shown: it may be a key, put here by mistake.
            raise ValueError(
                f"{path}, line {number}: not sha256:HEX NAME; `kvring key NAME` makes such lines"
            )
        digest = bytes.fromhex(match[1])
        if digest in names:
            raise ValueError(f"{path}, line {number}: the key of {names[digest]!r} again")
        if len(names) == _MOST_KEYS:
            raise ValueError(f"{path}, line {number}: more than {_MOST_KEYS} keys")
        names[digest] = match[2]
    return names
