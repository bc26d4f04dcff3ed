"""`trainyard admin policy` and `windows`: booking rules, and the hours in which leases are
allowed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.group import Lists
from trainyard.cli.jobs.planning import read_job
from trainyard.cli.output import (
    AsJson,
    note,
    print_answer,
    print_facts,
    print_json,
    print_list,
    print_table,
    say,
)
from trainyard.cli.session import connect
from trainyard.cli.times import moment_of, optional_moment
from trainyard.views import AffectedLease, PolicyPlan, Window, WindowPlan
from trainyard.wording import counted, moment

PolicyName = Annotated[
    str, typer.Argument(metavar="POLICY", help="Id, as in the policy's document.")
]
WindowName = Annotated[str, typer.Argument(metavar="WINDOW", help="Id.")]
Moment = Annotated[str | None, typer.Option(help="`2026-11-22 14:00`, or RFC 3339.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")]
CancelOrphans = Annotated[
    bool, typer.Option("--cancel-orphans", help="Cancel and refund the leases left outside.")
]

policy_app = typer.Typer(cls=Lists, help="Booking policies.")
windows_app = typer.Typer(cls=Lists, help="Hours in which leases on pools are allowed.")


@policy_app.command("list")
def list_policies(as_json: AsJson = False) -> None:
    """List the policies in force, the last applied first."""
    with connect() as client:
        found = client.policies.list()
    print_list(
        found,
        ["id", "version", "zone", "applied by", "applied"],
        lambda p: (p.id, p.version, p.zone, p.applied_by, moment(p.applied_at)),
        right=["version"],
        empty="No policies: the generous default applies. See docs/policies.md.",
        as_json=as_json,
    )


@policy_app.command("show")
def show(
    policy: PolicyName,
    version: Annotated[int | None, typer.Option(help="Default: the active one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the document, as it was applied."""
    with connect() as client:
        found = client.policies.get(policy, version=version)
    if as_json:
        print_json(found.raw)
        return
    state = "active" if found.active else "not active"
    applied = f"applied by {found.applied_by}, {moment(found.applied_at)}"
    note(f"# {found.id}, version {found.version}, {state}, {applied}")
    say(found.document.rstrip("\n"))


@policy_app.command("versions")
def versions(policy: PolicyName, as_json: AsJson = False) -> None:
    """List every version that was applied, the newest first."""
    with connect() as client:
        found = client.policies.versions(policy)
    print_list(
        found,
        ["version", "state", "applied by", "applied"],
        lambda p: (p.version, "active" if p.active else "", p.applied_by, moment(p.applied_at)),
        right=["version"],
        empty="None.",
        as_json=as_json,
    )


