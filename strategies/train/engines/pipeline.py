"""Pipeline parallelism: ranks hold different layers, and a step's micro-batches follow each other
through them. Naive: each micro-batch goes forward and back before the next one starts.

GPipe (arXiv:1811.06965), 1F1B and interleaving (arXiv:2104.04473), zero bubble (arXiv:2401.10241);
torch.distributed.pipelining runs the schedules and moves the features.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    get_schedule_class,
)

from strategies.plan.catalog import shares_copies
from strategies.plan.planner import Plan
from strategies.plan.shapes import tokens_per_sample
from strategies.plan.spec import ActivationCheckpointing, PipelineSchedule, Strategy, TrainSpec
from strategies.plan.stages import layers_of, rank_of, schedule_of, stages_per_rank
from strategies.train.engine import Batch, State, sum_of
from strategies.train.engines.torch_engine import TorchEngine
from strategies.train.gradients import Weight, own_gradient, settle, weights_of
from strategies.train.init import Source, design_model
from strategies.train.mesh import Mesh
from strategies.train.models.loss import Measure, token_loss_sum
from strategies.train.models.network import Network
from strategies.train.models.transformer import Transformer
from strategies.train.optimizers.delayed_gradients import delay_gradients
from strategies.train.optimizers.optimizer import build_optimizer
from strategies.train.parallel.parallelize import ParallelModel, parallelize
from strategies.train.parallel.step_copies import StepCopies
from strategies.train.precision import feature_dtype_of
from strategies.train.watching.phases import Phase, phase

TIED = "embedding.weight"


class Stage(PipelineStage):
    """torch's stage, which also announces its phases, settles the gradients of copies, and holds
    what it receives and sends no longer than it needs to.

    torch makes a buffer for each micro-batch of a step, for features and for gradients, and keeps
    them for good; here one exists from its receive until the pass that takes it. In schedules with
    several stages on a rank torch keeps all that was sent until the step ends; here what has
    arrived is forgotten at the next send. gloo does not tell, and keeps it.

    A layer that is computed again goes backward as a whole where a schedule asks for halves: torch
    would compute it again for each half and each of its weights, and keep all of that.
    """

    def __init__(
        self, *arguments: Any, sends_itself: bool, goes_back_whole: bool, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.sends_itself = sends_itself
        """False in schedules that send together with a receive, or wait for what they sent."""
        self.goes_back_whole = goes_back_whole
        self.sending = deque[dist.Work]()

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        super()._setup_forward_recv_info(1, has_backward)
        repeat(self.args_recv_info, num_microbatches)

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        super()._setup_backward_recv_info(1)
        repeat(self.grad_recv_info, num_microbatches)
        self.chunks = num_microbatches

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        give_buffers(self.args_recv_info[fwd_chunk_id], self.device)
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        give_buffers(self.grad_recv_info[bwd_chunk_id], self.device)
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self.send(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self.send(super().get_bwd_send_ops(bwd_chunk_id))

    def send(self, operations: list[dist.P2POp]) -> list[dist.P2POp]:
        """Return the operations that the schedule is to perform: none if the stage does."""
        if not self.sends_itself:
            return operations
        while self.sending and self.sending[0].is_completed():
            self.sending.popleft().wait()
        for each in operations:
            work = dist.isend(each.tensor, group=each.group, group_dst=each.group_peer)
            assert work is not None
            self.sending.append(work)
        return []

    def finish_sending(self) -> None:
        """Wait until all that was sent has arrived."""
        while self.sending:
            self.sending.popleft().wait()

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        with phase(Phase.FORWARD):
            found = super().forward_one_chunk(fwd_chunk_id, *arguments, **options)
        take_buffers(self.args_recv_info[fwd_chunk_id])
        return found

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        whole = full_backward or self.goes_back_whole
        with phase(Phase.BACKWARD):
            super().backward_one_chunk(bwd_chunk_id, loss, whole, last_backward)
        take_buffers(self.grad_recv_info[bwd_chunk_id])
        if loss is not None:
            loss.detach_()  # the schedule keeps it, and would keep what was received with it

    def backward_weight_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        if self.goes_back_whole:
            return
        with phase(Phase.BACKWARD):
            super().backward_weight_one_chunk(*arguments, **options)
            if isinstance(self.submod, StepCopies):
                self.submod.settle()


class PipelineEngine(TorchEngine):
    """Engine of layouts with a pipeline."""

    line: DeviceMesh
    """Ranks of the pipeline that this rank is in."""
    order: PipelineSchedule
    at_once: int
    """Number of micro-batches that follow each other through the pipeline."""
    num_stages: int
    stages: dict[int, ParallelModel]
    """Stages of this rank, by number."""
    torch_stages: list[Stage]
    """The same, as torch's schedule sees them."""
    positions: Tensor | None
    """Positions of this rank's tokens in a sample; None: all."""
    computes_loss: bool
    """True if the last stage computes the loss with its head: it does so in models of text."""
    tied: list[nn.Parameter]
    """Embedding matrices on this rank that both ends of the model share."""
    features_BTC: Tensor
    """Meta tensor of the features between two stages."""
    copies: list[StepCopies]
    """Stages whose micro-batches share copies of matrices; empty if they make their own."""
    replicas: DeviceMesh | None
    """Ranks that add up gradients with this one after the passes; None if there are none, or if
    their data parallelism does so."""
    schedule: PipelineScheduleSingle | PipelineScheduleMulti

    def setup(self, spec: TrainSpec, plan: Plan, mesh: Mesh, source: Source) -> None:
        line = mesh.along("pipeline")
        assert line is not None
        self.mesh, self.line = mesh, line
        self.order = schedule_of(plan.strategy, spec.parallelism)
        naive = plan.strategy is Strategy.NAIVE
        self.at_once = 1 if naive else plan.gradient_accumulation_steps
        self.num_stages = line.size() * stages_per_rank(self.order, spec.parallelism)
        layers = layers_of(spec, self.num_stages)
        self.stages = {
            stage: parallelize(design_stage(spec, layers, stage), spec, mesh, source)
            for stage in range(self.num_stages)
            if self.holder(stage) == line.get_local_rank()
        }
        first = next(iter(self.stages.values()))  # all stages have the same positions
        self.positions = first.positions
        self.computes_loss = isinstance(first.model, Transformer)
        self.models = [stage.model for stage in self.stages.values()]
        self.weights = [
            weight
            for stage in self.stages.values()
            for weight in weights_of(stage.model.named_weights(), mesh)
        ]
        self.tied = []
        if spec.model.tied_embeddings:
            self.tied = [weight.parameter for weight in self.weights if weight.name == TIED]
            self.weights = [held_twice(weight) for weight in self.weights]
        self.optimizer = build_optimizer((w.parameter for w in self.weights), spec.training)
        delay_gradients(self.optimizer, steps=spec.parallelism.gradient_delay)
        self.features_BTC = features_between_stages(spec, plan, mesh)
        self.copies = []
        if shares_copies(spec, mesh.layout):
            half = feature_dtype_of(spec.precision)
            self.copies = [StepCopies(model, half) for model in self.models]
        self.replicas = mesh.along("replicate", "context") if self.copies else None
        modules = [stage.data_parallel.module for stage in self.stages.values()]
        self.schedule = self.make_schedule(spec, self.copies or modules)

    def holder(self, stage: int) -> int:
        """Return the pipeline rank that holds a stage."""
        return rank_of(stage, ranks=self.line.size(), schedule=self.order)

    def make_schedule(
        self, spec: TrainSpec, modules: Sequence[nn.Module]
    ) -> PipelineScheduleSingle | PipelineScheduleMulti:
        """Return torch's schedule over the modules of this rank's stages."""
        make = get_schedule_class(self.order)
        several = issubclass(make, PipelineScheduleMulti)
        self.torch_stages = [
            Stage(
                module,
                index,
                self.num_stages,
                self.mesh.device,
                input_args=self.features_BTC,
                output_args=self.features_BTC,
                group=self.line.get_group(),
                sends_itself=several,
                goes_back_whole=spec.activation_checkpointing is not ActivationCheckpointing.NONE,
            )
            for index, module in zip(self.stages, modules, strict=True)
        ]
        schedule: PipelineScheduleSingle | PipelineScheduleMulti = make(
            self.torch_stages if several else self.torch_stages[0],
            self.at_once,
            loss_fn=self.loss,
            scale_grads=False,  # the loss is already divided by the tokens of the whole step
        )
        return schedule

    def loss(self, found: Tensor, labels_BT: Tensor, *, divisor: float) -> Tensor:
        """Return a micro-batch's part of the step's loss, given the last stage's loss or logits."""
        token_sum = found if self.computes_loss else token_loss_sum(found, labels_BT)
        return token_sum / divisor

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        shares = [torch.zeros((), device=self.mesh.device)]  # only the last stage has losses
        for start in range(0, len(micro_batches), self.at_once):
            batches = [self.own_tokens(b) for b in micro_batches[start : start + self.at_once]]
            shares += self.follow_schedule(batches, divisor)
        if self.replicas is not None:
            add_up_replicas([weight.parameter for weight in self.weights], self.replicas)
        if self.tied:
            other_end = self.holder(self.num_stages - 1 if 0 in self.stages else 0)
            add_up_both_ends(self.tied, self.line, other_end)
        return self.counted_once(sum_of(shares))

    def own_tokens(self, batch: Batch) -> Batch:
        """Return this rank's tokens of a micro-batch."""
        return batch if self.positions is None else batch.at(self.positions)

    def follow_schedule(self, batches: Sequence[Batch], divisor: float) -> list[Tensor]:
        """Run both passes of some micro-batches; return their losses on the last stage, else
        none."""
        documents = [batch.documents_BT for batch in batches if batch.documents_BT is not None]
        labels_BT = torch.cat([batch.labels_BT for batch in batches])
        losses: list[Tensor] = []
        with ExitStack() as step:
            for stage in self.copies:
                step.enter_context(stage.step())
            self.schedule.step(  # cuts the concatenated batches apart again
                torch.cat([batch.inputs_BT for batch in batches]),
                target=labels_BT,
                losses=losses,
                return_outputs=False,
                loss_kwargs={"divisor": divisor},
                **({"labels_BT": labels_BT} if self.computes_loss else {}),
                **({"documents_BT": torch.cat(documents)} if documents else {}),
            )
            for torch_stage in self.torch_stages:
                torch_stage.finish_sending()
        return [loss.detach() for loss in losses]

    @torch.no_grad()
    def evaluate(self, micro_batch: Batch, measure: Measure) -> Tensor:
        batch, me = self.own_tokens(micro_batch), self.line.get_local_rank()
        group, x, last = self.line.get_group(), batch.inputs_BT, self.num_stages - 1
        labels = (batch.labels_BT,) if self.computes_loss and measure is token_loss_sum else ()
        for index, stage in self.stages.items():
            if index > 0 and self.holder(index - 1) != me:
                x = torch.empty_like(self.features_BTC, device=self.mesh.device)
                pass_on(dist.irecv, x, group, self.holder(index - 1))
            x = stage.data_parallel.module(x, batch.documents_BT, *labels)
            if index < last and self.holder(index + 1) != me:
                pass_on(dist.isend, x.contiguous(), group, self.holder(index + 1))
        if last not in self.stages:
            return torch.zeros((), device=self.mesh.device)
        return self.counted_once(x if labels else measure(x, batch.labels_BT))

    def load(self, state: State) -> None:
        super().load(state)
        # If one rank holds both ends, a name stands for two tensors, of which only the last was
        # read.
        self.weights.reverse()
        super().load(state)
        self.weights.reverse()


