"""Members by DNS, against a real name server."""

from __future__ import annotations

import logging
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from router.config import DnsOptions
from router.fleet.members import Member
from router.fleet.sources.dns import DnsMembers
from tests.router.fleet.sources.following import following, until
from tests.router.fleet.sources.name_server import NameServer, name_server

A, AAAA, SRV = "A", "AAAA", "SRV"


def source(server: NameServer, etc: Path, **options: Any) -> DnsMembers:
    """A source that asks `server` often."""
    told = {
        "host": "replicas.test.",
        "nameservers": (server.address,),
        "refresh_seconds": 0.1,
        "least_refresh_seconds": 0.05,
        **options,
    }
    return DnsMembers(DnsOptions(**told), etc)


async def test_all_addresses_of_both_families_are_members(tmp_path: Path) -> None:
    async with name_server() as server:
        server.records["replicas.test.", A] = (0, ["10.0.0.2", "10.0.0.10"])
        server.records["replicas.test.", AAAA] = (0, ["fd00::1"])
        async with following(source(server, tmp_path, port=81)) as followed:
            await followed.until_urls("http://10.0.0.2:81", "http://10.0.0.10:81", "http://[fd00::1]:81")
        assert {member.uid for member in followed.members} == {""}
        assert {member.name for member in followed.members} == {None}


async def test_only_changes_are_told(tmp_path: Path) -> None:
    async with name_server() as server:
        server.records["replicas.test.", A] = (0, ["10.0.0.1", "10.0.0.2"])
        async with following(source(server, tmp_path)) as followed:
            await followed.until_urls("http://10.0.0.1:8000", "http://10.0.0.2:8000")
            # As servers do, to spread load.
            server.records["replicas.test.", A] = (0, ["10.0.0.2", "10.0.0.1"])
            seen = server.count(A)
            await until(lambda: server.count(A) >= seen + 3)
            assert len(followed.lists) == 1
            server.records["replicas.test.", A] = (0, ["10.0.0.2", "10.0.0.3"])
            await followed.until_urls("http://10.0.0.2:8000", "http://10.0.0.3:8000")


async def test_a_name_is_asked_again_when_its_time_to_live_is_over(tmp_path: Path) -> None:
    async with name_server() as server:
        server.records["replicas.test.", A] = (1, ["10.0.0.1"])
        server.records["long.test.", A] = (3600, ["10.0.0.1"])
        short = source(server, tmp_path, refresh_seconds=300)
        long = source(server, tmp_path, host="long.test.", refresh_seconds=300)
        floored = source(server, tmp_path, host="gone.test.", least_refresh_seconds=300, refresh_seconds=300)
        server.negative_ttl_seconds = 0
        async with following(short), following(long), following(floored):
            await until(lambda: server.asked.count(("replicas.test.", A)) == 3)
        assert server.asked.count(("long.test.", A)) == 1
        # A time to live of 0 does not make a router ask without end.
        assert server.asked.count(("gone.test.", A)) == 1


async def test_no_look_up_waits_longer_than_the_refresh(tmp_path: Path) -> None:
    async with name_server() as server:
        server.records["replicas.test.", A] = (3600, ["10.0.0.1"])
        async with following(source(server, tmp_path, refresh_seconds=0.1)):
            await until(lambda: server.count(A) == 3)


async def test_a_name_that_does_not_exist_is_an_empty_fleet(tmp_path: Path) -> None:
    async with name_server() as server, following(source(server, tmp_path)) as followed:
        await followed.until(lambda members: members == ())
        server.records["replicas.test.", A] = (0, ["10.0.0.1"])
        await followed.until_urls("http://10.0.0.1:8000")
        # No such record is nobody as well: a headless Service without ready pods.
        server.records = {("replicas.test.", "TXT"): (0, ["x"])}
        await followed.until_urls()


async def test_the_zone_says_how_long_nobody_is_there(tmp_path: Path) -> None:
    async with name_server() as server:
        server.negative_ttl_seconds = 0
        async with following(source(server, tmp_path, refresh_seconds=300)):
            await until(lambda: server.count(A) >= 3)


async def test_a_server_that_fails_changes_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvring.fleet")
    async with name_server() as server:
        server.records["replicas.test.", A] = (0, ["10.0.0.1"])
        async with following(source(server, tmp_path)) as followed:
            await followed.until_urls("http://10.0.0.1:8000")
            server.failing = {A, AAAA}
            seen = server.count(A)
            await until(lambda: server.count(A) >= seen + 3)
            assert followed.urls == ["http://10.0.0.1:8000"]
            server.failing = set()
            server.records["replicas.test.", A] = (0, ["10.0.0.2"])
            await followed.until_urls("http://10.0.0.2:8000")
        assert len(followed.lists) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "SERVFAIL" in caplog.messages[0]


