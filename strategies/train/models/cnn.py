"""Small convolutional network: each layer a norm, GELU, a 3 x 3 convolution, and a mean over 2 x 2
pixels, which halves the image.

GELU and means, not the ReLU and maxima of LeNet's successors: their derivative has no jumps, so a
rounding difference from another order of sums stays small. No batch norm: it would make a sample's
output depend on the other samples of its rank.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, gelu

from strategies.plan.image_shapes import ImageShape, features
from strategies.plan.spec import ModelSpec
from strategies.train.models.network import Network


def convolution(channels: int, width: int, dtype: torch.dtype) -> nn.Conv2d:
    """Return a 3 x 3 convolution whose output has the size of its input."""
    return nn.Conv2d(channels, width, 3, padding=1, bias=False, dtype=dtype)


class Layer(nn.Module):
    def __init__(self, spec: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__()
        # One group: over all numbers of one image.
        self.norm = nn.GroupNorm(1, spec.width, eps=spec.norm_epsilon, dtype=dtype)
        self.convolution = convolution(spec.width, spec.width, dtype)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return avg_pool2d(self.convolution(gelu(self.norm(x_BCHW))), 2)


class CNN(Network):
    """Convolutional network: images (B, T, pixels) to logits (B, T, classes).

    T = 1: an image is a sample of one token.
    """

    def __init__(
        self, spec: ModelSpec, *, image: ImageShape, classes: int, dtype: torch.dtype
    ) -> None:
        super().__init__(
            spec,
            embedding=convolution(image.channels, spec.width, dtype),
            layer=lambda: Layer(spec, dtype),
            norm=nn.GroupNorm(1, spec.width, eps=spec.norm_epsilon, dtype=dtype),
            head=nn.Linear(features(spec, image)[-1].size, classes, bias=False, dtype=dtype),
        )
        self.image, self.dtype = image, dtype

    def forward(self, x: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        height, width, channels = self.image
        x_BHWC = x.to(self.dtype).view(-1, height, width, channels)
        assert self.embedding is not None  # no pipeline cuts it: rules.images
        assert self.norm is not None
        assert self.head is not None
        # Not contiguous(): it would leave grey images, and the gradients of their weights, in
        # channels-last order.
        x_BCHW = x_BHWC.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)
        x_BCHW = self.embedding(x_BCHW)
        for layer in self.layers.values():
            x_BCHW = layer(x_BCHW)
        logits_BV: Tensor = self.head(self.norm(x_BCHW).flatten(1))
        return logits_BV.unsqueeze(1)
