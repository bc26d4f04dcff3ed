"""In the worker's question to torch: a torch that sees the GPUs of the scripted NVML.

TRAINYARD_TEST_TORCH is the JSON of its `version`, `cuda`, `unseen` (UUIDs) and `wrong`
(true: products are). Without it the real
torch answers.
"""

import json
import os
import sys
from types import ModuleType, SimpleNamespace


class _Ones:
    def __init__(self, product):
        self.product = product

    def __matmul__(self, other):
        return self

    def __eq__(self, expected):
        return SimpleNamespace(all=lambda: self.product == expected)


def _torch(told):
    torch = ModuleType("torch")
    torch.__version__ = told.get("version", "2.13.0+cu130")
    torch.version = SimpleNamespace(cuda=told.get("cuda", "13.0"))

    def init():
        if told.get("init"):
            raise RuntimeError(told["init"])

    torch.ones = lambda *shape, device: _Ones(shape[0] + bool(told.get("wrong")))
    torch.cuda = SimpleNamespace(
        init=init,
        device_count=lambda: int(os.environ["CUDA_VISIBLE_DEVICES"] not in told.get("unseen", ())),
        get_device_capability=lambda index: tuple(told.get("capability", (8, 0))),
        get_arch_list=lambda: ["sm_75", "sm_80", "sm_90", "sm_100", "compute_120"],
    )
    return torch


if "strategies.train.trust.visible_gpus" in sys.orig_argv and "TRAINYARD_TEST_TORCH" in os.environ:
    sys.modules["torch"] = _torch(json.loads(os.environ["TRAINYARD_TEST_TORCH"]))
