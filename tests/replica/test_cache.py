"""The prefix cache as clients and routers see it: hits, isolation, digest, reset."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.chain.chain import ChainIdentity
from router.chain.digest import Digest, boundaries
from router.chain.namer import ChainNamer
from router.chain.prompt import chat_prompt, completion_prompts
from router.wire.report import ReplicaState
from tests.replica.conftest import Client, Launch


async def cached(response: Any) -> int:
    assert response.status_code == 200, response.text
    count: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


async def digest_with(client: Client, names: int) -> Digest:
    """Wait until the digest holds so many names; return it."""
    async with asyncio.timeout(5):
        while True:
            digest = Digest.from_json((await client.http.get("/digest")).json())
            if digest.names >= names:
                return digest
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("length", "hit"), [(16, 0), (31, 16), (32, 16), (33, 32), (48, 32)])
async def test_whole_blocks_hit_but_for_the_last_token(launch: Launch, length: int, hit: int) -> None:
    client = await launch()
    prompt = list(range(length))
    assert await cached(await client.complete(prompt)) == 0
    for _ in range(2):
        assert await cached(await client.complete(prompt)) == hit
    state = await client.idle()
    assert state["free_blocks"] == state["block_count"]


async def test_each_turn_of_a_chat_hits_the_one_before(launch: Launch) -> None:
    client = await launch()
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief. " * 30}]
    previous = 0
    for turn in range(5):
        messages.append({"role": "user", "content": f"Question {turn}: " + "why? " * 20})
        response = await client.chat(messages, max_tokens=8)
        hit = await cached(response)
        if turn:
            # All whole blocks of the prompt before.
            assert previous - 16 <= hit <= previous
        previous = response.json()["usage"]["prompt_tokens"]
        messages.append(response.json()["choices"][0]["message"])
    hits = await client.metric("vllm:prefix_cache_hits_total")
    assert 0 < hits < await client.metric("vllm:prefix_cache_queries_total")


async def test_salts_part_tenants_and_only_them(launch: Launch) -> None:
    client = await launch()
    text = "the same text " * 50
    assert await cached(await client.chat(text, cache_salt="a")) == 0
    assert await cached(await client.chat(text, cache_salt="b")) == 0
    assert await cached(await client.chat(text)) == 0
    # The control: with the same salt, or the same lack of one, it is found.
    assert await cached(await client.chat(text, cache_salt="a")) > 100
    assert await cached(await client.chat(text)) > 100


async def test_caching_can_be_turned_off(launch: Launch) -> None:
    client = await launch(enable_prefix_caching=False)
    for _ in range(2):
        assert await cached(await client.complete(list(range(100)))) == 0
    assert (await digest_with(client, 0)).names == 0


async def test_the_digest_holds_just_what_a_router_would_name(launch: Launch) -> None:
    client = await launch()
    chat = {"model": "m", "messages": [{"role": "user", "content": "tell me all about it " * 400}]}
    other = {"model": "m", "prompt": list(range(2000))}
    await client.http.post("/v1/chat/completions", json={**chat, "max_tokens": 1})
    await client.http.post("/v1/completions", json={**other, "max_tokens": 1})
    state = ReplicaState.from_json(await client.state())
    # What a router builds from its own options.
    namer = ChainNamer("sha256", "kvring", 16, None)
    chains = [namer.chain(chat_prompt(chat)), namer.chain(completion_prompts(other)[0])]
    wanted = [chain.names[depth - 1] for chain in chains for depth in boundaries(len(chain.names), 16)]
    digest = await digest_with(client, len(wanted))
    assert digest.names == len(wanted)
    assert all(name in digest for name in wanted)
    assert digest.identity == namer.identity.fingerprint == state.chain.fingerprint
    assert digest.epoch == state.epoch
    assert state.chain == ChainIdentity("bytes", "sha256", 16, state.chain.root_fingerprint)
    absent = ChainNamer("sha256", "another", 16, None).chain(chat_prompt(chat)).names
    assert sum(name in digest for name in absent) < len(absent) / 10


async def test_a_reset_forgets_and_starts_a_new_epoch(launch: Launch) -> None:
    client = await launch()
    prompt = list(range(200))
    await client.complete(prompt)
    before = await digest_with(client, 12)
    response = await client.http.post("/reset_prefix_cache")
    assert response.status_code == 200
    assert response.json() == {"cache_epoch": 1}
    state = ReplicaState.from_json(await client.state())
    after = Digest.from_json((await client.http.get("/digest")).json())
    assert (state.cache_epoch, after.names) == (1, 0)
    assert after.epoch == state.epoch != before.epoch
    assert await cached(await client.complete(prompt)) == 0


async def test_a_digest_that_is_known_is_not_sent_again(launch: Launch) -> None:
    client, other = await launch(), await launch()
    prompt = list(range(100))
    # Two that had the same work are not to be taken for each other.
    for one in (client, other):
        await one.complete(prompt)
        await digest_with(one, 6)
    # The last block may be in the next digest only.
    await asyncio.sleep(0.05)
    whole = await client.http.get("/digest")
    assert whole.status_code == 200
    tag = whole.headers["etag"]
    assert float(whole.headers["x-kvring-digest-age"]) == pytest.approx(whole.json()["age_seconds"], abs=1e-3)
    for known in (tag, f'"x", {tag}', f"W/{tag}", "*"):
        again = await client.http.get("/digest", headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert float(again.headers["x-kvring-digest-age"]) >= 0
    for unknown in ("", "nonsense", '"x"', (await other.http.get("/digest")).headers["etag"]):
        assert (await client.http.get("/digest", headers={"if-none-match": unknown})).status_code == 200
    await client.complete([*prompt, *range(500, 600)])
    await digest_with(client, 12)
    changed = await client.http.get("/digest", headers={"if-none-match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


async def test_a_digest_ages_while_it_is_known(launch: Launch) -> None:
    client = await launch(digest_seconds=600)
    await client.complete([1] * 100)
    tag = (await client.http.get("/digest")).headers["etag"]
    # Named, but not told before the next digest is due.
    await client.complete(list(range(100)))
    ages = []
    for _ in range(2):
        response = await client.http.get("/digest", headers={"if-none-match": tag})
        assert response.status_code == 304
        ages.append(float(response.headers["x-kvring-digest-age"]))
        await asyncio.sleep(0.05)
    assert 0 < ages[0] < ages[1]
    await client.http.post("/reset_prefix_cache")
    assert (await client.http.get("/digest", headers={"if-none-match": tag})).status_code == 200


async def test_a_reset_shows_in_the_digest_at_once(launch: Launch) -> None:
    client = await launch(digest_seconds=600)
    await client.complete(list(range(200)))
    assert (await digest_with(client, 12)).names == 12
    # Names are not published again for ten minutes, but those that are gone are not kept under a new epoch.
    assert (await client.http.post("/reset_prefix_cache")).status_code == 200
    assert Digest.from_json((await client.http.get("/digest")).json()).names == 0


async def test_a_reset_is_refused_while_blocks_are_in_use(launch: Launch) -> None:
    client = await launch()
    running = asyncio.create_task(client.complete([1, 2, 3], max_tokens=300))
    await client.until(lambda state: state["load"]["running"] == 1)
    response = await client.http.post("/reset_prefix_cache")
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "blocks_in_use"
    assert (await client.state())["cache_epoch"] == 0
    assert (await running).status_code == 200


async def test_preempted_requests_finish_right_and_are_no_hits(launch: Launch) -> None:
    client = await launch(echo={"block_count": 24, "context_tokens": 320}, scheduler={"max_running": 8})
    responses = await asyncio.gather(
        *(client.complete([n * 1000 + at for at in range(40)], max_tokens=100) for n in range(8))
    )
    text = ("The quick brown fox jumps over the lazy dog.    " * 20)[:400]
    for response in responses:
        assert response.json()["choices"][0]["text"] == text
        assert await cached(response) == 0
    assert await client.metric("vllm:num_preemptions_total") > 0
    assert await client.metric("kvring_replica_recomputed_tokens_total") > 0
    assert await client.metric("vllm:prefix_cache_hits_total") == 0
    assert await client.metric("vllm:prefix_cache_queries_total") == 320


async def test_another_process_starts_another_life(launch: Launch) -> None:
    first, second = await launch(), await launch()
    one = ReplicaState.from_json(await first.state())
    two = ReplicaState.from_json(await second.state())
    assert one.name == two.name
    assert one.uid != two.uid
    assert one.chain == two.chain
