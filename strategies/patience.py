"""How long ranks wait for one that does not come."""

from statistics import median

from strategies.parallel.mesh import Mesh

TIMED_STEPS = 5
LATER_SHARE = 1 / 3  # of the first timeout: 100 s where that is 300 s
MEDIAN_STEPS = 20


class Patience:
    """Long at first, when ranks start, compile and read at their own pace; shorter once steps
    follow each other, so that a dead rank is noticed soon."""

    def __init__(self, mesh: Mesh, *, first_s: float) -> None:
        self.mesh, self.first_s = mesh, first_s
        self.start_over()

    def start_over(self) -> None:
        """Something comes that takes the ranks unequally long: a checkpoint, an evaluation."""
        self.step_times_s: list[float] = []
        self.mesh.set_timeout(self.first_s)

    def after_step(self, step_time_s: float) -> None:
        """Count a step that nothing interrupted."""
        self.step_times_s.append(step_time_s)
        if len(self.step_times_s) == TIMED_STEPS:
            usual = MEDIAN_STEPS * median(self.step_times_s)
            self.mesh.set_timeout(max(LATER_SHARE * self.first_s, usual))
