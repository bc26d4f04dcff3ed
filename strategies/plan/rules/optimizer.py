"""Rules about optimizers whose needs a strategy or device does not meet, and about scaling."""

from collections.abc import Iterator

from strategies.plan.catalog import BYTES_PER_WEIGHT
from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.spec import ZERO_STAGES, LearningRateScaling, OptimizerName, Precision

BY_MATRIX = (OptimizerName.LARS, OptimizerName.LAMB)


def matrices_are_known(resolved: ResolvedSpec) -> Iterator[Problem]:
    optimizer = resolved.spec.training.optimizer
    if resolved.strategy in ZERO_STAGES and optimizer in BY_MATRIX:
        yield Problem(
            code="optimizer_needs_matrices",
            param="training.optimizer",
            message=f"{optimizer} scales the step of each matrix by its norm, but "
            f"{resolved.strategy} updates all weights as one flat row of numbers; take strategy "
            "fsdp, which shards the same state, or optimizer adamw",
        )


def triton_has_a_gpu(resolved: ResolvedSpec) -> Iterator[Problem]:
    optimizer, precision = resolved.spec.training.optimizer, resolved.spec.precision
    if optimizer is not OptimizerName.ADAMW_TRITON:
        return
    if resolved.hardware.device != "cuda":
        yield Problem(
            code="optimizer_needs_gpu",
            param="training.optimizer",
            message=f"optimizer {optimizer} is a Triton kernel, which needs a CUDA GPU, and class "
            f"{resolved.hardware.class_name} has none; take adamw, which makes the same update",
        )
    if BYTES_PER_WEIGHT[precision] != 4:
        yield Problem(
            code="not_supported_together",
            param="training.optimizer",
            message=f"optimizer {optimizer} updates weights of 4 bytes, but those of "
            f"precision {precision} have {BYTES_PER_WEIGHT[precision]}; take adamw",
        )


def codes_stay_whole(resolved: ResolvedSpec) -> Iterator[Problem]:
    optimizer, layout = resolved.spec.training.optimizer, resolved.layout
    if optimizer is not OptimizerName.ADAMW_8BIT:
        return
    parts = {"shard": layout.shard, "tensor": layout.tensor}
    split = [f"{axis} degree {degree}" for axis, degree in parts.items() if degree > 1]
    if split and resolved.strategy not in ZERO_STAGES:
        yield Problem(
            code="not_supported_together",
            param="training.optimizer",
            message=f"optimizer {optimizer} rounds its averages in blocks of whole matrices, and "
            f"{' and '.join(split)} would cut them; take adamw, or strategy ddp or pipeline",
        )
    if resolved.spec.precision is Precision.FLOAT64:
        yield Problem(
            code="not_supported_together",
            param="training.optimizer",
            message=f"optimizer {optimizer} computes in 32 bits, less than precision float64 has; "
            "take adamw, or float32",
        )


def scaling_has_reference(resolved: ResolvedSpec) -> Iterator[Problem]:
    training = resolved.spec.training
    if (
        training.learning_rate_scaling is not LearningRateScaling.NONE
        and training.reference_global_batch_size is None
    ):
        yield Problem(
            code="reference_missing",
            param="training.reference_global_batch_size",
            message=f"{training.learning_rate_scaling} scaling multiplies learning_rate "
            f"{training.learning_rate:.3g} by global_batch_size {training.global_batch_size} over "
            "the batch size that the rate was tuned for; give that size "
            f"({training.global_batch_size} scales by 1)",
        )
