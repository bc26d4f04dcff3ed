"""What an image model's parts are as large as: numbers that are trained, multiplied and kept.

Torch-free. Both models are a first matrix or convolution, layers of one each after a norm, and a
head after another; none has a bias, every norm has.
"""

from typing import NamedTuple

from strategies.data.built_in import DIGITS
from strategies.data.digits import CLASSES, SHAPE
from strategies.spec import ActivationCheckpointing, DataSpec, ModelName, ModelSpec

KERNEL = 3 * 3  # of every convolution


class ImageShape(NamedTuple):
    """Of one image, or of the features that it has become."""

    height: int
    width: int
    channels: int

    @property
    def size(self) -> int:
        """How many numbers it is."""
        return self.height * self.width * self.channels

    def __str__(self) -> str:
        return " x ".join(map(str, self))


def image_shape(data: DataSpec) -> ImageShape:
    """As told, or known of a built-in dataset; `rules.images` asks for it where neither is so."""
    if data.image_shape is None:
        return ImageShape(*SHAPE) if data.dataset == DIGITS else ImageShape(1, 1, 1)
    height, width, *channels = data.image_shape
    return ImageShape(height, width, *(channels or [1]))


def num_classes(data: DataSpec) -> int:
    """How many different labels there are, as told or known."""
    return data.classes or CLASSES


def features(model: ModelSpec, image: ImageShape) -> list[ImageShape]:
    """What goes into each layer, and last into the head."""
    if model.name is ModelName.MLP:
        return [ImageShape(1, 1, model.width)] * (model.layers + 1)
    return [
        ImageShape(max(1, image.height >> layer), max(1, image.width >> layer), model.width)
        for layer in range(model.layers + 1)
    ]


def first_weights(model: ModelSpec, data: DataSpec) -> int:
    """Numbers in the first matrix or convolution."""
    shape = image_shape(data)
    return model.width * (shape.size if model.name is ModelName.MLP else KERNEL * shape.channels)


def layer_weights(model: ModelSpec) -> int:
    """Numbers in one layer's matrix or convolution."""
    return model.width**2 * (1 if model.name is ModelName.MLP else KERNEL)


def head_weights(model: ModelSpec, data: DataSpec) -> int:
    """Numbers in the head's matrix."""
    return features(model, image_shape(data))[-1].size * num_classes(data)


def count_parameters(model: ModelSpec, data: DataSpec) -> int:
    """Numbers that are trained."""
    norms = (model.layers + 1) * 2 * model.width
    matrices = first_weights(model, data) + model.layers * layer_weights(model)
    return matrices + norms + head_weights(model, data)


def products(model: ModelSpec, data: DataSpec) -> int:
    """Multiplications of one image's forward pass. A convolution meets its numbers at every
    place of the image that it reads."""
    if model.name is ModelName.MLP:
        matrices = first_weights(model, data) + model.layers * layer_weights(model)
        return matrices + head_weights(model, data)
    first = image_shape(data)
    places = [shape.height * shape.width for shape in features(model, image_shape(data))[:-1]]
    convolutions = first.height * first.width * first_weights(model, data)
    return convolutions + sum(places) * layer_weights(model) + head_weights(model, data)


def kept_numbers(model: ModelSpec, data: DataSpec, how: ActivationCheckpointing) -> int:
    """Numbers that one image leaves in all layers for the backward pass: the input of each, what
    its norm and its activation give, and for cnn what is pooled. full: the inputs alone;
    selective: also what a product gives."""
    *inputs, _ = (shape.size for shape in features(model, image_shape(data)))
    whole = 3 if model.name is ModelName.MLP else 4
    per_layer = {ActivationCheckpointing.FULL: 1, ActivationCheckpointing.SELECTIVE: 2}
    return per_layer.get(how, whole) * sum(inputs)
