"""Chat templates: renders messages to the text that the model was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.chain.chain import fingerprint
from router.chain.prompt import CanonicalPrompt

_DICT_ATTRIBUTES = frozenset(dir(dict))
_LOOP_ATTRIBUTES = frozenset({"first", "last", "index", "index0", "length", "previtem", "nextitem"})


class RenderError(ValueError):
    """The template refuses these messages (such as roles in an order that the model does not know)."""


class _GenerationTag(Extension):
    """Accepts {% generation %}, which marks the assistant's text for training and changes nothing here."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares the attribute as a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, but for a message's fields and a loop's state, which need none and are found at once."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute`, or `obj[attribute]` where there is none."""
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind is LoopContext and attribute in _LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


class ChatTemplate:
    """One model's chat template, in the environment that Hugging Face's templates are written for."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """`variables` are the model's special tokens by name, such as bos_token."""
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self._template = environment.from_string(source)
        self._variables = dict(variables)
        self.fingerprint = fingerprint(source.encode())

    def render(self, prompt: CanonicalPrompt) -> str:
        """Render a chat; RenderError if the template refuses it."""
        variables = {**self._variables, **prompt.template_options}
        try:
            return self._template.render(
                variables, messages=prompt.messages, tools=prompt.tools, documents=None
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            # A template is a program from outside: whatever it trips over, it refused the messages.
            raise RenderError(f"the chat template refuses these messages: {error}") from error


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **_: Any) -> str:
    # jinja2's own filter escapes for HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> None:
    raise RenderError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
