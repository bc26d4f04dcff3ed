"""A small GPT in one file, on the text of Python's own library, character by character.

    trainyard submit --script gpt.py --ranks 2 --wall-time 20min -- --steps 300

After Andrej Karpathy's nanoGPT in spirit; written anew, for reading.
"""

import argparse
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

try:
    from trainyard.run import log
except ImportError:

    def log(step, **values):
        print(step, values)


class Block(nn.Module):
    """Attention, then a feed-forward part, each added to what comes in."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        q, k, v = (
            part.view(heads).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary, length, width, layers, heads):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=8, help="over all ranks")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    asked = parser.parse_args()

    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    has_gpu = torch.cuda.is_available()
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if has_gpu else "cpu"
    if ranks > 1:
        dist.init_process_group("nccl" if has_gpu else "gloo")

    library = Path(argparse.__file__).parent
    text = "".join(path.read_text("utf-8", "ignore") for path in sorted(library.glob("a*.py")))
    letters = sorted(set(text))
    number_of = {letter: number for number, letter in enumerate(letters)}
    tokens = torch.tensor([number_of[letter] for letter in text])

    torch.manual_seed(1)
    model = GPT(len(letters), asked.length, asked.width, asked.layers, heads=4).to(device)
    parallel = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
    for step in range(1, asked.steps + 1):
        chosen = torch.Generator().manual_seed(step)
        starts = torch.randint(
            len(tokens) - asked.length - 1, (asked.batch_size,), generator=chosen
        )
        windows = torch.stack([tokens[at : at + asked.length + 1] for at in starts[rank::ranks]])
        windows = windows.to(device)
        logits = parallel(windows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().double()
        if ranks > 1:
            dist.all_reduce(mean)
        log(step=step, loss=mean / ranks, grad_norm=grad_norm)

    if rank == 0:
        torch.save(model.state_dict(), Path(os.environ.get("TRAINYARD_OUTPUT", "."), "gpt.pt"))
        written = tokens[:1].to(device)
        for _ in range(200):
            with torch.no_grad():
                odds = model(written[None, -asked.length :])[0, -1].softmax(-1)
            written = torch.cat([written, torch.multinomial(odds, 1)])
        print(f"a loss of {math.log(len(letters)):.2f} would be guessing; it writes:")
        print("".join(letters[number] for number in written))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
