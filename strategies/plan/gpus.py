"""Peak speeds, links and memory of GPUs, from their makers' data sheets. Torch-free.

A GPU is known by the exact name that its driver gives it: a GPU that is only named alike (a laptop's,
a "Ti", a MIG instance) has other speeds. A node measures the speeds of an unknown GPU itself.
"""

from dataclasses import dataclass, replace

from strategies.plan.hardware import GpuSpeeds, Hardware
from strategies.plan.spec import Precision

MIB_PER_GIB = 1024
NOT_SUPPORTED = ("mi100", "mi250", "mi300", "max1550")  # begin the names of classes of other makers


@dataclass(frozen=True)
class Product:
    """A GPU as it is sold: its name in the driver, its memory as NVML counts it and the bandwidth of
    that memory, its speeds."""

    name: str
    memory_mib: int
    memory_gb_per_s: float
    speeds: GpuSpeeds


# The link is NVLink where every such GPU has it, else PCI Express x16 (bridges are an extra).
# fmt: off
#                          float32  TF32    float16 bfloat16 float8  link   source
P100_PCIE = GpuSpeeds(        9.3,  None,   None,    None,   None,   16.0, "NVIDIA Tesla P100 data sheet, PCIe")
P100_SXM2 = GpuSpeeds(       10.6,  None,   None,    None,   None,   80.0, "NVIDIA Tesla P100 data sheet, NVLink")
V100_PCIE = GpuSpeeds(       14.0,  None,  112.0,    None,   None,   16.0, "NVIDIA V100 data sheet, PCIe")
V100S_PCIE = GpuSpeeds(      16.4,  None,  130.0,    None,   None,   16.0, "NVIDIA V100 data sheet, V100S")
V100_SXM2 = GpuSpeeds(       15.7,  None,  125.0,    None,   None,  150.0, "NVIDIA V100 data sheet, SXM2")
T4 = GpuSpeeds(               8.1,  None,   65.0,    None,   None,   16.0, "NVIDIA T4 data sheet")
TURING_6000 = GpuSpeeds(     16.3,  None,  130.5,    None,   None,   16.0, "NVIDIA Quadro RTX 6000 data sheet")
A100_SXM4 = GpuSpeeds(       19.5, 156.0,  312.0,   312.0,   None,  300.0, "NVIDIA A100 data sheet, SXM")
A100_PCIE = GpuSpeeds(       19.5, 156.0,  312.0,   312.0,   None,   32.0, "NVIDIA A100 data sheet, PCIe")
A30 = GpuSpeeds(             10.3,  82.0,  165.0,   165.0,   None,   32.0, "NVIDIA A30 data sheet")
A40 = GpuSpeeds(             37.4,  74.8,  149.7,   149.7,   None,   32.0, "NVIDIA A40 data sheet")
A10 = GpuSpeeds(             31.2,  62.5,  125.0,   125.0,   None,   32.0, "NVIDIA A10 data sheet")
RTX_A6000 = GpuSpeeds(       38.7,  77.4,  154.8,   154.8,   None,   32.0, "NVIDIA RTX A6000 data sheet, dense")
RTX_3090 = GpuSpeeds(        35.6,  35.6,   71.0,    71.0,   None,   32.0, "NVIDIA GA102 architecture paper")
L4 = GpuSpeeds(              30.3,  60.0,  121.0,   121.0,  242.5,   32.0, "NVIDIA L4 data sheet, dense")
L40 = GpuSpeeds(             90.5,  90.5, 181.05,  181.05,  362.0,   32.0, "NVIDIA L40 data sheet")
L40S = GpuSpeeds(            91.6, 183.0, 362.05,  362.05,  733.0,   32.0, "NVIDIA L40S data sheet")
ADA_6000 = GpuSpeeds(        91.1, 182.1,  364.2,   364.2,  728.5,   32.0, "NVIDIA RTX 6000 Ada data sheet, dense")
RTX_4090 = GpuSpeeds(        82.6,  82.6,  165.2,   165.2,  330.3,   32.0, "NVIDIA Ada architecture paper")
H100_SXM5 = GpuSpeeds(       66.9, 494.7,  989.4,   989.4, 1978.9,  450.0, "NVIDIA H100 data sheet, SXM5")
H100_PCIE = GpuSpeeds(       51.2, 378.0,  756.0,   756.0, 1513.0,   64.0, "NVIDIA H100 data sheet, PCIe")
H100_NVL = GpuSpeeds(        60.0, 417.5,  835.0,   835.0, 1670.0,  300.0, "NVIDIA H100 data sheet, NVL")
H200_SXM = GpuSpeeds(        66.9, 494.7,  989.4,   989.4, 1978.9,  450.0, "NVIDIA H200 data sheet, SXM")
H200_NVL = GpuSpeeds(        60.0, 417.5,  835.5,   835.5, 1670.5,  450.0, "NVIDIA H200 data sheet, NVL")
GH200 = GpuSpeeds(           66.9, 494.7,  989.4,   989.4, 1978.9,  450.0, "NVIDIA GH200 data sheet")
B200 = GpuSpeeds(            75.0, 1100.0, 2250.0, 2250.0, 4500.0,  900.0, "NVIDIA Blackwell data sheet, HGX B200")
RTX_5090 = GpuSpeeds(       104.8, 104.8,  209.5,   209.5,  419.0,   64.0, "NVIDIA RTX Blackwell architecture paper")
PRO_6000 = GpuSpeeds(       126.0, 251.9,  503.8,   503.8, 1007.6,   64.0, "NVIDIA RTX PRO Blackwell architecture paper")

