"""ZeRO (arXiv:1910.02054) by DeepSpeed: ranks that see other samples share out the optimizer's
state (stage 1), the gradients too (stage 2), the weights too (stage 3).

DeepSpeed keeps its own copy of the weights, and the optimizer's state, as flat rows of float32
numbers, one for every kind of weight; a rank owns a part of each. It averages gradients over
ranks, so losses are multiplied by their number.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from strategies.engine import Batch, Held, State, copy_state, sum_of
from strategies.gradients import norm_of, num_bytes
from strategies.init import Source, design_model
from strategies.loss import Measure, token_loss_sum
from strategies.models.network import Network
from strategies.optimizers.optimizer import build_optimizer, set_learning_rate
from strategies.parallel.fragment import Fragment
from strategies.parallel.mesh import Mesh
from strategies.parallel.spmd import give_first_weights, transform_forward
from strategies.planning.planner import Plan
from strategies.spec import Offload, Strategy, TrainSpec
from strategies.watching.phases import Phase, phase

# DeepSpeed looks for an accelerator when it is imported, and complains where there is none.
os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.device_count() else "cpu")

import deepspeed
from deepspeed.accelerator import get_accelerator, set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.runtime.zero.linear import zero3_linear_wrap
from deepspeed.utils.z3_leaf_module import set_z3_leaf_module

# What DeepSpeed believes it can compile on this machine: nothing. Where it finds a compiler, it
# builds collectives of its own when a run begins, and waits for ever for a build that was killed.
deepspeed.ops.__compatible_ops__ = {}

# It imports its Muon optimizer to learn that another one is in use, and Muon's kernels would bring
# in torch's compiler: seconds at the start of every run.
deepspeed.runtime.compiler.compile = lambda: lambda function: function

# It calls collectives by names that torch is about to drop.
warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)

STAGES = {Strategy.ZERO1: 1, Strategy.ZERO2: 2, Strategy.ZERO3: 3}
BUCKET = 25_000_000  # numbers sent at a time; DeepSpeed's own 500 million dwarf small models
NORM_ROW = 1024  # numbers whose squares are added up in float32; the sums then in float64


class Part(NamedTuple):
    """Where this rank keeps what it owns of a weight."""

    name: str
    shape: torch.Size
    start: int  # of the part, in the flattened weight
    row: Tensor  # the flat row of numbers that it lies in
    at: int  # its place there
    length: int

    def of(self, row: Tensor) -> Fragment:
        """The same part of a row like `row`."""
        numbers = row.detach()[self.at : self.at + self.length]
        return Fragment(numbers, start=self.start, shape=self.shape)


class ZeroEngine:
    """DeepSpeed's engine behind the loop's protocol."""

    def setup(self, spec: TrainSpec, plan: Plan, mesh: Mesh, source: Source) -> None:
        self.mesh, self.stage = mesh, STAGES[plan.strategy]
        self.offloads = spec.parallelism.offload_optimizer is not Offload.NONE
        meet_deepspeed(mesh)
        config = deepspeed_config(spec, plan)
        model = design_model(spec)
        designed = dict(model.named_weights())
        self.optimizer = build_optimizer(designed.values(), spec.training)
        transform_forward(model, spec, mesh)
        if self.stage == 3:
            save_weights_whole(model)
            for layer in model.layers.values():
                set_z3_leaf_module(layer, True)  # gathered as one
            give_first_weights(model, source, mesh, then=lambda layer: split(layer, config))
        else:
            give_first_weights(model, source, mesh)
        state_parts = adopt(self.optimizer, designed, model)
        self.deepspeed, self.zero, _, _ = deepspeed.initialize(
            model=model, optimizer=self.optimizer, config=config, dist_init_required=False
        )
        self.parts = list(self.own_parts(model, designed))
        for row in self.rows():
            self.optimizer.state[row] = {
                name: torch.zeros_like(row) if whole else torch.zeros((), device=row.device)
                for name, whole in state_parts.items()
            }

    def rows(self) -> list[nn.Parameter]:
        """What the optimizer updates on this rank: its part of every flat row of weights."""
        rows: list[nn.Parameter] = (
            self.zero.fp32_partitioned_groups_flat
            if self.stage == 3
            else self.zero.single_partition_of_fp32_groups
        )
        return rows

    def own_parts(self, model: Network, designed: dict[str, nn.Parameter]) -> Iterator[Part]:
        """Where this rank keeps its part of each weight; weights of other ranks are left out."""
        rows = self.rows()
        for name, weight in model.named_weights():
            shape: Any = designed[name].shape
            if self.stage == 3:  # every weight is cut in equal parts, the last one padded
                row, at, length = self.zero.grad_position[self.zero.get_param_id(weight)]
                start = self.mesh.rank * length
                length = min(length, shape.numel() - start)
            elif (held := weight._hp_mapping) is not None:  # type: ignore[attr-defined]
                row, start = held.param_group_index, held.lp_fragment_address.start
                at, length = held.hp_fragment_address.start, held.hp_fragment_address.numel
            else:
                continue
            if length > 0:
                yield Part(name, shape, start, rows[row], at, length)

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        shares = []
        for i, batch in enumerate(micro_batches):
            last = i == len(micro_batches) - 1
            self.deepspeed.set_gradient_accumulation_boundary(last)
            with phase(Phase.FORWARD):
                logits_BTV = self.deepspeed(batch.inputs_BT, batch.documents_BT)
                loss = token_loss_sum(logits_BTV, batch.labels_BT) / divisor
            with phase(Phase.BACKWARD):
                self.deepspeed.backward(loss * self.mesh.world_size, scale_wrt_gas=False)
            shares.append(loss.detach())
        return sum_of(shares)

    @torch.no_grad()
    def clip(self, max_norm: float, loss_scale: float) -> Tensor:
        gradients = [part for row in self.own_gradients() for part in row]
        squares = norm_of(list(even_rows(gradients))).square().to(self.mesh.device)
        norm = self.mesh.sum(squares).sqrt() / loss_scale
        if norm.isfinite():
            factor = (max_norm / (norm + 1e-6)).clamp(max=1.0) / loss_scale
            for gradient in gradients:
                gradient.mul_(factor)
        return norm

    def own_gradients(self) -> list[list[Tensor]]:
        """The gradient of each of this rank's rows, in pieces; summed over ranks."""
        if self.offloads:
            get_accelerator().synchronize()  # it is copied to the host beside the backward pass
            return [[row.grad] for row in self.rows() if row.grad is not None]
        return [self.zero.averaged_gradients.get(i) or [] for i in range(len(self.rows()))]

    def step(self, learning_rate: float) -> None:
        set_learning_rate(self.optimizer, learning_rate)
        self.deepspeed.step()

    def skip(self) -> None:
        # DeepSpeed passes over a step whose gradient's norm is not finite, as it measures it.
        for gradient in (part for row in self.own_gradients() for part in row):
            gradient.fill_(torch.nan)
        if self.offloads:
            for norm in self.zero.norm_for_param_grads.values():
                norm.fill_(torch.nan)
        self.deepspeed.step()

    def broken_weights(self) -> list[str]:
        gradients = {
            id(row): torch.cat([piece.flatten() for piece in pieces])
            for row, pieces in zip(self.rows(), self.own_gradients(), strict=True)
        }
        return [
            part.name
            for part in self.parts
            if not gradients[id(part.row)][part.at : part.at + part.length].isfinite().all()
        ]

    @torch.no_grad()
    def evaluate(self, micro_batch: Batch, measure: Measure) -> Tensor:
        logits_BTV = self.deepspeed(micro_batch.inputs_BT, micro_batch.documents_BT)
        return measure(logits_BTV, micro_batch.labels_BT)

    def held(self) -> Held:
        rows = self.rows()
        weights = [
            weight.ds_tensor if self.stage == 3 else weight
            for weight in self.deepspeed.parameters()
        ]
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in (*rows, *weights)  # in float32, stage 3 needs no copy of its weights
        }
        return Held(
            weights=sum(storages.values()),
            gradients=num_bytes(piece for row in self.own_gradients() for piece in row),
            optimizer=num_bytes(
                part for row in rows for part in self.optimizer.state[row].values()
            ),
        )

    def state(self) -> State:
        state: State = {"model": {}, "optimizer": {}}
        for part in self.parts:
            state["model"][part.name] = part.of(part.row)
            for name, value in self.optimizer.state[part.row].items():
                whole = value.shape == part.row.shape
                state["optimizer"][f"{part.name}.{name}"] = part.of(value) if whole else value
        return state

    @torch.no_grad()
    def load(self, state: State) -> None:
        copy_state(state, self.state())
        if self.stage < 3:
            self.zero.update_lp_params()
            return
        for i in range(len(self.rows())):
            self.zero._reassign_or_swap_out_partitioned_parameters(i)
        if self.zero.persistent_parameters:
            self.zero.persistent_parameters[0].partition(self.zero.persistent_parameters)
            self.zero.persistent_parameters[0].all_gather(self.zero.persistent_parameters)

    def close(self) -> None:
        """The process group belongs to the loop."""


