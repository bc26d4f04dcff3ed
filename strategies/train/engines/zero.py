"""ZeRO (arXiv:1910.02054) by DeepSpeed: data-parallel ranks shard the optimizer's state (stage 1),
the gradients too (stage 2), the weights too (stage 3).

DeepSpeed keeps its own copy of the weights, and the optimizer's state, as flat rows of float32
numbers, one for every kind of weight; a rank owns a part of each. It averages gradients over ranks,
so losses are multiplied by their number.
"""

import itertools
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from strategies.plan.catalog import computes_in_half
from strategies.plan.estimates import swapping
from strategies.plan.estimates.zero import BUCKET, adds_up_on_host, bucket_of
from strategies.plan.planner import Plan
from strategies.plan.run_directory import NotEquipped
from strategies.plan.spec import ZERO_STAGES, Offload, TrainSpec
from strategies.train.checkpoints.fragment import Fragment
from strategies.train.engine import Batch, HeldBytes, State, copy_state, measure_of, sum_of
from strategies.train.engines import async_io
from strategies.train.gradients import clip_factor, norm_of, num_bytes, scale_down
from strategies.train.init import Source, design_model, give_first_weights, region_at
from strategies.train.mesh import Mesh
from strategies.train.models.loss import Measure, token_loss_sum
from strategies.train.models.network import Network
from strategies.train.models.transformer import Head
from strategies.train.optimizers.optimizer import build_optimizer, set_learning_rate
from strategies.train.parallel.compiling import compile_layers
from strategies.train.parallel.recompute import forget_activations
from strategies.train.precision import compute_in, feature_dtype_of
from strategies.train.watching.phases import Phase, phase


@contextmanager
def hidden(module: str) -> Iterator[None]:
    """Let imports of a module fail, as if it were not installed."""
    found = sys.modules.get(module)
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
        if found is not None:
            sys.modules[module] = found


# DeepSpeed looks for an accelerator when it is imported, and complains if there is none. Neither it
# nor this line asks NVML: the first question starts a thread, and no rank could be forked from this
# process. DeepSpeed would also look up its GPU by a number, where ranks are given UUIDs.
HAS_DRIVER = any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg")))
os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.version.cuda and HAS_DRIVER else "cpu")
with hidden("pynvml"):
    import deepspeed
    from deepspeed.accelerator import get_accelerator, set_accelerator
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    from deepspeed.runtime.zero.config import ZERO_OPTIMIZATION
    from deepspeed.runtime.zero.linear import zero3_linear_wrap
    from deepspeed.utils.z3_leaf_module import set_z3_leaf_module

    get_accelerator()

# Tell DeepSpeed that it can compile nothing on this machine. If it finds a compiler, it builds
# collectives of its own when a run begins, and waits forever for a build that was killed.
deepspeed.ops.__compatible_ops__ = {}

# DeepSpeed imports its Muon optimizer only to see that another one is in use, and Muon's kernels
# would import torch's compiler: seconds at the start of every run.
deepspeed.runtime.compiler.compile = lambda: lambda function: function

# For stage 1 with 16-bit weights and sums in float32 DeepSpeed would take an optimizer of another
# make, which keeps no part of the gradients. The one of all stages does the same.
deepspeed.DeepSpeedEngine._do_optimizer_sanity_check = lambda *_: ZERO_OPTIMIZATION

# DeepSpeed refuses float16 on CPUs without instructions for it, where torch converts each number.
CPU_Accelerator.is_fp16_supported = lambda _: True

# DeepSpeed calls collectives by names that torch is about to drop.
warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)

HALF_SETTINGS = {torch.bfloat16: "bf16", torch.float16: "fp16"}  # DeepSpeed's names
NORM_ROW = 1024  # numbers whose squares are added up in float32; the sums then in float64


class ShardLocation(NamedTuple):
    """Location of this rank's part of a weight."""

    name: str
    shape: torch.Size
    start: int  # of the part, in the flattened weight
    row: Tensor  # the flat row of numbers that contains it
    at: int  # its offset there
    length: int

    def of(self, row: Tensor) -> Fragment:
        """Return the same part of a row like `row`."""
        numbers = row.detach()[self.at : self.at + self.length]
        return Fragment(numbers, start=self.start, shape=self.shape)


