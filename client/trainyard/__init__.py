"""Trainyard's SDK and command line: uses only the HTTP API, no code of the server.

from pathlib import Path
from trainyard import Trainyard

with Trainyard() as client:
    job = client.jobs.create(Path("gpt.yaml"))
    for event in client.jobs.stream(job.id):
        print(event.kind, event.data)
"""

from trainyard.client import Trainyard
from trainyard.errors import (
    ApiError,
    BadInput,
    Conflict,
    ConnectionFailed,
    Forbidden,
    Invalid,
    NotConfigured,
    NotFound,
    NotSignedIn,
    ServerFailed,
    TooMany,
    TrainyardError,
    UnexpectedAnswer,
)
from trainyard.transport.connection import Patience
from trainyard.transport.stream import StreamEvent

__all__ = [
    "ApiError",
    "BadInput",
    "Conflict",
    "ConnectionFailed",
    "Forbidden",
    "Invalid",
    "NotConfigured",
    "NotFound",
    "NotSignedIn",
    "Patience",
    "ServerFailed",
    "StreamEvent",
    "TooMany",
    "Trainyard",
    "TrainyardError",
    "UnexpectedAnswer",
]
