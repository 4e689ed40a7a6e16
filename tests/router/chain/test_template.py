"""Templates: what they see of a message is what the plain sandbox would show them."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.chain.prompt import chat_prompt
from router.chain.template import ChatTemplate, RenderError

_MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "hi", "items": "shadowed", "_hidden": "told", "x": {"y": "deep"}},
    {"role": "assistant", "content": "", "get": 1},
]


@pytest.mark.parametrize(
    "expression",
    [
        "message.role + message['content']",
        "message.missing",
        "message.missing is defined",
        "message.missing or 'else'",
        "message._hidden",
        "message.items is callable",
        "message.get('x', {}).y",
        "message.x.y if message.x else ''",
        "message.__class__ is defined",
        "message.keys() | list | length",
        "loop.first ~ loop.last ~ loop.index ~ loop.index0 ~ loop.length ~ loop.revindex",
        "(loop.previtem or message).role ~ (loop.nextitem or message).role",
        "loop.cycle('a', 'b')",
        "loop.__init__ is defined",
        "loop.nothing is defined",
    ],
)
def test_attributes_are_those_of_the_plain_sandbox(expression: str) -> None:
    source = "{% for message in messages %}[{{ " + expression + " }}]{% endfor %}"
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    prompt = chat_prompt({"model": "m", "messages": _MESSAGES})
    assert ChatTemplate(source, {}).render(prompt) == plain.render(messages=_MESSAGES)


@pytest.mark.parametrize(
    "expression",
    [
        "message.__class__.__mro__",
        "message.missing.more",
        "message.update({'role': 'x'})",
        "''.__class__.__mro__[1].__subclasses__()",
        "loop.__init__.__globals__",
        "loop._iterator.more",
    ],
)
def test_what_the_sandbox_refuses_is_refused(expression: str) -> None:
    source = "{% for message in messages %}{{ " + expression + " }}{% endfor %}"
    with pytest.raises(RenderError):
        ChatTemplate(source, {}).render(chat_prompt({"model": "m", "messages": _MESSAGES}))
