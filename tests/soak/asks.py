"""What clients of the soak ask, and what exactly each must be answered."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import orjson

from router.chain.chain import TOKEN_BYTES
from router.chain.prompt import canonical_pieces, chat_prompt, completion_prompts
from router.wire.sse import DONE, event_data
from tests.soak.answers import text

_CHAT, _COMPLETION = "/v1/chat/completions", "/v1/completions"
_ERROR_FIELDS = {"message", "type", "param", "code"}
# In an event, where a stream ends before its end.
_LOST = ("replica_lost", "router_stopped")


class Violation(AssertionError):
    """A client got what it must never get."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: `choices` answers of `tokens` tokens each, that the seed alone decides."""

    id: str
    path: str
    body: dict[str, Any]
    prompt_tokens: int
    choices: int = 1

    @property
    def answer(self) -> str:
        """The text of each choice."""
        return text(self.body["seed"], self.body["max_tokens"])

    def raw(self, close: bool = False) -> bytes:
        """Return the request as it is sent."""
        body = orjson.dumps(self.body)
        end = "connection: close\r\n" if close else ""
        head = f"POST {self.path} HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n"
        head += f"x-request-id: {self.id}\r\ncontent-length: {len(body)}\r\n{end}\r\n"
        return head.encode() + body

    def check_whole(self, body: bytes) -> None:
        """Violation where the body of a 200 is not the whole right answer."""
        answer = json.loads(body)
        said = [one["message"]["content"] if "message" in one else one["text"] for one in answer["choices"]]
        finish = [one["finish_reason"] for one in answer["choices"]]
        self._check(said, finish, [answer["usage"]])

    def check_stream(self, body: bytes) -> None:
        """Violation where a stream of events that ended is not the whole right answer."""
        events = _events(body)
        if not events or events[-1] != DONE or events.count(DONE) != 1:
            raise Violation(f"{self.id}: a stream without its end: {events[-1:]}")
        chunks = [orjson.loads(event_data(event) or b"") for event in events[:-1]]
        if any("error" in chunk for chunk in chunks):
            raise Violation(f"{self.id}: an error in a stream that ends as if it were whole")
        if len({(chunk["id"], chunk["created"]) for chunk in chunks}) != 1:
            raise Violation(f"{self.id}: a stream of several answers")
        if any('"token_ids":[' in event.decode() for event in events):
            raise Violation(f"{self.id}: token ids that nobody asked for")
        said, finish = self._said(chunks)
        self._check(said, finish, [chunk["usage"] for chunk in chunks if chunk.get("usage")])

    def check_broken(self, body: bytes) -> None:
        """Violation where a stream that was broken off says anything wrong, or not that it was."""
        events = _events(body)
        last = orjson.loads(event_data(events[-1]) or b"{}") if events and events[-1] != DONE else {}
        if last.get("error", {}).get("code") not in _LOST:
            raise Violation(f"{self.id}: broken off without a word: {events[-1:]}")
        said, _ = self._said([orjson.loads(event_data(event) or b"") for event in events[:-1]])
        if not all(self.answer.startswith(one) for one in said):
            raise Violation(f"{self.id}: broken off, and wrong before that")

    def _said(self, chunks: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
        said, finish = [""] * self.choices, []
        for choice in (choice for chunk in chunks for choice in chunk["choices"]):
            said[choice["index"]] += (
                choice["text"] if "text" in choice else choice["delta"].get("content", "")
            )
            finish += [choice["finish_reason"]] if choice["finish_reason"] else []
        return said, finish

    def _check(self, said: list[str], finish: list[str], usages: list[dict[str, Any]]) -> None:
        answer, tokens = self.answer, self.body["max_tokens"] * self.choices
        if said != [answer] * self.choices:
            raise Violation(f"{self.id}: not its answer, {said!r} instead of {answer!r}")
        if finish != ["length"] * self.choices:
            raise Violation(f"{self.id}: ended by {finish}")
        asked = not self.body["stream"] or bool(self.body.get("stream_options"))
        right = (self.prompt_tokens, tokens, self.prompt_tokens + tokens)
        told = [(one["prompt_tokens"], one["completion_tokens"], one["total_tokens"]) for one in usages]
        if told != [right] * asked:
            raise Violation(f"{self.id}: usage {told}, not {right}, asked for: {asked}")


def check_error(id: str, status: int, body: bytes) -> str:
    """Return the code, or the type, of an error; Violation where it is not in OpenAI's shape."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError) as fault:
        raise Violation(f"{id}: {status} with {body[:200]!r}") from fault
    if set(error) != _ERROR_FIELDS or not error["message"] or not error["type"]:
        raise Violation(f"{id}: {status} with {error}")
    return str(error["code"] or error["type"])


@dataclass(slots=True)
class Asker:
    """Makes requests, no two of them with the same answer."""

    random: Random
    # Whether each is answered by a stream.
    asked: dict[str, bool] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def chat(self, messages: list[dict[str, str]], tokens: int | None = None) -> Ask:
        """Ask for the next turn of a chat."""
        body = {"messages": messages, **self._rest(tokens)}
        return self._made(_CHAT, body, _tokens(canonical_pieces(chat_prompt(body))[0]))

    def completion(self, prompt: str, tokens: int | None = None, choices: int = 1) -> Ask:
        """Ask for what follows a text, or as many times at once as there shall be choices."""
        body = {"prompt": prompt if choices == 1 else [prompt] * choices, **self._rest(tokens)}
        prompts = completion_prompts(body)
        return self._made(
            _COMPLETION, body, sum(_tokens(canonical_pieces(one)[0]) for one in prompts), choices
        )

    def words(self, count: int) -> str:
        """Return a text of so many words."""
        return " ".join(f"w{self.random.randrange(10_000)}" for _ in range(count))

    def _rest(self, tokens: int | None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": "m",
            "seed": self.random.getrandbits(60),
            "max_tokens": tokens or self.random.randrange(1, 60),
            "stream": self.random.random() < 0.6,
        }
        if body["stream"] and self.random.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
        return body

    def _made(self, path: str, body: dict[str, Any], prompt_tokens: int, choices: int = 1) -> Ask:
        ask = Ask(f"soak-{next(self._numbers)}", path, body, prompt_tokens, choices)
        self.asked[ask.id] = body["stream"]
        return ask


def _events(body: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in body.split(b"\n\n") if event and not event.startswith(b":")]


def _tokens(pieces: list[bytes]) -> int:
    return -(-sum(map(len, pieces)) // TOKEN_BYTES)
