"""`kvring simulate`: a table, JSON with just the fields, a page, decisions; one line for what is unfit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from loadgen.cli import kvring
from loadgen.traces.mooncake import write_mooncake
from tests.loadgen.simulate.scenes import WATCHER, chats
from tests.loadgen.simulate.test_simulate import FIELDS

SMALL = ("--replicas", "4", "--routers", "2", "--cache-blocks", "200")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("traces") / "chats.jsonl.gz"
    write_mooncake(chats(conversations=12, turns=4), path)
    return str(path)


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(kvring, ["simulate", *arguments])


def records(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    read: list[dict[str, Any]] = orjson.loads(result.stdout)
    return read


def test_a_table_has_a_row_a_policy(trace: str) -> None:
    result = simulate("--trace", trace, "--policy", "round_robin,affinity", "--seeds", "2", *SMALL)
    assert result.exit_code == 0, result.output
    for word in ("round_robin", "affinity", "hit", "TTFT / oracle", "±"):
        assert word in result.stdout
    assert "chats" in result.stderr  # how far it is


def test_json_is_a_list_of_records(trace: str) -> None:
    """The usage line of the specification, over a small trace."""
    arguments = ("--policy", "round_robin,affinity", "--replicas", "16", "--routers", "4")
    measures = ("--load-staleness-seconds", "0.25", "--cache-factor", "4", "--utilisation", "0.7")
    found = records(simulate("--trace", trace, *arguments, *measures, "--json"))
    assert [record["policy"] for record in found] == ["round_robin", "affinity"]
    for record in found:
        assert list(record)[:5] == ["trace", "policy", "replicas", "routers", "seed"]
        assert set(record) >= set(FIELDS)
        assert (record["replicas"], record["routers"], record["seed"]) == (16, 4, 0)
        assert isinstance(record["rejected"], int)
        assert record["relative_to_oracle"] > 0


def test_policies_have_options_and_may_be_ones_own(trace: str) -> None:
    policies = f"affinity:use_digests=false,{WATCHER}:tells=wait"
    more = ("--first-seed", "5", "--no-oracle", "--change", "10:+2", "--change", "20:-1")
    found = records(simulate("--trace", trace, "--policy", policies, *more, *SMALL, "--json"))
    assert [record["policy"] for record in found] == ["affinity[use_digests=False]", f"{WATCHER}[tells=wait]"]
    assert [record["seed"] for record in found] == [5, 5]
    assert [record["relative_to_oracle"] for record in found] == [None, None]


def test_a_page_and_the_decisions_are_written(trace: str, tmp_path: Path) -> None:
    page, decisions = tmp_path / "new" / "page", tmp_path / "decisions.jsonl"
    told = ("--report", str(page), "--decisions", str(decisions), "--json")
    found = records(simulate("--trace", trace, "--policy", "affinity", *SMALL, *told))
    html = (page / "index.html").read_text()
    assert "affinity" in html
    assert "http://" not in html.replace("http://www.w3.org", "")
    rows = [orjson.loads(line) for line in decisions.read_bytes().splitlines()]
    assert len(rows) == 48
    assert sum(row["counted"] for row in rows) == found[0]["requests"]


def test_runs_are_the_same_in_any_process(trace: str) -> None:
    def run(hash_seed: str, jobs: str) -> bytes:
        arguments = ("--trace", trace, "--policy", "affinity,least_work", *SMALL, "--jobs", jobs, "--json")
        return subprocess.run(
            [sys.executable, "-m", "loadgen.cli", "simulate", *arguments],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        ).stdout

    assert run("1", "1") == run("2", "2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "nope"], "no trace 'nope'"),
        (["--trace", ""], "Is a directory"),
        (["--trace", __file__], "line 1"),
        (["--policy", "nope"], "there is no policy 'nope'"),
        (["--policy", ""], "there is no policy ''"),
        (["--policy", "affinity:wheels=4"], "wheels"),
        (["--policy", "affinity:near_tie_seconds=-1"], "near_tie_seconds"),
        (["--policy", "affinity:nothing"], "is not NAME=VALUE"),
        (["--policy", "no.such.module"], "cannot import"),
        (["--replicas", "0"], "replicas"),
        (["--replicas", "many"], "--replicas"),
        (["--routers", "0"], "routers"),
        (["--load-staleness-seconds", "-1"], "load_staleness_seconds"),
        (["--cache-factor", "0"], "--cache-factor"),
        (["--cache-factor", "nan"], "cache_factor"),
        (["--utilisation", "nan"], "utilisation"),
        (["--seeds", "0"], "--seeds"),
        (["--change", "soon"], "SECONDS:COUNT"),
        (["--change", "nan:1"], "at_seconds"),
        (["--set", "wheels=4"], "wheels"),
        (["--set", "seed=4"], "seeds"),
        (["--decisions", "/nowhere/at/all.jsonl"], "/nowhere/at"),
        (["--report", __file__ + "/page"], "cannot write"),
    ],
)
def test_what_does_not_fit_is_told_in_a_line(trace: str, arguments: list[str], message: str) -> None:
    given = () if "--trace" in arguments else ("--trace", trace, *SMALL)
    result = simulate(*given, *arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert message in line
    assert not result.stdout
