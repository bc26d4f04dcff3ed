"""A checkpoint that GPTQ has rounded to 4 bits, packed by hand, is read as the numbers it means."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from strategies.plan.hugging_face.hf_config import UnsupportedModel, parse_config
from strategies.plan.run_directory import BadCheckpoint
from strategies.train.fine_tuning.source import source_of
from strategies.train.init import build_model
from tests.strategies.support.hf_models import make_model, planned

GROUP = 16  # inputs that share a scale
CPU = torch.device("cpu")


def pack(codes: list[list[int]]) -> Tensor:
    """Rows of codes as rows of 32-bit integers, eight to one, the first in the lowest bits."""
    rows = []
    for row in codes:
        words = [row[i : i + 8] for i in range(0, len(row), 8)]
        numbers = [sum(code << 4 * place for place, code in enumerate(word)) for word in words]
        rows.append([n - 2**32 if n >= 2**31 else n for n in numbers])
    return torch.tensor(rows, dtype=torch.int32)


def rounded(weight: Tensor, *, less: int, shuffled: bool) -> tuple[dict[str, Tensor], Tensor]:
    """The parts of a matrix (out, in) in GPTQ's format, and what they stand for."""
    out, into = weight.shape
    groups = torch.arange(into) // GROUP
    if shuffled:  # as desc_act leaves them
        groups = groups[torch.randperm(into)]
    scales, zeros = torch.empty(into // GROUP, out), torch.empty(into // GROUP, out).long()
    codes, meant = torch.empty(out, into).long(), torch.empty(out, into)
    for group in range(into // GROUP):
        part = weight[:, groups == group]
        low, high = part.amin(dim=1), part.amax(dim=1)
        scales[group] = ((high - low) / 14).half().float()
        zeros[group] = (-low / scales[group]).round().clamp(1, 15).long()
        steps = (part / scales[group][:, None]).round().long()
        codes[:, groups == group] = (steps + zeros[group][:, None]).clamp(0, 15)
    for i in range(into):
        scale, zero = scales[groups[i]], zeros[groups[i]]
        meant[:, i] = scale * (codes[:, i] - zero)
    parts = {
        "qweight": pack(codes.tolist()).T.contiguous(),
        "qzeros": pack((zeros - less).tolist()),
        "scales": scales.half(),
        "g_idx": groups.int(),
    }
    return parts, meant


def make_rounded(folder: Path, config: dict[str, Any], *, less: int, shuffled: bool) -> Path:
    """A llama with every matrix of its layers rounded, and beside it one with what that means."""
    torch.manual_seed(0)
    weights, meant = load_file(make_model("llama", folder / "rounded") / "model.safetensors"), {}
    for name in [name for name in weights if name.endswith("proj.weight")]:
        parts, meant[name] = rounded(weights.pop(name), less=less, shuffled=shuffled)
        weights |= {f"{name.removesuffix('weight')}{part}": parts[part] for part in parts}
    save_file(weights, folder / "rounded" / "model.safetensors")
    full = load_file(make_model("llama", folder / "full") / "model.safetensors")
    save_file(full | meant, folder / "full" / "model.safetensors")
    path = folder / "rounded" / "config.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"quantization_config": config}))
    return folder / "rounded"


@pytest.mark.parametrize(("format_", "less"), [("gptq", 1), ("gptq_v2", 0), (None, 1)])
@pytest.mark.parametrize("shuffled", [False, True])
def test_its_codes_are_read_as_what_they_stand_for(
    format_: str | None, less: int, shuffled: bool, tmp_path: Path
) -> None:
    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
    config |= {} if format_ is None else {"checkpoint_format": format_}
    folder = make_rounded(tmp_path, config, less=less, shuffled=shuffled)
    models = [
        build_model(run_plan.spec, device=CPU, source=source_of(run_plan))
        for run_plan in (planned(path, fields={}) for path in (folder, tmp_path / "full"))
    ]
    for (name, found), (_, wanted) in zip(*(m.named_weights() for m in models), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.parametrize(
    "config", [{"quant_method": "awq", "bits": 4}, {"quant_method": "gptq", "bits": 8}]
)
def test_other_codes_are_refused_by_what_they_are(config: dict[str, Any], tmp_path: Path) -> None:
    folder = make_rounded(tmp_path, config, less=1, shuffled=False)
    with pytest.raises(UnsupportedModel, match=f"{config['quant_method']}.*form is GPTQ with 4"):
        parse_config((folder / "config.json").read_bytes()).model()


def test_codes_that_lack_a_part_are_refused(tmp_path: Path) -> None:
    config = {"quant_method": "gptq", "bits": 4}
    folder = make_rounded(tmp_path, config, less=1, shuffled=False)
    weights = load_file(folder / "model.safetensors")
    for change, said in (
        ({"g_idx": None}, "has no model.layers.0.self_attn.q_proj.g_idx"),
        ({"scales": torch.ones(1, 32)}, "does not fit its scales"),
    ):
        torn = dict(weights)
        for part, tensor in change.items():
            name = f"model.layers.0.self_attn.q_proj.{part}"
            torn.pop(name)
            if tensor is not None:
                torn[name] = tensor
        save_file(torn, folder / "model.safetensors")
        run_plan = planned(folder, fields={})
        with pytest.raises(BadCheckpoint, match=said):
            build_model(run_plan.spec, device=CPU, source=source_of(run_plan))
