"""Watches of EndpointSlices that break, grow old, lie or never end: what is gone goes, what lives stays."""

from __future__ import annotations

import logging
import tracemalloc
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.router.fleet.sources.api_server import api_server, endpoint, endpoint_slice
from tests.router.fleet.sources.following import following, until

ONE, TWO, THREE = (f"http://10.0.0.{number}:8000" for number in (1, 2, 3))


@pytest.mark.parametrize("by_cut", [False, True])
@pytest.mark.parametrize("by_status", [False, True])
async def test_a_deletion_nobody_told_is_found_by_the_next_list(
    tmp_path: Path, by_status: bool, by_cut: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with api_server() as server:
        server.expires_by_status = by_status
        server.put_two_pods()
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            server.put(endpoint_slice("c", endpoint("10.0.0.3", "u3")))
            await followed.until_urls(ONE, TWO, THREE)
            # The watch is over; what happens before the next one is forgotten by the server.
            server.cut() if by_cut else server.end_watches()
            server.delete("b")
            server.forget()
            await followed.until_urls(ONE, THREE)
            await server.watched()
            server.delete("a")
            await followed.until_urls(THREE)
        assert server.count("list") == 2
    # Versions grow old: that is no failure.
    assert caplog.messages == []


async def test_a_server_that_forgets_at_once_is_not_asked_in_a_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with api_server() as server:
        server.put_two_pods()
        server.oldest = 10_000
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await until(lambda: server.count("list") == 3)
            server.oldest = 0
            await server.watched()
        assert server.count("watch") <= 4
    assert "forgets versions" in caplog.messages[0]
    assert len(caplog.messages) == 1


async def test_a_broken_watch_is_taken_up_where_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with api_server() as server:
        server.put_two_pods()
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            server.put(endpoint_slice("b", endpoint("10.0.0.3", "u3")))
            await followed.until_urls(ONE, THREE)
            seen = server.version
            server.send(b'{"type":"DELETED","object":{"metadata":{"na')
            server.cut()
            await until(lambda: server.watching == 0)
            server.delete("a")
            await followed.until_urls(THREE)
        assert server.count("list") == 1
        assert server.asked[-1].query["resourceVersion"] == str(seen)
    assert caplog.messages == []


async def test_half_a_line_at_a_plain_end_is_no_event(tmp_path: Path) -> None:
    async with api_server() as server:
        server.put_two_pods()
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            server.send(b'{"type":"DELETED","object":{"metadata":{"name":"a"}')
            server.end_watches()
            await server.watched(since=1)
            assert followed.urls == [ONE, TWO]
            server.delete("a")
            await followed.until_urls(TWO)


async def test_a_bookmark_is_where_the_next_watch_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with api_server() as server:
        server.put_two_pods()
        async with following(server.source(tmp_path, watch_seconds=1)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            server.bookmark()
            bookmarked = server.version
            # Without the bookmark, the version before would be too old now.
            server.forget()
            await server.watched(since=1)
            assert server.asked[-1].query["resourceVersion"] == str(bookmarked)
        assert server.count("list") == 1
        assert len(followed.lists) == 1
    assert caplog.messages == []


async def test_a_watch_that_the_server_does_not_end_is_ended(tmp_path: Path) -> None:
    async with api_server() as server:
        server.ends_watches = False
        server.put_two_pods()
        async with following(server.source(tmp_path, watch_seconds=1)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            await until(lambda: server.count("watch") == 2)
        assert server.count("list") == 1


async def test_a_server_that_fails_twice_is_asked_for_a_list(tmp_path: Path) -> None:
    async with api_server() as server:
        server.put_two_pods()
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            server.refusals["watch"] = (500, {}, "etcd is away")
            server.end_watches()
            # Silently, as in a store brought back from a copy.
            server.lose("a")
            await followed.until_urls(TWO)


async def test_an_error_within_a_watch_does_not_end_watching(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd is away"}}\n'
    async with api_server() as server:
        server.put_two_pods()
        server.instead["watch"] = [error, error]
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            server.delete("a")
            await followed.until_urls(TWO)
        # Where a watch never worked, it is not only the watch that is begun anew.
        assert server.count("list") == 3
    assert "etcd is away" in caplog.messages[0]


@pytest.mark.parametrize("worked_before", [False, True])
async def test_watches_that_end_at_once_are_not_begun_in_a_loop(
    tmp_path: Path, worked_before: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with api_server() as server:
        server.put_two_pods()
        server.instead["watch"] = [] if worked_before else [b""] * 3
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            if worked_before:
                server.delete("a")
                await followed.until_urls(TWO)
                server.instead["watch"] = [b""] * 3
                server.end_watches()
                await until(lambda: bool(caplog.messages))
                # The first is nothing to speak of yet.
                assert len(server.instead["watch"]) <= 1
        assert server.count("watch") <= 4
    assert "as soon as they begin" in caplog.messages[0]


@pytest.mark.parametrize(
    "garbage", [b"<html>\n", b"[1]\n", b"[" * 200_000 + b"\n", b"\xff\n", b"null", b"{}\n7\n"]
)
async def test_an_answer_that_is_no_event_changes_nothing(tmp_path: Path, garbage: bytes) -> None:
    async with api_server() as server:
        server.put_two_pods()
        server.instead["list"] = [garbage]
        server.instead["watch"] = [garbage]
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            server.delete("a")
            await followed.until_urls(TWO)


async def test_a_line_without_end_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with api_server() as server:
        server.put_two_pods()
        async with following(server.source(tmp_path)) as followed:
            await followed.until_urls(ONE, TWO)
            await server.watched()
            piece = b"x" * 65_536
            tracemalloc.start()
            try:
                for _ in range(1024):
                    server.send(piece)
                await server.watched(since=1)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            server.delete("a")
            await followed.until_urls(TWO)
    assert "event is too large" in caplog.messages[0]
    # 64 MB were sent; twice the limit is what a buffer that grows may take for a moment.
    assert peak < 24_000_000


async def test_a_server_that_is_away_leaves_the_last_list(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvring.fleet")
    async with AsyncExitStack() as stack:
        async with api_server() as server:
            server.put_two_pods()
            followed = await stack.enter_async_context(following(server.source(tmp_path)))
            await followed.until_urls(ONE, TWO)
            await server.watched()
        await until(lambda: bool(caplog.messages))
        assert followed.urls == [ONE, TWO]
        async with api_server(port=int(server.url.rpartition(":")[2])) as successor:
            successor.put(endpoint_slice("z"))
            await followed.until_urls()
            await until(lambda: len(caplog.messages) == 2)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
