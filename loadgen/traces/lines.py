"""Lines of a file, plain, gzipped or xz-compressed, one at a time and each of bounded length."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from loadgen.traces.trace import TraceError

MAX_LINE_BYTES = 64 * 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\0"


def read_lines(path: Path, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line without its end), empty lines left out.

    TraceError if the file cannot be read, is cut off, or has a line longer than `max_line_bytes`.
    """
    try:
        with _open(path) as file:
            number = 0
            while line := file.readline(max_line_bytes + 1):
                number += 1
                if len(line) > max_line_bytes:
                    raise TraceError(f"{path}:{number}: the line is longer than {max_line_bytes:,} bytes")
                if line := line.strip():
                    yield number, line
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