async def test_a_family_without_answer_keeps_its_addresses(tmp_path: Path) -> None:
    async with name_server() as server:
        server.records["replicas.test.", A] = (0, ["10.0.0.1"])
        server.records["replicas.test.", AAAA] = (0, ["fd00::1"])
        async with following(source(server, tmp_path)) as followed:
            await followed.until(lambda members: len(members) == 2)
            server.failing = {AAAA}
            server.records["replicas.test.", A] = (0, ["10.0.0.2"])
            await followed.until_urls("http://10.0.0.2:8000", "http://[fd00::1]:8000")


async def test_half_an_answer_is_not_taken_for_nobody(tmp_path: Path) -> None:
    async with name_server() as server:
        server.failing = {AAAA}
        async with following(source(server, tmp_path)) as followed:
            await until(lambda: server.count(A) >= 2)
            assert followed.lists == []


async def test_nobody_at_the_server_s_port_is_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with name_server() as server:
        pass
    port = int(server.address.rpartition(":")[2])
    async with following(source(server, tmp_path)) as followed:
        await until(lambda: bool(caplog.messages))
        async with name_server(port=port) as reborn:
            reborn.records["replicas.test.", A] = (0, ["10.0.0.1"])
            await followed.until_urls("http://10.0.0.1:8000")
    assert len(followed.lists) == 1


async def test_an_answer_too_long_for_udp_comes_whole(tmp_path: Path) -> None:
    addresses = [f"10.0.{number // 250}.{number % 250}" for number in range(500)]
    async with name_server() as server:
        server.records["replicas.test.", A] = (0, addresses)
        async with following(source(server, tmp_path)) as followed:
            await followed.until(lambda members: len(members) == 500)
        assert server.over_tcp > 0


async def test_services_tell_ports_and_names(tmp_path: Path) -> None:
    async with name_server() as server:
        server.records["_http._tcp.replicas.test.", SRV] = (
            0,
            ["0 50 8001 replica-0.replicas.test.", "0 50 8002 Replica-1.replicas.test."],
        )
        server.additional["replica-0.replicas.test.", A] = (0, ["10.0.0.1"])
        # A target of both families is one replica.
        server.records["replica-1.replicas.test.", A] = (0, ["10.0.0.2"])
        server.records["replica-1.replicas.test.", AAAA] = (0, ["fd00::2"])
        members = source(server, tmp_path, host="_http._tcp.replicas.test.", record="srv")
        async with following(members) as followed:
            await followed.until(lambda members: len(members) == 2)
        assert followed.members == (
            Member("http://10.0.0.1:8001", "replica-0"),
            Member("http://10.0.0.2:8002", "replica-1"),
        )
        assert ("replica-0.replicas.test.", A) not in server.asked


async def test_a_pod_of_a_stateful_set_keeps_its_name_at_another_address(tmp_path: Path) -> None:
    async with name_server() as server:
        server.records["_http._tcp.replicas.test.", SRV] = (0, ["0 1 80 replica-0.replicas.test."])
        server.records["replica-0.replicas.test.", AAAA] = (0, ["fd00::1"])
        members = source(server, tmp_path, host="_http._tcp.replicas.test.", record="srv")
        async with following(members) as followed:
            await followed.until_urls("http://[fd00::1]:80")
            server.records["replica-0.replicas.test.", AAAA] = (0, ["fd00::2"])
            await followed.until_urls("http://[fd00::2]:80")
        assert [listed[0].name for listed in followed.lists] == ["replica-0", "replica-0"]


async def test_names_made_of_addresses_or_shared_are_none(tmp_path: Path) -> None:
    targets = [
        "10-0-0-1.s.test.",
        "fd00--7.s.test.",
        "host.s.test.",
        "host.s.test.",
        "pair.s.test.",
        "_x.s.test.",
    ]
    async with name_server() as server:
        server.records["s.test.", SRV] = (
            0,
            [f"0 1 {80 + number} {target}" for number, target in enumerate(targets)],
        )
        for number, target in enumerate(sorted(set(targets))):
            server.records[target, A] = (0, [f"10.0.1.{number}"])
        server.records["pair.s.test.", A] = (0, ["10.0.2.1", "10.0.2.2"])
        async with following(source(server, tmp_path, host="s.test.", record="srv")) as followed:
            await followed.until(lambda members: len(members) == 7)
        assert {member.name for member in followed.members} == {None}


