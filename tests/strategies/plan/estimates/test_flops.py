"""FLOPs by the convention, against published numbers; peaks by a driver's name for a GPU."""

import pytest

from strategies.plan.estimates.flops import (
    flops_per_step,
    flops_per_token,
    flops_per_token_of,
    matrix_weights,
)
from strategies.plan.gpus import peak_tflops
from strategies.plan.spec import ModelSpec, Precision
from tests.strategies.support.training_runs import make_spec, spec_of_model


def test_gpt2_small_costs_what_nanogpt_counts() -> None:
    """nanoGPT (model.py, estimate_mfu) counts 6 N + 12 L H Q T of GPT-2 small with 1,024 tokens,
    855,166,464, with all N = 123,653,376 parameters but positions: 121,344 are biases and norms,
    which no token is multiplied by."""
    model = ModelSpec(name="gpt", layers=12, width=768, heads=12)
    matrices = matrix_weights(model, vocabulary=50_257)
    biases_and_norms = 12 * (3 * 768 + 768 + 4 * 768 + 768 + 4 * 768) + 2 * 768
    assert matrices + biases_and_norms == 123_653_376
    found = flops_per_token(model, vocabulary=50_257, sequence_length=1024)
    assert found + 6 * biases_and_norms == 855_166_464


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


@pytest.mark.parametrize(
    ("layers", "width", "num_heads", "batch", "gpus", "step_s", "percent", "of_hardware"),
    [
        pytest.param(48, 6144, 64, 4, 8, 1.10, 41.5, 43.7, id="22B"),
        pytest.param(96, 12288, 96, 64, 64, 13.75, 51.4, 52.8, id="175B"),
        pytest.param(105, 20480, 128, 280, 280, 37.83, 56.0, 57.0, id="530B"),
    ],
)
def test_published_utilisation(
    layers: int,
    width: int,
    num_heads: int,
    batch: int,
    gpus: int,
    step_s: float,
    percent: float,
    of_hardware: float,
) -> None:
    """Korthikanti et al. (arXiv:2205.05198), table 5: A100, 2,048 tokens, vocabulary 51,200; the
    time of the smallest is told to three digits, which makes 0.2 points. The hardware also runs
    attention a second time, which they count as s/6h more; the planner counts no recomputation."""
    spec = make_spec(
        model={"name": "gpt", "layers": layers, "width": width, "heads": num_heads},
        data__sequence_length=2048,
        data__vocabulary_size=51_200,
        training__global_batch_size=batch,
    )
    peak = peak_tflops("NVIDIA A100-SXM4-80GB", Precision.BFLOAT16)
    assert peak is not None
    used = flops_per_step(spec) / step_s / (gpus * peak * 1e12)
    assert 100 * used == pytest.approx(percent, abs=0.3)
    attention = 12 * layers * width * 2048 / flops_per_token_of(spec)
    assert 100 * used * (1 + attention) == pytest.approx(of_hardware, abs=0.3)


@pytest.mark.parametrize(("tokens_per_s", "percent"), [(5_762, 33.7), (6_667, 39.0)])
def test_torchtitans_utilisation_of_llama_8b(tokens_per_s: float, percent: float) -> None:
    """torchtitan, benchmarks of Llama 3.1 8B on H100, 8,192 tokens: "33 % to 39 %"."""
    spec = spec_of_model("llama-3-8b", data__sequence_length=8192)
    peak = peak_tflops("NVIDIA H100 80GB HBM3", Precision.BFLOAT16)
    assert peak is not None
    used = tokens_per_s * flops_per_token_of(spec) / (peak * 1e12)
    assert 100 * used == pytest.approx(percent, abs=0.3)


@pytest.mark.parametrize(
    ("teraflops", "percent"), [(137, 44), (142, 46), (163, 52)], ids=lambda number: str(number)
)
def test_published_shares_of_an_a100s_peak(teraflops: float, percent: int) -> None:
    """Narayanan et al. (arXiv:2104.04473), table 1."""
    peak = peak_tflops("NVIDIA A100-SXM4-80GB", Precision.BFLOAT16)
    assert peak is not None
    assert round(100 * teraflops / peak) == percent


def test_chinchillas_arithmetic_is_six_per_parameter_and_token() -> None:
    """Hoffmann et al. (arXiv:2203.15556), table A9 and section 3: 70B on 1.4T tokens, 5.88e23 by
    6 N D. Its shape: 80 layers of width 8,192; attention, which 6 N D leaves out, is 3 % here."""
    model = ModelSpec(name="gpt", layers=80, width=8192, heads=64)
    per_token = flops_per_token(model, vocabulary=32_000, sequence_length=2048)
    assert per_token * 1.4e12 == pytest.approx(5.88e23, rel=0.05)


def test_gophers_arithmetic_is_six_per_parameter_and_token() -> None:
    """Hoffmann et al. (arXiv:2203.15556), table 1 and section 3: 280B on 300B tokens, 5.04e23 by
    6 N D. Gopher has a matrix of relative positions in each layer, which ours has not; attention is
    left out."""
    model = ModelSpec(name="gpt", layers=80, width=16_384, heads=128)
    per_token = 6 * (matrix_weights(model, vocabulary=32_000) + 80 * 16_384**2)
    assert per_token * 300e9 == pytest.approx(5.04e23, rel=0.01)
