"""Keeps a fleet up on this machine, and tells of children that end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from loadgen.launch import Fleet, FleetPlan, bundled_model
from loadgen.snippets import how_to_ask

_LOOK_SECONDS = 0.5


async def keep_up(
    replicas: int, runner: Literal["torch", "echo"], policy: str, port: int, say: Callable[[str], None]
) -> None:
    """Run a fleet until cancelled; LaunchError if it does not start or its router ends."""
    if runner == "torch":
        say("Preparing the model (the first time takes some seconds) ...")
        directory = await bundled_model()
        plan = FleetPlan(replicas, runner, policy, port, model_directory=directory)
    else:
        plan = FleetPlan(replicas, runner, policy, port, model="echo")
    say(f"Starting {replicas} replicas and a router ...")
    async with Fleet(plan) as fleet:
        say(f"Up at {fleet.url}, model {plan.model}, policy {policy}. Logs: {fleet.logs}")
        say(f"How the fleet does, in a browser: {fleet.url}/\n")
        say(how_to_ask(fleet.url, plan.model))
        say("Ctrl-C ends it.")
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for name, failure in fleet.take_ended():
                if name == "router":
                    raise failure
                say(f"{failure}\nThe others go on.")
