"""Builds a run from its options, and drives it."""

from __future__ import annotations

import httpx

from loadgen.arrivals import Arrivals, Closed, Open
from loadgen.client import Client, ClientLimits
from loadgen.drive import OnTurn, Run, RunLimits, drive
from loadgen.load_options import LoadOptions
from loadgen.workloads.multi_turn import MultiTurn
from loadgen.workloads.rag import Rag
from loadgen.workloads.session import Ask, Workload
from loadgen.workloads.shared_prompt import SharedPrompt


class LoadError(RuntimeError):
    """The run cannot begin; the message says why."""


async def load(options: LoadOptions, api_key: str | None = None, on_turn: OnTurn | None = None) -> Run:
    """Drive one run; LoadError if the options do not fit together or no model is to be had."""
    model = options.model or await first_model(options.url, api_key)
    workload = build_workload(options, model)
    limits = RunLimits(requests=options.requests, duration_seconds=options.duration_seconds)
    client_limits = ClientLimits(total_seconds=options.total_seconds)
    async with Client(options.url, client_limits, api_key) as client:
        return await drive(
            workload, build_arrivals(options), client, limits, seed=options.seed, on_turn=on_turn
        )


def build_arrivals(options: LoadOptions) -> Arrivals:
    """Return the arrival model that the options name."""
    if options.arrival == "open":
        return Open(options.sessions_per_second, options.think_seconds)
    return Closed(options.concurrency, options.think_seconds)


def build_workload(options: LoadOptions, model: str) -> Workload:
    """Return the workload that the options name; LoadError if its sizes do not fit together."""
    ask = Ask(model, options.answer_tokens)
    if options.workload == "shared_prompt":
        return SharedPrompt(ask, options.seed, options.system_tokens, options.turn_tokens)
    if options.workload == "multi_turn":
        return MultiTurn(ask, options.seed, options.turns, options.turn_tokens, options.system_tokens)
    try:
        return Rag(
            ask,
            options.seed,
            options.corpus_documents,
            options.documents,
            options.document_tokens,
            options.turn_tokens,
        )
    except ValueError as error:
        raise LoadError(str(error)) from error


async def first_model(url: str, api_key: str | None = None) -> str:
    """Return the first model that the address lists; LoadError if it lists none."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    address = f"{url.rstrip('/').removesuffix('/v1')}/v1/models"
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=10.0, headers=headers) as http:
            response = await http.get(address)
            response.raise_for_status()
            return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise LoadError(f"{address} lists no model ({error!r}); name one with --model") from error
