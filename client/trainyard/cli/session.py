"""Connection of commands to the server."""

from trainyard.client import Trainyard
from trainyard.transport.connection import Patience

# A person waits: three tries within about two seconds, then the reason.
PATIENCE = Patience(retries=2)


def connect() -> Trainyard:
    """Connect to the server of the environment or of `trainyard login`."""
    return Trainyard(patience=PATIENCE)
