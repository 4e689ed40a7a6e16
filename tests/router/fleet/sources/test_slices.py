"""EndpointSlices to members: conditions, ports, families, and pods that several slices tell of."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from router.fleet.members import Member
from router.fleet.sources.slices import Slices
from tests.router.fleet.sources.api_server import endpoint, endpoint_slice


def members(*slices: dict[str, Any], port: str = "") -> tuple[Member, ...]:
    """What these slices tell."""
    copy = Slices(port)
    copy.replace(slices, "1")
    return copy.members()


def test_a_pod_is_told_with_its_address_name_and_uid() -> None:
    assert members(endpoint_slice("s", endpoint("10.0.0.1", "u1", "replica-0"))) == (
        Member("http://10.0.0.1:8000", "replica-0", "u1"),
    )


@pytest.mark.parametrize(
    ("conditions", "stage"),
    [
        ({"ready": True}, "ready"),
        ({"ready": None}, "ready"),
        ({}, "ready"),
        (None, "ready"),
        ({"ready": True, "serving": True, "terminating": False}, "ready"),
        ({"ready": False}, "out"),
        ({"ready": False, "serving": False, "terminating": False}, "out"),
        ({"ready": False, "serving": True, "terminating": True}, "draining"),
        ({"ready": False, "serving": False, "terminating": True}, "out"),
        ({"ready": False, "serving": None, "terminating": True}, "out"),
        # A Service that publishes pods whatever they are.
        ({"ready": True, "serving": True, "terminating": True}, "draining"),
        ({"ready": True, "serving": False, "terminating": True}, "out"),
        ({"ready": True, "serving": False, "terminating": False}, "ready"),
    ],
)
def test_conditions(conditions: dict[str, Any] | None, stage: str) -> None:
    told = members(endpoint_slice("s", {**endpoint("10.0.0.1", "u"), "conditions": conditions}))
    assert [member.draining for member in told] == {"ready": [False], "draining": [True], "out": []}[stage]


@pytest.mark.parametrize("addresses", [[], [None], [""], None, ["None"], [7], "10.0.0.1", [["10.0.0.1"]]])
def test_without_an_address_there_is_no_member(addresses: object) -> None:
    broken = {**endpoint("10.0.0.9", "u9"), "addresses": addresses}
    told = members(endpoint_slice("s", broken, endpoint("10.0.0.1", "u1")))
    assert [member.url for member in told] == ["http://10.0.0.1:8000"]


@pytest.mark.parametrize(
    "broken", [None, 7, "x", [], {}, {"metadata": None}, {"metadata": {"name": ["s"]}}, {"endpoints": 7}]
)
def test_what_is_no_slice_tells_nobody(broken: Any) -> None:
    assert members(broken) == ()


def test_empty_slices_tell_nobody() -> None:
    nulls = {**endpoint_slice("b"), "endpoints": None, "ports": None}
    copy = Slices("http")
    copy.replace([endpoint_slice("a"), nulls], "1")
    assert (copy.members(), copy.faults()) == ((), set())


@pytest.mark.parametrize(
    ("port", "urls"),
    [
        ("http", ["http://10.0.0.1:8000"]),
        ("8000", ["http://10.0.0.1:8000"]),
        ("tls", ["https://10.0.0.1:8443"]),
        ("9090", []),
        ("", []),
        ("dns", []),
        ("none", []),
    ],
)
def test_the_port_is_found_by_name_or_number(port: str, urls: list[str]) -> None:
    ports: list[dict[str, Any]] = [
        {"name": "http", "port": 8000, "protocol": "TCP"},
        {"name": "tls", "port": 8443, "appProtocol": "https"},
        {"name": "dns", "port": 9090, "protocol": "UDP"},
        {"name": "none", "port": None, "protocol": "TCP"},
    ]
    copy = Slices(port)
    copy.replace([endpoint_slice("s", endpoint("10.0.0.1", "u"), ports=ports)], "1")
    assert [member.url for member in copy.members()] == urls
    assert len(copy.faults()) == (not urls)
    assert all("http (8000), tls (8443)" in fault for fault in copy.faults())


def test_slices_of_one_named_port_may_differ_in_its_number() -> None:
    old = endpoint_slice("a", endpoint("10.0.0.1", "u1"), ports=[{"name": "http", "port": 80}])
    new = endpoint_slice("b", endpoint("10.0.0.2", "u2"), ports=[{"name": "http", "port": 81}])
    assert [member.url for member in members(old, new, port="http")] == [
        "http://10.0.0.1:80",
        "http://10.0.0.2:81",
    ]


def test_a_pod_of_both_families_is_one_member() -> None:
    four = endpoint_slice("z", endpoint("10.0.0.1", "u1", "r0"))
    six = endpoint_slice("a", endpoint("fd00::1", "u1", "r0"), endpoint("fd00:0::2", "u2"), family="IPv6")
    for slices in ((four, six), (six, four)):
        assert members(*slices) == (
            Member("http://10.0.0.1:8000", "r0", "u1"),
            Member("http://[fd00::2]:8000", None, "u2"),
        )


def test_a_pod_does_not_seem_to_move_while_its_families_follow_each_other() -> None:
    starting = endpoint_slice("a", endpoint("10.0.0.1", "u1", ready=False))
    ending = endpoint_slice("a", endpoint("10.0.0.1", "u1", ready=False, serving=True, terminating=True))
    six = endpoint_slice("b", endpoint("fd00::1", "u1"), family="IPv6")
    assert members(starting, six) == ()
    assert members(ending, six) == (Member("http://10.0.0.1:8000", None, "u1", draining=True),)


def test_a_pod_in_several_slices_is_one_member_and_as_far_as_any_says() -> None:
    stages = {
        "out": endpoint("10.0.0.1", "u1", ready=False),
        "ready": endpoint("10.0.0.1", "u1"),
        "draining": endpoint("10.0.0.1", "u1", ready=False, serving=True, terminating=True),
    }
    for one, other in itertools.permutations(stages, 2):
        told = members(endpoint_slice("a", stages[one]), endpoint_slice("b", stages[other]))
        assert [member.draining for member in told] == ["draining" in (one, other)]


def test_an_address_of_two_pods_belongs_to_the_one_that_lives() -> None:
    old = endpoint_slice("a", endpoint("10.0.0.1", "old", ready=False, serving=True, terminating=True))
    new = endpoint_slice("b", endpoint("10.0.0.1", "new"))
    for slices in ((old, new), (new, old)):
        assert members(*slices) == (Member("http://10.0.0.1:8000", None, "new"),)


def test_a_slice_left_behind_does_not_hide_the_pod_that_was_told_last() -> None:
    copy = Slices("")
    copy.replace([endpoint_slice("b", endpoint("10.0.0.1", "new")), endpoint_slice("a")], "1")
    copy.apply("MODIFIED", endpoint_slice("a", endpoint("10.0.0.1", "newest")))
    assert [member.uid for member in copy.members()] == ["newest"]


def test_what_has_no_pod_goes_by_its_address() -> None:
    both = endpoint_slice("a", endpoint("10.0.0.1"), endpoint("10.0.0.2"))
    again = endpoint_slice("b", endpoint("10.0.0.2"))
    assert members(both, again) == (Member("http://10.0.0.1:8000"), Member("http://10.0.0.2:8000"))


@pytest.mark.parametrize("name", ["x" * 64, "-a", "a_b ", "", "ä"])
def test_names_unfit_for_replicas_are_left_out(name: str) -> None:
    assert members(endpoint_slice("s", endpoint("10.0.0.1", "u", name)))[0].name is None


def test_slices_of_host_names_and_those_being_deleted_tell_nobody() -> None:
    going = endpoint_slice("a", endpoint("10.0.0.1", "u"))
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    names = endpoint_slice("b", endpoint("replica.test", "u"), family="FQDN")
    assert members(going, names) == ()


def test_events_of_other_kinds_and_without_version_leave_the_version() -> None:
    copy = Slices("")
    copy.replace([], "7")
    assert not copy.apply("PATCHED", {"metadata": {"name": "s", "resourceVersion": "9"}})
    assert copy.version == "7"
    assert copy.apply("ADDED", endpoint_slice("s", endpoint("10.0.0.1", "u")))
    assert copy.version == "7"
    assert not copy.apply("BOOKMARK", {"metadata": {"resourceVersion": "8"}})
    assert copy.version == "8"
    assert len(copy.members()) == 1


def test_a_service_without_slices_is_worth_a_word() -> None:
    copy = Slices("")
    copy.replace([], "7")
    assert "selector" in copy.faults().pop()
