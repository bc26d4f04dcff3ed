"""Delayed gradients: an update uses the gradient of the weights of some steps before.

This models a cluster whose ranks do not wait for each other (Hogwild and parameter servers;
Zinkevich et al., "Slow learners are fast", 2009). There the delay varies by chance; here it is
always the same number of steps, so that the cost of staleness is reproducible and can be compared
with the synchronous curve.
"""

from functools import partial

import torch
from torch.optim import Optimizer

from strategies.train.gradients import own_part
from strategies.train.optimizers.large_batch import parameters_of

SEEN, WAITING = "gradients_seen", "waiting_gradient"


def delay_gradients(optimizer: Optimizer, *, steps: int) -> None:
    """Make every update use the gradient that was given to it `steps` updates before.

    The first `steps` updates have no such gradient: they leave the weights and the optimizer's
    averages as they are. The waiting gradients are part of the optimizer's state, laid out like
    their weights. 0 changes nothing.
    """
    if steps == 0:
        return
    for parameter in parameters_of(optimizer):
        state = optimizer.state[parameter]
        state[SEEN] = torch.zeros((), dtype=torch.int64)
        for place in range(steps):
            state[f"{WAITING}_{place}"] = torch.zeros_like(parameter)
    optimizer.register_step_pre_hook(partial(swap_gradients, steps))


@torch.no_grad()
def swap_gradients(steps: int, optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Store each gradient in place of the oldest waiting one and use that one in the update.

    Registered to run before each update.
    """
    for parameter in parameters_of(optimizer):
        if parameter.grad is None:
            continue
        state = optimizer.state[parameter]
        seen = int(state[SEEN])
        waiting = own_part(state[f"{WAITING}_{seen % steps}"])
        gradient = own_part(parameter.grad)
        oldest = waiting.clone()
        waiting.copy_(gradient)
        gradient.copy_(oldest)
        state[SEEN] += 1
        if seen < steps:
            parameter.grad = None  # optimizers skip parameters without a gradient
