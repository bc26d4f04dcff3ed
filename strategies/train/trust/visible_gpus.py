"""GPUs as torch sees them: `python -m strategies.train.trust.visible_gpus [--compute] UUID...`

Prints one JSON object: `cuda`, the version that torch was built for, and `reasons`, which maps
UUID -> reason why torch cannot use it, empty if it can. Each GPU is looked
at in a process of its own, because a process sees only one MIG instance, and a broken GPU hides
those after it. `--compute` also multiplies matrices on it.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence

import torch

ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)[af]?")


SIDE = 1024


def main(uuids: Sequence[str], *, compute: bool) -> None:
    """Print the answer for every UUID."""
    if torch.version.cuda is None:
        answers = dict.fromkeys(uuids, f"torch {torch.__version__} was built without CUDA.")
    else:
        pipes = {uuid: _ask_in_child(uuid, compute=compute) for uuid in uuids}
        answers = {uuid: _answer(pipe) for uuid, pipe in pipes.items()}
    sys.stdout.write(json.dumps({"cuda": torch.version.cuda, "reasons": answers}))


def _ask_in_child(uuid: str, *, compute: bool) -> int:
    """Fork a process that looks at one GPU; return the descriptor at which its answer arrives."""
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        os.write(writable, (_why_not() or (compute and _miscomputes()) or "ok").encode()[:400])
        os._exit(0)
    os.close(writable)
    return readable


def _answer(pipe: int) -> str:
    with os.fdopen(pipe, "rb") as file:
        answer = file.read().decode(errors="replace")
    os.wait()
    return answer.removeprefix("ok") if answer else "torch crashed when it looked at the GPU."


def _why_not() -> str:
    """Return the reason why torch cannot use the only visible GPU; empty if it can."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        if torch.cuda.device_count() != 1:
            return f"torch {torch.__version__} does not see the GPU."
        capability = torch.cuda.get_device_capability(0)
        built_for = torch.cuda.get_arch_list()
    except (RuntimeError, AssertionError) as error:
        first_line = str(error).strip().splitlines()[0]
        return f"torch {torch.__version__} cannot use the GPU: {first_line}"
    if not has_kernels(capability, built_for):
        major, minor = capability
        return (
            f"torch {torch.__version__} has no kernels for compute capability {major}.{minor} "
            f"(it has {', '.join(built_for)})."
        )
    return ""


def _miscomputes() -> str:
    """Return the reason why a product on the only visible GPU is not right; empty if it is."""
    try:
        ones = torch.ones(SIDE, SIDE, device="cuda")
        is_right = bool((ones @ ones == SIDE).all())
    except RuntimeError as error:
        return f"torch cannot compute on the GPU: {str(error).strip().splitlines()[0]}"
    return "" if is_right else "a product of matrices on the GPU is wrong."


def has_kernels(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Return True if code built for these architectures runs on a GPU of this compute capability.

    Machine code (`sm_80`) runs on the same major version from its minor version on, PTX
    (`compute_80`) on any later one.
    Source: CUDA C++ Programming Guide, binary and PTX compatibility.
    """
    for name in built_for:
        found = ARCHITECTURE.fullmatch(name)
        if found is None:
            continue
        version = int(found[2]), int(found[3])
        if version <= capability and (found[1] == "compute" or version[0] == capability[0]):
            return True
    return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--compute", action="store_true")
    parser.add_argument("uuids", nargs="*")
    asked = parser.parse_args()
    main(asked.uuids, compute=asked.compute)
