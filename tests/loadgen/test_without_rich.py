"""Without rich, as in a router's image, commands that ask routers work, and others say what they need."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleets import MODEL, live_fleet

_PROGRAM = "import sys; sys.modules['rich'] = None\nfrom loadgen.cli import main; main()"
_OBSERVE: dict[str, Any] = {
    "access_log": False,
    "explain": True,
    "layout": {"sample_share": 1},
    "shadow": [{"name": "turns", "policy": "round_robin", "sample_share": 1}],
}


async def kvring(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROGRAM, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_a_routers_answers_are_shown(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Tell me of the sea. " * 20}]
    (tmp_path / "body.json").write_text(json.dumps({"model": MODEL, "messages": chat}))
    async with live_fleet(2, observe=_OBSERVE, control={"port": 0}) as fleet:
        for _ in range(2):
            await fleet.chat(chat)
        router = fleet.routers[0]
        asked = (
            (("explain", "--url", router.control_address, "--body", str(tmp_path / "body.json")), "reason"),
            (("shadow", "--url", router.control_address), "round_robin"),
            (("lint", "--url", router.control_address, "--threshold", "1"), "found by a cache"),
            (("doctor", "--url", router.control_address, "--api-url", router.address), "ok"),
        )
        for arguments, words in asked:
            code, output = await kvring(*arguments)
            assert (code, words in output) == (0, True), output
            assert "Traceback" not in output


async def test_files_are_read(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 200}]}) + "\n")
    for command, words in (("lint", "new text"), ("ceiling", "by size of one LRU cache")):
        code, output = await kvring(command, str(log))
        assert (code, words in output) == (0, True), output


@pytest.mark.parametrize("arguments", [("load", "--url", "http://127.0.0.1:9"), ("demo",)])
async def test_others_say_what_they_need(arguments: tuple[str, ...]) -> None:
    code, output = await kvring(*arguments)
    needed = f"Error: kvring {arguments[0]} needs more packages: pip install 'kvring[loadgen]'\n"
    assert (code, output) == (1, needed)
