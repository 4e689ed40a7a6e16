"""A directory is built once, and whole, whoever asks and whoever dies."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from replica.model.build_once import build_once


def _ask(directory: Path, log: Path) -> None:
    def build(partial: Path) -> None:
        with log.open("a") as lines:
            lines.write("built\n")
        (partial / "first").write_text("1")
        (partial / "second").write_text("2")

    build_once(directory, build)
    assert (directory / "second").read_text() == "2"


def test_processes_that_ask_at_once_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    spawn = multiprocessing.get_context("spawn")
    asking = [spawn.Process(target=_ask, args=(tmp_path / "cache" / "built", log)) for _ in range(4)]
    for process in asking:
        process.start()
    for process in asking:
        process.join()
    assert [process.exitcode for process in asking] == [0] * 4
    assert log.read_text() == "built\n"


def test_a_failed_build_leaves_nothing_and_may_be_tried_again(tmp_path: Path) -> None:
    directory = tmp_path / "built"

    def fail(partial: Path) -> None:
        (partial / "half").write_text("")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        build_once(directory, fail)
    assert not directory.exists()
    assert not list(tmp_path.glob("*partial*"))
    build_once(directory, lambda partial: None)
    assert directory.is_dir()


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    stale = tmp_path / ".built.partial-dead"
    stale.mkdir()
    (stale / "half").write_text("")
    build_once(tmp_path / "built", lambda partial: None)
    assert not stale.exists()
