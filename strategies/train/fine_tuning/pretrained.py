"""Weights of a Hugging Face checkpoint, read region by region into ours, and written back.

A checkpoint is a folder with config.json and safetensors, in one file or several with an index.
Files are mapped into memory, so a rank reads only the numbers that it keeps.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from strategies.plan.hugging_face.hf_config import (
    CONFIG,
    INDEX,
    HfConfig,
    UnsupportedModel,
    differences,
    parse_config,
)
from strategies.plan.hugging_face.hf_names import codes_name, hf_name, is_rotated
from strategies.plan.run_directory import WEIGHTS, BadCheckpoint
from strategies.plan.shapes import head_width
from strategies.plan.spec import TrainSpec
from strategies.train.fine_tuning import gptq
from strategies.train.init import Region

FLOATS = ("F64", "F32", "F16", "BF16")
IN_16_BITS = {frozenset({"F16"}): "float16", frozenset({"BF16"}): "bfloat16"}


class PretrainedWeights:
    """Initial weights from a checkpoint, for any layout: an `init.Source`.

    Raises BadCheckpoint if it is missing, torn, or of another shape than the spec's.
    """

    def __init__(self, folder: Path, spec: TrainSpec) -> None:
        self.folder = folder
        self.head_width = head_width(spec.model)
        config = read_config(folder)
        self.zeros_less_one = config.stores_zeros_less_one
        require_same_shape(config, spec, folder)

    @cached_property
    def holders(self) -> dict[str, Any]:
        """Open file that contains each weight, by Hugging Face's name."""
        opened: dict[str, Any] = {}
        for name in self.files():
            try:
                file: Any = safe_open(self.folder / name, framework="pt")
            except (OSError, SafetensorError) as error:
                raise BadCheckpoint(
                    f"{self.folder / name} cannot be read ({error}): it is missing, torn or not "
                    "safetensors; fetch or upload the model again"
                ) from error
            opened |= dict.fromkeys(file.keys(), file)
        return opened

    def dtype(self) -> str:
        """Return the type of all matrices; float32 if they differ, or are not in 16 bits."""
        parts = (file.get_slice(name) for name, file in self.holders.items())
        found = frozenset(part.get_dtype() for part in parts if len(part.get_shape()) > 1)
        return IN_16_BITS.get(found, "float32")

    def files(self) -> list[str]:
        """Return the names of the safetensors files."""
        index = self.folder / INDEX
        if not index.exists():
            return [WEIGHTS]
        try:
            files = set(json.loads(index.read_bytes())["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadCheckpoint(f"{index} is damaged: {error!r}") from error
        outside = [name for name in files if Path(name).name != name]
        if outside:
            raise BadCheckpoint(f"{index} points outside its folder: {outside[0]}")
        return sorted(files)

    def read(self, name: str, shape: torch.Size, region: Region, *, device: torch.device) -> Tensor:
        part = self.stored(hf_name(name), shape)
        if not is_rotated(name):
            return cut(part, region)
        rows, *others = region
        first = rows.start // self.head_width * self.head_width
        last = -(-rows.stop // self.head_width) * self.head_width
        whole_heads = cut(part, (slice(first, last), *others))
        return neighbours(whole_heads, self.head_width)[rows.start - first : rows.stop - first]

    def stored(self, there: str, shape: torch.Size) -> Any:
        """Return a weight, by Hugging Face's name, as an object that regions can be cut from."""
        if there not in self.holders and codes_name(there) in self.holders:
            opened = self.opened(there.removesuffix("weight"))
            self.require_shape(there, list(opened.shape), shape)
            return opened
        if there not in self.holders:
            raise BadCheckpoint(f"{self.folder} has no weight {there}; it is not complete")
        part = self.holders[there].get_slice(there)
        self.require_shape(there, part.get_shape(), shape)
        if (kind := part.get_dtype()) not in FLOATS:
            known = ", ".join(FLOATS)
            raise BadCheckpoint(f"{there} of {self.folder} is {kind}; take full weights: {known}")
        return part

    def require_shape(self, there: str, found: list[int], shape: torch.Size) -> None:
        if found != list(shape):
            raise BadCheckpoint(
                f"{there} of {self.folder} is {found} instead of {list(shape)}, which its "
                f"{CONFIG} asks for"
            )

    def opened(self, module: str) -> Tensor:
        """Return a matrix that GPTQ has rounded; `module` ends in a dot."""
        parts: list[Tensor] = []
        for part in gptq.PackedMatrix._fields:
            if (name := f"{module}{part}") not in self.holders:
                raise BadCheckpoint(f"{self.folder} has no {name}; it is not complete")
            parts.append(self.holders[name].get_tensor(name))
        try:
            return gptq.opened(gptq.PackedMatrix(*parts), zeros_less_one=self.zeros_less_one)
        except (RuntimeError, IndexError) as error:
            raise BadCheckpoint(
                f"{module}qweight of {self.folder} does not fit its scales, zeros or groups: "
                f"{error}"
            ) from error


def cut(part: Any, region: Region) -> Tensor:
    """Read a region of a tensor in a file."""
    found: Tensor = part[region]
    return found


def neighbours(there: Tensor, head_width: int) -> Tensor:
    """Reorder the rows of whole heads so that features rotated together are neighbours.

    `attention.rotate` expects that order; Hugging Face has them half a head apart.
    """
    return there.view(-1, 2, head_width // 2, *there.shape[1:]).transpose(1, 2).flatten(0, 2)


def halves(here: Tensor, head_width: int) -> Tensor:
    """Undo `neighbours`."""
    return here.view(-1, head_width // 2, 2, *here.shape[1:]).transpose(1, 2).flatten(0, 2)


def to_hugging_face(weights: dict[str, Tensor], spec: TrainSpec) -> dict[str, Tensor]:
    """Return whole weights of a llama under Hugging Face's names, in its order of rows."""
    of_each = head_width(spec.model)
    return {
        hf_name(name): halves(tensor, of_each).contiguous() if is_rotated(name) else tensor
        for name, tensor in weights.items()
    }


def read_config(folder: Path) -> HfConfig:
    """Read config.json of a checkpoint. Raises BadCheckpoint if it is missing or not supported."""
    if not folder.is_dir():
        raise BadCheckpoint(f"{folder} contains no model")
    try:
        return parse_config((folder / CONFIG).read_bytes())
    except OSError as error:
        raise BadCheckpoint(f"{folder} has no readable {CONFIG}: {error}") from error
    except UnsupportedModel as error:
        raise BadCheckpoint(f"{folder}: {error}") from error


def require_same_shape(config: HfConfig, spec: TrainSpec, folder: Path) -> None:
    """Raise BadCheckpoint, naming every field in which spec and config.json differ."""
    if found := list(differences(config, spec)):
        raise BadCheckpoint(
            f"checkpoint {spec.model.checkpoint} has another shape: {'; '.join(found)}"
        )
