"""Finds out which engine a replica runs, by asking it."""

from __future__ import annotations

from router.engines.answers import ask_json, ask_models
from router.engines.engine import Engine, Get
from router.engines.llamacpp import LlamaCpp
from router.engines.page import ask_page
from router.engines.plain import Plain
from router.engines.sglang import Sglang
from router.engines.trtllm import PATHS, Trtllm
from router.engines.vllm import Vllm

_ENGINES: dict[str, type[Engine]] = {
    "vllm": Vllm,
    "sglang": Sglang,
    "trtllm": Trtllm,
    "llamacpp": LlamaCpp,
    "plain": Plain,
}
# As each engine signs its models.
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm", "llamacpp": "llamacpp"}
_PREFIXES = {"vllm:": "vllm", "sglang:": "sglang", "trtllm_": "trtllm", "llamacpp:": "llamacpp"}
# What only this engine answers, and with which fields.
_MARKS = (
    ("/server_info", ("page_size", "version"), "sglang"),
    ("/props", ("build_info", "total_slots"), "llamacpp"),
)


def engine_of(kind: str) -> Engine:
    """Return a new adapter of this kind, for one replica; ValueError where there is no such engine."""
    if kind not in _ENGINES:
        raise ValueError(f"no adapter for engine {kind!r}: there are {', '.join(_ENGINES)}")
    return _ENGINES[kind]()


async def detect(get: Get) -> Engine:
    """Return an adapter for a replica that is ready; plain where nothing tells which engine it is.

    One request is enough for engines that sign their models, up to five else. Answers that make no sense tell
    nothing; what `get` raises is raised.
    """
    return engine_of(await _signature(get) or await _metrics(get) or await _marks(get) or "plain")


async def _signature(get: Get) -> str:
    try:
        return _OWNERS.get((await ask_models(get)).owner, "")
    except ValueError:
        return ""


async def _metrics(get: Get) -> str:
    for path in reversed(PATHS):
        try:
            page = await ask_page(get, path)
        except ValueError:
            continue
        for prefix, kind in _PREFIXES.items():
            if page is not None and page.tells(prefix):
                return kind
    return ""


async def _marks(get: Get) -> str:
    for path, fields, kind in _MARKS:
        try:
            body = await ask_json(get, path)
        except ValueError:
            continue
        if isinstance(body, dict) and all(field in body for field in fields):
            return kind
    return ""
