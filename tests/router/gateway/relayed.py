"""What passes the relay in its tests: a stream of events, answers of replicas, and who is at home."""

from __future__ import annotations

import random

from aiohttp import web

from tests.router.scripted import BODY, Handler, Rig, chunk

STREAM = {**BODY, "stream": True}
_TEXT = "春天来了。😀 Grüße — ¡hola!"
EVENTS = [
    chunk("", role="assistant"),
    *(chunk(letter) for letter in _TEXT),
    chunk(None, "stop"),
    b"data: [DONE]\n\n",
]


def cut(data: bytes, seed: int) -> list[bytes]:
    """Cut bytes anywhere, within characters and line ends too."""
    draw = random.Random(seed)
    pieces = []
    while data:
        size = draw.choice((1, 2, 3, 7, 50, 400))
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def answering(body: object, status: int = 200, **headers: str) -> Handler:
    """Return what answers every request so."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(body, status=status, headers=headers)

    return answer


async def home_of(up: Rig) -> str:
    """Send a request; return who served it."""
    _, _, response = await up.post()
    return response.headers["x-kvring-replica"]
