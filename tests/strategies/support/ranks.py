"""A warm process that forks training ranks for tests: a run starts in 0.1 s instead of 4 s.

It has imported torch and strategies, owns one thread and never touches a tensor, so that its
forks are safe. Requests come as JSON lines on stdin; for each it answers with the ranks' process
ids, and then, when all have ended, with how. This file is a script, not a test.
"""

import importlib.util
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a thread pool would not survive a fork

from strategies.train import main


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def be_rank(request: dict[str, Any], rank: int, port: int) -> None:
    """Run the case as one rank; never returns."""
    code = 1
    try:
        logs = Path(request["logs"]) / f"rank-{rank}"
        logs.mkdir(parents=True, exist_ok=True)
        for descriptor, name in ((1, "stdout.log"), (2, "stderr.log")):
            os.dup2(os.open(logs / name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), descriptor)
        os.environ.update(
            request["env"],
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(request["ranks"]),
            LOCAL_WORLD_SIZE=str(request["ranks"]),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_ERROR_FILE=str(logs / "error.json"),
        )
        location = importlib.util.spec_from_file_location("cases", request["file"])
        assert location is not None
        assert location.loader is not None
        cases = importlib.util.module_from_spec(location)
        location.loader.exec_module(cases)
        code = getattr(cases, request["case"])(**request["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        main.end_process(code)


def serve_one(request: dict[str, Any]) -> None:
    """Fork the ranks of a case and, unless they have no deadline, wait until they have ended."""
    port = free_port()
    pids = []
    for rank in range(request["ranks"]):
        pid = os.fork()
        if pid == 0:
            be_rank(request, rank, port)
        pids.append(pid)
    answer({"pids": pids})
    if request["deadline_s"] is None:
        return
    codes: dict[int, int] = {}
    deadline = time.monotonic() + request["deadline_s"]
    while len(codes) < len(pids):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in pids:
            codes[pid] = os.waitstatus_to_exitcode(status)
            continue
        if time.monotonic() > deadline:
            for late in set(pids) - set(codes):
                os.kill(late, signal.SIGKILL)
        time.sleep(0.005)
    answer({"codes": [codes[pid] for pid in pids]})


def answer(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main.preload()
    answer({"ready": True})
    for line in sys.stdin:
        serve_one(json.loads(line))
