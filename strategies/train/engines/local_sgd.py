"""Local SGD (Stich, arXiv:1805.09767): every rank updates its own weights with the gradient of its
own samples; every few steps all ranks replace theirs by the average.

The optimizer's averages are averaged with the weights, as momentum is by Yu et al.
(arXiv:1905.03817). So a single state is saved, any number of ranks can continue from it, and with
SGD an average after every step is the synchronous update.
"""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from strategies.plan.layout import Layout
from strategies.plan.planner import Plan
from strategies.plan.spec import TrainSpec
from strategies.train.engine import Batch, State
from strategies.train.engines.spmd import SpmdEngine
from strategies.train.gradients import own_part
from strategies.train.init import Source
from strategies.train.mesh import Mesh
from strategies.train.models.loss import Measure
from strategies.train.optimizers.optimizer import optimizer_state
from strategies.train.parallel.parallelize import Alone


class LocalSgdEngine(SpmdEngine):
    """Engine whose ranks train alone and average their weights every `average_every_steps` steps.

    They also average before an evaluation or a checkpoint uses their weights.
    """

    average_every: int
    steps_apart: int
    """Steps since the last average."""
    num_ranks: int

    def setup(self, spec: TrainSpec, plan: Plan, mesh: Mesh, source: Source) -> None:
        every = spec.parallelism.average_every_steps
        assert every is not None  # required by a rule
        self.average_every, self.steps_apart = every, 0
        super().setup(spec, plan, replace(mesh, layout=Layout(), rank=0), source)
        self.num_ranks = mesh.world_size
        # A rank's gradient is that of its own samples' mean, so the mean over ranks is the step's.
        self.spread.data_parallel = Alone(self.model, loss_factor=mesh.world_size)

    def step(self, learning_rate: float) -> None:
        super().step(learning_rate)
        self.steps_apart += 1
        if self.steps_apart == self.average_every:
            self.average()

    @torch.no_grad()
    def average(self) -> None:
        """Give all ranks the mean of their weights and of the optimizer's averages."""
        if self.steps_apart == 0:
            return
        self.steps_apart = 0
        if self.num_ranks == 1:
            return
        trained = [w.parameter for w in self.weights if w.parameter.requires_grad]
        averages = optimizer_state(self.optimizer, self.weights).values()
        tensors = [own_part(each) for each in (*trained, *averages) if each.ndim > 0]
        sums = [dist.all_reduce(each, async_op=True) for each in tensors]
        for work in sums:
            assert work is not None
            work.wait()
        torch._foreach_div_(tensors, self.num_ranks)

    def evaluate(self, micro_batch: Batch, measure: Measure) -> Tensor:
        self.average()
        return super().evaluate(micro_batch, measure)

    def state(self) -> State:
        self.average()
        return super().state()