async def test_weight_0_next_to_others_is_draining(tmp_path: Path) -> None:
    async with name_server() as server:
        server.records["r0.test.", A] = (0, ["10.0.0.1"])
        server.records["r1.test.", A] = (0, ["10.0.0.2"])
        server.records["s.test.", SRV] = (0, ["0 0 80 r0.test.", "0 0 80 r1.test."])
        async with following(source(server, tmp_path, host="s.test.", record="srv")) as followed:
            # Where none weighs anything, weights are not in use.
            await followed.until(lambda members: [member.draining for member in members] == [False, False])
            server.records["s.test.", SRV] = (0, ["0 0 80 r0.test.", "0 9 80 r1.test."])
            await followed.until(lambda members: [member.draining for member in members] == [True, False])


async def test_no_service_and_targets_without_address_are_nobody(tmp_path: Path) -> None:
    async with name_server() as server:
        server.records["s.test.", SRV] = (0, ["0 1 80 gone.test."])
        async with following(source(server, tmp_path, host="s.test.", record="srv")) as followed:
            await followed.until(lambda members: members == ())
            server.records["gone.test.", A] = (0, ["10.0.0.1"])
            await followed.until_urls("http://10.0.0.1:80")
            server.records["s.test.", SRV] = (0, ["0 0 0 ."])
            await followed.until_urls()


async def test_a_target_without_answer_keeps_the_list(tmp_path: Path) -> None:
    async with name_server() as server:
        server.records["s.test.", SRV] = (0, ["0 1 80 r0.test."])
        server.records["r0.test.", A] = (0, ["10.0.0.1"])
        async with following(source(server, tmp_path, host="s.test.", record="srv")) as followed:
            await followed.until_urls("http://10.0.0.1:80")
            server.failing = {A, AAAA}
            seen = server.count(SRV)
            await until(lambda: server.count(SRV) >= seen + 2)
            server.failing = set()
            server.records["s.test.", SRV] = (0, ["0 1 81 r0.test."])
            await followed.until_urls("http://10.0.0.1:81")
        assert len(followed.lists) == 2


async def test_the_hosts_file_goes_before_servers(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(
        "# 10.9.9.9 here\n127.0.0.1 localhost Here.test # as here\n::1 here.test\nrubbish here.test\n"
    )
    async with name_server() as server:
        async with following(source(server, tmp_path, host="HERE.test")) as followed:
            await followed.until_urls("http://127.0.0.1:8000", "http://[::1]:8000")
            (tmp_path / "hosts").write_text("10.0.0.1 here.test\n")
            await followed.until_urls("http://10.0.0.1:8000")
        assert server.asked == []


async def test_localhost_needs_no_server() -> None:
    async with following(DnsMembers(DnsOptions(host="localhost", port=81))) as followed:
        await followed.until(lambda members: "http://127.0.0.1:81" in {member.url for member in members})


async def test_short_names_are_searched_for_as_the_system_says(tmp_path: Path) -> None:
    host = "127.0.0.53"
    (tmp_path / "resolv.conf").write_text(f"nameserver {host}\nsearch a.test b.test\noptions ndots:5\n")
    async with AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(name_server(host, 53))
        except OSError as error:
            pytest.skip(f"port 53 of {host} cannot be had: {error}")
        server.records["replicas.b.test.", A] = (0, ["10.0.0.1"])
        async with following(DnsMembers(DnsOptions(host="replicas"), tmp_path)) as followed:
            await followed.until_urls("http://10.0.0.1:8000")
        asked = [name for name, record in server.asked if record == A]
        assert asked == ["replicas.a.test.", "replicas.b.test."]


async def test_a_system_without_resolvers_is_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(DnsMembers(DnsOptions(host="replicas"), tmp_path)) as followed:
        await until(lambda: bool(caplog.messages))
        assert followed.lists == []
        (tmp_path / "hosts").write_text(f"10.0.0.1{os.linesep}10.0.0.2 replicas")
        await followed.until_urls("http://10.0.0.2:8000")


@pytest.mark.parametrize("nameserver", ["name.test", "10.0.0.1:0", "10.0.0.1:x", "[::1", "1.2.3.4:70000", ""])
def test_nameservers_are_addresses(nameserver: str) -> None:
    with pytest.raises(ValueError, match="nameserver"):
        DnsMembers(DnsOptions(host="x", nameservers=(nameserver,)))


@pytest.mark.parametrize("nameserver", ["10.0.0.1", "10.0.0.1:5353", "::1", "[::1]", "[::1]:5353"])
def test_nameservers_of_both_families_are_taken(nameserver: str) -> None:
    DnsMembers(DnsOptions(host="x", nameservers=(nameserver,)))


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        DnsMembers(DnsOptions(host=host))
