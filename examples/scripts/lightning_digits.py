"""The digits with Lightning's Trainer. torchrun starts the ranks; the Trainer finds them by itself.

    trainyard submit --script lightning_digits.py --requirements requirements-lightning.txt \\
        --ranks 2 --wall-time 10min

`import lightning as L` does as well; the Trainer's TensorBoard files are read by themselves.
"""

import argparse
import os

import pytorch_lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    from trainyard.run import log
except ImportError:

    def log(step, **values):
        print(step, values)


RANKS = int(os.environ.get("WORLD_SIZE", 1))


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, _):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        mean = self.trainer.strategy.reduce(loss.detach(), reduce_op="mean")
        log(step=self.global_step + 1, loss=mean)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3)
    asked = parser.parse_args()

    L.seed_everything(1)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    trainer = L.Trainer(
        devices=RANKS,
        strategy="ddp" if RANKS > 1 else "auto",
        max_epochs=asked.passes,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Digits(), DataLoader(data, batch_size=64 // RANKS, shuffle=True))
    trainer.save_checkpoint(os.path.join(os.environ.get("TRAINYARD_OUTPUT", "."), "digits.ckpt"))


if __name__ == "__main__":
    main()
