"""Question to torch: which of the GPUs can it use?"""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from strategies.plan.torch_builds import judge_build
from worker.gpus.torch_build import driver_and_capabilities
from worker.gpus.torch_process import PATIENCE_S, ask, last_words

ASKED = "strategies.train.trust.visible_gpus"
COMPUTE = "--compute"


def ask_torch(uuids: Sequence[str], *, computing: bool = False) -> dict[str, str]:
    """Map UUID -> reason why torch cannot use it; empty if it can. `computing`: also multiply
    matrices on it, which needs memory there."""
    if not uuids:
        return {}
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        done = ask(ASKED, *[COMPUTE] * computing, *uuids, environment=environment)
    except subprocess.TimeoutExpired:
        why = f"torch did not answer within {PATIENCE_S:.0f} s when asked for the GPU."
        return dict.fromkeys(uuids, why)
    try:
        answer = json.loads(done.stdout)
        reasons = {uuid: str(answer["reasons"][uuid]) for uuid in uuids}
        cuda = answer["cuda"]
    except (ValueError, KeyError, TypeError):
        return dict.fromkeys(uuids, f"torch cannot be asked for the GPU: {last_words(done)}")
    return with_advice(reasons, cuda=cuda) if any(reasons.values()) else reasons


def with_advice(reasons: Mapping[str, str], *, cuda: str | None) -> dict[str, str]:
    """Add to each reason which build of torch to install, if the installed one does not fit."""
    driver, capabilities = driver_and_capabilities()
    verdict = judge_build(cuda=cuda, hip=None, driver=driver, capabilities=capabilities)
    if not verdict.todo:
        return dict(reasons)
    then = f"{verdict.todo}, then restart the worker."
    return {uuid: f"{why} {then}" if why else "" for uuid, why in reasons.items()}


class TorchView:
    """Torch's last answer for each GPU; asked again for those that have come (back)."""

    def __init__(self, answered: Callable[[], None]) -> None:
        """`answered` is called when an answer has come, from another thread."""
        self.answers: dict[str, str] = {}
        self._answered = answered
        self._asking: threading.Thread | None = None

    def ask(self, uuids: Sequence[str]) -> None:
        """Wait for torch's answer on these GPUs."""
        self.answers |= ask_torch(uuids)

    def ask_aside(self, uuids: Sequence[str], *, suspected: Collection[str]) -> None:
        """Ask in a thread, unless one is asking. Those of them that are suspected must compute."""
        if self._asking is not None and self._asking.is_alive():
            return

        tested = [uuid for uuid in uuids if uuid in suspected]
        others = [uuid for uuid in uuids if uuid not in suspected]

        def work() -> None:
            self.ask(others)
            self.answers |= ask_torch(tested, computing=True)
            self._answered()

        self._asking = threading.Thread(target=work, name="torch-view", daemon=True)
        self._asking.start()

    def forget(self, uuid: str) -> None:
        """Forget the answer on a GPU that has gone: it is asked for again when it is back."""
        self.answers.pop(uuid, None)
