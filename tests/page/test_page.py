"""The page in a real browser: it shows the fleet as it is, follows it, and keeps to its own origin."""

from __future__ import annotations

from typing import Any

import pytest

from tests.page.browser import PHONE, Browsed, Opener
from tests.page.crowd import crowd
from tests.router.scripted import BODY, Rig, rig, stream
from tests.router.scripted import chunk as event

pytestmark = pytest.mark.asyncio(loop_scope="session")
_EXPLAINS = {"observe": {"access_log": False, "explain": True}}
_ROWS = "document.querySelectorAll('#replicas tbody tr').length"
_NARROWEST = (
    "Math.min(...[...document.querySelectorAll('#replicas thead th')]"
    ".map((head) => head.getBoundingClientRect().width).filter((width) => width > 0))"
)
_NAMES = "[...document.querySelectorAll('#replicas tbody .name')].map((one) => one.textContent)"


def _tile(name: str) -> str:
    return f"[data-tile={name}]"


def _shown(selector: str, text: str) -> str:
    return f"document.querySelector('{selector}').textContent.includes('{text}')"


async def _asked_in_turns(fleet: Rig, turns: int = 3) -> None:
    """Send a conversation that grows, so that something is expected and hit."""
    messages: list[dict[str, str]] = [*BODY["messages"]]
    for _ in range(turns):
        await fleet.post({"model": "m", "messages": messages})
        messages += [
            {"role": "assistant", "content": "Salt water."},
            {"role": "user", "content": "More? " * 9},
        ]


async def test_it_shows_the_fleet_and_follows_it(browse: Opener) -> None:
    async with rig(3, **_EXPLAINS) as fleet, browse(fleet.router.address) as shown:
        assert await shown.page.evaluate(_NAMES) == ["r0", "r1", "r2"]
        assert await shown.text("#states") == "3 ready"
        assert await shown.text("#standing") == "ready"
        assert "affinity" in await shown.text("#facts")
        row = await shown.page.query_selector("#replicas tbody tr")
        await _asked_in_turns(fleet)
        await shown.until(_shown(f"{_tile('rate')} .note", "3 served"))
        # 16 of 40 tokens each: what the scripted replica says.
        assert await shown.text(f"{_tile('hits')} .value") == "40.0 %"
        assert await shown.text(f"{_tile('busiest')} .value") == "100.0 %"
        assert "72 of 120 prompt tokens" in await shown.text("#missed")
        assert "40.0 %" in " ".join(await shown.texts("#replicas tbody tr"))
        # Rows are changed in place.
        assert row is not None
        assert await row.evaluate("(row) => row.isConnected")


async def test_misses_add_up_by_cause(browse: Opener) -> None:
    async with rig(2, **_EXPLAINS) as fleet:
        await _asked_in_turns(fleet)
        _, told = await fleet.get("/debug/fleet")
        async with browse(fleet.router.address) as shown:
            rows = [text.split("\t") for text in await shown.texts("#misses tbody tr")]
            counted = {row[0].strip().replace(" ", "_"): int(row[1].replace(",", "")) for row in rows}
            assert {cause: tokens for cause, tokens in counted.items() if tokens} == told["totals"][
                "uncached"
            ]
            assert sum(counted.values()) == 72
            drawn = await shown.page.locator("#misses .stack span").evaluate_all(
                "(parts) => parts.filter((one) => !one.hidden).map((one) => one.dataset.cause)"
            )
            assert set(drawn) == set(told["totals"]["uncached"])


async def test_a_replica_that_goes_down_is_shown_so(browse: Opener) -> None:
    async with rig(3) as fleet, browse(fleet.router.address) as shown:
        await fleet.replica("r1").stop()
        await shown.until(_shown("#replicas tbody tr:nth-child(2) .state", "down"))
        assert await shown.text("#states") == "2 ready · 1 down"
        await fleet.replica("r0").stop()
        await fleet.replica("r2").stop()
        await shown.until(_shown("#standing", "not ready"))


async def test_a_member_that_leaves_goes(browse: Opener) -> None:
    async with rig(3) as fleet, browse(fleet.router.address) as shown:
        config = fleet.router.gateway.serving.config
        kept = config.fleet.model_copy(update={"replicas": config.fleet.replicas[1:]})
        fleet.router.reload(config.model_copy(update={"fleet": kept}))
        await shown.until(f"{_ROWS} === 2")
        assert await shown.page.evaluate(_NAMES) == ["r1", "r2"]


