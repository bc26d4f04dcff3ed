"""The command `trainyard`."""

import io
import sys
from typing import Annotated

import typer

from trainyard.cli import doctor, status
from trainyard.cli.admin import admin, operation
from trainyard.cli.courses import courses
from trainyard.cli.files import (
    code_archives,
    datasets,
    models,
    sharing,
    tokenizers,
    uploads,
    workspace,
)
from trainyard.cli.group import Commands
from trainyard.cli.jobs import (
    files,
    following,
    jobs,
    planning,
    reports,
    scripts,
    submitting,
    templates,
    verifying,
)
from trainyard.cli.leases import leases, nodes
from trainyard.cli.output import say
from trainyard.cli.people import account, notifications, sessions, tokens, usage
from trainyard.cli.studies import agendas, studies
from trainyard.cli.workbenches import ssh, workbenches
from trainyard.transport.connection import client_version

HELP = """Train models on shared GPU nodes.

Sign in with `trainyard login URL`, then `trainyard submit FILE --follow`. Without a command: where
you stand, and what to do next.

A job, lease, study or agenda is named by its id, by four or more characters at the beginning or the
end of that, by its name, or as @1, the newest. `trainyard --install-completion` teaches your shell.

Exit codes: 0 done; 1 a followed job did not succeed, a verified job deviates from the reference
curve, or a checked report is not genuine; 2 invalid input; 3 not signed in or not allowed, or the
planned job does not fit; 4 not found; 5 conflict or over a limit; 6 server unreachable or failed;
130 Ctrl-C.
"""

app = typer.Typer(
    cls=Commands,
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

JOBS, WATCH, HAVE, ACCOUNT = "Jobs", "Watch", "Nodes, leases, datasets and models", "Account"

for panel, name, command in (
    (JOBS, "plan", planning.plan),
    (JOBS, "submit", submitting.submit),
    (JOBS, "scale", studies.scale),
    (JOBS, "jobs", jobs.list_jobs),
    (JOBS, "show", jobs.show),
    (JOBS, "cancel", jobs.cancel),
    (JOBS, "tag", jobs.tag_job),
    (JOBS, "pause", jobs.pause),
    (JOBS, "resume", jobs.resume),
    (JOBS, "requeue", jobs.requeue),
    (JOBS, "ssh", ssh.ssh),
    (JOBS, "clone", jobs.clone),
    (WATCH, "status", status.status),
    (WATCH, "profile", jobs.profile),
    (WATCH, "snapshot", jobs.snapshot),
    (WATCH, "follow", following.follow_command),
    (WATCH, "logs", following.logs),
    (WATCH, "metrics", following.metrics),
    (WATCH, "verify", verifying.verify),
    (WATCH, "report", reports.report),
    (WATCH, "checkpoints", files.checkpoints),
    (WATCH, "artifacts", files.artifacts),
    (WATCH, "download", files.download),
    (WATCH, "code", scripts.download_code),
    (HAVE, "usage", usage.usage),
    (HAVE, "share", sharing.share),
    (HAVE, "unshare", sharing.unshare),
    (HAVE, "shares", sharing.list_shares),
    (ACCOUNT, "login", account.login),
    (ACCOUNT, "logout", account.logout),
    (ACCOUNT, "whoami", account.whoami),
    (ACCOUNT, "storage", account.storage),
    (ACCOUNT, "doctor", doctor.doctor),
):
    app.command(name, rich_help_panel=panel)(command)

workbenches.app.command("stream", hidden=True)(ssh.stream)
app.add_typer(workbenches.app, name="workbench", rich_help_panel=JOBS)
app.add_typer(studies.app, name="studies", rich_help_panel=JOBS)
app.add_typer(courses.app, name="course", rich_help_panel=JOBS)
app.add_typer(templates.app, name="templates", rich_help_panel=JOBS)
app.add_typer(agendas.app, name="agenda", rich_help_panel=JOBS)
app.add_typer(reports.app, name="reports", rich_help_panel=WATCH)
app.add_typer(nodes.app, name="nodes", rich_help_panel=HAVE)
app.add_typer(leases.app, name="leases", rich_help_panel=HAVE)
app.add_typer(datasets.app, name="datasets", rich_help_panel=HAVE)
app.add_typer(models.app, name="models", rich_help_panel=HAVE)
app.add_typer(tokenizers.app, name="tokenizers", rich_help_panel=HAVE)
app.add_typer(code_archives.app, name="archives", rich_help_panel=HAVE)
app.add_typer(uploads.app, name="uploads", rich_help_panel=HAVE)
app.add_typer(workspace.app, name="workspace", rich_help_panel=HAVE)
app.add_typer(scripts.secrets_app, name="secrets", rich_help_panel=HAVE)
app.add_typer(notifications.app, name="notifications", rich_help_panel=ACCOUNT)
app.add_typer(tokens.app, name="tokens", rich_help_panel=ACCOUNT)
app.add_typer(sessions.app, name="sessions", rich_help_panel=ACCOUNT)
admin.app.command("backup")(operation.backup)
admin.app.command("restore")(operation.restore)
admin.app.command("read-only")(operation.read_only)
admin.app.command("fabric")(operation.fabric)
admin.app.command("unsafe-settings")(operation.unsafe_settings)
app.add_typer(admin.app, name="admin", rich_help_panel=ACCOUNT)


def _show_version(asked: bool) -> None:
    if asked:
        say(client_version())
        raise typer.Exit


@app.callback()
def trainyard(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Handle the options before a command. The help text is HELP."""


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows `?`
    app()
