"""FLOPs by the convention, against published numbers; peaks by a driver's name for a GPU."""

import pytest
from training_runs import make_spec

from strategies.planning.flops import flops_per_step, flops_per_token, matrix_weights
from strategies.planning.gpus import known_gpu, peak_tflops
from strategies.spec import ModelSpec, Precision


def test_gpt2_small_costs_what_nanogpt_counts() -> None:
    """nanoGPT (model.py, estimate_mfu) counts 6 N + 12 L H Q T with N = 123,653,376 parameters
    without positions, which include 98,304 of biases and norms (bias=False: 18,432 of norms)."""
    model = ModelSpec(name="gpt", layers=12, width=768, heads=12)
    matrices = matrix_weights(model, vocabulary=50_304)
    assert matrices == 12 * 12 * 768**2 + 50_304 * 768
    found = flops_per_token(model, vocabulary=50_304, sequence_length=1024)
    assert found == 6 * matrices + 12 * 12 * 768 * 1024
    assert found == pytest.approx(855_166_464, rel=1e-3)


def test_gpt3_costs_what_megatron_counts() -> None:
    """Narayanan et al. (arXiv:2104.04473), section 3: 72 B s l h^2 (1 + s/6h + V/12lh) per step,
    once the recomputed forward pass (a quarter of 96) is left out."""
    length, layers, width, vocabulary, batch = 2048, 96, 12288, 51_200, 64
    spec = make_spec(
        model={"name": "gpt", "layers": layers, "width": width, "heads": 96},
        data__sequence_length=length,
        data__vocabulary_size=vocabulary,
        training__global_batch_size=batch,
    )
    expected = 72 * batch * length * layers * width**2
    expected *= 1 + length / (6 * width) + vocabulary / (12 * layers * width)
    assert flops_per_step(spec) == pytest.approx(expected, rel=1e-12)


def test_published_utilisation_of_gpt3_on_64_gpus() -> None:
    """Korthikanti et al. (arXiv:2205.05198), table 5: 175B, batch 64, 64 A100, 13.75 s: 51.4 %."""
    spec = make_spec(
        model={"name": "gpt", "layers": 96, "width": 12288, "heads": 96},
        data__sequence_length=2048,
        data__vocabulary_size=51_200,
        training__global_batch_size=64,
    )
    peak = peak_tflops("NVIDIA A100-SXM4-80GB", Precision.BFLOAT16)
    assert peak is not None
    used = flops_per_step(spec) / 13.75 / (64 * peak * 1e12)
    assert 100 * used == pytest.approx(51.4, abs=0.1)


@pytest.mark.parametrize(
    ("model", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", Precision.BFLOAT16, 989.4),
        ("NVIDIA H100 PCIe", Precision.BFLOAT16, 756.0),
        ("Tesla V100-SXM2-32GB", Precision.BFLOAT16, 15.7),
        ("Tesla V100-SXM2-32GB", Precision.FLOAT16, 125.0),
        ("NVIDIA GeForce RTX 4090", Precision.FLOAT32, 82.6),
        ("NVIDIA A100-SXM4-40GB", Precision.FLOAT64, None),
        ("A GPU of tomorrow", Precision.BFLOAT16, None),
        (None, Precision.FLOAT32, None),
    ],
)
def test_peaks_are_known_or_not_told(
    model: str | None, precision: Precision, peak: float | None
) -> None:
    assert peak_tflops(model, precision) == peak


def test_the_longest_name_wins() -> None:
    gpu = known_gpu("NVIDIA H100 NVL")
    assert gpu is not None
    assert gpu.memory_gb == 94
