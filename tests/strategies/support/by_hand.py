"""One rank's training written out, with torch alone: what techniques that change the curve on
purpose are held against.
"""

from pathlib import Path

import torch
from torch import Tensor

from strategies.plan.learning_rate import learning_rate
from strategies.plan.run_directory import RunPlan
from strategies.train.data.batches import TrainingData, open_windows
from strategies.train.init import build_model
from strategies.train.models.loss import token_loss_sum

CPU = torch.device("cpu")


class ByHand:
    """The weights of one rank, and its share of the samples of each step."""

    def __init__(self, run_plan: RunPlan, folder: Path, *, rank: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        self.training = run_plan.spec.training
        self.model = build_model(run_plan.spec, device=CPU)
        self.names = [name for name, _ in self.model.named_weights()]
        self.weights = [parameter for _, parameter in self.model.named_weights()]
        windows = open_windows(run_plan, folder)
        self.data = TrainingData(windows, run_plan, batch_rank=rank, device=CPU)

    def gradient(self, step: int) -> tuple[float, list[Tensor]]:
        """This rank's share of the loss of a step, and of its gradient."""
        batches, valid_tokens = self.data.step((step - 1) * self.training.global_batch_size)
        losses = [
            token_loss_sum(self.model(batch.inputs_BT, batch.documents_BT), batch.labels_BT)
            for batch in batches
        ]
        loss = torch.stack(losses).sum() / valid_tokens
        return float(loss.detach()), list(torch.autograd.grad(loss, self.weights))

    def clip(self, gradient: list[Tensor]) -> float:
        """Scale a gradient in place, as the loop does; its norm before."""
        norm = torch.stack([part.norm() for part in gradient]).norm()
        factor = (self.training.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradient, factor)
        return float(norm)

    def update(self, optimizer: torch.optim.Optimizer, gradient: list[Tensor], step: int) -> None:
        """One step of an optimizer, at the rate of that step."""
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(self.training, step)
        for weight, part in zip(self.weights, gradient, strict=True):
            weight.grad = part
        optimizer.step()

    def adamw(self) -> torch.optim.AdamW:
        """torch's own AdamW, with decay on matrices only."""
        return torch.optim.AdamW(
            [
                {"params": [weight], "weight_decay": self.training.weight_decay * (weight.ndim > 1)}
                for weight in self.weights
            ],
            betas=(self.training.beta1, self.training.beta2),
        )
