"""`trainyard plan`: costs of a job, and whether it fits, before anything is submitted."""

import json
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.output import AsJson, print_facts, print_json, print_table, say
from trainyard.cli.platform_commands import INSTALL
from trainyard.cli.session import connect
from trainyard.errors import BadInput
from trainyard.resources.jobs import spec_text
from trainyard.transport.decoding import decode
from trainyard.views import Advice, ClassPlan, Cost, Plan, PlanAnswer, Seat, TimeSlot
from trainyard.wording import counted, duration, moment, number, size

OFFLINE = "trainyard.offline"  # the group in which the platform offers its planner
BAR = 30  # columns
AXES = ("pipeline", "replicate", "shard", "context", "tensor")
SHOWN_RANKS = 64
SHOWN_TIME = 160  # columns
FORWARD, BACKWARD = "0123456789", "abcdefghij"

A_JOB = typer.Argument(help="A job as YAML; `-` reads standard input.", show_default=False)
JobFile = Annotated[Path, A_JOB]


def plan(
    file: Annotated[Path | None, A_JOB] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Plan without a server, for hardware you describe.")
    ] = False,
    node_class: Annotated[
        str | None,
        typer.Option(help="With --offline: hardware of the nodes, such as a100-80gb, or cpu."),
    ] = None,
    gpus_per_node: Annotated[
        int, typer.Option(min=1, max=64, help="With --offline: GPUs of each node.")
    ] = 1,
    nodes: Annotated[
        int, typer.Option(min=1, max=1024, help="With --offline: number of nodes.")
    ] = 1,
    model: Annotated[
        str | None,
        typer.Option(
            help="With --offline: plan this model instead of the job's: a name such as llama-3-8b, "
            "or a Hugging Face config.json."
        ),
    ] = None,
    accuracy: Annotated[
        bool,
        typer.Option(
            "--accuracy",
            help="Instead: compare the plans of finished jobs with the memory that they used.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the costs of a job on every node class, and its node and start. Submits nothing.

    Exit code: 0 it fits, 3 it does not fit, 2 bad input or another reason why it can't run.
    """
    if accuracy:
        if file is not None or offline:
            raise BadInput("--accuracy is about finished jobs: omit FILE and --offline.")
        show_accuracy(as_json=as_json)
        return
    if file is None:
        raise BadInput("Name the FILE of a job, or ask for --accuracy.")
    text = read_job(file)
    if offline:
        hardware = {"node_class": node_class, "gpus_per_node": gpus_per_node, "nodes": nodes}
        answer = decode(PlanAnswer, plan_offline(text, model=model, **hardware))
    elif node_class or model or nodes > 1 or gpus_per_node > 1:
        raise BadInput(
            "--node-class, --gpus-per-node, --nodes and --model describe hardware and a model for "
            "--offline; the server plans for the nodes that it has."
        )
    else:
        with connect() as client:
            answer = client.jobs.plan(text)
    if as_json:
        print_json(answer.raw)
    else:
        show_answer(answer)
    if answer.chosen is None:
        raise typer.Exit(code_of(answer))


def code_of(answer: PlanAnswer) -> ExitCode:
    """Return the exit code of a refusal: because of memory alone, or of another problem."""
    codes = {problem.code for each in answer.plans for problem in each.plan.problems}
    return ExitCode.DOES_NOT_FIT if codes == {"does_not_fit"} else ExitCode.BAD_INPUT


def plan_offline(text: str, **asked: Any) -> Any:
    """Plan with the platform's own planner, in this process.

    Raises BadInput if it is not installed.
    """
    [*entries] = entry_points(group=OFFLINE)
    if not entries:
        raise BadInput(
            f"--offline needs the planner, which is part of the platform. Install it: {INSTALL}"
        )
    try:
        return entries[0].load()(text, **asked)
    except ValueError as error:
        raise BadInput(str(error)) from error


def read_job(file: Path) -> str:
    """Return the text of a job. Raises BadInput if there is none."""
    if str(file) != "-":
        return spec_text(file)
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise BadInput(f"Standard input is not UTF-8 text (byte {error.start}).") from error


def show_accuracy(*, as_json: bool) -> None:
    """Print planned against measured memory, by kind of run."""
    with connect() as client:
        answer = client.jobs.plan_accuracy()
    if as_json:
        print_json(answer.raw)
        return
    print_table(
        ["device", "model", "strategy", "runs", "planned too much", "from", "to", "learned"],
        (
            (
                row.device,
                row.model,
                row.strategy,
                str(row.runs),
                *(f"{e:+.1%}" for e in (row.error_median, row.error_least, row.error_most)),
                "-" if row.factor == 1 else f"x {row.factor:g}",
            )
            for row in answer.rows
        ),
        empty="No finished job's memory has been measured yet: that takes at least 3 steps.",
        right=["runs", "planned too much", "from", "to", "learned"],
    )


def show_answer(answer: PlanAnswer) -> None:
    for class_plan in answer.plans:
        show_plan(class_plan, is_chosen=class_plan.node_class == answer.chosen)
    say(answer.reason)
    if answer.predicted_start is not None:
        say(f"Predicted start: {moment(answer.predicted_start)}")
    if answer.predicted_finish is not None:
        say(f"Predicted finish: {moment(answer.predicted_finish)}")
    if answer.lease_end is not None:
        say(f"Jobs in the lease are stopped: {moment(answer.lease_end)}")


def show_plan(class_plan: ClassPlan, *, is_chosen: bool) -> None:
    made = class_plan.plan
    verdict = Text("fits", style="green") if not made.problems else Text("cannot run", style="red")
    axes = [f"{axis} {degree}" for axis, degree in made.layout.items() if degree != 1]
    where = f"{class_plan.node_class}, {counted(class_plan.ready_nodes, 'node')} ready"
    facts: list[tuple[str, Any]] = [
        ("node class", where + (" (chosen)" if is_chosen else "")),
        ("verdict", verdict),
        (
            "layout",
            f"{made.strategy} on {counted(made.world_size, 'rank')}: "
            f"{', '.join(axes) or 'one rank'}",
        ),
        ("batch", batch_sentence(made)),
        ("parameters", parameters_of(made)),
        *arithmetic_facts(made),
        ("memory", f"{made.needed_gib:.3g} of {made.capacity_gib:.3g} GiB per rank"),
    ]
    if len(set(made.needed_by_stage_gib)) > 1:
        stages = ", ".join(f"{gib:.3g}" for gib in made.needed_by_stage_gib)
        facts.append(("by stage", f"{stages} GiB per rank along the pipeline"))
    if made.host_memory:
        host = ", ".join(f"{term.name} {term.gib:.3g}" for term in made.host_memory)
        of = "" if made.host_capacity_gib is None else f", of {made.host_capacity_gib:.3g}"
        facts.append(("host memory", f"{host} GiB per node{of}"))
    if made.files:
        files = ", ".join(f"{term.name} {term.gib:.3g}" for term in made.files)
        facts.append(("disk", f"{files} GiB per node"))
    if made.cost is not None:
        facts += cost_facts(made.cost)
    print_facts(facts)
    show_memory(made)
    if made.cost is not None and made.cost.traffic:
        show_traffic(made.cost)
    if 1 < len(class_plan.seats) <= SHOWN_RANKS:
        show_seats(class_plan.seats)
    if class_plan.timeline:
        show_timeline(class_plan.timeline)
    for problem in made.problems:
        say(f"  {problem.param}: {problem.message}")
    if made.advice:
        show_advice(made.advice)
    for warning in made.warnings:
        say(f"  Note: {warning}")
    say("")


def batch_sentence(made: Plan) -> str:
    """Return `1,024 samples a step over 4 replicas = 256 each; in 8 micro-batches = 32 in each`."""
    replicas = made.layout.get("replicate", 1) * made.layout.get("shard", 1)
    parts = made.gradient_accumulation_steps
    return (
        f"{made.global_batch_size:,} samples a step over {counted(replicas, 'replica')} = "
        f"{made.global_batch_size // replicas:,} each; in {counted(parts, 'micro-batch')} = "
        f"{made.micro_batch_size:,} in each; {made.tokens_per_step:,} {made.unit}"
    )


def arithmetic_facts(made: Plan) -> list[tuple[str, Any]]:
    """Return the kernel of attention, and what differs from eager layers, exact float32 and torch's
    own choice of algorithms."""
    facts = []
    if made.attention:
        facts.append(("attention", f"{made.attention} kernel"))
    if made.compiles:
        facts.append(("layers", "compiled (torch.compile)"))
    if made.float32_matmul != "exact":
        facts.append(("float32 products", made.float32_matmul))
    if made.deterministic:
        facts.append(("algorithms", "deterministic"))
    return facts


def cost_facts(cost: Cost) -> list[tuple[str, Any]]:
    facts = [("arithmetic", f"{cost.flops_per_step:.3g} FLOPs a step: {cost.convention}")]
    if cost.bubble:
        facts.append(("bubble", f"a pipeline's rank waits {cost.bubble:.0%} of a step"))
    time = cost.step_time
    if time is None:
        facts.append(("time", "not known for this hardware"))
    else:
        facts.append(
            (
                "step",
                f"{number(time.expected_s)} s ({number(time.low_s)} to {number(time.high_s)}), "
                f"{number(cost.tokens_per_s)} tokens/s; {time.basis}",
            )
        )
        facts.append(("in all", f"{duration(cost.total_s)}, {number(cost.gpu_hours)} GPU-hours"))
    return facts


def show_memory(made: Plan) -> None:
    full = max(made.capacity_gib, sum(term.gib for term in made.memory)) or 1.0
    print_table(
        ["memory per rank", "GiB", "", "how it is known"],
        (
            (
                term.name,
                f"{term.gib:.4f}",
                "█" * round(BAR * term.gib / full),
                ("" if term.exact else "estimated: ") + term.source,
            )
            for term in made.memory
        ),
        empty="",
        right=["GiB"],
    )


def show_traffic(cost: Cost) -> None:
    print_table(
        ["sent along", "ranks", "per step", "when", "what"],
        (
            (
                part.axis,
                str(part.ranks),
                size(part.num_bytes),
                "while computing" if part.overlaps else "while ranks wait",
                part.what + (" (across nodes)" if part.crosses_nodes else ""),
            )
            for part in cost.traffic
        ),
        empty="",
        right=["ranks", "per step"],
    )


def show_seats(seats: Sequence[Seat]) -> None:
    """Print each rank with the axes on which ranks differ."""
    axes = [axis for axis in AXES if any(getattr(seat, axis) for seat in seats)]
    print_table(
        ["rank", "node", "slot", *axes],
        (
            (str(s.rank), str(s.node), str(s.slot), *(str(getattr(s, axis)) for axis in axes))
            for s in seats
        ),
        empty="",
    )


def show_timeline(timeline: Sequence[TimeSlot]) -> None:
    """Print a line for each rank, a column for each unit of time, as many as fit on a screen."""
    end = min(max(slot.end for slot in timeline), SHOWN_TIME)
    say("A step of the pipeline: 0 to 9 forward, a to j backward of that micro-batch, . waiting")
    for rank in range(max(slot.rank for slot in timeline) + 1):
        line = ["."] * end
        for slot in timeline:
            if slot.rank == rank:
                marks = FORWARD if slot.kind == "forward" else BACKWARD
                for at in range(slot.start, min(slot.end, end)):
                    line[at] = marks[slot.micro_batch % len(marks)]
        say(f"  rank {rank}  {''.join(line)}")


def show_advice(advice: tuple[Advice, ...]) -> None:
    print_table(
        ["change", "fits", "GiB", "time", "class", "set", "costs"],
        (
            (
                one.title + (" (changes the trained model)" if one.changes_training else ""),
                "yes" if one.fits else "no",
                f"{one.needed_gib:.3g}",
                "-" if one.slow_down is None else f"x {one.slow_down:.2f}",
                one.result_class,
                json.dumps(one.change),
                one.costs,
            )
            for one in sorted(advice, key=lambda one: not one.fits)
        ),
        empty="",
        right=["GiB", "time"],
        sentence=True,
    )


def parameters_of(made: Plan) -> str:
    """Return the number of parameters, and how many of them are trained."""
    if made.trainable_parameters in (None, made.parameters):
        return f"{made.parameters:,}"
    return f"{made.parameters:,}, of which {made.trainable_parameters:,} are trained"