class ZeroEngine:
    """DeepSpeed's engine behind the loop's protocol."""

    runs_ahead = False  # DeepSpeed waits for its gradients itself
    mesh: Mesh
    stage: int
    """ZeRO's: 1 to 3."""
    offloads: bool
    """True if the optimizer's state is not on this rank's device."""
    swap_folder: Path | None = None
    optimizer: Optimizer
    deepspeed: Any
    """DeepSpeed's engine, and in `zero` its optimizer."""
    zero: Any
    parts: list[ShardLocation]
    """Location of this rank's part of each weight."""
    clipped_by: Tensor
    """Factor of the last clipping, 0-d."""

    def setup(self, spec: TrainSpec, plan: Plan, mesh: Mesh, source: Source) -> None:
        self.mesh, self.stage = mesh, ZERO_STAGES[plan.strategy]
        self.offloads = spec.parallelism.offload_optimizer is not Offload.NONE
        self.swap_folder = make_swap_folder(spec, plan)
        meet_deepspeed(mesh)
        config = deepspeed_config(spec, plan, self.swap_folder)
        model = design_model(spec)
        if (half := half_of(spec)) is not None:
            model.to(half)
        designed = dict(model.named_weights())
        self.optimizer = build_optimizer(designed.values(), spec.training)
        forget_activations(model, spec.activation_checkpointing)
        if spec.compile is True:
            compile_layers(model, mesh.device)
        if isinstance(model.head, Head):
            model.head.parts = spec.tiling.loss_parts
        if half is None:
            compute_in(spec.precision, model, mesh.device)
        if self.stage == 3:
            save_weights_whole(model)
            for layer in model.layers.values():
                set_z3_leaf_module(layer, True)  # gathered as one
            give_first_weights(model, source, mesh, then=Splitter(config))
        else:
            give_first_weights(model, source, mesh)
        state_parts = adopt(self.optimizer, designed, model)
        self.deepspeed, self.zero, _, _ = deepspeed.initialize(
            model=model, optimizer=self.optimizer, config=config, dist_init_required=False
        )
        self.parts = list(self.own_parts(model, designed))
        for i, row in enumerate(self.rows()):
            with self.at_hand(i, write=True):
                self.optimizer.state[row] = {
                    name: torch.zeros_like(row) if whole else torch.zeros((), device=row.device)
                    for name, whole in state_parts.items()
                }
        if half is not None:
            self.widen(source)
        if adds_up_on_host(spec, plan.strategy):
            self.add_up_in_float32(plan)
        if self.swap_folder is not None:
            self.zero.unscale_and_clip_grads = self.clip_row

    @torch.no_grad()
    def widen(self, source: Source) -> None:
        """Read this rank's part of the first weights again, in float32: DeepSpeed made its own from
        16-bit ones."""
        for name, part in self.state()["model"].items():
            assert isinstance(part, Fragment)
            for box, numbers in part.parts():
                region = region_at(*box)
                numbers.copy_(source.read(name, part.shape, region, device=self.mesh.device))

    def add_up_in_float32(self, plan: Plan) -> None:
        """Give DeepSpeed float32 buffers to send gradients, to bring them to the host and to add
        them up there; its own have the weights' 16 bits."""
        zero = self.zero
        zero._gradient_reduction_buffer_dtype = lambda: torch.float32
        zero.temp_grad_buffer_for_gpu_offload = zero.temp_grad_buffer_for_gpu_offload.float()
        if plan.gradient_accumulation_steps > 1:
            for weight in itertools.chain(*zero.params_in_partition):
                buffer = torch.zeros(weight.numel(), pin_memory=zero.cpu_offload_pin_memory)
                zero.accumulated_grads_in_cpu[zero.get_param_id(weight)] = buffer

    def rows(self) -> list[nn.Parameter]:
        """Return the rows that the optimizer updates on this rank: its part of every flat row."""
        rows: list[nn.Parameter] = (
            self.zero.fp32_partitioned_groups_flat
            if self.stage == 3
            else self.zero.single_partition_of_fp32_groups
        )
        return rows

    def is_swapped(self, i: int) -> bool:
        """Return True if row i is in files between its uses."""
        return self.swap_folder is not None and self.zero._swappable_optimizer_subgroup(i)

    @contextmanager
    def at_hand(self, i: int, *, write: bool = False) -> Iterator[None]:
        """Keep row i and its averages in memory; with `write` write them back to their files
        after."""
        if not self.is_swapped(i):
            yield
            return
        self.zero._optimizer_states_and_gradient_swap_in(i)
        yield
        if write:
            self.zero._optimizer_states_and_gradient_swap_out(i)
        else:
            self.zero._release_swap_buffers(i)

    def kept(self, i: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return row i and its optimizer state by name, in memory or as files mapped into it."""
        row: Any = self.rows()[i]
        state: dict[str, Tensor] = self.optimizer.state[row]
        if not self.is_swapped(i):
            return row, state
        swapped = self.zero.optimizer_swapper.swap_params_info[row.ds_id]
        mapped: dict[str, Tensor] = {
            each.compute_tensor.ds_id: torch.from_file(
                each.swap_path, shared=True, size=swapped.numel(), dtype=row.dtype
            )
            for each in swapped.tensors
        }
        # DeepSpeed's names; the step count has no file.
        averages = {name: mapped.get(f"{name}-{row.ds_id}", value) for name, value in state.items()}
        return mapped[row.ds_id], averages

    def own_parts(
        self, model: Network, designed: dict[str, nn.Parameter]
    ) -> Iterator[ShardLocation]:
        """Yield the location of this rank's part of each weight; weights without one are left
        out."""
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
                yield ShardLocation(name, shape, start, rows[row], at, length)

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        shares = []
        for i, batch in enumerate(micro_batches):
            last = i == len(micro_batches) - 1
            self.deepspeed.set_gradient_accumulation_boundary(last)
            with phase(Phase.FORWARD):
                loss = self.measured(batch, token_loss_sum) / divisor
            with phase(Phase.BACKWARD):
                self.deepspeed.backward(loss * self.mesh.world_size, scale_wrt_gas=False)
            shares.append(loss.detach())
        return sum_of(shares)

    @torch.no_grad()
    def clip(self, max_norm: float, loss_scale: float) -> Tensor:
        by_row = self.own_gradients()
        gradients = [part for row in by_row for part in row]
        squares = norm_of(even_rows(gradients), self.mesh.device).square()
        norm = self.mesh.sum(squares).sqrt() / loss_scale
        self.clipped_by = clip_factor(norm, max_norm, loss_scale)
        in_memory = [row for i, row in enumerate(by_row) if not self.is_swapped(i)]
        scale_down(itertools.chain(*in_memory), self.clipped_by)
        return norm

    def clip_row(self, i: int, norm: Tensor) -> None:
        """Clip row i's gradient after it is read back from its files, instead of DeepSpeed's
        clipping.

        The gradient clipped in memory is not the one that was written to the files.
        """
        if self.is_swapped(i):
            row_gradient = self.rows()[i].grad
            assert row_gradient is not None
            scale_down([row_gradient], self.clipped_by)

    def own_gradients(self) -> list[list[Tensor]]:
        """Return the gradient of each of this rank's rows, in pieces, summed over ranks."""
        if not self.offloads:
            return [self.zero.averaged_gradients.get(i) or [] for i in range(len(self.rows()))]
        get_accelerator().synchronize()  # it is copied to the host beside the backward pass
        return [self.offloaded_gradient(i, row) for i, row in enumerate(self.rows())]

    def offloaded_gradient(self, i: int, row: nn.Parameter) -> list[Tensor]:
        """Return the gradient of flat row i; for swapped rows, the host copy."""
        if self.is_swapped(i):
            by_weight = self.zero._DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition
            return [by_weight[weight.ds_id] for weight in self.zero.fp16_groups[i]]
        return [] if row.grad is None else [row.grad]

    def step(self, learning_rate: float) -> None:
        set_learning_rate(self.optimizer, learning_rate)
        self.deepspeed.step()

    def skip(self) -> None:
        # DeepSpeed skips a step if the gradient norm that it computes itself is not finite.
        for gradient in (part for row in self.own_gradients() for part in row):
            gradient.fill_(torch.nan)
        if self.offloads:
            for norm in self.zero.norm_for_param_grads.values():
                norm.fill_(torch.nan)
        self.deepspeed.step()

    def broken_weights(self, *, updated: bool) -> list[str]:
        assert not updated
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
        return self.measured(micro_batch, measure)

    def measured(self, batch: Batch, measure: Measure) -> Tensor:
        """Return a measure of a micro-batch."""
        return measure_of(self.deepspeed, self.deepspeed.module, batch, measure)

    def held(self) -> HeldBytes:
        rows = self.rows()
        weights = [
            weight.ds_tensor if self.stage == 3 else weight
            for weight in self.deepspeed.parameters()
        ]
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in (*rows, *weights)  # in float32, stage 3 needs no copy of its weights
        }
        return HeldBytes(
            weights=sum(storages.values()),
            gradients=num_bytes(piece for row in self.own_gradients() for piece in row),
            optimizer=num_bytes(
                part for row in rows for part in self.optimizer.state[row].values()
            ),
        )

    def state(self) -> State:
        state: State = {"model": {}, "optimizer": {}}
        kept = {id(row): self.kept(i) for i, row in enumerate(self.rows())}
        for part in self.parts:
            numbers, averages = kept[id(part.row)]
            state["model"][part.name] = part.of(numbers)
            for name, value in averages.items():
                whole = value.shape == numbers.shape
                state["optimizer"][f"{part.name}.{name}"] = part.of(value) if whole else value
        return state

    @torch.no_grad()
    def load(self, state: State) -> None:
        copy_state(state, self.state())
        if self.stage < 3:
            self.zero.update_lp_params()
            return
        for i in range(len(self.rows())):
            with self.at_hand(i):
                self.zero._reassign_or_swap_out_partitioned_parameters(i)
        if self.zero.persistent_parameters:
            self.zero.persistent_parameters[0].partition(self.zero.persistent_parameters)
            self.zero.persistent_parameters[0].all_gather(self.zero.persistent_parameters)

    def close(self) -> None:
        """Delete the swap files; the training loop owns the process group."""
        if self.swap_folder is not None:
            shutil.rmtree(self.swap_folder, ignore_errors=True)


