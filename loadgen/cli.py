"""The command line: `kvring COMMAND ...`. Each command's module is imported only when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from loadgen.commands.fail import Failed

# A router's image has neither torch nor rich: what a command needs is imported by its own module.
_COMMANDS = {
    "bench": "Measure what the router, its parts and its peers cost in CPU time.",
    "ceiling": "Tell the hit ratio that any cache could reach on a request log or a trace.",
    "demo": "Show what prefix affinity gives: a real model, three replicas, two policies.",
    "doctor": "Check a configuration or a live fleet, and say what to mend.",
    "explain": "Tell where a router sends a request, and why it missed what it missed.",
    "gate": "Hold a live address to the hit ratio that it had.",
    "key": "Make an API key, and the line that lets a router know it.",
    "lint": "Tell which places of prompts keep them from sharing, and at what cost.",
    "load": "Drive a workload against an OpenAI-compatible address and report on it.",
    "picker": "Run an endpoint picker for gateways with Envoy.",
    "replay": "Drive a trace against a live fleet, beside what the simulator says of it.",
    "replica": "Run one replica.",
    "router": "Run the router.",
    "shadow": "Tell what a router's policies in shadow would have done.",
    "sidecar": "Follow an engine's KV events in its pod, and serve digests to routers.",
    "simulate": "Simulate a fleet over a trace, and compare routing policies.",
    "trace": "Generate traces of requests, import them from logs, and tell what one is like.",
    "up": "Run a whole fleet on this machine until Ctrl-C.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"loadgen.commands.{cmd_name}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"{cmd_name} is not a command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "rich":
                raise
            name = ctx.invoked_subcommand
            raise Failed(f"kvring {name} needs more packages: pip install 'kvring[loadgen]'") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table, since asking the commands would import them all.
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


def _version() -> str:
    try:
        return version("kvring")
    except PackageNotFoundError:
        return "(not installed)"


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(_version(), "--version", prog_name="kvring")
def kvring() -> None:
    """A prefix-affinity gateway for fleets of LLM replicas: every turn of a chat finds its KV cache."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits the process."""
    kvring.main(args=list(arguments) if arguments is not None else None, prog_name="kvring")


if __name__ == "__main__":
    main()
