"""A copy of a Service's EndpointSlices, and the members they tell: merged, each pod once."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from router.fleet.members import Member
from router.settings import NAME_PATTERN


class _Stage(IntEnum):
    """How far on a pod is. What two slices say of one pod meanwhile differs: who ends does not come back."""

    OUT = 0
    READY = 1
    DRAINING = 2


@dataclass(frozen=True, slots=True)
class _Listed:
    """One endpoint of one slice."""

    url: str
    ipv6: bool
    uid: str
    name: str | None
    stage: _Stage

    @property
    def life(self) -> str:
        return self.uid or self.url


@dataclass(frozen=True, slots=True)
class _Slice:
    listed: tuple[_Listed, ...] = ()
    fault: str = ""


class Slices:
    """The slices as they were at `version`, the resourceVersion to watch on from; empty: list them anew."""

    def __init__(self, port: str) -> None:
        """Take the wanted port's name or number, or nothing where the slices have only one."""
        self.version = ""
        self._port = port
        self._slices: dict[str, _Slice] = {}

    def replace(self, items: Sequence[object], version: str) -> None:
        """Take a whole list: what is not in it is gone, whether or not its end was ever told."""
        self._slices = {}
        for item in items:
            self._put(_table(item))
        self.version = version

    def apply(self, kind: str, thing: object) -> bool:
        """Take an event of a watch; return whether members may have changed. Unknown ones are ignored."""
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            return False
        slice_ = _table(thing)
        if kind == "DELETED":
            self._slices.pop(_name(slice_), None)
        elif kind != "BOOKMARK":
            self._put(slice_)
        self.version = _text(_table(slice_.get("metadata")).get("resourceVersion")) or self.version
        return kind != "BOOKMARK"

    def faults(self) -> set[str]:
        """What keeps pods from being members, in words; empty where nothing does."""
        if not self._slices:
            return {"there is no slice of it: is the Service there, and has it a selector?"}
        return {slice_.fault for slice_ in self._slices.values() if slice_.fault}

    def members(self) -> tuple[Member, ...]:
        """Every pod once, by url."""
        by_url: dict[str, _Listed] = {}
        for listed in _merged(one for slice_ in self._slices.values() for one in slice_.listed):
            # One address, two pods: the old one is ending, or its slice has not been brought up to date.
            if listed.url not in by_url or by_url[listed.url].stage >= listed.stage:
                by_url[listed.url] = listed
        return tuple(
            Member(url, one.name, one.uid, draining=one.stage is _Stage.DRAINING)
            for url, one in sorted(by_url.items())
        )

    def _put(self, slice_: dict[str, Any]) -> None:
        name = _name(slice_)
        # The latest change comes last, and so has the last word.
        self._slices.pop(name, None)
        # One that is being deleted is no longer kept up to date: its pods are in others, or gone.
        if name and not _table(slice_.get("metadata")).get("deletionTimestamp"):
            self._slices[name] = _read(slice_, self._port)


def _merged(all_listed: Iterable[_Listed]) -> list[_Listed]:
    """Each pod that is ready or draining, once: at its IPv4 address where it has both."""
    lives: dict[str, dict[bool, _Listed]] = {}
    for listed in all_listed:
        families = lives.setdefault(listed.life, {})
        other = families.get(listed.ipv6)
        if other is None or other.stage <= listed.stage:
            families[listed.ipv6] = listed
    # The other family never stands in for one that is out: a pod must not seem to move as it starts or ends.
    chosen = [families.get(False) or families[True] for families in lives.values()]
    return [one for one in chosen if one.stage is not _Stage.OUT]


def _read(slice_: dict[str, Any], wanted: str) -> _Slice:
    endpoints = _rows(slice_.get("endpoints"))
    if slice_.get("addressType") not in ("IPv4", "IPv6") or not endpoints:
        return _Slice()
    ports = [
        port
        for port in _rows(slice_.get("ports"))
        if port.get("protocol") in (None, "TCP") and isinstance(port.get("port"), int)
    ]
    fit = [port for port in ports if wanted in ("", _text(port.get("name")), str(port["port"]))]
    if len(fit) != 1:
        has = (
            ", ".join(f"{_text(port.get('name')) or 'unnamed'} ({port['port']})" for port in ports) or "none"
        )
        return _Slice(fault=f"fleet.kubernetes.port is {wanted!r}, and its TCP ports are: {has}")
    scheme = "https" if _text(fit[0].get("appProtocol")).lower() == "https" else "http"
    listed = (_endpoint(endpoint, scheme, fit[0]["port"]) for endpoint in endpoints)
    return _Slice(tuple(one for one in listed if one is not None))


def _endpoint(endpoint: dict[str, Any], scheme: str, port: int) -> _Listed | None:
    """Read one endpoint; None where it has no address: evicted pods are listed so."""
    addresses = endpoint.get("addresses")
    # Several would all lead to the same pod.
    first = addresses[0] if isinstance(addresses, list) and addresses else ""
    try:
        address = ipaddress.ip_address(_text(first))
    except ValueError:
        return None
    ipv6 = address.version == 6
    pod = _table(endpoint.get("targetRef"))
    name = _text(pod.get("name"))
    return _Listed(
        url=f"{scheme}://[{address}]:{port}" if ipv6 else f"{scheme}://{address}:{port}",
        ipv6=ipv6,
        uid=_text(pod.get("uid")),
        name=name if re.match(NAME_PATTERN, name) else None,
        stage=_stage(_table(endpoint.get("conditions"))),
    )


def _stage(conditions: dict[str, Any]) -> _Stage:
    # Unknown means ready, and serving unless told is what ready is: so the API says.
    ready = conditions.get("ready") is not False
    serving = conditions.get("serving")
    if conditions.get("terminating") is True:
        # Ready does not count here: a Service may publish pods as ready whatever they are.
        return _Stage.DRAINING if (ready if serving is None else serving is True) else _Stage.OUT
    return _Stage.READY if ready else _Stage.OUT


def _name(slice_: dict[str, Any]) -> str:
    return _text(_table(slice_.get("metadata")).get("name"))


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
