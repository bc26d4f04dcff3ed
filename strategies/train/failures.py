"""Reports of a rank's failure: an exit code, and error.json for the process that judges the
attempt."""

import json
import os
import sys
import time
import traceback
from pathlib import Path

from strategies.plan.durable_files import write_atomically
from strategies.plan.faults import Cause, cause_of
from strategies.plan.run_directory import BadCheckpoint, ExitCode, NotEquipped
from strategies.train.data.batches import BadData
from strategies.train.guards import Diverged
from strategies.train.trust.collective_digest import Digest
from strategies.train.trust.preflight import PreflightFailed
from strategies.train.trust.roll_call import RanksMissing

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # set for each rank by torchrun and by the warm launcher
KNOWN = (BadData, BadCheckpoint, Diverged, PreflightFailed, NotEquipped, RanksMissing)


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code of this kind of failure."""
    if isinstance(error, BadData):
        return ExitCode.BAD_DATA
    if isinstance(error, BadCheckpoint):
        return ExitCode.BAD_CHECKPOINT
    if isinstance(error, Diverged):
        return ExitCode.DIVERGED
    if isinstance(error, PreflightFailed):
        return ExitCode.PREFLIGHT_FAILED
    if isinstance(error, NotEquipped):
        return ExitCode.NOT_EQUIPPED
    if isinstance(error, RanksMissing):
        return ExitCode.STALLED
    # Only torch's own out-of-memory error has a type; cuBLAS, NCCL and the CPU's allocator tell it
    # in the text of a RuntimeError.
    if cause_of(type(error).__name__, str(error)) is Cause.MEMORY:
        return ExitCode.OUT_OF_MEMORY
    return ExitCode.USER_ERROR


def report(error: BaseException, digest: Digest | None = None) -> ExitCode:
    """Write the failure, and who the ranks wait for, to stderr and error.json; return the exit
    code."""
    code = exit_code_of(error)
    trace = "".join(traceback.format_exception(error))
    message = str(error) or type(error).__name__
    sys.stderr.write(f"{message}\n" if isinstance(error, KNOWN) else trace)
    if digest is not None and digest.why != message:
        sys.stderr.write(f"{digest.why}\n")
    path = os.environ.get(ERROR_FILE)
    if path:
        now_ns = time.time_ns()
        record = {
            "type": type(error).__name__,
            "message": message,
            "t_ns": now_ns,
            "timestamp": now_ns // 1_000_000_000,  # torchrun's own field, in whole seconds
            "trace": trace,
            "digest": None if digest is None else digest.model_dump(),
        }
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path), json.dumps(record).encode())
    return code
