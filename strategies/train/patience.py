"""Timeout of a rank that waits for the others."""

from statistics import median

from strategies.train.mesh import Mesh

TIMED_STEPS = 5
LATER_SHARE = 1 / 3  # of the first timeout: 100 s if that is 300 s
MEDIAN_STEPS = 20


class Patience:
    """Timeout that starts long, because ranks start, compile and read at their own pace, and
    becomes shorter once steps follow each other, so that a dead rank is noticed soon."""

    def __init__(self, mesh: Mesh, *, first_s: float) -> None:
        self.mesh, self.first_s = mesh, first_s
        self.start_over()

    def start_over(self) -> None:
        """Return to the long timeout before work of unequal length, such as a checkpoint or
        evaluation."""
        self.step_times_s: list[float] = []
        self.mesh.set_timeout(self.first_s)

    def after_step(self, step_time_s: float) -> None:
        """Count a step that nothing interrupted; after TIMED_STEPS of them shorten the timeout."""
        self.step_times_s.append(step_time_s)
        if len(self.step_times_s) == TIMED_STEPS:
            usual = MEDIAN_STEPS * median(self.step_times_s)
            self.mesh.set_timeout(max(LATER_SHARE * self.first_s, usual))
