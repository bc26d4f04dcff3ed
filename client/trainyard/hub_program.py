"""Program that downloads files of one commit from the hub on a node:
`hub_program.py KIND OWNER/NAME REVISION PATTERN...`, where KIND is `model` or `dataset`.

`trainyard models fetch` and `trainyard datasets fetch` send this file as a job of its own. It needs
huggingface_hub, which the nodes have with transformers. Beside the files it leaves hub.json: the
repository, the commit that the revision was at, and the files.
"""

import fnmatch
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
MOST_LISTED = 8
AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian
    "/etc/ssl/certs/ca-bundle.crt",  # Red Hat
    "/etc/ssl/ca-bundle.pem",  # SUSE
)


def main(kind: str, repository: str, revision: str, patterns: list[str], output: Path) -> None:
    """Resolve the revision to a commit, and download its files that match a pattern."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    with tempfile.TemporaryDirectory(prefix="hub-", ignore_cleanup_errors=True) as cache:
        os.environ.setdefault("HF_HOME", cache)
        fetch(kind, repository, revision, patterns, output)


def fetch(kind: str, repository: str, revision: str, patterns: list[str], output: Path) -> None:
    """Fetch the files, and write beside them the commit that they are of."""
    if "HF_ENDPOINT" in os.environ:
        trust_the_node()
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        found: Any = HfApi().repo_info(
            repository, repo_type=kind, revision=revision, files_metadata=True
        )
        sizes = {file.rfilename: file.size or 0 for file in found.siblings or ()}
        chosen = choose(kind, repository, list(sizes), patterns)
        total = sum(sizes[path] for path in chosen)
        say(f"{repository} at {revision} is commit {found.sha}.")
        say(f"Fetching {len(chosen):,} of its {len(sizes):,} files, {total:,} bytes.")
        for path in chosen:
            say(f"{path}: {sizes[path]:,} bytes")
            hf_hub_download(
                repository, path, repo_type=kind, revision=found.sha, local_dir=str(output)
            )
    except HfHubHTTPError as error:
        if error.response.status_code not in (401, 403, 404):
            raise
        sys.exit(
            f"{repository} at {revision}: the hub answers {error.response.status_code}. There is "
            f"no such {kind} or revision, or it is gated or private: accept its terms on the hub, "
            "store a token with `trainyard secrets set HF_TOKEN`, and fetch it with --secret "
            "HF_TOKEN."
        )
    shutil.rmtree(output / ".cache", ignore_errors=True)  # huggingface_hub's own records
    told = {"kind": kind, "repository": repository, "commit": found.sha, "files": chosen}
    (output / "hub.json").write_text(json.dumps(told, indent=2))


def trust_the_node() -> None:
    """Trust the authorities that the node trusts: a site's mirror may have one of its own."""
    known = next((path for path in AUTHORITIES if os.path.exists(path)), None)
    if known is not None:
        os.environ.setdefault("SSL_CERT_FILE", known)


def choose(kind: str, repository: str, paths: list[str], patterns: list[str]) -> list[str]:
    """Return the files to fetch. Exits with a sentence if there are none, or of several formats."""
    chosen = [p for p in sorted(paths) if any(fnmatch.fnmatchcase(p, each) for each in patterns)]
    if kind == "model":
        if "config.json" in chosen and any(path.endswith(".safetensors") for path in chosen):
            return chosen
        sys.exit(
            f"{repository} is not a model to start from: it needs config.json and "
            f"model.safetensors, whole or in parts. It has {some_of(paths)}. Pickles (*.bin, *.pt) "
            "are not fetched, because reading one can run code."
        )
    chosen = [path for path in chosen if ending(path) in FORMATS]
    if not chosen:
        sys.exit(
            f"{repository} has no file of {', '.join(FORMATS)} that matches {' '.join(patterns)}. "
            f"It has {some_of(paths)}."
        )
    formats = sorted({FORMATS[ending(path)] for path in chosen})
    if len(formats) > 1:
        sys.exit(
            f"{repository} has files of several formats, {', '.join(formats)}: {some_of(chosen)}. "
            "A dataset has one: choose with --files, such as --files 'data/*.parquet'."
        )
    return chosen


def ending(path: str) -> str:
    """Return the ending of a file's name, before .gz or .zst."""
    name = PurePosixPath(path)
    return name.with_suffix("").suffix if name.suffix in (".gz", ".zst") else name.suffix


def some_of(paths: list[str]) -> str:
    """Return the first paths in a sentence's words."""
    more = f" and {len(paths) - MOST_LISTED:,} more" if len(paths) > MOST_LISTED else ""
    return (", ".join(sorted(paths)[:MOST_LISTED]) or "no files") + more


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    kind, repository, revision, *patterns = sys.argv[1:]
    main(kind, repository, revision, patterns, Path(os.environ["TRAINYARD_OUTPUT"]))