@policy_app.command("apply")
def apply(
    file: Annotated[Path, typer.Argument(help="A policy as YAML; - reads standard input.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what it would change.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Apply a policy. Shows what changes and which future leases would be refused."""
    document = read_job(file)
    with connect() as client:
        plan = client.policies.apply(document, dry_run=dry_run)
    if as_json:
        print_json(plan.raw)
        return
    _say_plan(plan)


@policy_app.command("withdraw")
def withdraw(policy: PolicyName, yes: Yes = False) -> None:
    """Deactivate a policy. Booked leases are kept."""
    if not yes:
        typer.confirm(f"Withdraw {policy}? Its rules stop applying.", abort=True, err=True)
    with connect() as client:
        client.policies.withdraw(policy)
    say(f"{policy} is no longer in force.")


@policy_app.command("moved")
def moved(
    tell: Annotated[bool, typer.Option("--tell", help="Notify their owners.")] = False,
    as_json: AsJson = False,
) -> None:
    """List leases whose clock time has changed because their zone's rules changed."""
    with connect() as client:
        found = client.policies.moved_leases(tell=tell)
    if as_json:
        print_json([lease.raw for lease in found])
        return
    _print_leases(found, "None.")
    if tell and found:
        say(f"Notified the owners of {counted(len(found), 'lease')}.")


@windows_app.command("list")
def list_windows(
    policy: Annotated[str | None, typer.Option(help="Only of this policy.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the hours in which leases are allowed, and when booking them opens."""
    with connect() as client:
        found = client.policies.windows(policy=policy)
    print_list(
        found,
        ["id", "policy", "pools", "from", "to", "opens", "by"],
        lambda window: (
            window.id,
            window.policy,
            ", ".join(window.pools),
            moment(window.starts_at),
            moment(window.ends_at),
            "at once" if window.opens_at is None else moment(window.opens_at),
            "document" if window.from_document else "staff",
        ),
        empty="No windows: leases are allowed at any time.",
        as_json=as_json,
    )


@windows_app.command("add")
def add_window(
    policy: PolicyName,
    pool: Annotated[list[str], typer.Option(help="May be given more than once.")],
    start: Annotated[str, typer.Option("--from", help="`2026-11-22 14:00`, or RFC 3339.")],
    end: Annotated[str, typer.Option("--to", help="The same.")],
    opens: Moment = None,
    as_json: AsJson = False,
) -> None:
    """Allow leases in more hours on some pools."""
    with connect() as client:
        window = client.policies.add_window(
            policy, pool, moment_of(start), moment_of(end), opens_at=optional_moment(opens)
        )
    print_answer(window.raw, f"{window.id}: {_window_text(window)}", as_json=as_json)


@windows_app.command("change")
def change_window(
    window: WindowName,
    start: Annotated[str | None, typer.Option("--from", help="New start.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="New end.")] = None,
    opens: Moment = None,
    cancel_orphans: CancelOrphans = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Change a window's edges; first shows which leases would be outside, then asks."""
    with connect() as client:

        def ask(plan: str | None) -> WindowPlan:
            return client.policies.change_window(
                window,
                starts_at=optional_moment(start),
                ends_at=optional_moment(end),
                opens_at=optional_moment(opens),
                orphans="cancel" if cancel_orphans else "keep",
                plan=plan,
            )

        _plan_then_do(ask, cancel_orphans=cancel_orphans, yes=yes, as_json=as_json)


@windows_app.command("delete")
def delete_window(
    window: WindowName,
    cancel_orphans: CancelOrphans = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a window; first shows which leases are in it, then asks."""
    with connect() as client:

        def ask(plan: str | None) -> WindowPlan:
            orphans = "cancel" if cancel_orphans else "keep"
            return client.policies.delete_window(window, orphans=orphans, plan=plan)

        _plan_then_do(ask, cancel_orphans=cancel_orphans, yes=yes, as_json=as_json)


def _plan_then_do(
    ask: Callable[[str | None], WindowPlan], *, cancel_orphans: bool, yes: bool, as_json: bool
) -> None:
    plan = ask(None)
    if not as_json:
        say(
            "The window is deleted."
            if plan.window is None
            else f"The window becomes: {_window_text(plan.window)}"
        )
        _print_leases(plan.orphans, "No booked lease would be outside.")
    what = "are cancelled and refunded" if cancel_orphans else "stay as they are"
    question = f"Continue? Leases outside: {len(plan.orphans)}; they {what}."
    if not plan.orphans:
        question = "Continue?"
    if not yes:
        typer.confirm(question, abort=True, err=True)
    done = ask(plan.hash)
    print_answer(done.raw, f"Done; {done.num_cancelled} leases cancelled.", as_json=as_json)


def _say_plan(plan: PolicyPlan) -> None:
    would = "" if plan.applied else "would "
    was = "It is the first version." if plan.replaces is None else f"It replaces {plan.replaces}."
    facts: list[tuple[str, object]] = [("policy", f"{plan.id}, version {plan.version}. {was}")]
    print_facts(facts)
    _say_list("Changes", plan.changes or ["None."])
    _say_list("Please check", plan.advice)
    if plan.num_refused:
        say(f"{plan.num_refused} future leases {would or 'do '}not pass; {_fate(plan)}.")
        _print_leases(plan.refused, "")
    else:
        say("Every future lease passes.")
    say("The policy is in force." if plan.applied else "Nothing was changed (dry run).")


def _fate(plan: PolicyPlan) -> str:
    if plan.in_flight == "cancel_with_refund":
        return f"{plan.num_cancelled} were cancelled" if plan.applied else "they would be cancelled"
    if plan.in_flight == "flag":
        return "they stay, and their owners are notified"
    return "they stay"


def _say_list(title: str, lines: Sequence[str]) -> None:
    if lines:
        say(f"{title}:")
    for line in lines:
        say(f"  {line}")


def _print_leases(leases: Sequence[AffectedLease], empty: str) -> None:
    print_table(
        ["lease", "owner", "node", "from", "to", "reasons"],
        (
            (
                lease.id,
                lease.user,
                lease.node,
                moment(lease.hold_start),
                moment(lease.hold_end),
                ", ".join(lease.codes),
            )
            for lease in leases
        ),
        empty=empty,
    )


def _window_text(window: Window) -> str:
    pools = ", ".join(window.pools)
    opens = "" if window.opens_at is None else f", booking opens {moment(window.opens_at)}"
    return f"{pools} from {moment(window.starts_at)} to {moment(window.ends_at)}{opens}"
