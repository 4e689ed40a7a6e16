"""Commands that ask a router why, where it answers nobody without a key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from loadgen.doctor.ask_router import ask_router
from loadgen.doctor.reach import Reach
from loadgen.explain import ExplainError, explain_body, explain_request, layout_report, shadow_report
from router.gateway.keyring import key_line
from tests.router.scripted import BODY, rig

_KEY = "kvr_of-mine"


async def test_a_router_that_asks_for_a_key_is_given_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(key_line(_KEY, "mine"))
    observe = {
        "access_log": False,
        "explain": True,
        "layout": {"sample_share": 1.0},
        "shadow": [{"name": "s", "policy": "round_robin"}],
    }
    async with rig(1, auth={"keys_file": str(keys)}, observe=observe) as up, Reach() as reach:
        url, body = up.router.address, orjson.dumps(BODY)
        with pytest.raises(ExplainError, match="401: the API key is missing"):
            await asyncio.to_thread(explain_body, url, body)
        headers = {"Authorization": f"Bearer {_KEY}", "x-request-id": "one"}
        assert (await up.post(headers=headers))[0] == 200
        assert (await asyncio.to_thread(explain_body, url, body, None, _KEY))["chosen"] == "r0"
        assert (await asyncio.to_thread(explain_request, url, "one", _KEY))["outcome"]["status"] == 200
        for report in (shadow_report, layout_report):
            assert await asyncio.to_thread(report, url, _KEY)
        assert "--api-key" in (await ask_router(reach, url)).problem
        seen = await ask_router(reach, url, _KEY)
        assert (seen.problem, seen.ready, seen.layout is None) == ("", True, False)
