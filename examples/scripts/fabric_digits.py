"""The digits with Lightning Fabric. torchrun starts the ranks; Fabric finds them by itself.

    trainyard submit --script fabric_digits.py --requirements requirements-fabric.txt \\
        --ranks 2 --wall-time 10min
"""

import argparse
import os

import torch
from lightning_fabric import Fabric
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

    fabric = Fabric(devices=int(os.environ.get("WORLD_SIZE", 1)))
    fabric.launch()
    fabric.seed_everything(1)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = fabric.setup_dataloaders(
        DataLoader(data, batch_size=64 // fabric.world_size, shuffle=True)
    )
    step = 0
    for number in range(asked.passes):
        if isinstance(loader.sampler, torch.utils.data.DistributedSampler):
            loader.sampler.set_epoch(number)
        for batch, answers in loader:
            step += 1
            loss = nn.functional.cross_entropy(model(batch), answers)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            log(step=step, loss=fabric.all_reduce(loss.detach()))
    path = os.path.join(os.environ.get("TRAINYARD_OUTPUT", "."), "digits.ckpt")
    fabric.save(path, {"model": model})
    fabric.print(f"{step} steps, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
