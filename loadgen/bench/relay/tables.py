"""Shows a run's record: what requests and events cost, what is added to delays, and the bench's own cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loadgen.bench.relay.exchange import EVENTS, PREFIX_GROUPS
from loadgen.sheet import Column, Line, Part, Table

_MEBIBYTE = 1024 * 1024


def parts_of(record: dict[str, Any]) -> Iterator[Part]:
    """Yield all that is shown of a run."""
    machine = record["machine"]
    yield Line.of(
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']};"
        f" the least of {record['passes']} passes of {record['seconds']:g} s, routers taking turns"
    )
    costs = [cell for cell in record["cells"] if cell["what"] == "cost"]
    delays = [cell for cell in record["cells"] if cell["what"] == "delay"]
    names = [cell["name"] for cell in costs]
    yield _cost_table(record["routers"], names)
    if any(router["memory_ratio"] is not None for router in record["routers"]):
        yield _ratio_table(record["routers"], names)
    if delays:
        yield _delay_table(record["routers"], delays)
    yield _own_table(record["routers"], costs)
    for notice in record["notices"]:
        yield Line.of(notice, "yellow")


def _cost_table(routers: Sequence[dict[str, Any]], names: Sequence[str]) -> Table:
    rows = tuple(
        (
            f"{router['name']} {router['version']}",
            *(f"{router['costs'][name]['microseconds']:.1f}" for name in names),
            f"{router['peak_memory_bytes'] / _MEBIBYTE:.0f}",
            f"{router['memory_bytes'] / _MEBIBYTE:.0f}",
        )
        for router in routers
    )
    return Table(
        _columns("router", (*names, "MiB peak", "after")),
        rows,
        title="CPU microseconds (user and system) a request, or a streamed event; resident memory",
        caption=(
            f"Requests in {PREFIX_GROUPS} groups with a prefix each, from 16 connections; events in 64 paced"
            f" streams of {EVENTS}, whose requests are counted with them."
        ),
    )


def _ratio_table(routers: Sequence[dict[str, Any]], names: Sequence[str]) -> Table:
    rows = tuple(
        (
            router["name"],
            *(f"{router['costs'][name]['ratio']:.2f}" for name in names),
            f"{router['memory_ratio']:.2f}",
        )
        for router in routers
    )
    return Table(_columns("router", (*names, "MiB peak")), rows, title="The same, times what ours takes")


def _delay_table(routers: Sequence[dict[str, Any]], cells: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for router in routers:
        row = [router["name"]]
        for cell in cells:
            added = router["delays"][cell["name"]]
            row.append(f"{added['added_p50_milliseconds']:.2f}")
            row.append(f"{added['added_p99_milliseconds']:.2f}")
        rows.append(tuple(row))
    headings = [f"{cell['concurrency']}: {which}" for cell in cells for which in ("p50", "p99")]
    return Table(
        _columns("router", headings),
        tuple(rows),
        title="Milliseconds added to what a replica itself takes, by the number of clients",
        caption="Bodies of 16 KB; each answer is held for 20 ms, which is not counted.",
    )


def _own_table(routers: Sequence[dict[str, Any]], cells: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for cell in cells:
        passes = [each for router in routers for each in router["passes"][cell["name"]]]
        row = [cell["name"]]
        for who in ("caller", "replicas"):
            row.append(f"{max(each[f'{who}_microseconds'] for each in passes):.1f}")
            row.append(f"{max(each[f'{who}_busy'] for each in passes):.0%}")
        rows.append(tuple(row))
    return Table(
        _columns("", ("caller us", "of a core", "replicas us", "of a core")),
        tuple(rows),
        title="The bench's own CPU time a request or event, the most in any pass",
    )


def _columns(first: str, others: Sequence[str]) -> tuple[Column, ...]:
    return (Column(first, whole=True), *(Column(heading, right=True) for heading in others))