def design_stage(spec: TrainSpec, layers: Sequence[range], stage: int) -> Network:
    """Return the model without storage, reduced to the modules of this stage."""
    model = design_model(spec)
    for name in list(model.layers):
        if int(name) not in layers[stage]:
            del model.layers[name]
    if stage > 0:
        model.embedding = None
    if stage < len(layers) - 1:
        model.norm = model.head = None
    return model


def features_between_stages(spec: TrainSpec, plan: Plan, mesh: Mesh) -> Tensor:
    """Return a meta tensor of the shape and type that stages send to each other."""
    tokens = tokens_per_sample(spec.data) // mesh.layout.context
    if spec.parallelism.sequence_parallel:
        tokens //= mesh.layout.tensor
    return torch.empty(
        (plan.micro_batch_size, tokens, spec.model.width),
        dtype=feature_dtype_of(spec.precision),
        device="meta",
        requires_grad=True,
    )


def repeat(received: dict[int, tuple[Any, ...]], micro_batches: int) -> None:
    """Describe what every micro-batch receives as the first one's is described, without buffers."""
    take_buffers(received[0])
    for micro_batch in range(1, micro_batches):
        received[micro_batch] = tuple(copy(each) for each in received[0])


def give_buffers(received: Sequence[Any], device: torch.device) -> None:
    """Make the buffers that a micro-batch is received into."""
    for each in received:
        if not each.is_root_arg:
            meta = each.tensor_meta
            each.buffer = torch.empty(meta.shape, dtype=meta.dtype, device=device)


