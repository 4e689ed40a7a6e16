"""`kvring bench policy`: each part is measured, over a live router's fleet, and what is kept is weighed."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from click.testing import CliRunner, Result

from loadgen.bench.held_bytes import held_bytes
from loadgen.bench.policy import DecisionOptions, measure, prepare
from loadgen.bench.quiet_fleet import quiet_fleet
from loadgen.bench.traffic import MODEL, conversations, namer_of
from loadgen.cli import kvring
from router.policies import load_policy
from router.wire.report import LoadReport

SMALL = ("--rounds", "2", "--decisions", "20", "--prompt-tokens", "512", "--digest-names", "200")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(kvring, ["bench", "policy", *arguments])


def test_json_has_every_part_of_each_policy_and_fleet() -> None:
    policies = "affinity,affinity:use_digests=false,least_work"
    result = bench("--policy", policies, "--replicas", "2,5", *SMALL, "--json")
    assert result.exit_code == 0, result.output
    records = orjson.loads(result.stdout)
    assert [(one["replicas"], one["policy"]) for one in records] == [
        (count, policy) for count in (2, 5) for policy in policies.split(",")
    ]
    for record in records:
        for part in ("view", "rank", "look", "note", "end", "total", "whole"):
            least, middle, most = (record[f"{part}{which}_microseconds"] for which in ("_least", "", "_most"))
            assert 0 < least <= middle <= most
        assert record["marks_microseconds"] >= 0
        assert record["look_microseconds"] < record["total_microseconds"] < record["whole_microseconds"]
        assert record["rank_microseconds_per_replica"] == pytest.approx(
            record["rank_microseconds"] / record["replicas"], abs=0.01
        )
        # 16 of the 20 prompts of each round were asked before.
        assert record["requests"] == 3 * 20 + 3 * 16
        assert 0 < record["soft_state_bytes"] <= 4 * 2**20
        assert 1.1e6 < record["sightings_bytes"] < 1.3e6


def test_a_table_has_a_row_each() -> None:
    result = bench("--policy", "affinity,round_robin", "--replicas", "3", *SMALL)
    assert result.exit_code == 0, result.output
    for word in (
        "affinity",
        "round_robin",
        "marks",
        "view",
        "rank",
        "look",
        "commit",
        "note",
        "whole",
        "MiB",
    ):
        assert word in result.stdout
    for kept in ("soft state", "sightings"):
        assert kept in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "nope"], "there is no policy 'nope'"),
        (["--policy", "affinity:wheels=4"], "wheels"),
        (["--replicas", "0"], "replicas"),
        (["--replicas", "many"], "'many' is not numbers by commas"),
        (["--rounds", "0"], "rounds"),
        (["--prompt-tokens", "0"], "prompt_tokens"),
    ],
)
def test_what_does_not_fit_is_told_in_a_line(arguments: list[str], message: str) -> None:
    result = bench(*SMALL, *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr.splitlines()[-1]
    assert not result.stdout


def test_what_affinity_keeps_does_not_grow() -> None:
    options = DecisionOptions(replicas=4, rounds=3, decisions=30, prompt_tokens=2048, digest_names=500)
    costs = measure("affinity", {}, options, prepare(options))
    # The names of replicas are learned once; all else has its room from the start.
    assert costs.state_bytes - costs.state_bytes_halfway < 2000
    assert costs.state_bytes <= 4 * 2**20


def test_prompts_go_on_from_what_was_asked_before() -> None:
    namer = namer_of(16)
    made = conversations(namer, 10, 512)
    assert [one.before is None for one in made] == [number % 5 == 0 for number in range(10)]
    for one in made:
        ask = one.ask()
        assert (ask.prompt_tokens, len(one.chain.names)) == (512, 32)
        if one.before is not None and one.before.chain is not None:
            before = one.before.chain
            assert one.chain.names[: len(before.names)] == before.names
            assert one.chain.data.startswith(before.data)
    assert len({tuple(one.chain.names) for one in made}) == 10


async def test_the_fleet_is_a_live_one_without_its_sockets() -> None:
    namer = namer_of(16)
    (prompt, *_) = conversations(namer, 1, 512)
    ask = prompt.ask()
    async with quiet_fleet(["a", "b"], MODEL, namer.identity) as fleet:
        fleet.tell("b", LoadReport(3.0, 1, 2, 0.5, 1), 1.0)
        fleet.tell_digest("b", prompt.chain.names, 1.0)
        view = fleet.fleet.view(MODEL, 1.5)
        waits = dict(zip(view.names, view.wait_seconds(1.5).tolist(), strict=True))
        assert waits == pytest.approx({"a": 0, "b": 2.5})
        assert dict(zip(view.names, view.held_tokens(ask).tolist(), strict=True)) == {"a": -1, "b": 512}
        assert len(load_policy("affinity").rank(ask, view, 1.5)) == 2


def test_held_bytes_counts_each_thing_once() -> None:
    table = np.zeros(10_000)
    both = [table, table[:10], {"same": table}]
    assert 80_000 < held_bytes(both) < 81_000
    assert held_bytes([b"x" * 1000] * 50) < 2000
    assert held_bytes([bytes(1000) + bytes([number]) for number in range(50)]) > 50_000
    assert held_bytes(both, besides=[both[1]]) < 1000
    assert held_bytes([np, len, DecisionOptions, held_bytes]) < 200
