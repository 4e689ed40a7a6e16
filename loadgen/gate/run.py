"""Runs the cases against a live address, one request after the other, and adds up what the usage says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from secrets import token_hex
from statistics import median
from typing import Any

import httpx
import orjson

from loadgen.gate.baseline import Measured
from loadgen.gate.cases import Cases
from loadgen.gate.cold import made_cold
from loadgen.gate.options import GateOptions
from loadgen.gate.usage import Usage, UsageError, answer_text, read_usage
from loadgen.traces.request_log import MESSAGES_PATH

_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_ANTHROPIC_VERSION = "2023-06-01"

OnRequest = Callable[[int, int], None]


class GateError(RuntimeError):
    """The ratio cannot be measured: a request failed, or answers do not say what was cached."""


async def measure(
    cases: Cases,
    options: GateOptions,
    api_key: str | None = None,
    absent_is_zero: bool = False,
    on_request: OnRequest | None = None,
) -> Measured:
    """Run the cases `options.runs` times; GateError, or CaseError, if they cannot be measured.

    `on_request` is told the run and the requests done in it.
    """
    async with httpx.AsyncClient(trust_env=False, timeout=options.timeout_seconds) as http:
        runs = [await _run(http, cases, options, api_key, run, on_request) for run in range(options.runs)]
    told = sum(usage.cached_tokens is not None for run_usages in runs for usage in run_usages)
    if not told and not absent_is_zero:
        raise GateError(
            "no answer says how many tokens were cached: either nothing ever was, or the server does not "
            "report it (vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report); "
            "--absent-is-zero takes it for zero"
        )
    return _summed(cases, options, runs)


async def _run(
    http: httpx.AsyncClient,
    cases: Cases,
    options: GateOptions,
    api_key: str | None,
    run: int,
    on_request: OnRequest | None,
) -> list[Usage]:
    # Random, so that what yesterday's runs left behind is not found either.
    mark = token_hex(8)
    usages: list[Usage] = []
    asking = cases.asking()
    request = next(asking, None)
    while request is not None:
        body = made_cold(request, mark, options.cold)
        where = f"request {len(usages) + 1} of run {run + 1}"
        answer = await _ask(http, options.url, request.path, body, api_key, where)
        try:
            usages.append(read_usage(answer))
        except UsageError as error:
            raise GateError(f"{where}: {error}") from error
        if on_request is not None:
            on_request(run, len(usages))
        try:
            request = asking.send(answer_text(answer))
        except StopIteration:
            break
        await asyncio.sleep(options.pause_seconds)
    return usages


async def _ask(
    http: httpx.AsyncClient, url: str, path: str, body: dict[str, Any], api_key: str | None, where: str
) -> dict[str, Any]:
    headers: dict[str, str] = {}
    if path == MESSAGES_PATH:
        headers["anthropic-version"] = _ANTHROPIC_VERSION
    if api_key:
        headers |= {"x-api-key": api_key} if path == MESSAGES_PATH else {"Authorization": f"Bearer {api_key}"}
    address = url.rstrip("/").removesuffix("/v1") + path
    try:
        async with http.stream("POST", address, json=body, headers=headers) as response:
            raw = bytearray()
            async for chunk in response.aiter_bytes():
                raw += chunk
                if len(raw) > _MAX_ANSWER_BYTES:
                    raise GateError(f"{where}: the answer is longer than {_MAX_ANSWER_BYTES:,} bytes")
        if response.status_code != 200:
            said = raw[:300].decode(errors="replace")
            raise GateError(f"{where}: {address} answered {response.status_code}: {said}")
        answer = orjson.loads(raw)
    except httpx.HTTPError as error:
        raise GateError(f"{where}: {address}: {error!r}") from error
    except ValueError as error:
        raise GateError(f"{where}: the answer is not JSON: {error}") from error
    if not isinstance(answer, dict):
        raise GateError(f"{where}: the answer is not an object")
    return answer


def _summed(cases: Cases, options: GateOptions, runs: list[list[Usage]]) -> Measured:
    ratios = [
        sum(usage.cached_tokens or 0 for usage in run) / sum(usage.prompt_tokens for usage in run)
        for run in runs
    ]
    by_request = [
        median((usage.cached_tokens or 0) / usage.prompt_tokens for usage in usages)
        for usages in zip(*runs, strict=True)
    ]
    return Measured(
        fingerprint=cases.fingerprint,
        cold=options.cold,
        run_ratios=tuple(ratios),
        request_ratios=tuple(by_request),
        prompt_tokens=sum(usage.prompt_tokens for usage in runs[0]),
        unreported=sum(usage.cached_tokens is None for run in runs for usage in run),
    )
