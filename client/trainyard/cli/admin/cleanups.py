"""`trainyard admin cleanup`, `tag-lease`, `force-release`."""

from enum import StrEnum
from typing import Annotated

import typer

from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.group import Lists
from trainyard.cli.output import (
    AsJson,
    Limit,
    note,
    print_answer,
    print_json,
    print_list,
    print_table,
    say,
)
from trainyard.cli.session import connect
from trainyard.cli.times import optional_moment
from trainyard.views import Cleanup
from trainyard.wording import moment

app = typer.Typer(cls=Lists, help="Find leases that should not exist, and remove them.")
CleanupId = Annotated[str, typer.Argument(metavar="CLEANUP")]


class Wrong(StrEnum):
    """Kind of lease that a clean-up can look for."""

    ORPHAN = "orphan"
    OVER_QUOTA = "over_quota"
    EXPIRED_WINDOW = "expired_window"
    UNFIT = "unfit"
    NO_SHOW = "no_show"
    IDLE = "idle"


@app.command("preview")
def preview(
    reason: Annotated[str, typer.Option(help="Reason, as sent to the owners.")],
    wrong: Annotated[
        list[Wrong] | None,
        typer.Argument(help="Faults to look for; by default every lease that the options select."),
    ] = None,
    user: Annotated[str | None, typer.Option(help="Only leases of this person.")] = None,
    lab: Annotated[str | None, typer.Option(help="Only of this lab.")] = None,
    node: Annotated[str | None, typer.Option(help="Only on this node.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only with this tag.")] = None,
    since: Annotated[
        str | None, typer.Option("--from", help="Only leases that start at or after this time.")
    ] = None,
    before: Annotated[
        str | None, typer.Option(help="Only leases that start before this time.")
    ] = None,
    include_active: Annotated[
        bool,
        typer.Option("--include-active", help="Also active leases; their nodes are quarantined."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the leases that a clean-up would remove. Removes nothing."""
    with connect() as client:
        plan = client.cleanups.preview(
            wrong or (),
            reason=reason,
            user=user,
            lab=lab,
            node=node,
            tag=tag,
            starts_from=optional_moment(since),
            starts_before=optional_moment(before),
            include_active=include_active,
        )
    if as_json:
        print_json(plan.raw)
        return
    _show(plan)
    if plan.removed:
        say(f"Apply it before {moment(plan.expires_at)}:")
        say(f"  trainyard admin cleanup apply {plan.id} --hash {plan.hash}")


@app.command("apply")
def apply(
    cleanup_id: CleanupId,
    hash: Annotated[str, typer.Option(help="Hash of the preview that you read.")],
    leave: Annotated[
        list[str] | None, typer.Option(help="Lease of the preview to keep; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove the leases of a preview. Exit code 5: some had changed and were skipped."""
    with connect() as client:
        done = client.cleanups.apply(cleanup_id, hash, leave=leave or ())
    if as_json:
        print_json(done.raw)
    else:
        _show(done)
        if done.removed:
            say(f"Undo it before {moment(done.undo_until)}: trainyard admin cleanup undo {done.id}")
    left = set(leave or ())
    if any(row.result == "skipped" and row.lease not in left for row in done.rows):
        note("Some leases had changed since the preview and were skipped.")
        raise typer.Exit(ExitCode.CONFLICT)


@app.command("undo")
def undo(cleanup_id: CleanupId, as_json: AsJson = False) -> None:
    """Book the removed leases again. Exit code 5: the hours of some are no longer free."""
    with connect() as client:
        done = client.cleanups.undo(cleanup_id)
    if as_json:
        print_json(done.raw)
    else:
        _show(done)
    if any(row.result == "lost" for row in done.rows):
        note("Some hours were taken meanwhile and could not be booked again.")
        raise typer.Exit(ExitCode.CONFLICT)


@app.command("list")
def list_cleanups(
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List clean-ups, the newest first."""
    with connect() as client:
        found = list(client.cleanups.list(limit=limit))
    print_list(
        found,
        ["id", "state", "by", "at", "removed", "spared", "skipped", "reason"],
        lambda one: (
            one.id,
            one.state,
            one.made_by,
            moment(one.applied_at or one.created_at),
            one.removed,
            one.spared,
            one.skipped,
            one.reason,
        ),
        right=["removed", "spared", "skipped"],
        sentence=True,
        empty="No clean-ups.",
        as_json=as_json,
    )


def tag_lease(
    lease_id: Annotated[str, typer.Argument(metavar="LEASE")],
    tag: Annotated[
        list[str] | None,
        typer.Option(help="Tag of the lease, in place of earlier tags; may be repeated."),
    ] = None,
    protect: Annotated[
        bool, typer.Option("--protect/--no-protect", help="Exclude it from clean-ups.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Set a lease's tags, and whether clean-ups skip it."""
    with connect() as client:
        client.cleanups.tag(lease_id, tag or (), protected=protect)
    if as_json:
        print_json({"id": lease_id, "tags": tag or [], "protected": protect})
    else:
        tags = ", ".join(tag or ()) or "no tags"
        say(f"{lease_id}: {tags}{', protected' if protect else ''}.")


def force_release(
    lease_id: Annotated[str, typer.Argument(metavar="LEASE")], as_json: AsJson = False
) -> None:
    """End another person's active lease: its node is quarantined, its jobs save and stop."""
    with connect() as client:
        client.cleanups.force_release(lease_id)
    print_answer(
        {"id": lease_id, "released": True},
        f"{lease_id} ends. Check its node, then run `trainyard admin resume NODE`.",
        as_json=as_json,
    )


def _show(cleanup: Cleanup) -> None:
    print_table(
        ["lease", "owner", "start", "node", "hours", "rule", "refund", "what happens", "why"],
        (
            (
                row.lease,
                row.user,
                moment(row.hold_start),
                row.node,
                row.hours,
                row.rule,
                row.refund_hours or "-",
                row.result,
                row.outcome or row.message,
            )
            for row in cleanup.rows
        ),
        right=["hours", "refund"],
        sentence=True,
        empty="Nothing found.",
    )
    say(
        f"{cleanup.id} ({cleanup.state}): {cleanup.removed} removed, {cleanup.spared} spared, "
        f"{cleanup.skipped} skipped; {cleanup.freed_node_hours} node-hours free, "
        f"{cleanup.refunded_hours} h refunded to {cleanup.owners} people."
    )
