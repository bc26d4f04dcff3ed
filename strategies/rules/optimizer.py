"""Optimizers that need what a strategy does not keep, and learning rates that lack a number."""

from collections.abc import Iterator

from strategies.rules.problem import Asked, Problem
from strategies.spec import LearningRateScaling, OptimizerName, Strategy

FLAT = (Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3)
BY_MATRIX = (OptimizerName.LARS, OptimizerName.LAMB)


def matrices_are_known(asked: Asked) -> Iterator[Problem]:
    optimizer = asked.spec.training.optimizer
    if asked.strategy in FLAT and optimizer in BY_MATRIX:
        yield Problem(
            code="optimizer_needs_matrices",
            param="training.optimizer",
            message=f"{optimizer} scales the step of each matrix by its norm, but {asked.strategy} "
            "updates all weights as one flat row of numbers; take strategy fsdp, which shards the "
            "same state, or optimizer adamw",
        )


def scaling_has_reference(asked: Asked) -> Iterator[Problem]:
    training = asked.spec.training
    if (
        training.learning_rate_scaling is not LearningRateScaling.NONE
        and training.reference_global_batch_size is None
    ):
        yield Problem(
            code="reference_missing",
            param="training.reference_global_batch_size",
            message=f"{training.learning_rate_scaling} scaling multiplies learning_rate "
            f"{training.learning_rate:.3g} by global_batch_size {training.global_batch_size} over "
            "the batch size that it was found for; say which that was "
            f"({training.global_batch_size} scales by 1)",
        )
