"""All checks in their order, each with its seconds on a node with 4 GPUs: ten minutes together."""

from strategies.plan.trust.proof import CheckName
from worker.proving.checks import (
    adapters,
    attention,
    checkpoint,
    collectives,
    compile,
    context,
    equality,
    hand_over,
    inventory,
    memory,
    out_of_memory,
    precision,
    schedules,
    speed,
    stuck_rank,
    zero,
)
from worker.proving.runner import Check

CHECKS = (
    Check(CheckName.INVENTORY, inventory.look, 20),
    Check(CheckName.COLLECTIVES, collectives.look, 35),
    Check(CheckName.EQUALITY, equality.look, 100),
    Check(CheckName.PRECISION, precision.look, 20),
    Check(CheckName.ATTENTION, attention.look, 25),
    Check(CheckName.CONTEXT, context.look, 30),
    Check(CheckName.SCHEDULES, schedules.look, 40),
    Check(CheckName.ZERO, zero.look, 65),
    Check(CheckName.COMPILE, compile.look, 40),
    Check(CheckName.MEMORY, memory.look, 45),
    Check(CheckName.ADAPTERS, adapters.look, 20),
    Check(CheckName.OUT_OF_MEMORY, out_of_memory.look, 40),
    Check(CheckName.STUCK_RANK, stuck_rank.look, 35),
    Check(CheckName.CHECKPOINT, checkpoint.look, 20),
    Check(CheckName.HAND_OVER, hand_over.look, 15),
    Check(CheckName.SPEED, speed.look, 50),
)
