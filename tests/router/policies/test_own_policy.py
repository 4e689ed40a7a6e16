"""The README's example of a policy of one's own loads by its dotted name, and does what it says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from router.placement.view import LoadView
from router.policies import PolicyError, load_policy
from tests.router.views import ask_for, changed, digest_of, fleet_of, names_of

NAME = "tests.router.policies.own_policy"
PROMPT = ask_for(random.Random(0).choices(range(50_000), k=800))


def test_it_goes_to_the_holder_unless_that_is_busy() -> None:
    policy = load_policy(NAME, {"most_wait_seconds": 2.0})
    for wait, first in ((1.9, True), (2.1, False)):
        busy = fleet_of(names_of(3), **{"replica-2": LoadView(work_seconds=wait, reported_at=5.0)})
        fleet = changed(busy, digests={"replica-2": digest_of([PROMPT], "replica-2:0")}, at=5.0)
        ranking = policy.rank(PROMPT, fleet, 5.0)
        assert (ranking[0].name == "replica-2") is first
        assert sorted(choice.name for choice in ranking) == names_of(3)
        assert max(choice.expected_tokens for choice in ranking) == 800


def test_it_keeps_the_contract() -> None:
    policy = load_policy(NAME)
    assert policy.rank(PROMPT, fleet_of([]), 0.0) == ()
    with pytest.raises(PolicyError, match="no_such_option"):
        load_policy(NAME, {"no_such_option": 1})
    first = policy.rank(PROMPT, fleet_of(names_of(5)), 0.0)
    assert policy.rank(PROMPT, fleet_of(names_of(5)[::-1]), 0.0) == first


_SOUND = "class Config: pass\nclass Policy:\n    def __init__(self, config): pass\n"


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("class Config(:\n", "cannot import .* SyntaxError"),
        ("1 / 0\n", "cannot import .* ZeroDivisionError"),
        ("import no_such_module_here\n", "cannot import .*no_such_module_here"),
        (_SOUND.replace("self, config", "self"), "cannot build .* TypeError"),
        (
            _SOUND.replace("class Config: pass", "def Config(): raise KeyError('k')"),
            "cannot build .* KeyError",
        ),
        ("class Config: pass\n", "needs a Config and a Policy"),
    ],
)
def test_one_that_is_broken_is_refused_however_it_fails(
    program: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / f"theirs_{len(program)}"
    package.mkdir()
    (package / "policy.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PolicyError, match=told):
        load_policy(f"{package.name}.policy")
