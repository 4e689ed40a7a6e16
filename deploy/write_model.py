"""Writes the model that comes along, or its tokenizer alone, to a directory: how images get theirs.

    python deploy/write_model.py [--tokenizer-only] DIRECTORY

Needs the `gguf` package and the one that carries the model; the weights need torch too, the tokenizer not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from replica.model.bundled_gguf import find_bundled_gguf

_READABLE_BY_ALL = 0o644


def write_model(directory: Path, tokenizer_only: bool) -> None:
    """Fill `directory`, made if need be, with files that any user can read."""
    source = find_bundled_gguf().path
    directory.mkdir(parents=True, exist_ok=True)
    if tokenizer_only:
        from replica.model.gguf_tokenizer import write_tokenizer

        write_tokenizer(source, directory)
    else:
        # Imported here, since it imports torch.
        from replica.model.bundled import convert

        convert(source, directory)
    for file in directory.iterdir():
        file.chmod(_READABLE_BY_ALL)


def main() -> None:
    """Read the arguments and write."""
    parser = argparse.ArgumentParser(description="Write the model that comes along to a directory.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tokenizer-only", action="store_true", help="what a router needs: 2 MB")
    arguments = parser.parse_args()
    write_model(arguments.directory, arguments.tokenizer_only)


if __name__ == "__main__":
    main()
