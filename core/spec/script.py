"""A script of the user's own as a job: its spec, and the facts known before it runs.

Pure. Nobody can tell how much memory it takes or how many steps it makes, so its plan has the ranks
and their nodes, and nothing else.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from strategies.plan.hardware import Hardware
from strategies.plan.planner import slots_for_auto
from strategies.plan.rules.problem import Problem
from strategies.plan.spec import SpecPart
from strategies.plan.words import counted

CODE_PATH = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
MAX_ARCHIVE_BYTES = 50 << 20
MAX_UNPACKED_BYTES = 200 << 20
MAX_FILES = 5000
MAX_LEFT_OUT = 100
MAX_RATIO = 100  # of unpacked to packed size: an archive that compresses better is a bomb, not code

CodePath = Annotated[str, Field(pattern=CODE_PATH, max_length=400)]
Variable = Annotated[str, Field(pattern=VARIABLE)]
Argument = Annotated[str, Field(max_length=8192, pattern=r"^[^\x00]*$")]
ScriptLauncher = Literal["torchrun", "accelerate", "mpirun", "python"]
ACROSS_NODES = ("torchrun", "accelerate")
"""Launchers that start ranks on several nodes."""


class Script(SpecPart):
    """Entry point in an archive of code, and the way to run it."""

    entry: CodePath
    """The file that every rank runs, by its path in the archive."""
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the archive: `trainyard submit --script` packs and uploads the folder, POST
    /v1/code takes one."""
    arguments: Annotated[tuple[Argument, ...], Field(max_length=500)] = ()
    """Arguments that the script finds in sys.argv after its own name."""
    launcher: ScriptLauncher = "torchrun"
    """torchrun, accelerate launch, mpirun where the node has an MPI, or python for one rank
    alone."""
    environment: dict[Variable, Argument] = Field(default_factory=dict, max_length=200)
    """Variables visible to everybody who sees the job; for others, use `secrets`."""
    secrets: Annotated[tuple[Variable, ...], Field(max_length=50)] = ()
    """Names of your secrets (PUT /v1/secrets/NAME); each is a variable of that name."""
    requirements: CodePath | None = None
    """A requirements.txt or pyproject.toml of the archive, whose packages are put over those of
    the node. Default: the node's own."""
    left_out: Annotated[
        tuple[Annotated[str, Field(max_length=400)], ...], Field(max_length=MAX_LEFT_OUT)
    ] = ()
    """Paths that an ignore file kept out of the archive, a folder's with `/` at its end; `./` where
    the entry was packed alone. Repeated in the failure message if the script can't find one."""


class ScriptPlan(BaseModel):
    """All that is known of a script, or of a workbench, before it runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: Literal["script"] = "script"
    device: Literal["cpu", "cuda"]
    world_size: int
    nodes: int
    ranks_per_node: int
    problems: list[Problem]
    warnings: list[str]

    @property
    def runnable(self) -> bool:
        """True if nothing prevents the start."""
        return not self.problems


def plan_script(
    script: Script,
    *,
    nodes: int,
    ranks_per_node: int | Literal["auto"],
    hardware: Hardware,
) -> ScriptPlan:
    """Plan a script's ranks on nodes of `hardware`, with every reason why it can't run there.

    `auto` stands for one rank for each slot, or one where the launcher starts no more.
    """
    problems, warnings = [], []
    if isinstance(ranks_per_node, str):
        ranks_per_node = 1 if script.launcher == "python" else slots_for_auto(hardware)
        warnings.append(f"auto chose {counted(ranks_per_node, 'rank')} per node")
    if nodes > 1 and script.launcher not in ACROSS_NODES:
        problems.append(
            Problem(
                code="launcher_needs_one_node",
                param="script.launcher",
                message=f"{script.launcher} starts ranks on one node only, not on {nodes}; "
                f"use {' or '.join(ACROSS_NODES)}, or 1 node",
            )
        )
    problems += slot_problems(ranks_per_node, hardware)
    if script.launcher == "python" and ranks_per_node > 1:
        problems.append(
            Problem(
                code="launcher_needs_one_rank",
                param="script.launcher",
                message=f"launcher python starts one rank, not {ranks_per_node}; use "
                "torchrun, accelerate or mpirun, or 1 rank",
            )
        )
    problems += sandbox_problems(hardware, nodes=nodes, param="script")
    return ScriptPlan(
        device=hardware.device,
        world_size=nodes * ranks_per_node,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        problems=problems,
        warnings=warnings,
    )


def slot_problems(ranks_per_node: int, hardware: Hardware) -> list[Problem]:
    """Return the problem of more ranks than a node has slots, if that is so."""
    if ranks_per_node <= hardware.slots:
        return []
    return [
        Problem(
            code="too_many_ranks",
            param="resources.ranks_per_node",
            message=f"{ranks_per_node} ranks per node, but a node of class "
            f"{hardware.class_name} has {hardware.slots} slots",
        )
    ]


def sandbox_problems(hardware: Hardware, *, nodes: int, param: str) -> list[Problem]:
    """Return the problem of a missing sandbox, if there is none for a program on so many nodes;
    `param` is the field that asks for the program."""
    if hardware.no_sandbox:
        return [
            Problem(
                code="sandbox_unavailable",
                param=param,
                message=f"a node of class {hardware.class_name} cannot sandbox {param}s, so it "
                f"does not run them: {hardware.no_sandbox}",
            )
        ]
    if nodes > 1 and hardware.no_gang_sandbox:
        return [
            Problem(
                code="sandbox_unavailable",
                param="resources.nodes",
                message=f"nodes of class {hardware.class_name} cannot sandbox one script "
                f"across several nodes: {hardware.no_gang_sandbox}; use 1 node "
                f"instead of {nodes}",
            )
        ]
    return []