def make_swap_folder(spec: TrainSpec, plan: Plan) -> Path | None:
    """Create a folder for this rank's swap files; None if nothing is offloaded to nvme.

    It is in the working directory, which is the run's own under both launchers. Raises NotEquipped
    if the node cannot swap.
    """
    fields = ("offload_optimizer", "offload_parameters")
    swapped = [f for f in fields if getattr(spec.parallelism, f) is Offload.NVME]
    if not swapped:
        return None
    folder = Path(tempfile.mkdtemp(prefix="swap-", dir=Path.cwd()))
    try:
        async_io.require(
            folder,
            locked_bytes=swapping.buffer_bytes(spec, plan.layout.shard),
            instead=f"take {' and '.join(swapped)} cpu",
        )
    except NotEquipped:
        folder.rmdir()
        raise
    return folder


def meet_deepspeed(mesh: Mesh) -> None:
    """Point DeepSpeed at this rank's device; give a single rank the process group it insists on."""
    if mesh.device.type == "cpu" and get_accelerator().device_name() != "cpu":
        set_accelerator(CPU_Accelerator())
    if not dist.is_initialized():
        backend = "nccl" if mesh.device.type == "cuda" else "gloo"
        alone = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=alone, rank=0, world_size=1)


def deepspeed_config(spec: TrainSpec, plan: Plan, swap_folder: Path | None) -> dict[str, Any]:
    """Return DeepSpeed's settings, under its names."""
    asked, stage = spec.parallelism, ZERO_STAGES[plan.strategy]
    layer = plan.parameters // spec.model.layers
    zero: dict[str, Any] = {
        "stage": stage,
        "reduce_bucket_size": min(bucket_of(spec, plan.strategy), plan.parameters),
        "allgather_bucket_size": 2 * BUCKET,
    }
    if stage == 3:
        # A layer at a time, and the next one on its way. Norms and biases stay whole.
        zero |= {
            "stage3_prefetch_bucket_size": layer,
            "stage3_max_live_parameters": 2 * layer,
            "stage3_max_reuse_distance": layer,
            "stage3_param_persistence_threshold": 2 * spec.model.width,
            "memory_efficient_linear": False,  # it would replace torch's own function for good
        }
    for field, device in (
        ("offload_optimizer", asked.offload_optimizer),
        ("offload_param", asked.offload_parameters),
    ):
        if device is not Offload.NONE:
            zero[field] = {"device": device.value, "pin_memory": plan.device == "cuda"}
        if device is Offload.NVME:
            zero[field]["nvme_path"] = str(swap_folder)
    shards = plan.layout.shard
    if asked.offload_optimizer is Offload.NVME:
        zero["sub_group_size"] = swapping.numbers_at_a_time(spec, shards)
        zero["offload_optimizer"]["buffer_count"] = swapping.BUFFERS
    if asked.offload_parameters is Offload.NVME:
        zero["offload_param"] |= {
            "buffer_count": swapping.gathered_buffers(spec),
            "buffer_size": swapping.largest_part(spec, shards),
            "max_in_cpu": 0,
        }
        # Prefetching would read tied embeddings, which are used twice, twice, and fail (DeepSpeed
        # 0.19).
        zero["stage3_prefetch_bucket_size"] = 0
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "gradient_clipping": 0.0,  # the loop clips; left out, DeepSpeed would clip at 1
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # it would have to be compiled on the node
        "steps_per_print": None,
    }
    if (half := half_of(spec)) is not None:
        settings |= {HALF_SETTINGS[half]: {"enabled": True}, "communication_data_type": "fp32"}
        if not adds_up_on_host(spec, plan.strategy):
            settings["data_types"] = {"grad_accum_dtype": "fp32"}
    if half is torch.float16:
        settings["fp16"]["loss_scale"] = 1.0  # the loop scales
    return settings


