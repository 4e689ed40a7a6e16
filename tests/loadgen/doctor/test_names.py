"""Whether routers and replicas name blocks alike, and replicas of one model are alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.chain.chain import ChainIdentity
from router.chain.namer import ChainNamer
from tests.loadgen.doctor.patient import WARNING, WRONG, diagnose, engines, severities, verdict, write
from tests.router.engines.scripted_engines import VLLM, models, vllm_page
from tests.router.scripted import ScriptedReplica, rig
from tests.tiny_tokenizer import CHATML, tiny_tokenizer, write_tiny_tokenizer

BY_BYTES = ChainNamer("sha256", "kvring", 16, None).identity


@asynccontextmanager
async def replicas(*identities: ChainIdentity, **fields: Any) -> AsyncIterator[dict[str, str]]:
    """Start a scripted replica with each identity."""
    started = []
    try:
        for index, identity in enumerate(identities):
            replica = ScriptedReplica(f"r{index}")
            replica.identity = identity
            await replica.start()
            started.append(replica)
        yield {replica.name: replica.url for replica in started}
    finally:
        for replica in started:
            await replica.stop()


@pytest.mark.parametrize(
    ("chain", "title", "mend"),
    [
        ({"block_tokens": 32}, "another block size", "chain.block_tokens = 16"),
        ({"algorithm": "xxh3"}, "another algorithm", "sha256"),
        ({"seed": "hunter2"}, "another root", "KVRING_REPLICA_CHAIN__SEED"),
    ],
)
async def test_fields_that_differ(tmp_path: Path, chain: dict[str, Any], title: str, mend: str) -> None:
    async with replicas(BY_BYTES, BY_BYTES) as urls:
        diagnosis = await diagnose(write(tmp_path, urls, chain=chain))
    found = verdict(diagnosis, "names").findings
    assert title in [finding.title.partition(":")[0] for finding in found]
    assert mend in next(finding.mend for finding in found if finding.title.startswith(title))
    assert all("r0, r1" in finding.title for finding in found)
    assert severities(verdict(diagnosis, "names")) == [WRONG] * len(found)
    assert "hunter2" not in str(diagnosis.to_json())
    # Among themselves they agree.
    assert not verdict(diagnosis, "alike").findings


async def test_names_that_agree(tmp_path: Path) -> None:
    async with replicas(BY_BYTES, BY_BYTES) as urls:
        diagnosis = await diagnose(write(tmp_path, urls))
    for name in ("names", "alike"):
        assert verdict(diagnosis, name).looked
        assert not verdict(diagnosis, name).findings


@pytest.mark.parametrize("part", ["tokenizer", "template", "both"])
async def test_tokenizers_and_templates(tmp_path: Path, part: str) -> None:
    directory = write_tiny_tokenizer(tmp_path / "m")
    theirs = ChainNamer("sha256", "kvring", 16, tiny_tokenizer()).identity
    if part == "tokenizer":
        theirs = replace(theirs, tokenizer_fingerprint="0" * 16)
    else:
        (directory / "chat_template.jinja").write_text(CHATML + " ")
    if part == "both":
        theirs = replace(theirs, tokenizer_fingerprint="0" * 16)
    async with replicas(theirs) as urls:
        config = write(tmp_path, urls, models={"m": {"tokenizer_directory": directory}})
        found = verdict(await diagnose(config), "names").findings
    wanted = {
        "tokenizer": ["tokenizer"],
        "template": ["chat template"],
        "both": ["tokenizer", "chat template"],
    }
    assert [finding.title.partition(":")[0] for finding in found] == [
        f"another {what}" for what in wanted[part]
    ]
    assert all("tokenizer_directory" in finding.mend for finding in found)


async def test_tokens_there_and_bytes_here(tmp_path: Path) -> None:
    by_tokens = ChainNamer("sha256", "kvring", 16, tiny_tokenizer()).identity
    async with replicas(by_tokens) as urls:
        diagnosis = await diagnose(write(tmp_path, urls))
        # One finding, not one for each fingerprint that a tokenizer brings, nor another of the model.
        assert [finding.title for finding in verdict(diagnosis, "names").findings] == [
            "tokens on one side, bytes on the other: r0 and the router"
        ]
        assert not verdict(diagnosis, "models").findings


async def test_replicas_that_differ_from_one_another(tmp_path: Path) -> None:
    async with replicas(BY_BYTES, replace(BY_BYTES, block_tokens=32)) as urls:
        diagnosis = await diagnose(write(tmp_path, urls))
    assert severities(verdict(diagnosis, "alike")) == [WRONG, WARNING]
    assert "r0" in verdict(diagnosis, "alike").findings[0].seen
    assert [finding.title for finding in verdict(diagnosis, "names").findings] == [
        "another block size: r1 and the router"
    ]


async def test_what_a_router_says_of_a_mismatch() -> None:
    async with rig(2) as fleet:
        assert not verdict(await diagnose(url=fleet.router.address), "names").findings
    async with rig(2, chain={"block_tokens": 32}) as fleet:
        found = verdict(await diagnose(url=fleet.router.address), "names")
    assert severities(found) == [WRONG]
    assert "r0, r1" in found.findings[0].title


async def test_engines_that_differ(tmp_path: Path) -> None:
    other = {
        **VLLM,
        "/version": {"version": "0.34.0"},
        "/v1/models": models("vllm", {"id": "m", "max_model_len": 4096}),
        "/metrics": vllm_page(config='block_size="24",enable_prefix_caching="True",num_gpu_blocks="1"'),
    }
    async with engines(VLLM, other) as found:
        diagnosis = await diagnose(write(tmp_path, found))
    differ = [finding.title for finding in verdict(diagnosis, "alike").findings]
    for what in ("block size", "context length", "version", "models and adapters served"):
        assert f"replicas of m differ in {what}" in differ
    # 24 tokens are no multiple of 16.
    assert severities(verdict(diagnosis, "names")) == [WARNING]
    async with engines(VLLM, VLLM) as found:
        assert not verdict(await diagnose(write(tmp_path, found)), "alike").findings
