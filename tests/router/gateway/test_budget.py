"""The retry budget: a fleet that turns all away is asked little more than once a request."""

from __future__ import annotations

import pytest

from router.config import LimitOptions
from router.gateway.budget import RetryBudget
from tests.router.gateway.relayed import answering
from tests.router.scripted import rig


def test_a_share_of_all_that_come_and_a_burst() -> None:
    budget = RetryBudget(LimitOptions(retry_share=0.25, retry_burst=2))
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    spent = 0
    for _ in range(100):
        budget.earn()
        spent += budget.spend()
    assert spent == 25
    # What is not used is not saved beyond the burst.
    for _ in range(1000):
        budget.earn()
    assert [budget.spend() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("status", [429, 503])
async def test_overload_does_not_feed_itself(status: int) -> None:
    async with rig(3, limits={"retry_share": 0.1, "retry_burst": 5}) as up:
        for replica in up.replicas:
            replica.answer = answering({"error": {"message": "full"}}, status, **{"Retry-After": "3"})
        answers = [await up.post() for _ in range(100)]
        assert {seen for seen, _, _ in answers} == {status}
        assert {response.headers["Retry-After"] for _, _, response in answers} == {"3"}
        asked = sum(len(replica.bodies) for replica in up.replicas)
        assert 100 < asked <= 100 + 5 + 10
        told = [response.headers.get("x-should-retry") for _, _, response in answers]
        # Where others were asked already, the client learns that it should leave it at that.
        assert 0 < told.count("false") <= asked - 100
        # It is back-pressure: nobody is out for it.
        assert all(replica.usable for replica in up.router.fleet.replicas)


async def test_what_a_replica_says_of_retries_is_said_once() -> None:
    async with rig(2) as up:
        for replica in up.replicas:
            replica.answer = answering({"error": {}}, 429, **{"x-should-retry": "true"})
        _, _, response = await up.post()
        assert response.headers.getall("x-should-retry") == ["false"]
