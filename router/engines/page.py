"""A page of Prometheus metrics, of which only the wanted names are read.

Reading all of a page of 200 kB with prometheus_client takes tens of milliseconds; the few names that load is
made of are found by a scan in C, in well under one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from router.engines.answers import LARGEST_BODY_BYTES, is_there, share
from router.engines.engine import Get

_MOST_SAMPLES = 4096
_LONGEST_LINE_BYTES = 1 << 16
_VALUE = re.compile(
    rb"[ \t]+([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:[nN]a[nN]|[iI]nf))"
    # A timestamp, an exemplar.
    rb"(?:[ \t]+[+-]?[0-9.eE+-]+)?[ \t]*(?:#.*)?\r?"
)
_LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,?)')
_END = re.compile(rb"[ \t]*\}")
_ESCAPED = re.compile(rb"\\(.)")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a page."""

    labels: Mapping[str, str]
    value: float


class MetricsPage:
    """The text of one page. A wanted line that cannot be read is a ValueError; all others are ignored."""

    def __init__(self, body: bytes) -> None:
        if len(body) > LARGEST_BODY_BYTES:
            raise ValueError(f"a page of metrics has at most {LARGEST_BODY_BYTES} bytes, not {len(body)}")
        self._text = b"\n" + body

    def tells(self, name: str) -> bool:
        """Return whether the page holds a line of this name, or one that begins with it."""
        return b"\n" + name.encode() in self._text

    def samples(self, name: str) -> list[Sample]:
        """Return all samples of exactly this name, empty where there are none."""
        text = self._text
        line_start = b"\n" + name.encode()
        found: list[Sample] = []
        seen: set[frozenset[tuple[str, str]]] = set()
        at = text.find(line_start)
        while at >= 0:
            after = at + len(line_start)
            end = text.find(b"\n", after)
            if text[after : after + 1] in (b"{", b" ", b"\t"):
                if end < 0:
                    raise ValueError(f"the page of metrics breaks off in {name}")
                sample = _sample(text[after:end], name)
                key = frozenset(sample.labels.items())
                if key in seen or len(found) >= _MOST_SAMPLES:
                    raise ValueError(f"{name} is told twice, or too often")
                seen.add(key)
                found.append(sample)
            at = text.find(line_start, after)
        return found

    def total(self, *names: str) -> float | None:
        """Return the sum of the first of `names` that is there; a counter is found with or without _total."""
        values = self._values(names)
        return sum(values) if values else None

    def mean_share(self, *names: str) -> float | None:
        """Return the mean of the first of `names` that is there, each value a share of 0 to 1."""
        values = [share(value, "/".join(names)) for value in self._values(names)]
        return sum(values) / len(values) if values else None

    def labels(self, name: str) -> list[Mapping[str, str]]:
        """Return the labels of each sample of `name`: what an info metric tells."""
        return [sample.labels for sample in self.samples(name)]

    @property
    def process(self) -> str:
        """When the process started, as text that names it; empty where the page does not tell."""
        started = self._values(("process_start_time_seconds",))
        return repr(started[0]) if len(started) == 1 else ""

    def _values(self, names: tuple[str, ...]) -> list[float]:
        for name in names:
            samples = self.samples(name) or self.samples(name + "_total")
            if samples:
                values = [sample.value for sample in samples]
                if not all(isfinite(value) and value >= 0 for value in values):
                    raise ValueError(f"{name} is finite and not negative, not {values[:4]}")
                return values
        return []


async def ask_page(get: Get, path: str) -> MetricsPage | None:
    """Return the page of metrics at `path`, None where there is none."""
    answer = await get(path)
    if not is_there(answer, path) or answer.content_type == "application/json":
        return None
    return MetricsPage(answer.body)


def _sample(line: bytes, name: str) -> Sample:
    """Read what follows the name in a line."""
    if len(line) > _LONGEST_LINE_BYTES:
        raise ValueError(f"a line of {name} is longer than {_LONGEST_LINE_BYTES} bytes")
    labels: dict[str, str] = {}
    at = 0
    if line.lstrip(b" \t").startswith(b"{"):
        at, more = line.index(b"{") + 1, True
        while more and (label := _LABEL.match(line, at)):
            key, value, comma = label.groups()
            labels[key.decode()] = _unescaped(value).decode(errors="replace")
            at, more = label.end(), bool(comma)
        closing = _END.match(line, at)
        if closing is None:
            raise ValueError(f"labels of {name} cannot be read: {line[:200]!r}")
        at = closing.end()
        # The value may follow the brace at once.
        line, at = b" " + line[at:], 0
    number = _VALUE.fullmatch(line, at)
    if number is None:
        raise ValueError(f"a value of {name} cannot be read: {line[:200]!r}")
    return Sample(labels, float(number[1]))


def _unescaped(value: bytes) -> bytes:
    if b"\\" not in value:
        return value
    return _ESCAPED.sub(lambda escape: b"\n" if escape[1] == b"n" else escape[1], value)
