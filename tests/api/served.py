"""An API process with one more address, a read that is slow."""

import time
from typing import Any

from fastapi import FastAPI

from api import app
from api import main as program
from core.process.settings import ApiSettings


def create_app(settings: ApiSettings) -> FastAPI:
    """The application, and `/v1/slow?ms=`, which keeps the interpreter busy for so long."""
    served = app.create_app(settings)
    served.add_api_route("/v1/slow", slow)
    return served


def slow(ms: float) -> dict[str, Any]:
    ends = time.thread_time() + ms / 1000
    while time.thread_time() < ends:
        sum(range(1000))
    return {}


def main() -> None:
    """Run the API with it."""
    program.create_app = create_app
    program.main()
