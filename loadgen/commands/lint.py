"""`kvring lint`: which place of which message keeps prompts from sharing, and what it costs."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.commands.fail import Failed, Unfit


@click.command("lint")
@click.argument("log", type=click.Path(path_type=Path), metavar="[LOG]", required=False)
@click.option("--url", help="Lint what the router at this address has seen since its start, in place of LOG.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="Share of all prompt tokens that the layout may cost; more is exit code 1.",
)
@click.option(
    "--ignore", multiple=True, metavar="CAUSE", help="A cause that is meant so, such as keys. Repeats."
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with the model's tokenizer.json and chat template; without, 4 bytes are a token.",
)
@click.option("--block-tokens", type=click.IntRange(1, 4096), help="Of LOG; 16 by default.")
@click.option("--show-text", is_flag=True, help="Show what stood there; else no text of a prompt is printed.")
@click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, help="For a --url that asks for one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    log: Path | None,
    url: str | None,
    threshold: float,
    ignore: tuple[str, ...],
    tokenizer: Path | None,
    block_tokens: int | None,
    show_text: bool,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Lint the prompts of LOG, a request log: JSON lines with the bodies of OpenAI's or Anthropic's API.

    With --url, those of live traffic, of which the router looks at a sample: it must run with
    observe.explain = true.

    Exit code 0: the layout costs no more than the threshold; 1: it does; 2: what it costs cannot be told.
    """
    import orjson

    from loadgen.ceiling.tables import layout_tables
    from loadgen.lint.lint import LintError, lint_log, lint_router
    from loadgen.sheet import show
    from loadgen.traces.trace import TraceError

    if (log is None) == (url is None):
        raise click.UsageError("give either LOG or --url URL")
    if url is not None and (tokenizer or block_tokens or show_text):
        raise click.UsageError(
            "--tokenizer, --block-tokens and --show-text are for LOG: a router has its own, and keeps no text"
        )
    try:
        if log is not None:
            result = lint_log(log, ignore, block_tokens or 16, tokenizer, show_text)
        else:
            result = lint_router(url or "", ignore, api_key)
    except (LintError, TraceError, OSError, ValueError) as error:
        raise Unfit(str(error)) from error
    if as_json:
        click.echo(orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        show(layout_tables(result.report))
        if url is not None:
            click.echo(
                f"estimated for {result.report.requests:,.0f} requests from a sample of"
                f" {result.counts['sample_share']:.1%}; {result.counts['skipped_requests']:,} were left out"
            )
    if result.fault_ratio > threshold:
        raise Failed(
            f"the layout costs {result.fault_ratio:.1%} of all prompt tokens; {threshold:.1%} is allowed"
        )
