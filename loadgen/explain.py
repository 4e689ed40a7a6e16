"""Asks a router why: reads its explanations and reports, and shows them as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_SECONDS = 30.0


class ExplainError(RuntimeError):
    """The router could not be asked, or has no answer."""


def explain_body(url: str, body: bytes, session: str | None = None) -> dict[str, Any]:
    """Ask where a request's body would go now; ExplainError where nobody tells."""
    headers = {"Content-Type": "application/json"} | ({"x-session-id": session} if session else {})
    return _ask("POST", f"{url}/debug/explain", "observe.explain = true", content=body, headers=headers)


def explain_request(url: str, request_id: str) -> dict[str, Any]:
    """Ask where one of the last requests went, and why; ExplainError where nobody tells."""
    path = f"/debug/explain/{quote(request_id, safe='')}"
    return _ask("GET", f"{url}{path}", "observe.explain = true")


def shadow_report(url: str) -> dict[str, Any]:
    """Ask what the policies in shadow would do; ExplainError where nobody tells."""
    return _ask("GET", f"{url}/debug/shadow", "policies under observe.shadow")


def layout_report(url: str) -> dict[str, Any]:
    """Ask what the layouts of the router's prompts cost; ExplainError where nobody tells."""
    option = "observe.explain = true and observe.layout.sample_share above 0"
    return _ask("GET", f"{url}/debug/layout", option)


def _ask(method: str, url: str, option: str, **fields: Any) -> dict[str, Any]:
    try:
        response = httpx.request(method, url, timeout=_SECONDS, trust_env=False, **fields)
        answer = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ExplainError(f"{url} gives no answer: {error or type(error).__name__}") from error
    if not isinstance(answer, dict):
        raise ExplainError(f"{url} is not a kvring router's")
    if response.status_code == 200:
        return answer
    problem = answer.get("error")
    told: dict[str, Any] = problem if isinstance(problem, dict) else {}
    if response.status_code == 404 and told.get("code") not in ("request_not_found", "model_not_found"):
        raise ExplainError(f"this router does not tell: it must run with {option}")
    raise ExplainError(f"the router answers {response.status_code}: {told.get('message', 'no reason given')}")


def explained(told: Mapping[str, Any]) -> RenderableType:
    """Show an explanation: the prompt, each replica's place, and what came of it."""
    prompt = f"{told['prompt_tokens']:,} tokens, {told['blocks']:,} blocks of {told['block_tokens']}"
    lines = [
        f"model {told['model']}, prompt of {prompt} (named by {told['tier']})",
        f"instructions {told['preamble_tokens']:,} tokens; {told['seen_tokens']:,} tokens seen before",
        f"policy {told['policy']}: {told['chosen']} before {told['runner_up'] or 'nobody'}; {told['why']}",
    ]
    parts: list[RenderableType] = [Text("\n".join(lines)), _ranking(told)]
    if told["outcome"]:
        parts.append(_outcome(told["outcome"]))
    return Group(*parts)


def _ranking(told: Mapping[str, Any]) -> Table:
    table = Table(title_justify="left")
    for heading in ("", "replica", "expected hit", "in digest", "wait", "prefill", "score", "reason"):
        table.add_column(heading, justify="left" if heading in ("replica", "reason") else "right")
    for one in told["ranking"]:
        table.add_row(
            str(one["place"]),
            one["replica"],
            f"{one['expected_tokens']:,}",
            "-" if one["digest_tokens"] is None else f"{one['digest_tokens']:,}",
            _milliseconds(one["wait_seconds"]),
            _milliseconds(one["prefill_seconds"]),
            f"{one['score']:.4g}",
            one["reason"],
        )
    if told["replicas"] > len(told["ranking"]):
        table.caption = f"and {told['replicas'] - len(told['ranking']):,} more"
    return table


def _outcome(outcome: Mapping[str, Any]) -> Table:
    table = Table(title=f"request {outcome['request_id']}: {_how(outcome)}", title_justify="left")
    for heading in ("", "predicted", "actual"):
        table.add_column(heading, justify="left" if not heading else "right")
    hit = outcome["hit_tokens"]
    table.add_row("hit tokens", f"{outcome['expected_tokens']:,}", "-" if hit is None else f"{hit:,}")
    table.add_row(
        # Until a whole answer is there, nothing of it comes.
        "time to first token" if outcome["streamed"] else "time to the whole answer",
        _milliseconds(outcome["predicted_seconds"]),
        _milliseconds(outcome["first_byte_seconds"]),
    )
    for cause, tokens in (outcome["misses"] or {}).items():
        table.add_row(f"missed: {cause}", "", f"{tokens:,}")
    return table


def _how(outcome: Mapping[str, Any]) -> str:
    attempts = f" after {outcome['attempts']} attempts" if outcome["attempts"] > 1 else ""
    return f"{outcome['result']} ({outcome['status']}) from {outcome['replica'] or 'nobody'}{attempts}"


def shadows(told: Mapping[str, Any]) -> Table:
    """Show what shadow policies would do, each beside what the acting policy did with the same requests."""
    title = f"shadows of {told['acting']}; in brackets, {told['acting']} itself"
    table = Table(title=title, title_justify="left")
    for heading in ("shadow", "policy", "requests", "agreement", "hit ratio", "busiest", "moved", "errors"):
        table.add_column(heading, justify="left" if heading in ("shadow", "policy") else "right")
    for one in told["shadows"]:
        table.add_row(
            one["name"],
            one["policy"],
            f"{one['requests']:,}",
            _share(one["agreement"]),
            *_courses(one["courses"]),
            f"{one['errors']:,}" + (f", {one['skipped']:,} skipped" if one["skipped"] else ""),
        )
    return table


def _courses(courses: Mapping[str, Mapping[str, float | None]]) -> Iterator[str]:
    for figure in ("hit_ratio", "busiest_share", "moved_share"):
        yield f"{_share(courses['shadow'][figure])} ({_share(courses['acting'][figure])})"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"
