"""Quota of a workspace in bytes and files, and the sentences about it. Pure."""

from dataclasses import dataclass

from core.base.words import size_text

WARN_AT = 0.9  # of either limit


@dataclass(frozen=True)
class Quota:
    """Most that one person's workspace may hold."""

    max_bytes: int
    max_files: int
    """Files, folders and links together."""

    def why_refused(self, size: int, files: int) -> str:
        """Return the reason why so much is not kept; empty if it is."""
        over = self._over(size, files)
        if not over:
            return ""
        return (
            f"The workspace was not kept, because it holds {' and '.join(over)}. The last snapshot "
            "stays. Delete something; the next look keeps it."
        )

    def why_over(self, size: int, files: int) -> str:
        """Return the sentence for a shared folder that holds more; empty if it does not."""
        over = self._over(size, files)
        if not over:
            return ""
        return (
            f"The workspace holds {' and '.join(over)} in the site's shared folder. Delete "
            "something: programs that bring it are ended, and only a workbench starts."
        )

    def why_not_started(self, size: int, files: int) -> str:
        """Return the reason why a program is not started on a shared folder; empty if it is."""
        over = self._over(size, files)
        if not over:
            return ""
        return (
            f"The workspace holds {' and '.join(over)} in the site's shared folder, so nothing "
            "that writes to it starts but a workbench. Delete something in a workbench, or submit "
            "without the workspace."
        )

    def why_ended(self, size: int, files: int) -> str:
        """Return the reason why a program in a shared folder is ended; empty if it goes on."""
        over = self._over(size, files)
        if not over:
            return ""
        return (
            f"The program was ended because its owner's workspace holds {' and '.join(over)} in "
            "the site's shared folder. Delete something in a workbench"
        )

    def warning(self, size: int, files: int) -> str:
        """Return a sentence if a limit is near; else an empty text."""
        near = []
        if size >= WARN_AT * self.max_bytes:
            near.append(f"{size_text(size)} of {size_text(self.max_bytes)}")
        if files >= WARN_AT * self.max_files:
            near.append(f"{files:,} of {self.max_files:,} files and folders")
        if not near:
            return ""
        return f"The workspace is nearly full: {' and '.join(near)}. Above that nothing is kept."

    def _over(self, size: int, files: int) -> list[str]:
        over = []
        if size > self.max_bytes:
            over.append(f"{size_text(size)} of at most {size_text(self.max_bytes)}")
        if files > self.max_files:
            over.append(f"{files:,} files and folders of at most {self.max_files:,}")
        return over
