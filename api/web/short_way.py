"""Short ways: plain requests of the busiest routes, answered without FastAPI's dependencies.

FastAPI solves one dependency after the other, those that are not coroutines in a thread each: for
a write that is done in groups that costs more than what is written. Whatever is not plain goes
FastAPI's way, and the signature of the handler says what both accept.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def short_way(answer: Callable[[Request], Awaitable[Response | None]]) -> type[APIRoute]:
    """Return a class of routes that ask `answer` first, and then, if it returns None because the
    request is not plain, FastAPI."""

    class ShortRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            thorough = super().get_route_handler()

            async def handle(request: Request) -> Response:
                return await answer(request) or await thorough(request)

            return handle

    return ShortRoute
