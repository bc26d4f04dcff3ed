"""Text that a trained model continues, token by token, with its keys and values kept."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from strategies.plan.data.tokens import Tokenizer
from strategies.plan.spec import TrainSpec
from strategies.train.init import Region, Source, build_model
from strategies.train.models.attention import Attention, attend
from strategies.train.models.transformer import Transformer

TEMPERATURE = 0.7
TOP_K = 20


@dataclass(frozen=True)
class TrainedWeights:
    """Source of trained weights, by global name, and of the frozen ones beside them."""

    trained: dict[str, Tensor]
    frozen: Source | None

    def read(self, name: str, shape: torch.Size, region: Region, *, device: torch.device) -> Tensor:
        if name in self.trained or self.frozen is None:
            return self.trained[name][region]
        return self.frozen.read(name, shape, region, device=device)


def sample_text(
    weights: dict[str, Tensor],
    spec: TrainSpec,
    tokenizer: Tokenizer,
    *,
    prompt: str,
    num_tokens: int,
    source: Source | None = None,
    device: torch.device,
) -> str:
    """Return the prompt and the model's continuation; on one device the same for the same weights.

    Weights that `weights` lacks are frozen, and read from `source` again. Without a prompt, or with
    one that has no tokens, the text continues a line break.
    """
    if spec.adapter is not None:  # products here take no other type than that of the features
        whole = spec.adapter.model_copy(update={"frozen_dtype": "float32"})
        spec = spec.model_copy(update={"adapter": whole})
    model = build_model(spec, device=device, source=TrainedWeights(weights, source))
    assert isinstance(model, Transformer)
    begin = tokenizer.encode(prompt).tolist() or tokenizer.encode("\n").tolist() or [0]
    written = generate(
        model,
        begin,
        num_tokens=num_tokens,
        vocabulary=tokenizer.size,
        seed=spec.training.seed,
    )
    return tokenizer.decode(written)


@torch.inference_mode()
def generate(
    model: Transformer, prompt: list[int], *, num_tokens: int, vocabulary: int, seed: int
) -> list[int]:
    """Return `prompt` and `num_tokens` more, each drawn from the TOP_K likeliest of the vocabulary.

    The model may be sized for more tokens than the vocabulary has. It sees the tokens since
    `window_start`.
    """
    generator = torch.Generator().manual_seed(seed)
    reader, tokens = CachingReader(model), list(prompt)
    for _ in range(num_tokens):
        start = window_start(len(tokens), model.sequence_length)
        logits_V = reader.read(tokens[start:], start)[:vocabulary]
        likeliest = torch.topk(logits_V, min(TOP_K, vocabulary))
        odds = torch.softmax(likeliest.values.to("cpu", torch.float64) / TEMPERATURE, dim=-1)
        drawn = torch.multinomial(odds, 1, generator=generator)
        tokens.append(int(likeliest.indices[drawn.to(logits_V.device)].item()))
    return tokens


def window_start(length: int, sequence_length: int) -> int:
    """Return the first of `length` tokens that the model still sees.

    When the sequence is full, its older half is forgotten at once: the cache starts again then, and
    not for every token.
    """
    if length <= sequence_length:
        return 0
    half = max(1, sequence_length // 2)
    return -(-(length - sequence_length) // half) * half


class CachingReader:
    """Model that reads a growing text and keeps every layer's keys and values of it."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.rotation = model, model.rotation
        self.start = self.known = 0
        self.caches = []
        for module in model.modules():
            if isinstance(module, Attention):
                self.caches.append(Cache(model.sequence_length))
                module.attend = self.caches[-1].attend

    def read(self, tokens: list[int], start: int) -> Tensor:
        """Return the logits (V,) of the token after `tokens`, which begin at `start` of the text.

        Only tokens that were not read before are computed, unless `start` has moved.
        """
        if start != self.start:
            self.start, self.known = start, 0
        new = torch.tensor([tokens[self.known :]], device=self.rotation.device)
        for cache in self.caches:
            cache.length = self.known
        self.model.rotation = self.rotation[self.known : len(tokens)]
        self.known = len(tokens)
        logits_V: Tensor = self.model(new)[0, -1]
        return logits_V


class Cache:
    """Keys and values of one attention layer, (B, K, S, D), of which `length` are known."""

    def __init__(self, sequence_length: int) -> None:
        self.sequence_length, self.length = sequence_length, 0
        self.key_BKSD = self.value_BKSD = torch.empty(0)

    def attend(
        self,
        query_BHTD: Tensor,
        key_BKTD: Tensor,
        value_BKTD: Tensor,
        documents_BT: Tensor | None,
    ) -> Tensor:
        """Replace `attention.attend`: the first tokens together, then one at a time."""
        if self.key_BKSD.numel() == 0:
            batch, heads, _, width = key_BKTD.shape
            self.key_BKSD = key_BKTD.new_empty(batch, heads, self.sequence_length, width)
            self.value_BKSD = torch.empty_like(self.key_BKSD)
        known = self.length + key_BKTD.shape[2]
        self.key_BKSD[:, :, self.length : known] = key_BKTD
        self.value_BKSD[:, :, self.length : known] = value_BKTD
        if self.length == 0:
            return attend(query_BHTD, key_BKTD, value_BKTD, documents_BT)
        assert query_BHTD.shape[2] == 1
        return scaled_dot_product_attention(
            query_BHTD,
            self.key_BKSD[:, :, :known],
            self.value_BKSD[:, :, :known],
            enable_gqa=query_BHTD.shape[1] != key_BKTD.shape[1],
        )
