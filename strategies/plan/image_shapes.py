"""Sizes of an image model's parts: numbers that are trained, multiplied and kept.

Torch-free. Both models consist of a first matrix or convolution, layers of a norm and one of them
each, and a norm and a head; only norms have biases.
"""

from typing import NamedTuple

from strategies.plan.built_in.datasets import DIGITS
from strategies.plan.built_in.digits import CLASSES, SHAPE
from strategies.plan.spec import ActivationCheckpointing, DataSpec, ModelName, ModelSpec

KERNEL = 3 * 3  # size of every convolution


class ImageShape(NamedTuple):
    """Shape of one image, or of its features after some layers."""

    height: int
    width: int
    channels: int

    @property
    def size(self) -> int:
        """Count of numbers."""
        return self.height * self.width * self.channels

    def __str__(self) -> str:
        return " x ".join(map(str, self))


def image_shape(data: DataSpec) -> ImageShape:
    """Return the image shape: given, or known for a built-in dataset.

    `rules.images` asks for it if neither is the case.
    """
    if data.image_shape is None:
        return ImageShape(*SHAPE) if data.dataset == DIGITS else ImageShape(1, 1, 1)
    height, width, *channels = data.image_shape
    return ImageShape(height, width, *(channels or [1]))


def num_classes(data: DataSpec) -> int:
    """Return the number of different labels, given or known."""
    return data.classes or CLASSES


def features(model: ModelSpec, image: ImageShape) -> list[ImageShape]:
    """Return the shape of the input of each layer, and last of the head."""
    if model.name is ModelName.MLP:
        return [ImageShape(1, 1, model.width)] * (model.layers + 1)
    return [
        ImageShape(max(1, image.height >> layer), max(1, image.width >> layer), model.width)
        for layer in range(model.layers + 1)
    ]


def first_weights(model: ModelSpec, data: DataSpec) -> int:
    """Return the count of numbers in the first matrix or convolution."""
    shape = image_shape(data)
    return model.width * (shape.size if model.name is ModelName.MLP else KERNEL * shape.channels)


def layer_weights(model: ModelSpec) -> int:
    """Return the count of numbers in one layer's matrix or convolution."""
    return model.width**2 * (1 if model.name is ModelName.MLP else KERNEL)


def head_weights(model: ModelSpec, data: DataSpec) -> int:
    """Return the count of numbers in the head's matrix."""
    return features(model, image_shape(data))[-1].size * num_classes(data)


def count_parameters(model: ModelSpec, data: DataSpec) -> int:
    """Return the count of trained numbers."""
    norms = (model.layers + 1) * 2 * model.width
    matrices = first_weights(model, data) + model.layers * layer_weights(model)
    return matrices + norms + head_weights(model, data)


def products(model: ModelSpec, data: DataSpec) -> int:
    """Return the multiplications of one image's forward pass.

    A convolution multiplies its numbers at every position of its input.
    """
    if model.name is ModelName.MLP:
        matrices = first_weights(model, data) + model.layers * layer_weights(model)
        return matrices + head_weights(model, data)
    first = image_shape(data)
    places = [shape.height * shape.width for shape in features(model, image_shape(data))[:-1]]
    convolutions = first.height * first.width * first_weights(model, data)
    return convolutions + sum(places) * layer_weights(model) + head_weights(model, data)


def kept_numbers(model: ModelSpec, data: DataSpec, how: ActivationCheckpointing) -> int:
    """Return how many numbers per image all layers keep for the backward pass.

    none: the input of each layer, the outputs of its norm and its activation, and for cnn the input
    of the pooling. full: the inputs only. selective: the inputs and the outputs of products.
    """
    *inputs, _ = (shape.size for shape in features(model, image_shape(data)))
    whole = 3 if model.name is ModelName.MLP else 4
    per_layer = {ActivationCheckpointing.FULL: 1, ActivationCheckpointing.SELECTIVE: 2}
    return per_layer.get(how, whole) * sum(inputs)
