"""`kvring lint`: which place of which message keeps a log's prompts from sharing, and what it costs."""

from __future__ import annotations

from pathlib import Path

import click

from loadgen.commands.fail import Failed, Unfit


@click.command("lint")
@click.argument("log", type=click.Path(path_type=Path), metavar="LOG")
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
@click.option("--block-tokens", type=click.IntRange(1, 4096), default=16, show_default=True)
@click.option("--show-text", is_flag=True, help="Show what stood there; else no text of a prompt is printed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    log: Path,
    threshold: float,
    ignore: tuple[str, ...],
    tokenizer: Path | None,
    block_tokens: int,
    show_text: bool,
    as_json: bool,
) -> None:
    """Lint the prompts of LOG, a request log: JSON lines with the bodies of OpenAI's or Anthropic's API.

    Exit code 0: the layout costs no more than the threshold; 1: it does; 2: the log cannot be read.
    """
    import orjson
    from rich.console import Console

    from loadgen.ceiling.tables import layout_tables
    from loadgen.lint.lint import LintError, lint_log
    from loadgen.traces.trace import TraceError

    try:
        result = lint_log(log, ignore, block_tokens, tokenizer, show_text)
    except (LintError, TraceError, OSError, ValueError) as error:
        raise Unfit(str(error)) from error
    if as_json:
        click.echo(orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        Console().print(layout_tables(result.report))
    if result.fault_ratio > threshold:
        raise Failed(
            f"the layout costs {result.fault_ratio:.1%} of all prompt tokens; {threshold:.1%} is allowed"
        )
