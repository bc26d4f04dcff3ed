"""Peak speeds and links of GPUs, from their makers' data sheets. Torch-free.

A model that is not listed has no known peak, so its utilisation is not reported. The longest name
contained in the driver's name wins, so that "H100 PCIe" is not taken for "H100".
"""

from dataclasses import dataclass

from strategies.plan.hardware import Hardware
from strategies.plan.spec import Precision


@dataclass(frozen=True)
class Gpu:
    """Memory in GB as sold, and dense peaks in TFLOP/s.

    bfloat16 None: the GPU has no unit for it; it is emulated, no faster than float32.
    """

    memory_gb: int
    float32: float
    float16: float
    bfloat16: float | None
    link_gb_per_s: float | None
    """Bandwidth to other GPUs of its node, each way. None: not known."""
    source: str


GPUS = {
    "V100": Gpu(32, 15.7, 125.0, None, 150.0, "NVIDIA V100 data sheet, SXM2"),
    "A100": Gpu(80, 19.5, 312.0, 312.0, 300.0, "NVIDIA A100 data sheet"),
    "H100": Gpu(80, 66.9, 989.4, 989.4, 450.0, "NVIDIA H100 data sheet, SXM5"),
    "H100 PCIe": Gpu(80, 51.2, 756.0, 756.0, 64.0, "NVIDIA H100 data sheet, PCIe"),
    "H100 NVL": Gpu(94, 60.0, 835.0, 835.0, 300.0, "NVIDIA H100 data sheet, NVL"),
    "H200": Gpu(141, 66.9, 989.4, 989.4, 450.0, "NVIDIA H200 data sheet, SXM"),
    "L40S": Gpu(48, 91.6, 362.05, 362.05, 32.0, "NVIDIA L40S data sheet"),
    "RTX 4090": Gpu(
        24, 82.6, 165.2, 165.2, 32.0, "NVIDIA Ada architecture paper, float32 accumulation"
    ),
    "MI100": Gpu(32, 23.1, 184.6, 92.3, 138.0, "AMD Instinct MI100 brochure"),
    "MI250X": Gpu(128, 47.9, 383.0, 383.0, 400.0, "AMD Instinct MI250X data sheet, both dies"),
    "Max 1550": Gpu(128, 52.4, 832.0, 832.0, None, "Intel Data Center GPU Max 1550 product brief"),
}


# Nodes that can be planned for without owning one: the GPU, and its memory in GB as sold.
NODE_CLASSES = {
    "v100-32gb": ("V100", 32),
    "a100-40gb": ("A100", 40),
    "a100-80gb": ("A100", 80),
    "h100-80gb": ("H100", 80),
    "h100-pcie-80gb": ("H100 PCIe", 80),
    "h100-nvl-94gb": ("H100 NVL", 94),
    "h200-141gb": ("H200", 141),
    "l40s-48gb": ("L40S", 48),
    "rtx4090-24gb": ("RTX 4090", 24),
    "mi100-32gb": ("MI100", 32),
    "mi250x-128gb": ("MI250X", 128),
    "max1550-128gb": ("Max 1550", 128),
}
MEMORY_TO_USE = 0.99  # share of the sold memory that the driver leaves (81,559 MiB of an H100)


def known_node(class_name: str, *, gpus: int) -> Hardware:
    """Return a node of a known class. Raises ValueError, with the known names, for others."""
    try:
        model, memory_gb = NODE_CLASSES[class_name.lower()]
    except KeyError as error:
        raise ValueError(
            f"node class {class_name!r} is not known; known are: {', '.join(NODE_CLASSES)}"
        ) from error
    return Hardware(
        class_name=class_name.lower(),
        device="cuda",
        slots=gpus,
        memory_gib=MEMORY_TO_USE * memory_gb,
        model=model,
    )


def known_gpu(model: str | None) -> Gpu | None:
    """Return the GPU that a driver calls `model`, such as "NVIDIA A100-SXM4-80GB"; None if
    unknown."""
    if model is None:
        return None
    names = [name for name in GPUS if name.lower() in model.lower()]
    return GPUS[max(names, key=len)] if names else None


def peak_tflops(model: str | None, precision: Precision) -> float | None:
    """Return the dense peak in TFLOP/s for a precision; None if it is not known."""
    gpu = known_gpu(model)
    if gpu is None or precision is Precision.FLOAT64:
        return None
    if precision is Precision.FLOAT32:
        return gpu.float32
    if precision is Precision.FLOAT16:
        return gpu.float16
    return gpu.bfloat16 or gpu.float32