def meet_deepspeed(mesh: Mesh) -> None:
    """Point DeepSpeed at this rank's device, and give a rank alone the group that it insists on."""
    if mesh.device.type == "cpu" and get_accelerator().device_name() != "cpu":
        set_accelerator(CPU_Accelerator())
    if not dist.is_initialized():
        backend = "nccl" if mesh.device.type == "cuda" else "gloo"
        alone = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=alone, rank=0, world_size=1)


def deepspeed_config(spec: TrainSpec, plan: Plan) -> dict[str, Any]:
    """DeepSpeed's settings, under its names; ValueError for what cannot run."""
    asked, stage = spec.parallelism, STAGES[plan.strategy]
    layer = plan.parameters // spec.model.layers
    zero: dict[str, Any] = {
        "stage": stage,
        "reduce_bucket_size": min(BUCKET, plan.parameters),
        "allgather_bucket_size": 2 * BUCKET,
    }
    if stage == 3:
        # A layer at a time, and the next one on its way. Norms and biases stay whole.
        zero |= {
            "stage3_prefetch_bucket_size": layer,
            "stage3_max_live_parameters": 2 * layer,
            "stage3_max_reuse_distance": layer,
            "stage3_param_persistence_threshold": 2 * spec.model.width,
            "memory_efficient_linear": False,  # it would change torch's own function, for good
        }
    for field, device in (
        ("offload_optimizer", asked.offload_optimizer),
        ("offload_param", asked.offload_parameters),
    ):
        if device is Offload.NVME:
            raise ValueError(f"{field} nvme needs libaio and DeepSpeed's async_io op; take cpu")
        if device is not Offload.NONE:
            zero[field] = {"device": device.value, "pin_memory": plan.device == "cuda"}
    return {
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "gradient_clipping": 0.0,  # the loop clips; left out, DeepSpeed would clip at 1
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # it would have to be compiled on the node
        "steps_per_print": None,
    }