async def test_rows_are_sorted_and_filtered(browse: Opener) -> None:
    async with rig(3) as fleet, browse(fleet.router.address) as shown:
        fleet.replica("r1").work_seconds = 60.0
        await shown.until(_shown("#replicas tbody tr:nth-child(2)", " s"))
        head = shown.page.locator("#replicas thead th", has_text="Load")
        await head.locator("button").click()
        assert await head.get_attribute("aria-sort") == "descending"
        names = await shown.page.evaluate(_NAMES)
        assert names[0] == "r1"
        await head.locator("button").click()
        assert await head.get_attribute("aria-sort") == "ascending"
        assert (await shown.page.evaluate(_NAMES))[-1] == "r1"
        await shown.page.fill("#filter", "R2")
        assert await shown.page.evaluate(_NAMES) == ["r2"]
        assert (await shown.text("#states")).startswith("1 of 3 shown")
        await shown.page.fill("#filter", "nobody")
        assert "No replica matches" in await shown.text("#nobody")
        # By the keyboard alone.
        await shown.page.fill("#filter", "")
        await shown.page.locator("#replicas thead button", has_text="Replica").focus()
        await shown.page.keyboard.press("Enter")
        assert await shown.page.evaluate(_NAMES) == ["r0", "r1", "r2"]


async def test_a_name_opens_the_details(browse: Opener) -> None:
    async with rig(2, **_EXPLAINS) as fleet, browse(fleet.router.address) as shown:
        await _asked_in_turns(fleet, 1)
        first = shown.page.locator("#replicas .name").first
        await first.focus()
        await shown.page.keyboard.press("Enter")
        assert await first.get_attribute("aria-expanded") == "true"
        details = await shown.text(".details")
        assert "Life of its cache" in details
        assert "kvring" in details
        await shown.page.keyboard.press("Enter")
        assert await shown.page.locator(".details").count() == 0


async def test_figures_of_the_last_minute_count_what_is_new(browse: Opener) -> None:
    async with rig(1) as fleet:
        await _asked_in_turns(fleet)
        async with browse(fleet.router.address) as shown:
            assert "3 served" in await shown.text(f"{_tile('rate')} .note")
            await fleet.post()
            await shown.until(_shown(f"{_tile('rate')} .note", "4 served"))
            await shown.page.check("#span input[value=minute]", force=True)
            assert "1 served" in await shown.text(f"{_tile('rate')} .note")
            await shown.page.check("#span input[value=start]", force=True)
            assert "4 served" in await shown.text(f"{_tile('rate')} .note")


async def test_a_lost_router_shows_no_old_figures(browse: Opener) -> None:
    async with rig(1) as fleet, browse(fleet.router.address) as shown:
        await shown.page.route("**/debug/fleet", lambda route: route.abort())
        await shown.until("!document.querySelector('#lost').hidden")
        assert (await shown.text("#lost")).startswith("No answer since ")
        assert not await shown.page.locator("#replicas").is_visible()
        assert await shown.text("#standing") == "no answer"
        await shown.page.unroute("**/debug/fleet")
        await shown.until("document.querySelector('#lost').hidden")
        assert await shown.page.locator("#replicas").is_visible()


async def test_it_asks_nothing_while_paused(browse: Opener) -> None:
    async with rig(1) as fleet, browse(fleet.router.address) as shown:
        await shown.page.click("#pause")
        assert await shown.page.get_attribute("#pause", "aria-pressed") == "true"
        await fleet.post()
        asked: list[str] = []
        shown.page.on("request", lambda request: asked.append(request.url))
        await shown.page.wait_for_timeout(2_500)
        assert not asked
        await shown.page.click("#pause")
        await shown.until(_shown(f"{_tile('rate')} .note", "1 served"))


