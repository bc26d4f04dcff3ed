"""Same training on one rank alone, before the run, as the reference of a certificate."""

import gc
import math
from collections.abc import Callable

import torch

from strategies.plan.durable_files import json_bytes, write_atomically
from strategies.plan.layout import Layout
from strategies.plan.learning_rate import learning_rate
from strategies.plan.run_directory import RunDirectory, RunPlan
from strategies.plan.spec import ParallelismSpec, Strategy
from strategies.plan.trust.certificate import Curve, certify
from strategies.plan.words import counted
from strategies.train.control import ControlWatch
from strategies.train.data.batches import TrainingData, Windows
from strategies.train.engine import engine_for
from strategies.train.fine_tuning.source import source_of
from strategies.train.mesh import Mesh
from strategies.train.precision import first_loss_scale
from strategies.train.watching.console import say
from strategies.train.watching.metrics import MetricsLog

WAIT_S = 24 * 3600.0  # for other ranks to wait; a death is noticed at once, wall time ends all


class Certifier:
    """Comparison of a run's first steps with one rank, if its spec asks for it."""

    def __init__(self, run_plan: RunPlan, directory: RunDirectory, mesh: Mesh) -> None:
        self.run_plan, self.directory, self.mesh = run_plan, directory, mesh
        self.found = Curve()
        self.expected: Curve | None = None

    def train_alone(self, windows: Windows, control: ControlWatch) -> None:
        """Train the compared steps on the first rank; the others wait for it."""
        verify, mesh = self.run_plan.spec.verify, self.mesh
        if verify is None:
            return
        mesh.set_timeout(WAIT_S)
        if mesh.is_first:
            say(f"one rank trains {counted(verify.steps, 'step')} alone first, for the certificate")
            self.expected = curve_of_one_rank(
                one_rank(self.run_plan),
                windows,
                steps=verify.steps,
                device=mesh.device,
                must_stop=control.is_asked_to_stop,
            )
        mesh.barrier()
        mesh.set_timeout(self.run_plan.collective_timeout_s)

    def after_step(
        self, step: int, loss: float, grad_norm: float | None, metrics: MetricsLog
    ) -> None:
        """Record a step of the run; write the certificate after the last one that counts."""
        verify = self.run_plan.spec.verify
        if self.expected is None or verify is None or step > verify.steps:
            return
        self.found.add(step, loss, grad_norm)
        if step < verify.steps:
            return
        certificate = certify(
            self.found, self.expected, self.run_plan.spec, self.run_plan.plan, torch.__version__
        )
        write_atomically(self.directory.certificate, json_bytes(certificate))
        metrics.write(step, event="certified", verdict=certificate.verdict)
        say(certificate.sentence)


def one_rank(run_plan: RunPlan) -> RunPlan:
    """Return the same run on one rank: the whole batch, in micro-batches of the same size."""
    spec, plan = run_plan.spec, run_plan.plan
    alone = plan.model_copy(
        update={
            "strategy": Strategy.SINGLE,
            "layout": Layout(),
            "world_size": 1,
            "nodes": 1,
            "ranks_per_node": 1,
            "gradient_accumulation_steps": plan.global_batch_size // plan.micro_batch_size,
        }
    )
    parallelism = ParallelismSpec(strategy=Strategy.SINGLE)
    return run_plan.model_copy(
        update={"plan": alone, "spec": spec.model_copy(update={"parallelism": parallelism})}
    )


def curve_of_one_rank(
    run_plan: RunPlan,
    windows: Windows,
    *,
    steps: int,
    device: torch.device,
    must_stop: Callable[[], bool],
) -> Curve | None:
    """Return loss and gradient norm of the first steps; None if it was stopped before the last.

    A step whose loss is not finite is the last one. All memory is freed again.
    """
    spec, training = run_plan.spec, run_plan.spec.training
    mesh = Mesh(layout=Layout(), rank=0, device=device)
    data = TrainingData(windows, run_plan, batch_rank=0, device=device)
    engine = engine_for(run_plan.plan)
    engine.setup(spec, run_plan.plan, mesh, source_of(run_plan))
    curve, scale = Curve(), first_loss_scale(spec.precision)
    for step in range(1, steps + 1):
        if must_stop():
            return None
        micro_batches, valid_tokens = data.step((step - 1) * training.global_batch_size)
        share = engine.forward_backward(micro_batches, valid_tokens / scale.value)
        loss = float(share) / scale.value
        grad_norm = float(engine.clip(training.max_grad_norm, scale.value))
        skipped = scale.may_skip and not math.isfinite(grad_norm)
        curve.add(step, loss, None if skipped else grad_norm)
        if not math.isfinite(loss) or not (skipped or math.isfinite(grad_norm)):
            break
        if skipped:
            engine.skip()
        else:
            engine.step(learning_rate(training, step))
        scale = scale.after(skipped=skipped)
    engine.close()
    del engine
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return curve
