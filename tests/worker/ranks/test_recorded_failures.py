"""The verdict on failures as their ranks left them: exit codes, error files, last words."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from core.states import Desired, JobState, Outcome, job_after
from strategies.plan.faults import Cause, cause_of
from worker.gpus.xids import Xid, by_rank, hardware_xids, kernel_log
from worker.ranks.judge import Evidence, RankEvidence, judge
from worker.ranks.launch import error_of
from worker.ranks.tracebacks import traceback_error

WATCHDOG = """\
[rank{rank}]:[E1123 10:11:12.345 ProcessGroupNCCL.cpp:688] [Rank {rank}] Watchdog caught \
collective operation timeout: WorkNCCL(SeqNum=57, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, \
Timeout(ms)=600000) ran for 600021 milliseconds before timing out.
[rank{rank}]:[E1123 10:11:12.346 ProcessGroupNCCL.cpp:742] [Rank {rank}] To avoid data \
inconsistency, we are taking the entire process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated \
with exception: [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=57, \
OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600021 milliseconds \
before timing out.
Exception raised from checkTimeout at ProcessGroupNCCL.cpp:690 (most recent call first):
"""
REMOTE = """\
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  NCCL error in: ProcessGroupNCCL.cpp:2094, remote process exited or there was a network \
error, NCCL version 2.29.7
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting \
prematurely.
"""
MONITOR = """\
[rank0]:[F1123 10:19:00.000 ProcessGroupNCCL.cpp:1497] [PG ID 0 PG GUID 0(default_pg) Rank 0] \
Terminating the process after attempting to dump debug info, due to collective timeout or exception.
"""
ABORTED_BY_CUDA = """\
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with \
exception: CUDA error: {text}
"""
ENDED_IN_GROUP = """\
loss 0.5
terminate called without an active exception
"""
KEY_ERROR = """\
Traceback (most recent call last):
  File "/job/code/train.py", line 3, in <module>
    batch["loss"]
KeyError: 'loss'
"""
LOST = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:1"
TRY = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."


class Left(NamedTuple):
    """What one rank left."""

    code: int | None
    error: tuple[str, str] | None = None
    """Type and message in error.json."""
    stderr: str = ""
    killed_by_us: bool = False


class Recorded(NamedTuple):
    """A failure and its verdict."""

    ranks: list[Left]
    outcome: Outcome
    culprit: int | None
    sentence: str
    """Beginning of the sentence."""
    is_script: bool = False
    has_gpus: bool = True


def victim(code: int = 1) -> Left:
    return Left(code, ("RuntimeError", LOST))


def cuda(text: str) -> tuple[str, str]:
    return ("AcceleratorError", f"CUDA error: {text}\n{TRY}")


RECORDED = {
    "the watchdog of NCCL ends the ranks that waited for one that hangs": Recorded(
        [
            Left(-6, stderr=WATCHDOG.format(rank=0)),
            Left(-6, stderr=WATCHDOG.format(rank=1)),
            Left(-9, killed_by_us=True),
        ],
        Outcome.STALLED,
        2,
        "Rank 2 on n1 did not answer at step 120; rank 0 gave up waiting: [PG ID 0",
    ),
    "the watchdog of a script ends the ranks that waited": Recorded(
        [Left(-6, stderr=WATCHDOG.format(rank=0)), Left(None)],
        Outcome.STALLED,
        1,
        "Rank 1 on n1 did not answer at step 120; rank 0 gave up waiting",
        is_script=True,
    ),
    "the watchdog's monitor ends every rank": Recorded(
        [Left(-6, stderr=MONITOR), Left(-6, stderr=MONITOR)],
        Outcome.STALLED,
        None,
        "The ranks on n1 lost each other at step 120, and none of them failed by itself.",
    ),
    "a rank's own exception outweighs the watchdog of the others": Recorded(
        [Left(-6, stderr=WATCHDOG.format(rank=0)), Left(1, ("KeyError", "'loss'"))],
        Outcome.USER_ERROR,
        1,
        "Rank 1 on n1 failed with exit code 1 at step 120: KeyError: 'loss'",
    ),
    "an abort without a word is less guilty than an exception": Recorded(
        [Left(-6), Left(1, ("KeyError", "'loss'"))],
        Outcome.USER_ERROR,
        1,
        "Rank 1 on n1 failed with exit code 1 at step 120: KeyError: 'loss'",
    ),
    "a killed rank outweighs those whose NCCL lost it": Recorded(
        [Left(-6, stderr=REMOTE), Left(-9)],
        Outcome.KILLED,
        1,
        "Rank 1 on n1 was killed by signal 9 (SIGKILL) at step 120.",
    ),
    "a network that fails between healthy ranks": Recorded(
        [Left(-6, stderr=REMOTE), Left(-6, stderr=REMOTE)],
        Outcome.STALLED,
        None,
        "The ranks on n1 lost each other at step 120",
    ),
    "NCCL cannot use the system's sockets or memory": Recorded(
        [
            Left(
                1,
                (
                    "DistBackendError",
                    "NCCL error in: NCCLUtils.cpp:94, unhandled system error (run with "
                    "NCCL_DEBUG=INFO for details), NCCL version 2.29.7",
                ),
            )
        ]
        * 2,
        Outcome.STALLED,
        None,
        "The ranks on n1 lost each other at step 120",
    ),
    "every rank lost its peer": Recorded(
        [victim(), victim()],
        Outcome.STALLED,
        None,
        "The ranks on n1 lost each other at step 120",
        has_gpus=False,
    ),
    "a script whose rank left early": Recorded(
        [
            Left(1, stderr=f"Traceback (most recent call last):\n  x\nRuntimeError: {LOST}\n"),
            Left(0),
        ],
        Outcome.USER_ERROR,
        0,
        "Rank 0 on n1 failed with exit code 1 at step 120: RuntimeError",
        is_script=True,
    ),
    "a script that cannot reach its own database": Recorded(
        [
            Left(
                1,
                stderr="Traceback (most recent call last):\n  x\n"
                "ConnectionRefusedError: [Errno 111] Connection refused\n",
            )
        ]
        * 2,
        Outcome.USER_ERROR,
        0,
        "Rank 0 on n1 failed with exit code 1 at step 120: ConnectionRefusedError",
        is_script=True,
    ),
    "no memory, and a teardown that hung until it was killed": Recorded(
        [Left(-9, ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB.")), Left(-6)],
        Outcome.OUT_OF_MEMORY,
        0,
        "Rank 0 on n1 ran out of memory at step 120: OutOfMemoryError: CUDA out of memory.",
    ),
    "no memory outside torch's allocator": Recorded(
        [victim(), Left(1, cuda("out of memory"))],
        Outcome.OUT_OF_MEMORY,
        1,
        "Rank 1 on n1 ran out of memory at step 120: AcceleratorError: CUDA error: out of memory",
    ),
    "no memory for cuBLAS's workspace": Recorded(
        [
            Left(1, ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling x")),
            victim(),
        ],
        Outcome.OUT_OF_MEMORY,
        0,
        "Rank 0 on n1 ran out of memory at step 120",
    ),
    "no memory for cuBLAS's handle": Recorded(
        [
            Left(
                1,
                (
                    "RuntimeError",
                    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
                ),
            ),
            victim(),
        ],
        Outcome.OUT_OF_MEMORY,
        0,
        "Rank 0 on n1 ran out of memory at step 120",
    ),
    "no memory for NCCL": Recorded(
        [
            Left(
                1,
                (
                    "DistBackendError",
                    "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error (run with "
                    "NCCL_DEBUG=INFO for details), NCCL version 2.29.7\nncclUnhandledCudaError: "
                    "Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
                ),
            ),
            victim(),
        ],
        Outcome.OUT_OF_MEMORY,
        0,
        "Rank 0 on n1 ran out of memory at step 120",
    ),
    "no memory on an AMD GPU of a script": Recorded(
        [
            Left(
                1,
                stderr="Traceback (most recent call last):\n  x\n"
                "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB.\n",
            )
        ],
        Outcome.OUT_OF_MEMORY,
        0,
        "Rank 0 on n1 ran out of memory at step 120",
        is_script=True,
    ),
    "a broken memory cell of a GPU": Recorded(
        [victim(), Left(1, cuda("uncorrectable ECC error encountered"))],
        Outcome.GPU_FAILED,
        1,
        "The GPU of rank 1 on n1 failed at step 120: AcceleratorError: CUDA error: uncorrectable",
    ),
    "a broken memory cell, told by the watchdog": Recorded(
        [
            victim(),
            Left(-6, stderr=ABORTED_BY_CUDA.format(text="uncorrectable ECC error encountered")),
        ],
        Outcome.GPU_FAILED,
        1,
        "The GPU of rank 1 on n1 failed at step 120: c10::DistBackendError: [PG ID 0",
    ),
    "a GPU that has fallen off the bus": Recorded(
        [Left(1, ("RuntimeError", "Unable to determine the device handle: GPU is lost"))],
        Outcome.GPU_FAILED,
        0,
        "The GPU of rank 0 on n1 failed at step 120: RuntimeError: Unable to determine",
        is_script=False,
    ),
    "no GPU where there should be one": Recorded(
        [Left(1, ("RuntimeError", "No CUDA GPUs are available: no CUDA-capable device"))],
        Outcome.GPU_FAILED,
        0,
        "The GPU of rank 0 on n1 failed at step 120",
    ),
    "a driver that is too old for torch": Recorded(
        [
            Left(
                1,
                (
                    "RuntimeError",
                    "The NVIDIA driver on your system is too old (found version 12040). Please "
                    "update your GPU driver",
                ),
            )
        ],
        Outcome.GPU_FAILED,
        0,
        "The GPU of rank 0 on n1 failed at step 120: RuntimeError: The NVIDIA driver on your",
    ),
    "a driver that is too old for CUDA": Recorded(
        [Left(1, cuda("CUDA driver version is insufficient for CUDA runtime version"))],
        Outcome.GPU_FAILED,
        0,
        "The GPU of rank 0 on n1 failed at step 120",
    ),
    "a script that wants a GPU and was given none": Recorded(
        [
            Left(
                1,
                stderr="Traceback (most recent call last):\n  x\n"
                "RuntimeError: Found no NVIDIA driver on your system.\n",
            )
        ],
        Outcome.USER_ERROR,
        0,
        "Rank 0 on n1 failed with exit code 1 at step 120: RuntimeError: Found no NVIDIA driver",
        is_script=True,
        has_gpus=False,
    ),
    "an illegal access in a recipe, whose kernels are not its owner's": Recorded(
        [victim(), Left(1, cuda("an illegal memory access was encountered"))],
        Outcome.GPU_FAILED,
        1,
        "The GPU of rank 1 on n1 failed at step 120: AcceleratorError: CUDA error: an illegal",
    ),
    "an illegal access in a script, whose kernels may be its own": Recorded(
        [
            Left(
                1,
                stderr="Traceback (most recent call last):\n  x\n"
                "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n",
            )
        ],
        Outcome.USER_ERROR,
        0,
        "Rank 0 on n1 failed with exit code 1 at step 120: torch.AcceleratorError",
        is_script=True,
    ),
    "a program that crashes": Recorded(
        [Left(-11), victim()],
        Outcome.USER_ERROR,
        0,
        "Rank 0 on n1 crashed with signal 11 (SIGSEGV) at step 120.",
    ),
    "a script that ends in its process group of gloo": Recorded(
        [Left(-6, stderr=ENDED_IN_GROUP), Left(-15)],
        Outcome.USER_ERROR,
        0,
        "Rank 0 on n1 failed at step 120: abort: terminate called without an active exception. "
        "This happens at random to a program that ends in its process group of gloo: call "
        "torch.distributed.destroy_process_group() as its last step.",
        is_script=True,
    ),
    "a script's own exception": Recorded(
        [Left(1, stderr=KEY_ERROR), Left(-15)],
        Outcome.USER_ERROR,
        0,
        "Rank 0 on n1 failed with exit code 1 at step 120: KeyError: 'loss'",
        is_script=True,
    ),
    "an own exception, and a teardown that hung until it was killed": Recorded(
        [Left(-9, ("KeyError", "'loss'")), victim()],
        Outcome.USER_ERROR,
        0,
        "Rank 0 on n1 failed at step 120: KeyError: 'loss'",
    ),
}


def evidence_of(recorded: Recorded, folder: Path) -> Evidence:
    """Read what the ranks left, as their launcher does."""
    ranks = []
    for rank, left in enumerate(recorded.ranks):
        logs = folder / f"rank-{rank}"
        logs.mkdir()
        (logs / "stderr.log").write_text(left.stderr)
        if left.error is not None:
            kind, message = left.error
            record = {"type": kind, "message": message, "t_ns": 1000 + rank}
            (logs / "error.json").write_text(json.dumps(record))
        if recorded.is_script:
            error = traceback_error(logs / "stderr.log") if left.code else None
        else:
            error = error_of(logs, left.code)
        ranks.append(RankEvidence(rank, left.code, error, killed_by_us=left.killed_by_us))
    return Evidence(
        node="n1",
        ranks=ranks,
        result=None,
        step=120,
        is_script=recorded.is_script,
        has_gpus=recorded.has_gpus,
    )


@pytest.mark.parametrize("name", RECORDED)
def test_the_verdict_on(name: str, tmp_path: Path) -> None:
    recorded = RECORDED[name]
    verdict = judge(evidence_of(recorded, tmp_path))
    assert (verdict.outcome, verdict.culprit_rank) == (recorded.outcome, recorded.culprit)
    assert verdict.reason.startswith(recorded.sentence), verdict.reason
    retried = job_after(verdict.outcome, Desired.RUN, 0) is JobState.QUEUED
    assert retried is (recorded.outcome in ("stalled", "gpu_failed", "killed"))


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", Cause.MEMORY),
        ("RuntimeError", "CUDA error: CUSOLVER_STATUS_ALLOC_FAILED", Cause.MEMORY),
        ("RuntimeError", "HIP error: out of memory", Cause.MEMORY),
        ("XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory while trying", Cause.MEMORY),
        ("RuntimeError", "NVML: Driver/library version mismatch", Cause.GPU),
        ("AcceleratorError", "CUDA error: all CUDA-capable devices are busy or unavailable",
         Cause.GPU),
        ("AcceleratorError", "CUDA error: system not yet initialized", Cause.GPU),
        ("AcceleratorError", "CUDA error: unspecified launch failure", Cause.KERNEL),
        ("AcceleratorError", "CUDA error: device-side assert triggered", None),
        ("ValueError", "a batch of 3", None),
    ],
)  # fmt: skip
def test_an_errors_text_names_its_cause(kind: str, message: str, cause: Cause | None) -> None:
    assert cause_of(kind, message) is cause


KERNEL_LOG = [
    "6,100,50000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.",
    "6,101,60500000,-;NVRM: Xid (PCI:0000:86:00): 31, pid=8, name=python, MMU Fault",
    "6,102,61000000,-;usb 1-1: new device",
    "6,103,62000000,-;NVRM: Xid (PCI:0000:86:00): 94, pid=8, Contained ECC error",
]


def test_xids_of_hardware_are_read_from_the_kernels_log_since_the_start(tmp_path: Path) -> None:
    assert hardware_xids(KERNEL_LOG, since_s=60.0) == [Xid("0000:86:00", 94)]
    found = hardware_xids(KERNEL_LOG, since_s=0.0)
    assert [xid.number for xid in found] == [79, 94]
    addresses = {0: "00000000:86:00.0", 1: "00000000:3B:00.0", 2: "00000000:AF:00.0"}
    assert by_rank(found, addresses) == {
        0: "XID 94 (a contained ECC error)",
        1: "XID 79 (the GPU has fallen off the bus)",
    }
    (tmp_path / "kmsg").write_text("\n".join(KERNEL_LOG) + "\n")
    assert kernel_log(tmp_path / "kmsg") == KERNEL_LOG
    assert kernel_log(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("name", "is_gpus"),
    [
        ("an illegal access in a script, whose kernels may be its own", True),
        ("the watchdog of NCCL ends the ranks that waited for one that hangs", True),
        ("a program that crashes", True),
        ("a script's own exception", False),
        ("no memory outside torch's allocator", False),
        ("a killed rank outweighs those whose NCCL lost it", False),
    ],
)
def test_a_fault_that_the_kernel_reports_explains_what_no_exception_does(
    name: str, is_gpus: bool, tmp_path: Path
) -> None:
    recorded = RECORDED[name]
    evidence = evidence_of(recorded, tmp_path)
    verdict = judge(replace(evidence, gpu_faults={1: "XID 79 (the GPU has fallen off the bus)"}))
    assert verdict.outcome is (Outcome.GPU_FAILED if is_gpus else recorded.outcome)
    if is_gpus:
        assert verdict.culprit_rank == 1
        assert verdict.reason == (
            "The GPU of rank 1 on n1 failed at step 120: the kernel reports XID 79 (the GPU has "
            "fallen off the bus)."
        )