async def test_the_median_comes_from_the_histogram(browse: Opener) -> None:
    async with rig(1) as fleet:

        async def answer(request: Any) -> Any:
            return await stream(request, [event("Salt."), event(None, "stop"), b"data: [DONE]\n\n"])

        fleet.replicas[0].answer = answer
        await fleet.post({**BODY, "stream": True})
        async with browse(fleet.router.address) as shown:
            assert (await shown.text(f"{_tile('ttft')} .value")).startswith("≈ ")
            assert await shown.text(f"{_tile('ttft')} .note") == "1 streamed chats"
            middle = await shown.page.evaluate(
                "import('/page/figures.js').then(({ median }) => [[[1, 0], [2, 4], [4, 8], [null, 8]],"
                " [[1, 2], [2, 8]], [[1, 0], [null, 3]], [[1, 0]], []].map(median))"
            )
            assert middle == [2, pytest.approx(4 / 3), 1, None, None]


@pytest.mark.parametrize(("size", "dark"), [((1400, 900), False), (PHONE, True)])
async def test_hundreds_of_replicas_have_room(browse: Opener, size: tuple[int, int], dark: bool) -> None:
    async with rig(1) as fleet:
        await _asked_in_turns(fleet)
        _, told = await fleet.get("/debug/fleet")
        many = crowd(told, 256)
        async with browse(fleet.router.address, size, dark=dark, fleet=many) as shown:
            assert await shown.page.evaluate(_NAMES) == [f"replica-{number}" for number in range(256)]
            await _fits(shown)
            rows = await shown.page.query_selector_all("#replicas tbody tr")
            many["replicas"].reverse()
            many["replicas"][0]["state"] = "down"
            await shown.until(_shown("#replicas tbody tr:last-child .state", "down"))
            assert await rows[-1].evaluate("(row) => row.isConnected && row.sectionRowIndex") == 255
            await shown.page.fill("#filter", "draining")
            assert await shown.page.evaluate(_ROWS) == 16


async def test_a_phone_has_room_for_everything(browse: Opener) -> None:
    async with rig(3, **_EXPLAINS) as fleet:
        await _asked_in_turns(fleet)
        async with browse(fleet.router.address, PHONE) as shown:
            narrow = await shown.page.evaluate(_NARROWEST)
            await shown.page.locator("#replicas .name").first.click()
            # Details take no room from the columns above them.
            assert await shown.page.evaluate(_NARROWEST) == pytest.approx(narrow, abs=2)
            await shown.page.click("#explain button[type=submit]")
            await shown.page.wait_for_selector("#explained table")
            await _fits(shown)
            await shown.page.select_option("#sort", label="Hit ratio")
            assert await shown.page.locator("th[aria-sort=descending]").inner_text() == "Hit ratio"


async def _fits(shown: Browsed) -> None:
    wide, room = await shown.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= room


async def test_it_keeps_to_its_origin_and_its_policy(browse: Opener) -> None:
    async with rig(2, **_EXPLAINS) as fleet:
        await _asked_in_turns(fleet)
        async with browse(fleet.router.address) as shown:
            await shown.page.click("#explain button[type=submit]")
            await shown.page.wait_for_selector("#explained table")
            await shown.page.click("#decisions tbody .name")
            await shown.page.wait_for_selector("#explained >> text=What came of it")
            assert shown.complaints == []
            assert shown.asked == {fleet.router.address}
            # What is written into the page never runs, nor is it read as markup.
            await shown.page.evaluate("document.body.append(document.createElement('script'))")
            with pytest.raises(Exception, match="TrustedHTML"):
                await shown.page.evaluate("document.body.innerHTML = '<b>bold</b>'")


async def test_each_table_and_control_has_a_name(browse: Opener) -> None:
    async with rig(2, **_EXPLAINS) as fleet, browse(fleet.router.address) as shown:
        nameless = await shown.page.evaluate(
            "[...document.querySelectorAll('table')].filter((one) => !one.caption).length"
            " + [...document.querySelectorAll('th')].filter((one) => !one.scope).length"
            " + [...document.querySelectorAll('input, select, textarea')]"
            ".filter((one) => !one.labels.length).length"
            " + [...document.querySelectorAll('button')].filter((one) => !one.textContent.trim()).length"
        )
        assert nameless == 0
        assert await shown.page.locator("main, header, footer, h1").count() == 4
        for name in ("At a glance", "Fleet", "Why tokens missed", "Explain a request"):
            assert await shown.page.get_by_role("heading", name=name, exact=True).count() == 1
