"""Groups of commands. The top one turns errors into a sentence and an exit code, and finds the
platform's commands."""

from typing import Any

import typer
from typer.core import TyperGroup

from trainyard.cli import platform_commands
from trainyard.cli.exit_codes import as_document, code_for
from trainyard.cli.output import JSON_FLAG, note, print_json_error
from trainyard.cli.session import is_signed_in
from trainyard.errors import TrainyardError


class Lists(TyperGroup):
    """Group of commands about some things; without a command it lists them."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Take `list` for granted where no command is named."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


class Commands(TyperGroup):
    """Group of our commands, then the platform's."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names, without importing the platform."""
        ours = super().list_commands(ctx)
        return [*ours, *(name for name in self._platform_names() if name not in ours)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return our command, or a stand-in for the platform's."""
        ours = super().get_command(ctx, cmd_name)
        if ours is not None or cmd_name not in self._platform_names():
            return ours
        return platform_commands.PlatformCommand(cmd_name)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Take a call without a command as `status`, if a server is known."""
        if not args and is_signed_in():
            args = ["status"]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Errors of this package are handled here."""
        try:
            return super().invoke(ctx)
        except TrainyardError as error:
            if ctx.meta.get(JSON_FLAG):
                print_json_error(as_document(error))
            else:
                note(f"Error: {error}")
            raise typer.Exit(code_for(error)) from error

    @staticmethod
    def _platform_names() -> list[str]:
        known = platform_commands.KNOWN
        return [*known, *(name for name in platform_commands.installed() if name not in known)]
