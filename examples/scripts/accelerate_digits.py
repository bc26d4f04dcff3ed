"""The digits with Hugging Face's Accelerate.

    trainyard submit --script accelerate_digits.py --launcher accelerate \\
        --requirements requirements-accelerate.txt --ranks 2 --wall-time 10min
"""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    from trainyard.run import log
except ImportError:

    def log(step, **values):
        print(step, values)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3)
    asked = parser.parse_args()

    accelerator = Accelerator()
    set_seed(1)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    loader = DataLoader(data, batch_size=64 // accelerator.num_processes, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for _ in range(asked.passes):
        for batch, answers in loader:
            step += 1
            loss = nn.functional.cross_entropy(model(batch), answers)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            log(step=step, loss=accelerator.reduce(loss.detach(), reduction="mean"))
    if accelerator.is_main_process:
        path = os.path.join(os.environ.get("TRAINYARD_OUTPUT", "."), "digits.pt")
        torch.save(accelerator.unwrap_model(model).state_dict(), path)
    accelerator.print(f"{step} steps on {accelerator.num_processes} ranks, loss {loss.item():.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
