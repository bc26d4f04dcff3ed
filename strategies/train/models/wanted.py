"""Gradients that a backward pass wants of an autograd function.

A zero-bubble schedule goes backward in halves: for the input of a stage first, and for its weights
later. torch runs the whole of a function for each half, and drops what the half does not want.
"""

from typing import Any

import torch


def wanted(ctx: Any) -> tuple[bool, ...]:
    """Return for each argument of the forward pass True if its gradient will be used.

    To be called in the function's backward pass.
    """
    reached = iter([node for node, _ in ctx.next_functions if node is not None])
    return tuple(needed and is_run(next(reached)) for needed in ctx.needs_input_grad)


def is_run(node: Any) -> bool:
    """Return True if the pass under way runs a node of the graph, or returns its gradient."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # a leaf whose gradient `torch.autograd.grad` was asked for
        return True
