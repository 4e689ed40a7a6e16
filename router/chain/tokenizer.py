"""A model's own tokenizer and template, read from its directory: from a canonical prompt to token ids."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from router.chain.chain import fingerprint, pack_tokens
from router.chain.prompt import CanonicalPrompt
from router.chain.template import ChatTemplate, RenderError

# Tokens that open a message in ChatML and in Llama 3's format. BPE never merges across an added token, so a
# text may be cut just before one, and only there, without changing its tokens.
_TURN_MARKERS = ("<|im_start|>", "<|start_header_id|>")
# A message's header: up to its line's end in ChatML, to the empty line behind it in Llama 3's format.
_HEADER = re.compile(r"<\|im_start\|>[^\n]*\n|<\|start_header_id\|>[^\n]*\n\n")
_PREAMBLE_ROLES = ("system", "developer")


class ModelTokenizer:
    """Renders, cuts into segments, encodes. Thread-safe; encoding releases the GIL."""

    def __init__(self, tokenizer_json: str, template: str | None, special: Mapping[str, str]) -> None:
        """Read tokenizer.json's text, the chat template (None: chats cannot be rendered), special tokens."""
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.fingerprint = fingerprint(tokenizer_json.encode())
        self.special = dict(special)
        self._template = ChatTemplate(template, special) if template is not None else None
        self._marker = _turn_marker(json.loads(tokenizer_json))

    @classmethod
    def from_directory(cls, directory: Path) -> ModelTokenizer:
        """Read a Hugging Face model directory; FileNotFoundError without tokenizer.json."""
        config_path = directory / "tokenizer_config.json"
        config: dict[str, Any] = json.loads(config_path.read_text()) if config_path.exists() else {}
        template_path = directory / "chat_template.jinja"
        template = template_path.read_text() if template_path.exists() else config.get("chat_template")
        special = {}
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            value = config.get(name)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                special[name] = content
        text = (directory / "tokenizer.json").read_text()
        return cls(text, template if isinstance(template, str) else None, special)

    @property
    def template_fingerprint(self) -> str:
        """The template's fingerprint, empty where there is none."""
        return self._template.fingerprint if self._template else ""

    def segments(self, prompt: CanonicalPrompt) -> tuple[list[str], tuple[int, str]]:
        """Render a chat or a text prompt; return its segments, and its preamble.

        The segments' tokens, put together, are the tokens of the whole. The preamble is so many segments
        ahead of the conversation, and the header of its first message, which all conversations share too.
        RenderError where the template refuses the messages, or there is none.
        """
        if prompt.text is not None:
            return self._cut(prompt.text), (0, "")
        if self._template is None:
            raise RenderError("the model has no chat template")
        segments = self._cut(self._template.render(prompt))
        return segments, self._preamble(segments)

    def encode(self, text: str, add_special_tokens: bool = False) -> bytes:
        """Return the packed token ids of one segment."""
        (encoding,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return pack_tokens(encoding.ids)

    def _cut(self, text: str) -> list[str]:
        marker = self._marker
        if not marker:
            return [text]
        first, *others = text.split(marker)
        segments = [marker + other for other in others]
        return [first, *segments] if first else segments

    def _preamble(self, segments: list[str]) -> tuple[int, str]:
        if not self._marker:
            return 0, ""
        for index, segment in enumerate(segments):
            opened = segment.startswith(self._marker)
            role = segment[len(self._marker) :].lstrip() if opened else ""
            # Text before the first message (a begin-of-text token) belongs to the preamble too.
            if (opened or index > 0) and not role.startswith(_PREAMBLE_ROLES):
                header = _HEADER.match(segment)
                return index, header.group() if header else ""
        return len(segments), ""


def _turn_marker(description: dict[str, Any]) -> str | None:
    """Return the token before which texts may be cut, or None where cutting would not be exact."""
    # A pre-tokenizer or normalizer that puts a space before each text would do so before each segment.
    if any(
        name in json.dumps(description.get(part))
        for part in ("normalizer", "pre_tokenizer")
        for name in ("Metaspace", "Prepend")
    ):
        return None
    for token in description.get("added_tokens", ()):
        if token["content"] in _TURN_MARKERS and not any(
            token.get(flag) for flag in ("normalized", "lstrip", "rstrip", "single_word")
        ):
            return str(token["content"])
    return None
