"""`trainyard preflight`: test of ranks on this machine, started by torchrun as an attempt's are.

The ranks print their findings; this process only starts them and returns the verdict as exit code.
"""

import os
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from core.process.parent_death import die_with_parent
from strategies.plan.trust.preflight_report import Report
from worker.agent.inventory import list_gpus
from worker.node.boot import cores
from worker.ranks.launch import MASTER, SHUTDOWN_TIMEOUT_S, free_port

NOT_STARTED, INTERRUPTED = 1, 130
LAST_LINES = 15  # of torchrun's output, if no rank has reported


def run(*, ranks: int | None, quick: bool, as_json: bool) -> int:
    """Examine `ranks` ranks, by default one per GPU or core; return the exit code."""
    ranks = ranks or max(2, len(list_gpus()) or cores())
    with tempfile.TemporaryDirectory(prefix="trainyard-preflight-") as folder:
        report, said = Path(folder, "report.json"), Path(folder, "stderr.log")
        flags = [*(["--quick"] if quick else []), *(["--json"] if as_json else [])]
        try:
            with said.open("wb") as stderr:
                subprocess.run(
                    [
                        *torchrun(ranks),
                        "-m",
                        "strategies.train.trust.preflight",
                        *flags,
                        "--report",
                        report,
                    ],
                    env=environment(),
                    stderr=stderr,
                    preexec_fn=partial(die_with_parent, signal.SIGTERM),
                    check=False,
                )
        except KeyboardInterrupt:
            return INTERRUPTED
        if report.exists():
            return Report.model_validate_json(report.read_bytes()).verdict
        lines = said.read_text(errors="replace").splitlines()[-LAST_LINES:]
        sys.stderr.write("\n".join([*lines, "No rank has reported.", ""]))
        return NOT_STARTED


def torchrun(ranks: int) -> list[str]:
    """Return torchrun's command for this machine alone, with a static rendezvous."""
    return [
        sys.executable, "-m", "torch.distributed.run",
        "--nnodes", "1", "--node-rank", "0", "--nproc-per-node", str(ranks),
        "--master-addr", MASTER, "--master-port", str(free_port()), "--max-restarts", "0",
        "--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S),
    ]  # fmt: skip


def environment() -> dict[str, str]:
    """Return the environment of the ranks, all on this machine whatever its host name resolves
    to."""
    own = {"GLOO_SOCKET_IFNAME": "lo", **os.environ}
    return {**own, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
