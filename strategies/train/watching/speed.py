"""Speed of a run: tokens, floating-point operations, and the share of the GPU's peak."""

from strategies.plan.estimates.flops import flops_per_token_of
from strategies.plan.run_directory import RunPlan
from strategies.train.mesh import Mesh


class Speed:
    """Speed metrics of a run, with its constants computed once."""

    def __init__(self, run_plan: RunPlan, mesh: Mesh) -> None:
        self.ranks = mesh.world_size
        self.flops_per_token = flops_per_token_of(run_plan.spec)
        cost = run_plan.plan.cost
        self.peak_tflops = None if cost is None else cost.peak_tflops

    def metrics(self, valid_tokens: int, step_time_s: float) -> dict[str, float | None]:
        """Return `step_time_s`; `tokens_per_s` of all ranks; `tps`, `tflops` and `mfu` per rank.

        `mfu` is in percent, and None if the GPU's peak is not known.
        """
        tokens_per_s = valid_tokens / step_time_s
        tflops = tokens_per_s * self.flops_per_token / self.ranks / 1e12
        return {
            "step_time_s": step_time_s,
            "tokens_per_s": tokens_per_s,
            "tps": tokens_per_s / self.ranks,
            "tflops": tflops,
            "mfu": None if self.peak_tflops is None else 100 * tflops / self.peak_tflops,
        }
