"""What a rank of the pool does: one run after another, in one process group.

Loaded by ranks.py in a forked rank. It keeps what is slow when it is new, process groups and
DTensor's caches; everything else is made afresh for every run.
"""

import faulthandler
import gc
import os
import random
import traceback
from contextlib import nullcontext
from functools import cache
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
import torch

from strategies.plan.layout import Layout
from strategies.plan.run_directory import RunDirectory
from strategies.train.control import ControlWatch
from strategies.train.data.batches import open_windows
from strategies.train.engine import engine_for
from strategies.train.farewell import leave_artifacts
from strategies.train.loop import train
from strategies.train.mesh import Mesh, join
from tests.strategies.support.mutants import MUTANTS
from tests.strategies.support.pool import Order


def serve(address: str) -> int:
    """Train as ordered until the tests hang up."""
    torch.set_num_threads(1)
    faulthandler.enable()
    gc.collect()
    gc.freeze()  # what was there before the first run need not be looked through after each
    with Client(address, "AF_UNIX") as tests:
        tests.send(int(os.environ["RANK"]))
        world: Mesh | None = None
        while True:
            try:
                order: Order = tests.recv()
            except EOFError:
                return 0
            try:
                world = world or join(order.run_plan.plan, timeout_s=60)
                follow(order, mesh_of(order.run_plan.plan.layout, world.rank, world.device))
                tests.send(None)
            except Exception:
                tests.send(traceback.format_exc())


@cache
def mesh_of(layout: Layout, rank: int, device: torch.device) -> Mesh:
    """One mesh, and so one set of process groups, for all runs of a layout."""
    return Mesh(layout, rank, device)


def follow(order: Order, mesh: Mesh) -> None:
    """One run, as strategies.train.main.run has it in a process of its own."""
    directory = RunDirectory(Path(order.run_dir))
    for folder in (directory.checkpoints, directory.artifacts):
        folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    windows = open_windows(order.run_plan, directory.path)
    with nullcontext() if order.mutant is None else MUTANTS[order.mutant].alive():
        saved = train(
            order.run_plan,
            directory,
            windows,
            engine=engine_for(order.run_plan.plan),
            mesh=mesh,
            control=ControlWatch(directory.control if mesh.is_first else None),
        )
        if saved is not None:
            leave_artifacts(order.run_plan, directory, saved, windows, mesh.device)
