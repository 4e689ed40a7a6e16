"""Asks a router why: reads its explanations and reports, and shows them as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from loadgen.sheet import Column, Line, Part, Table

_SECONDS = 30.0


class ExplainError(RuntimeError):
    """The router could not be asked, or has no answer."""


def explain_body(
    url: str, body: bytes, session: str | None = None, api_key: str | None = None
) -> dict[str, Any]:
    """Ask where a request's body would go now; ExplainError where nobody tells."""
    headers = {"Content-Type": "application/json"} | ({"x-session-id": session} if session else {})
    return _ask(
        "POST", f"{url}/debug/explain", "observe.explain = true", api_key, content=body, headers=headers
    )


def explain_request(url: str, request_id: str, api_key: str | None = None) -> dict[str, Any]:
    """Ask where one of the last requests went, and why; ExplainError where nobody tells."""
    path = f"/debug/explain/{quote(request_id, safe='')}"
    return _ask("GET", f"{url}{path}", "observe.explain = true", api_key)


def shadow_report(url: str, api_key: str | None = None) -> dict[str, Any]:
    """Ask what the policies in shadow would do; ExplainError where nobody tells."""
    return _ask("GET", f"{url}/debug/shadow", "policies under observe.shadow", api_key)


def layout_report(url: str, api_key: str | None = None) -> dict[str, Any]:
    """Ask what the layouts of the router's prompts cost; ExplainError where nobody tells."""
    option = "observe.explain = true and observe.layout.sample_share above 0"
    return _ask("GET", f"{url}/debug/layout", option, api_key)


def _ask(
    method: str,
    url: str,
    option: str,
    api_key: str | None,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    sent = {**(headers or {}), **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
    try:
        response = httpx.request(
            method, url, content=content, headers=sent, timeout=_SECONDS, trust_env=False
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ExplainError(f"{url} gives no answer: {error or type(error).__name__}") from error
    try:
        answer = response.json()
    except ValueError as error:
        if response.status_code == 404:
            raise ExplainError(_elsewhere(option)) from error
        raise ExplainError(f"{url} gives no answer: {error}") from error
    if not isinstance(answer, dict):
        raise ExplainError(f"{url} is not a kvring router's")
    if response.status_code == 200:
        return answer
    problem = answer.get("error")
    told: dict[str, Any] = problem if isinstance(problem, dict) else {}
    code = told.get("code")
    if response.status_code == 404 and code == "turned_off":
        raise ExplainError(f"this router does not tell: it must run with {option}")
    if response.status_code == 404 and code not in ("request_not_found", "model_not_found"):
        raise ExplainError(_elsewhere(option))
    raise ExplainError(f"the router answers {response.status_code}: {told.get('message', 'no reason given')}")


def _elsewhere(option: str) -> str:
    # The port of the API does not know the path where control has a port of its own.
    return f"this router does not tell: it must run with {option}, or ask its control port (control.port)"


def explained(told: Mapping[str, Any]) -> Iterator[Part]:
    """Show an explanation: the prompt, each replica's place, and what came of it."""
    prompt = f"{told['prompt_tokens']:,} tokens, {told['blocks']:,} blocks of {told['block_tokens']}"
    for line in (
        f"model {told['model']}, prompt of {prompt} (named by {told['tier']})",
        f"instructions {told['preamble_tokens']:,} tokens; {told['seen_tokens']:,} tokens seen before",
        f"policy {told['policy']}: {told['chosen']} before {told['runner_up'] or 'nobody'}; {told['why']}",
    ):
        yield Line.of(line)
    yield _ranking(told)
    if told["outcome"]:
        yield _outcome(told["outcome"])


def _ranking(told: Mapping[str, Any]) -> Table:
    more = told["replicas"] - len(told["ranking"])
    return Table(
        _columns("", "replica", "expected hit", "in digest", "wait", "prefill", "score", "reason"),
        tuple(
            (
                str(one["place"]),
                one["replica"],
                f"{one['expected_tokens']:,}",
                "-" if one["digest_tokens"] is None else f"{one['digest_tokens']:,}",
                _milliseconds(one["wait_seconds"]),
                _milliseconds(one["prefill_seconds"]),
                f"{one['score']:.4g}",
                one["reason"],
            )
            for one in told["ranking"]
        ),
        caption=f"and {more:,} more" if more > 0 else "",
    )


def _outcome(outcome: Mapping[str, Any]) -> Table:
    hit = outcome["hit_tokens"]
    rows = [
        ("hit tokens", f"{outcome['expected_tokens']:,}", "-" if hit is None else f"{hit:,}"),
        (
            # Until a whole answer is there, nothing of it comes.
            "time to first token" if outcome["streamed"] else "time to the whole answer",
            _milliseconds(outcome["predicted_seconds"]),
            _milliseconds(outcome["first_byte_seconds"]),
        ),
    ]
    rows += [(f"missed: {cause}", "", f"{tokens:,}") for cause, tokens in (outcome["misses"] or {}).items()]
    return Table(
        (Column(), Column("predicted", right=True), Column("actual", right=True)),
        tuple(rows),
        title=f"request {outcome['request_id']}: {_how(outcome)}",
    )


def _how(outcome: Mapping[str, Any]) -> str:
    attempts = f" after {outcome['attempts']} attempts" if outcome["attempts"] > 1 else ""
    return f"{outcome['result']} ({outcome['status']}) from {outcome['replica'] or 'nobody'}{attempts}"


def shadows(told: Mapping[str, Any]) -> Table:
    """Show what shadow policies would do, each beside what the acting policy did with the same requests."""
    return Table(
        _columns("shadow", "policy", "requests", "agreement", "hit ratio", "busiest", "moved", "errors"),
        tuple(
            (
                one["name"],
                one["policy"],
                f"{one['requests']:,}",
                _share(one["agreement"]),
                *_courses(one["courses"]),
                f"{one['errors']:,}" + (f", {one['skipped']:,} skipped" if one["skipped"] else ""),
            )
            for one in told["shadows"]
        ),
        title=f"shadows of {told['acting']}; in brackets, {told['acting']} itself",
    )


def _columns(*headings: str) -> tuple[Column, ...]:
    """Return columns, of which those with words stand to the left."""
    words = ("replica", "reason", "shadow", "policy")
    return tuple(Column(heading, right=heading not in words) for heading in headings)


def _courses(courses: Mapping[str, Mapping[str, float | None]]) -> Iterator[str]:
    for figure in ("hit_ratio", "busiest_share", "moved_share"):
        yield f"{_share(courses['shadow'][figure])} ({_share(courses['acting'][figure])})"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"
