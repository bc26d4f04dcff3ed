"""Load comes back to an API that was restarted."""

import asyncio

from starlette.types import Message, Receive, Scope, Send

from api.middleware.headers import Shell


def test_one_answer_in_a_hundred_ends_its_connection() -> None:
    """What comes next opens another one, perhaps to the process that idles."""
    draws = iter([0.0, 0.5, 0.009, 0.01, 0.99])

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})

    ended: list[bool] = []

    async def send(message: Message) -> None:
        ended.append((b"connection", b"close") in message["headers"])

    async def receive() -> Message:
        raise AssertionError

    shell = Shell(app, None, is_https=False, draw=lambda: next(draws))
    for _ in range(5):
        asyncio.run(shell({"type": "http", "path": "/v1/me"}, receive, send))
    assert ended == [True, False, True, False, False]
