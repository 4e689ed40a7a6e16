"""The traces that come with the package, and how a trace is opened by name or by path."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

from loadgen.traces.bins import SPREAD_SEED, bin_seconds, spread_bins
from loadgen.traces.mooncake import MAX_REQUESTS, read_mooncake
from loadgen.traces.trace import Trace, TraceError

# Where each comes from is told in data/NOTICE.
SHIPPED = {
    "agent": "generated: 1,500 tool-using sessions of many turns over 12 tool prompts",
    "conversation": "Mooncake's conversation trace: real chat traffic",
    "hotspot": "generated: one 8,192-token system prompt in 60 % of the requests",
    "synthetic": "Mooncake's synthetic trace: public data sets with Poisson arrivals",
    "toolagent_recon": "reconstruction of a tool and agent mix on top of the conversation trace",
}


def open_trace(
    name_or_path: str | Path,
    spread: bool | None = None,
    seed: int = SPREAD_SEED,
    max_requests: int = MAX_REQUESTS,
) -> Trace:
    """Open a shipped trace by its name, or a file in Mooncake's form (plain, gzip, xz) by its path.

    Times that were rounded to bins are spread uniformly inside their bin, with a fixed `seed`; `spread`
    False leaves them as they are, and True insists, with a TraceError where there are no bins.
    """
    trace = _read(name_or_path, max_requests)
    width = bin_seconds(trace) if spread is not False else None
    if width is None:
        if spread:
            raise TraceError(f"the times of {trace.name} are not in bins: there is nothing to spread")
        return trace
    return spread_bins(trace, width, seed)


def _read(name_or_path: str | Path, max_requests: int) -> Trace:
    if isinstance(name_or_path, str) and name_or_path in SHIPPED:
        with as_file(files("loadgen.traces") / "data" / f"{name_or_path}.jsonl.xz") as path:
            return read_mooncake(path, name_or_path, max_requests)
    path = Path(name_or_path)
    if not path.exists():
        raise TraceError(
            f"there is no trace {str(name_or_path)!r}: neither a file, nor one of {', '.join(SHIPPED)}"
        )
    return read_mooncake(path, max_requests=max_requests)
