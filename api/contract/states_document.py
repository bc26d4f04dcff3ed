"""`docs/states.md`, as it is printed from the code."""

import sys

from core.base.reasons import QUOTA, VIOLATION, ReasonCode
from core.states import (
    ATTEMPT_EDGES,
    JOB_EDGES,
    LEASE_EDGES,
    MAX_INFRASTRUCTURE_FAILURES,
    NODE_EDGES,
    Desired,
    GpuHealth,
    Outcome,
    Phase,
    job_after,
)

CODES = """\
The `reason_code` of a job or an event, the `settled_as` of a lease, and the `code` of a broken
rule. The code of a job whose attempt has ended, or was asked to, is its outcome. Codes may be
added: treat an unknown one as "some other reason", and show the sentence beside it."""
SECTIONS = {  # the first code of each
    ReasonCode.SUBMITTED: "A job and its events",
    ReasonCode.QUEUE: "A job that waits",
    ReasonCode.BOOKED: "A lease",
    ReasonCode.ENROLLED: "A node",
    ReasonCode.OFF_GRID: "A rule that a booking, a walk-in or an extension breaks",
}


def as_markdown() -> str:
    """Render `docs/states.md`: meanings, edges with their events, outcomes and reason codes."""
    lines = [
        "# States",
        "",
        "Printed by `python -m api.contract.states_document`; a test compares the two.",
        "",
    ]
    for name, edges in (
        ("Job", JOB_EDGES),
        ("Attempt", ATTEMPT_EDGES),
        ("Lease", LEASE_EDGES),
        ("Node", NODE_EDGES),
    ):
        lines += [f"## {name}", "", "| state | meaning |", "|---|---|"]
        lines += [f"| `{state}` | {state.meaning} |" for state in edges]
        lines += ["", "| from | to | when |", "|---|---|---|"]
        for state, targets in edges.items():
            lines += [f"| `{state}` | `{target}` | {when} |" for target, when in targets.items()]
        final = ", ".join(f"`{state}`" for state, targets in edges.items() if not targets)
        lines += ["", f"Final: {final}.", ""]
    lines += [
        "## Phase of an attempt, as its node reports it",
        "",
        "| phase | meaning |",
        "|---|---|",
    ]
    lines += [f"| `{phase}` | {phase.meaning} |" for phase in Phase]
    lines += ["", "## Health of a GPU", "", "| health | meaning |", "|---|---|"]
    lines += [f"| `{health}` | {health.meaning} |" for health in GpuHealth]
    lines += ["", "## Desired by the owner of a job", "", "| desired | meaning |", "|---|---|"]
    lines += [f"| `{desired}` | {desired.meaning} |" for desired in Desired]
    lines += ["", "## Outcomes of an attempt", "", "| outcome | meaning | next state of the job |"]
    lines += ["|---|---|---|"]
    for outcome in Outcome:
        first = job_after(outcome, Desired.RUN, 0)
        last = job_after(outcome, Desired.RUN, MAX_INFRASTRUCTURE_FAILURES)
        after = (
            f"`{first}`"
            if first is last
            else (f"`{first}`, after {MAX_INFRASTRUCTURE_FAILURES} such failures `{last}`")
        )
        lines.append(f"| `{outcome}` | {outcome.meaning} | {after} |")
    lines += ["", "## Reason codes", "", CODES]
    for code in ReasonCode:
        if code in SECTIONS:
            lines += ["", f"### {SECTIONS[code]}", "", "| code | meaning |", "|---|---|"]
        lines.append(f"| `{code}` | {code.meaning} |")
    lines.append(f"| `{QUOTA}NAME` | The block fits no alternative of quota NAME. |")
    lines += [
        "",
        f"A lease taken away by staff for breaking a rule has `{VIOLATION}` and its code.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
