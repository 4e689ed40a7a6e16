"""Lines of a file, plain, gzipped or xz-compressed, one at a time and each of bounded length."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from loadgen.traces.trace import TraceError

MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_FILE_BYTES = 2 * 1024 * 1024 * 1024
_PEEKED_BYTES = 4096
_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\0"


def read_lines(path: Path, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line without its end), empty lines left out.

    TraceError if the file cannot be read, is cut off, or has a line longer than `max_line_bytes`.
    """
    number = 0
    with _opened(path) as file:
        while line := file.readline(max_line_bytes + 1):
            number += 1
            if len(line) > max_line_bytes:
                raise TraceError(f"{path}:{number}: the line is longer than {max_line_bytes:,} bytes")
            if line := line.strip():
                yield number, line


def read_whole(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return all of a file, for formats that are not read by lines; TraceError as of `read_lines`."""
    with _opened(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise TraceError(f"{path} is longer than {max_bytes:,} bytes")
    return data


def first_byte(path: Path) -> bytes:
    """Return the first byte that is no space, which tells JSON's kinds apart; empty if there is none."""
    with _opened(path) as file:
        return file.read(_PEEKED_BYTES).lstrip()[:1]


def stem(path: Path) -> str:
    """Return a file's name without the endings that tell its form."""
    return Path(path.name.removesuffix(".gz").removesuffix(".xz")).stem


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO | gzip.GzipFile | lzma.LZMAFile]:
    try:
        with _open(path) as file:
            yield file
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise TraceError(f"{path} cannot be decompressed: {error}") from error


def _open(path: Path) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    # By what is in it, since logs are often renamed.
    with path.open("rb") as file:
        magic = file.read(len(_XZ_MAGIC))
    if magic.startswith(_GZIP_MAGIC):
        return gzip.open(path)
    if magic == _XZ_MAGIC:
        return lzma.open(path)
    return path.open("rb")
