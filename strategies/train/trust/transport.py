"""Transport of the ranks' process group, from NCCL's own log or gloo's environment."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from strategies.plan.trust.nccl_log import NcclLog, read_log

ADAPTERS = Path("/sys/class/infiniband")
MOST_LINES = 200_000


@contextmanager
def nccl_logging() -> Iterator[Path | None]:
    """Have NCCL log to a temporary file of this rank; yield its path.

    Must be entered before the first communicator: NCCL reads the variables once. Yields None if
    the environment already sets how NCCL logs.
    """
    if os.environ.keys() & {"NCCL_DEBUG", "NCCL_DEBUG_FILE"}:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="trainyard-nccl-") as folder:
        log = Path(folder, "nccl.log")
        os.environ["NCCL_DEBUG"] = "INFO"
        os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,NET"
        os.environ["NCCL_DEBUG_FILE"] = str(log)
        yield log


def read_nccl_log(log: Path) -> NcclLog | None:
    """Return the devices and channels in the log of this rank; None if there is no log."""
    if not log.exists():
        return None
    adapters = sorted(path.name for path in ADAPTERS.iterdir()) if ADAPTERS.is_dir() else []
    with log.open(errors="replace") as lines:
        return read_log(islice(lines, MOST_LINES), adapters)


def gloo_transport() -> str:
    """Return `gloo over TCP (eth0)`, without the interface where none is set."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    return f"gloo over TCP ({interface})" if interface else "gloo over TCP"
