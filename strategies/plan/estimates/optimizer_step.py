"""Memory of the optimizer: the numbers that it keeps, and the copies that its step makes.

Pure, torch-free.
"""

from strategies.plan import image_shapes
from strategies.plan.shapes import largest_matrix, matrices, vocabulary_size
from strategies.plan.spec import OptimizerName, TrainingSpec, TrainSpec

AVERAGES_PER_WEIGHT = {
    OptimizerName.ADAMW: 2,
    OptimizerName.ADAMW_8BIT: 2,
    OptimizerName.ADAMW_TRITON: 2,
    OptimizerName.LAMB: 2,
    OptimizerName.LARS: 1,
    OptimizerName.SGD: 1,
}
NEED_MOMENTUM = (OptimizerName.SGD, OptimizerName.LARS)  # to keep an average
# Copies of the largest weight; the other optimizers work in place.
COPIES_IN_STEP = {
    OptimizerName.ADAMW: 0,
    OptimizerName.ADAMW_8BIT: 0,
    OptimizerName.ADAMW_TRITON: 0,
    OptimizerName.LAMB: 1,  # Adam's deviation; its direction takes the gradient's place
    OptimizerName.LARS: 0,
    OptimizerName.SGD: 0,
}


def averages_per_weight(training: TrainingSpec) -> int:
    """Return how many numbers the optimizer keeps for each trained weight.

    SGD and LARS without momentum keep none.
    """
    if training.optimizer in NEED_MOMENTUM and training.beta1 == 0:
        return 0
    return AVERAGES_PER_WEIGHT[training.optimizer]


def numbers_copied_in_step(spec: TrainSpec) -> int:
    """Return the count of numbers that a step copies, before other ranks share its weights."""
    return COPIES_IN_STEP[spec.training.optimizer] * largest_trained(spec)


def largest_trained(spec: TrainSpec) -> int:
    """Return the count of numbers of the largest trained matrix."""
    model, adapter = spec.model, spec.adapter
    if adapter is not None:
        shapes = (shape for name, shape in matrices(model).items() if name in adapter.targets)
        return adapter.rank * max((max(shape) for shape in shapes), default=0)
    if model.name.reads_images:
        first, head = image_shapes.first_weights, image_shapes.head_weights
        return max(
            first(model, spec.data), image_shapes.layer_weights(model), head(model, spec.data)
        )
    return largest_matrix(model, vocabulary=vocabulary_size(spec.data))
