"""What to type next: a `curl` line and an `openai` program that work as printed."""

from __future__ import annotations

import json


def curl_line(url: str, model: str) -> str:
    """Return a shell command that asks the address `url` one question."""
    question = {"role": "user", "content": "What is the capital of France?"}
    body = json.dumps({"model": model, "messages": [question], "temperature": 0, "max_tokens": 64})
    return f"curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"


def openai_program(url: str, model: str) -> str:
    """Return a Python program that asks the address `url` one question and prints the answer as it comes."""
    return f"""\
from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="none")
stream = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "What is the capital of France?"}}],
    temperature=0,
    max_tokens=64,
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
"""


def how_to_ask(url: str, model: str) -> str:
    """Return both, with a line of words each; not indented, so that they can be copied as they stand."""
    return (
        f"Ask it from a shell:\n\n{curl_line(url, model)}\n\n"
        f"or from Python (pip install openai):\n\n{openai_program(url, model)}"
    )
