"""Layouts in which every rank runs the same program on its share: one rank, data, tensor and
context parallelism, fully sharded, and any mix of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from strategies.plan.planner import Plan
from strategies.plan.spec import TrainSpec
from strategies.train.engine import Batch, measure_of, sum_of
from strategies.train.engines.torch_engine import TorchEngine
from strategies.train.gradients import weights_of
from strategies.train.init import Source, design_model
from strategies.train.mesh import Mesh
from strategies.train.models.loss import Measure, token_loss_sum
from strategies.train.models.network import Network
from strategies.train.optimizers.delayed_gradients import delay_gradients
from strategies.train.optimizers.optimizer import build_optimizer
from strategies.train.parallel.parallelize import ParallelModel, parallelize
from strategies.train.watching.phases import Phase, phase


class SpmdEngine(TorchEngine):
    """Engine of layouts without a pipeline."""

    spread: ParallelModel
    model: Network

    def setup(self, spec: TrainSpec, plan: Plan, mesh: Mesh, source: Source) -> None:
        self.mesh = mesh
        self.spread = parallelize(design_model(spec), spec, mesh, source)
        self.model = self.spread.model
        self.models = [self.model]
        self.weights = weights_of(self.model.named_weights(), mesh)
        self.optimizer = build_optimizer((w.parameter for w in self.weights), spec.training)
        delay_gradients(self.optimizer, steps=spec.parallelism.gradient_delay)

    def forward_backward(self, micro_batches: Sequence[Batch], divisor: float) -> Tensor:
        parallel, shares = self.spread.data_parallel, []
        for i, batch in enumerate(micro_batches):
            last = i == len(micro_batches) - 1
            with parallel.micro_batch(last=last):
                with phase(Phase.FORWARD):
                    loss = self.measured(batch, token_loss_sum) / divisor
                with phase(Phase.BACKWARD):
                    torch.autograd.backward(loss * parallel.loss_factor)
            shares.append(loss.detach())
        return self.counted_once(sum_of(shares))

    def measured(self, batch: Batch, measure: Measure) -> Tensor:
        """Return a measure of this rank's tokens of a micro-batch."""
        if self.spread.positions is not None:
            batch = batch.at(self.spread.positions)
        return measure_of(self.spread.data_parallel.module, self.model, batch, measure)

    @torch.no_grad()
    def evaluate(self, micro_batch: Batch, measure: Measure) -> Tensor:
        return self.counted_once(self.measured(micro_batch, measure))
