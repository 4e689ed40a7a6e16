"""The page's explaining parts in a real browser: decisions with why, and a form for a pasted request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from tests.page.browser import Opener
from tests.router.scripted import BODY, rig

pytestmark = pytest.mark.asyncio(loop_scope="session")
_EXPLAINS = {"observe": {"access_log": False, "explain": True}}


async def test_decisions_come_with_why_and_what_came_of_them(browse: Opener) -> None:
    async with rig(3, **_EXPLAINS) as fleet, browse(fleet.router.address) as shown:
        assert "No request has come in yet." in await shown.text("#decisions")
        await fleet.post(headers={"Content-Type": "application/json", "x-request-id": "first-of-all"})
        await shown.until("document.querySelectorAll('#decisions tbody tr').length === 1")
        row = await shown.text("#decisions tbody tr")
        assert "first-of-all" in row
        assert "is predicted alike" in row
        assert "partial block" in row
        await fleet.post(headers={"Content-Type": "application/json", "x-request-id": "then-this"})
        await shown.until("document.querySelectorAll('#decisions tbody tr').length === 2")
        assert "then-this" in await shown.text("#decisions tbody tr")
        await shown.page.click("#decisions tbody .name")
        await shown.page.wait_for_selector("#explained >> text=What came of it")
        assert "then-this" in await shown.text("#explained")


async def test_a_request_that_failed_is_shown_so(browse: Opener) -> None:
    async with rig(1, **_EXPLAINS) as fleet, browse(fleet.router.address) as shown:

        async def fails(request: web.Request) -> web.StreamResponse:
            return web.json_response({"error": {"message": "no"}}, status=500)

        fleet.replicas[0].answer = fails
        await fleet.post()
        await shown.until("document.querySelector('#decisions tbody .off') !== null")
        assert await shown.text("#decisions tbody .off") == "replica error (500)"


async def test_a_pasted_request_is_explained(browse: Opener) -> None:
    async with rig(3, **_EXPLAINS) as fleet, browse(fleet.router.address) as shown:
        await shown.page.fill("#body", json.dumps(BODY))
        await shown.page.click("#explain button[type=submit]")
        await shown.page.wait_for_selector("#explained table")
        assert await shown.page.locator("#explained tbody tr").count() == 3
        told = await shown.text("#explained")
        assert "blocks of 16 tokens, by bytes" in told
        assert "affinity" in told
        # Nothing was sent, and the prompt is not shown.
        assert all(not replica.requests for replica in fleet.replicas)
        assert "the sea" not in told
        # The same by the keyboard.
        await shown.page.fill("#body", json.dumps({**BODY, "model": "nobody"}))
        await shown.page.press("#body", "Control+Enter")
        await shown.page.wait_for_selector("#explain-error:not(:empty)")
        assert "nobody" in await shown.text("#explain-error")
        assert await shown.page.locator("#explained").is_hidden()


async def test_the_example_works_as_it_stands(browse: Opener) -> None:
    async with rig(2, **_EXPLAINS) as fleet, browse(fleet.router.address) as shown:
        await shown.page.fill("#body", "")
        await shown.page.click("#example")
        assert json.loads(await shown.page.input_value("#body"))["model"] == "m"
        await shown.page.click("#explain button[type=submit]")
        await shown.page.wait_for_selector("#explained table")


async def test_bad_json_is_told(browse: Opener) -> None:
    async with rig(1, **_EXPLAINS) as fleet, browse(fleet.router.address) as shown:
        for body in ('{"model": "m", "messages": [', "", "[]", '{"model": "m"}'):
            await shown.page.fill("#body", body)
            await shown.page.click("#explain button[type=submit]")
            await shown.page.wait_for_selector("#explain-error:not(:empty)")
            assert (await shown.text("#explain-error")).startswith("It cannot be explained: ")
            await shown.page.fill("#body", json.dumps(BODY))
            await shown.page.click("#explain button[type=submit]")
            await shown.page.wait_for_selector("#explained table")
            assert await shown.text("#explain-error") == ""


async def test_a_large_fleets_ranking_is_shown_in_parts(browse: Opener) -> None:
    async with rig(1, **_EXPLAINS) as fleet:
        _, raw, _ = await fleet.post(path="/debug/explain")
        told: dict[str, Any] = json.loads(raw)
        told["ranking"] = [{**told["ranking"][0], "place": 1 + place} for place in range(40)]
        async with browse(fleet.router.address) as shown:
            await shown.page.route("**/debug/explain", lambda route: route.fulfill(json=told))
            await shown.page.click("#explain button[type=submit]")
            await shown.page.wait_for_selector("#explained table")
            assert await shown.page.locator("#explained tbody tr").count() == 12
            await shown.page.click("#explained >> text=Show all 40")
            assert await shown.page.locator("#explained tbody tr").count() == 40


async def test_without_explaining_it_says_how_to_turn_it_on(browse: Opener) -> None:
    async with rig(1) as fleet, browse(fleet.router.address) as shown:
        await fleet.post()
        notices = await shown.texts("[data-needs-explain]")
        assert len(notices) == 2
        assert all("observe.explain = true" in notice for notice in notices)
        assert await shown.page.locator("#explain, #decisions").filter(visible=True).count() == 0
        assert not any("debug/decisions" in one for one in shown.complaints)
        # It is taken up while the page is open.
        config = fleet.router.gateway.serving.config
        explains = config.observe.model_copy(update={"explain": True})
        fleet.router.reload(config.model_copy(update={"observe": explains}))
        await shown.page.wait_for_selector("#explain", state="visible")
        assert await shown.page.locator("[data-needs-explain]").filter(visible=True).count() == 0


async def test_what_replicas_and_clients_say_is_shown_as_text(browse: Opener) -> None:
    async with rig(1, **_EXPLAINS) as fleet:
        markup = "<img src=x onerror=alert(1)>"
        fleet.replicas[0].models = ("m", markup)
        async with browse(fleet.router.address) as shown:
            await shown.page.locator("#replicas .name").first.click()
            await shown.until(f"document.querySelector('.details').textContent.includes('{markup}')")
            assert shown.complaints == []
