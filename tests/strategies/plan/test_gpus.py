"""Known GPUs: real names of drivers, peaks of data sheets, memory as NVML counts it."""

from dataclasses import replace
from pathlib import Path

import pytest

from strategies.plan.gpus import PRODUCTS, known_gpu, known_node, peak_tflops
from strategies.plan.spec import Precision

FLOAT32, FLOAT16, BFLOAT16 = Precision.FLOAT32, Precision.FLOAT16, Precision.BFLOAT16


@pytest.mark.parametrize(
    ("model", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", BFLOAT16, 989.4),
        ("NVIDIA H100 PCIe", BFLOAT16, 756.0),
        ("Tesla V100-SXM2-32GB", BFLOAT16, 15.7),
        ("Tesla V100-SXM2-32GB", FLOAT16, 125.0),
        ("Tesla V100-PCIE-16GB", FLOAT16, 112.0),
        ("Tesla P100-PCIE-16GB", FLOAT16, 9.3),
        ("Tesla T4", FLOAT16, 65.0),
        ("Quadro RTX 6000", FLOAT16, 130.5),
        ("Quadro RTX 6000", BFLOAT16, 16.3),
        ("NVIDIA RTX 6000 Ada Generation", BFLOAT16, 364.2),
        ("NVIDIA RTX A6000", BFLOAT16, 154.8),
        ("NVIDIA A30", BFLOAT16, 165.0),
        ("NVIDIA A10", BFLOAT16, 125.0),
        ("NVIDIA L4", BFLOAT16, 121.0),
        ("NVIDIA L40", BFLOAT16, 181.05),
        ("NVIDIA L40S", BFLOAT16, 362.05),
        ("NVIDIA GH200 480GB", BFLOAT16, 989.4),
        ("NVIDIA B200", BFLOAT16, 2250.0),
        ("NVIDIA GeForce RTX 3090", FLOAT16, 71.0),
        ("NVIDIA GeForce RTX 4090", FLOAT32, 82.6),
        ("NVIDIA GeForce RTX 5090", BFLOAT16, 209.5),
        ("A100-SXM4-40GB", BFLOAT16, 312.0),  # of a driver before version 465
        ("NVIDIA A100-SXM4-40GB", Precision.FLOAT64, None),
        ("A GPU of tomorrow", BFLOAT16, None),
        (None, FLOAT32, None),
    ],
)
def test_peaks_are_known_or_not_told(
    model: str | None, precision: Precision, peak: float | None
) -> None:
    assert peak_tflops(model, precision) == peak


@pytest.mark.parametrize(
    "model",
    [
        "NVIDIA A10G",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A800-SXM4-80GB",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA H20",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    ],
)
def test_a_gpu_that_is_only_named_alike_is_not_known(model: str) -> None:
    assert known_gpu(model) is None


def test_float32_may_be_computed_in_tf32_where_the_gpu_has_it() -> None:
    assert peak_tflops("NVIDIA A100-SXM4-40GB", FLOAT32) == 19.5
    assert peak_tflops("NVIDIA A100-SXM4-40GB", FLOAT32, tf32=True) == 156.0
    assert peak_tflops("Tesla V100-SXM2-32GB", FLOAT32, tf32=True) == 15.7
    assert peak_tflops("NVIDIA A100-SXM4-40GB", BFLOAT16, tf32=True) == 312.0


def test_a_card_has_the_link_of_its_slot_not_that_of_nvlink() -> None:
    links = {
        name: gpu.link_gb_per_s
        for name in ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-40GB")
        if (gpu := known_gpu(name))
    }
    assert list(links.values()) == [300.0, 32.0, 32.0]


@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_a_class_has_the_memory_that_nvml_counts_and_the_name_of_its_driver(name: str) -> None:
    product, node = PRODUCTS[name], known_node(name, gpus=4)
    sold_gb = int(name.rsplit("-", 1)[1].removesuffix("gb"))
    assert 0.93 * sold_gb < node.memory_gib <= 1.02 * sold_gb
    speeds = known_gpu(node.model)
    assert speeds == replace(product.speeds, memory_gb_per_s=product.memory_gb_per_s)
    speeds = product.speeds
    ascending = [speeds.float32, speeds.tf32, speeds.bfloat16, speeds.float8]
    told = [peak for peak in ascending if peak is not None]
    assert told == sorted(told)
    assert speeds.bfloat16 in (None, speeds.float16)


def test_the_memory_of_an_l40s_is_that_of_its_driver() -> None:
    assert known_node("l40s-48gb", gpus=2).memory_gib == pytest.approx(45.0, abs=0.02)
    assert known_node("a100-40gb", gpus=4).memory_gib == 40.0


def test_a_class_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="node class 'k80' is not known; known are: p100-16gb"):
        known_node("k80", gpus=1)


@pytest.mark.parametrize("name", ["mi100-32gb", "MI250X-128gb", "max1550-128gb"])
def test_a_class_of_another_maker_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' cannot be planned: .* AMD and Intel are not"):
        known_node(name, gpus=1)


def test_the_page_lists_every_known_class() -> None:
    page = (Path(__file__).parents[3] / "docs" / "gpus.md").read_text()
    assert [name for name in PRODUCTS if f"`{name}`" not in page] == []
