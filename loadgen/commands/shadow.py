"""`kvring shadow`: tells what a router's policies in shadow would have done."""

from __future__ import annotations

import click

from loadgen.commands.fail import Failed


@click.command("shadow")
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="The router's address.")
@click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, help="For a router that asks for one.")
@click.option("--json", "as_json", is_flag=True, help="Print the router's answer as it is.")
def command(url: str, api_key: str | None, as_json: bool) -> None:
    """Compare the policies that a router runs in shadow with the one that acts, on the same sampled requests.

    Hit ratios are estimates by one model for both: compare them with each other only.
    """
    import orjson

    from loadgen.explain import ExplainError, shadow_report, shadows
    from loadgen.sheet import show

    try:
        told = shadow_report(url.rstrip("/"), api_key)
    except ExplainError as error:
        raise Failed(str(error)) from error
    if as_json:
        click.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
    else:
        show([shadows(told)])