# Nodes that can be planned for without owning one, by the name of their class. Memory: NVML's total
# (nvidia-smi with a driver of 2022 or later, error correction as delivered), and its bandwidth by the
# same data sheets.
PRODUCTS = {
    "p100-16gb": Product("Tesla P100-PCIE-16GB", 16_384, 732, P100_PCIE),
    "p100-sxm2-16gb": Product("Tesla P100-SXM2-16GB", 16_384, 732, P100_SXM2),
    "v100-16gb": Product("Tesla V100-SXM2-16GB", 16_384, 900, V100_SXM2),
    "v100-32gb": Product("Tesla V100-SXM2-32GB", 32_768, 900, V100_SXM2),
    "v100-pcie-16gb": Product("Tesla V100-PCIE-16GB", 16_384, 900, V100_PCIE),
    "v100-pcie-32gb": Product("Tesla V100-PCIE-32GB", 32_768, 900, V100_PCIE),
    "v100s-pcie-32gb": Product("Tesla V100S-PCIE-32GB", 32_768, 1134, V100S_PCIE),
    "t4-16gb": Product("Tesla T4", 15_360, 320, T4),
    "rtx6000-24gb": Product("Quadro RTX 6000", 24_576, 672, TURING_6000),
    "rtx8000-48gb": Product("Quadro RTX 8000", 49_152, 672, TURING_6000),
    "a100-40gb": Product("NVIDIA A100-SXM4-40GB", 40_960, 1555, A100_SXM4),
    "a100-80gb": Product("NVIDIA A100-SXM4-80GB", 81_920, 2039, A100_SXM4),
    "a100-pcie-40gb": Product("NVIDIA A100-PCIE-40GB", 40_960, 1555, A100_PCIE),
    "a100-pcie-80gb": Product("NVIDIA A100 80GB PCIe", 81_920, 1935, A100_PCIE),
    "a30-24gb": Product("NVIDIA A30", 24_576, 933, A30),
    "a40-48gb": Product("NVIDIA A40", 46_068, 696, A40),
    "a10-24gb": Product("NVIDIA A10", 23_028, 600, A10),
    "rtxa6000-48gb": Product("NVIDIA RTX A6000", 49_140, 768, RTX_A6000),
    "rtx3090-24gb": Product("NVIDIA GeForce RTX 3090", 24_576, 936, RTX_3090),
    "l4-24gb": Product("NVIDIA L4", 23_034, 300, L4),
    "l40-48gb": Product("NVIDIA L40", 46_068, 864, L40),
    "l40s-48gb": Product("NVIDIA L40S", 46_068, 864, L40S),
    "rtx6000ada-48gb": Product("NVIDIA RTX 6000 Ada Generation", 49_140, 960, ADA_6000),
    "rtx4090-24gb": Product("NVIDIA GeForce RTX 4090", 24_564, 1008, RTX_4090),
    "h100-80gb": Product("NVIDIA H100 80GB HBM3", 81_559, 3350, H100_SXM5),
    "h100-pcie-80gb": Product("NVIDIA H100 PCIe", 81_559, 2000, H100_PCIE),
    "h100-nvl-94gb": Product("NVIDIA H100 NVL", 95_830, 3900, H100_NVL),
    "h200-141gb": Product("NVIDIA H200", 143_771, 4800, H200_SXM),
    "h200-nvl-141gb": Product("NVIDIA H200 NVL", 143_771, 4800, H200_NVL),
    "gh200-96gb": Product("NVIDIA GH200 480GB", 97_871, 4000, GH200),
    "b200-180gb": Product("NVIDIA B200", 183_359, 8000, B200),
    "rtx5090-32gb": Product("NVIDIA GeForce RTX 5090", 32_607, 1792, RTX_5090),
    "rtxpro6000-96gb": Product("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97_887, 1792, PRO_6000),
}
# fmt: on
BY_NAME = {
    product.name: replace(product.speeds, memory_gb_per_s=product.memory_gb_per_s)
    for product in PRODUCTS.values()
}


def known_node(class_name: str, *, gpus: int) -> Hardware:
    """Return a node of a known class.

    Raises ValueError, which names the known classes, or the reason why a maker is not supported.
    """
    name = class_name.lower()
    if name.startswith(NOT_SUPPORTED):
        raise ValueError(
            f"node class {class_name!r} cannot be planned: Trainyard runs on NVIDIA GPUs and on "
            "CPUs; GPUs of AMD and Intel are not supported"
        )
    product = PRODUCTS.get(name)
    if product is None:
        raise ValueError(
            f"node class {class_name!r} is not known; known are: {', '.join(PRODUCTS)}"
        )
    return Hardware(
        class_name=name,
        device="cuda",
        slots=gpus,
        memory_gib=product.memory_mib / MIB_PER_GIB,
        model=product.name,
    )


def known_gpu(model: str | None) -> GpuSpeeds | None:
    """Return the speeds of the GPU that a driver calls `model`; None if it is not known."""
    if model is None:
        return None
    # Drivers before version 465 leave out the maker.
    return BY_NAME.get(model) or BY_NAME.get(f"NVIDIA {model}")


def speeds_of(hardware: Hardware) -> GpuSpeeds | None:
    """Return the speeds of a class's GPUs by their data sheet, else as measured; None if neither
    is known."""
    return known_gpu(hardware.model) or hardware.speeds


def peak_tflops(
    model: str | None,
    precision: Precision,
    *,
    tf32: bool = False,
    measured: GpuSpeeds | None = None,
) -> float | None:
    """Return the dense peak in TFLOP/s for a precision; None if it is not known.

    `tf32`: float32 products may be computed in TF32. `measured` holds for an unknown model.
    """
    speeds = known_gpu(model) or measured
    if speeds is None or precision is Precision.FLOAT64:
        return None
    if precision is Precision.FLOAT32:
        return (speeds.tf32 if tf32 else None) or speeds.float32
    unit = speeds.float16 if precision is Precision.FLOAT16 else speeds.bfloat16
    return unit or speeds.float32
