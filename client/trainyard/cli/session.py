"""Connection of commands to the server."""

from trainyard.client import Trainyard
from trainyard.errors import TrainyardError
from trainyard.transport import config
from trainyard.transport.connection import Patience

# A person waits: three tries within about two seconds, then the reason.
PATIENCE = Patience(retries=2)
COMPLETE_WITHIN_S = 2.0  # a person has pressed Tab


def connect() -> Trainyard:
    """Connect to the server of the environment or of `trainyard login`."""
    return Trainyard(patience=PATIENCE)


def connect_to_complete() -> Trainyard:
    """Connect as `connect` does, for one quick try."""
    return Trainyard(timeout_s=COMPLETE_WITHIN_S, patience=Patience(retries=0))


def is_signed_in() -> bool:
    """Return True if there is a token for the server."""
    try:
        return bool(config.resolve(None, None).token)
    except TrainyardError:
        return False