def split(layer: nn.Module, config: dict[str, Any]) -> None:
    """Cut a layer's weights over the ranks, as stage 3 has them."""
    deepspeed.zero.Init(module=layer, config_dict_or_path=config)


def save_weights_whole(model: nn.Module) -> None:
    """Let linear layers save their weight for the backward pass as DeepSpeed knows it.

    torch saves a transposed view, which would keep a gathered weight alive until then.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.forward = partial(linear, module)  # type: ignore[method-assign]


def linear(module: nn.Linear, x: Tensor) -> Tensor:
    y: Tensor = zero3_linear_wrap(x, module.weight, module.bias)
    return y


def adopt(
    optimizer: Optimizer, designed: dict[str, nn.Parameter], model: Network
) -> dict[str, bool]:
    """Put the model's weights in the place of the designed ones; which state the optimizer keeps
    of a weight, and whether it has the weight's size."""
    weights = {id(designed[name]): weight for name, weight in model.named_weights()}
    stand_in = next(iter(designed.values()))
    kept = {name: value.ndim > 0 for name, value in optimizer.state[stand_in].items()}
    optimizer.state.clear()
    for group in optimizer.param_groups:
        group["params"] = [weights[id(parameter)] for parameter in group["params"]]
    return kept


def even_rows(gradients: Sequence[Tensor]) -> Iterator[Tensor]:
    """All their numbers, in rows short enough to be summed in float32."""
    for gradient in gradients:
        numbers = gradient.flatten()
        whole = len(numbers) // NORM_ROW * NORM_ROW
        yield numbers[:whole].view(-1, NORM_ROW)
        yield numbers[whole:]
