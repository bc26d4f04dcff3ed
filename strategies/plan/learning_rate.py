"""Learning rate of each step, from batch size, warm-up and schedule.

Torch-free, so that a plan can show the rate that a run will use.
"""

import math

from strategies.plan.spec import LearningRateScaling, Schedule, TrainingSpec


def learning_rate(training: TrainingSpec, step: int) -> float:
    """Return the rate of optimizer step `step`, counted from 1.

    It rises linearly to the highest rate at step warmup_steps, then falls along a half cosine that
    reaches the lowest rate at the last step (or stays, if constant).
    """
    highest = training.learning_rate * batch_factor(training)
    if step <= training.warmup_steps:
        return highest * step / training.warmup_steps
    if training.schedule is Schedule.CONSTANT:
        return highest
    lowest = highest * training.min_learning_rate_ratio
    done = (step - training.warmup_steps) / (training.steps - training.warmup_steps)
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * min(done, 1.0))) / 2


def batch_factor(training: TrainingSpec) -> float:
    """Return the rate's factor for a batch size other than the one it was tuned for.

    Linear: Goyal et al. (arXiv:1706.02677), section 2.1. Square root: Krizhevsky (arXiv:1404.5997),
    section 3.2; it keeps the variance of the updates.
    """
    if training.reference_global_batch_size is None:
        return 1.0
    larger = training.global_batch_size / training.reference_global_batch_size
    match training.learning_rate_scaling:
        case LearningRateScaling.NONE:
            return 1.0
        case LearningRateScaling.LINEAR:
            return larger
        case LearningRateScaling.SQRT:
            return math.sqrt(larger)


def scaling_policy(training: TrainingSpec) -> str | None:
    """Return a line about the scaling of the learning rate, in numbers; None if it is not
    scaled."""
    if training.learning_rate_scaling is LearningRateScaling.NONE:
        return None
    rate, factor = training.learning_rate, batch_factor(training)
    return (
        f"learning rate {rate:.3g} x {factor:.3g} = {rate * factor:.3g} "
        f"({training.learning_rate_scaling}, {training.global_batch_size} / "
        f"{training.reference_global_batch_size} samples)"
    )