def take_buffers(received: Sequence[Any]) -> None:
    """Leave the buffers to the passes that use them."""
    for each in received:
        each.buffer = None


def pass_on(
    operation: Callable[..., Any], features: Tensor, group: dist.ProcessGroup, peer: int
) -> None:
    """Send or receive as the schedules do, in a batch: NCCL then takes their communicator."""
    for work in dist.batch_isend_irecv(
        [dist.P2POp(operation, features, group=group, group_peer=peer)]
    ):
        work.wait()


def held_twice(weight: Weight) -> Weight:
    """Count a tied embedding twice: its matrix is on the first and on the last stage."""
    return weight._replace(copies=2 * weight.copies) if weight.name == TIED else weight


@torch.no_grad()
def add_up_replicas(parameters: Sequence[nn.Parameter], ranks: DeviceMesh) -> None:
    """Give all replicas of a stage the sum of their gradients, each added by itself and in place.

    The wrappers of torch, which would do so within the backward passes, cast and reduce for each
    micro-batch: those that share copies of matrices go round them.
    """
    settle(parameters)
    gradients = [own_gradient(each) for each in parameters if each.grad is not None]
    sent = [gradient.contiguous() for gradient in gradients]  # a backend takes no others
    sums = [dist.all_reduce(each, group=ranks.get_group(), async_op=True) for each in sent]
    for work, gradient, total in zip(sums, gradients, sent, strict=True):
        assert work is not None
        work.wait()
        if total is not gradient:
            gradient.copy_(total)


@torch.no_grad()
def add_up_both_ends(matrices: Sequence[nn.Parameter], line: DeviceMesh, other_end: int) -> None:
    """Give the matrix of first and last stage the same gradient, the sum of both.

    A rank has one of the two, and swaps gradients with the rank that has the other, or has both.
    """
    settle(matrices)
    gradients = [own_gradient(matrix) for matrix in matrices]
    if len(gradients) == 2:
        total = gradients[0] + gradients[1]
        for gradient in gradients:
            gradient.copy_(total)
        return
    (own,) = gradients
    group, other = line.get_group(), torch.empty_like(own, memory_format=torch.contiguous_format)
    swap = [
        dist.P2POp(dist.isend, own.contiguous(), group=group, group_peer=other_end),
        dist.P2POp(dist.irecv, other, group=group, group_peer=other_end),
    ]
    for work in dist.batch_isend_irecv(swap):
        work.wait()
    own += other
