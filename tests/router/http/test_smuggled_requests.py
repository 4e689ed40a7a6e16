"""Requests that others may read otherwise: none is served that could be part of another."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from tests.router.http.smuggled import CASES, MARK, SECOND, Case
from tests.router.oracle.loops import LOOPS, running
from tests.router.oracle.pair import Pair, connect, pair

# Who waits for what never comes is told so, or closed, soon.
_SHORT = {"header_seconds": 1, "body_seconds": 1, "idle_client_seconds": 1}
_STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d) ")

Outcome = tuple[tuple[int, ...], tuple[str, ...], bytes]


@pytest.fixture(scope="module", params=LOOPS)
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, int], Outcome]]:
    """What came of each case, sent whole (0), and in pieces of so many bytes."""
    with running(request.param, lambda: pair(**_SHORT)) as (runner, both):
        yield runner.run(_all(both))


async def _all(both: Pair) -> dict[tuple[str, int], Outcome]:
    asked = [(index, size) for index in range(len(CASES)) for size in (0, 5)]
    answers = await asyncio.gather(*(_outcome(both, index, size) for index, size in asked))
    return {(CASES[index].name, size): answer for (index, size), answer in zip(asked, answers, strict=True)}


async def _outcome(both: Pair, index: int, size: int) -> Outcome:
    """Send a case; its requests are told from those of others by their mark."""
    mark = f"-{index:05}{size}"
    raw = CASES[index].raw.replace(MARK, mark.encode())
    reader, writer = await connect(both.router.address)
    try:
        for start in range(0, len(raw), size or len(raw)):
            writer.write(raw[start : start + (size or len(raw))])
            await asyncio.sleep(0)
        answered = await reader.read()
    except ConnectionError:
        answered = b""
    finally:
        writer.close()
    cases = ["".join(message.of("x-case")) for message in both.replica.got]
    reached = tuple(case.removesuffix(mark) for case in cases if case.endswith(mark))
    return tuple(int(status) for status in _STATUS.findall(answered)), reached, answered


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("size", [0, 5], ids=["whole", "cut"])
def test_a_request_is_served_once_or_refused(
    case: Case, size: int, outcomes: dict[tuple[str, int], Outcome]
) -> None:
    statuses, reached, answered = outcomes[case.name, size]
    assert (statuses, reached) == (case.statuses, case.reached), answered[:600]
    assert b"secret" not in answered
    assert answered.count(b"x-request-id: ") == len(statuses)


def test_names_are_given_once() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.raw.count(SECOND) == 1 for case in CASES if case.name != "LF everywhere")