def half_of(spec: TrainSpec) -> torch.dtype | None:
    """Return the 16-bit type of the weights that a model computes with; None if they have the type
    of the update."""
    return feature_dtype_of(spec.precision) if computes_in_half(spec) else None


class Splitter:
    """Callable that cuts layers' weights over the ranks, as in stage 3."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.swapper: Any = None  # one for all layers: a new one would delete their files

    def __call__(self, layer: nn.Module) -> None:
        made = deepspeed.zero.Init(
            module=layer, config_dict_or_path=self.config, param_swapper=self.swapper
        )
        self.swapper = made.param_swapper


def save_weights_whole(model: nn.Module) -> None:
    """Make linear layers save for the backward pass the weight object that DeepSpeed knows.

    torch saves a transposed view, which would keep a gathered weight alive until then.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear) and not isinstance(module, Head):
            module.forward = partial(linear, module)  # type: ignore[method-assign]


def linear(module: nn.Linear, x: Tensor) -> Tensor:
    y: Tensor = zero3_linear_wrap(x, module.weight, module.bias)
    return y


def adopt(
    optimizer: Optimizer, designed: dict[str, nn.Parameter], model: Network
) -> dict[str, bool]:
    """Replace the optimizer's meta weights by the model's.

    Returns the names of the state per weight, with True for those of the weight's size.
    """
    weights = {id(designed[name]): weight for name, weight in model.named_weights()}
    stand_in = next(iter(designed.values()))
    kept = {name: value.ndim > 0 for name, value in optimizer.state[stand_in].items()}
    optimizer.state.clear()
    for group in optimizer.param_groups:
        group["params"] = [weights[id(parameter)] for parameter in group["params"]]
    return kept


def even_rows(gradients: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield all numbers in rows short enough to be summed in float32."""
    for gradient in gradients:
        numbers = gradient.flatten()
        whole = len(numbers) // NORM_ROW * NORM_ROW
        yield numbers[:whole].view(-1, NORM_ROW)
        yield numbers[whole:]
