"""Calibration: a replica that served nobody yet knows what it costs; its model's makers say how to sample."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replica.calibrate import calibrate
from replica.load import PrefillMeter
from replica.prepare import read_sampling_defaults
from replica.runner.echo import EchoRunner
from router.wire.report import PrefillCost
from tests.replica.conftest import Launch
from tests.tiny_tokenizer import write_tiny_tokenizer


@pytest.mark.parametrize("context_tokens", [4096, 40])
def test_the_meter_knows_the_runner_before_the_first_request(context_tokens: int) -> None:
    # Ten times what the configuration says, as on a slow machine.
    real = PrefillCost(0.002, 1e-4, 0.0)
    meter = PrefillMeter(PrefillCost(0.0002, 1e-5, 0.0))
    runner = EchoRunner(
        [7], prefill=real, decode_seconds=0.0, block_tokens=16, block_count=512, context_tokens=context_tokens
    )
    calibrate(runner, meter)
    length = min(200, context_tokens)
    ratio = meter.cost.seconds(length, 0) / real.seconds(length, 0)
    assert 1 / 3 < ratio < 3


def test_sampling_defaults_are_read_where_they_are_numbers(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path) == {}
    stated = {"temperature": 0.2, "top_p": "wide", "eos_token_id": 2, "top_k": 5}
    (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    assert read_sampling_defaults(tmp_path) == {"temperature": 0.2}


async def test_a_request_without_a_temperature_gets_the_models(launch: Launch, tmp_path: Path) -> None:
    directory = write_tiny_tokenizer(tmp_path / "model")
    # Out of bounds, so that it shows who is asked.
    (directory / "generation_config.json").write_text('{"temperature": 9}')
    client = await launch(model_directory=str(directory))
    refused = await client.complete("hello there")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")
    assert (await client.complete("hello there", temperature=0)).status_code == 200
