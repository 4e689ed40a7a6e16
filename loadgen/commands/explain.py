"""`kvring explain`: asks a router where a request goes, or went, and why."""

from __future__ import annotations

from typing import BinaryIO

import click

from loadgen.commands.fail import Failed, Unfit


@click.command("explain")
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="The router's address.")
@click.option("--body", type=click.File("rb"), help="A request's body, or - for stdin: ranked, not sent.")
@click.option("--session", metavar="ID", help="The session that goes with the body.")
@click.option("--request-id", metavar="ID", help="One of the last requests, by its x-request-id.")
@click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, help="For a router that asks for one.")
@click.option("--json", "as_json", is_flag=True, help="Print the router's answer as it is.")
def command(
    url: str,
    body: BinaryIO | None,
    session: str | None,
    request_id: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Tell where a request would go, or went: each replica's expected hit, wait and score, and the reason.

    Of a request that was served, also what was predicted against what came of it, and why each token that was
    not hit was not. The router must run with observe.explain = true.
    """
    import orjson

    from loadgen.explain import ExplainError, explain_body, explain_request, explained
    from loadgen.sheet import show

    if (body is None) == (request_id is None):
        raise Unfit("give either --body or --request-id")
    address = url.rstrip("/")
    try:
        if body is not None:
            told = explain_body(address, body.read(), session, api_key)
        else:
            told = explain_request(address, request_id or "", api_key)
    except ExplainError as error:
        raise Failed(str(error)) from error
    if as_json:
        click.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
    else:
        show(explained(told))
