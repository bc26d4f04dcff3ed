"""Check of an uploaded Hugging Face model, a tar archive of its folder, while it streams.

Each file goes into the store by itself, once all of them are right. Only known names are accepted,
so no path and no pickle ever reaches a disk; weights must be whole safetensors of a model that can
be trained here.
"""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from api.files.store import IncomingFile
from core.base.errors import BadRequest
from strategies.plan.hugging_face.hf_config import (
    CONFIG,
    INDEX,
    OTHER_FILES,
    TOKENIZER,
    WEIGHT_FILE,
    HfConfig,
    UnsupportedModel,
    parse_config,
)
from strategies.plan.hugging_face.hf_names import codes_name, hf_weights
from strategies.plan.spec import ModelSpec

PIECE_BYTES = 1 << 20
BLOCK = 512  # bytes; a tar archive's unit
MAX_FILES = 300
MAX_OTHER_BYTES = 64 << 20  # of a file without weights: tokenizers have some 10 MB
MAX_HEADER_BYTES = 4 << 20  # for 126 layers with nine tensors each it has 140 KB
MAX_TENSORS = 50_000  # 1,024 layers, the most that are trained here, have 37,000 as GPTQ keeps them
LONGEST_TENSOR_NAME = 200
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
NAMES_TOLD = 3


def wrong(code: str, message: str) -> BadRequest:
    """Return the BadRequest for a mistake in the archive, for the caller to raise."""
    return BadRequest(message, code=code, param="body")


class ModelCheck:
    """Checker of a model: `feed` it the body, then `finish`; `files` are then ready to be kept.

    Close it at the end: files that were not kept are removed.
    """

    def __init__(self, new_file: Callable[[], IncomingFile]) -> None:
        self.new_file = new_file
        self.files: dict[str, IncomingFile] = {}
        self.names: set[str] = set()
        """Names of all files, of those in the store already too."""
        self.weights: set[str] = set()
        self.config: HfConfig | None = None
        self.config_text = ""
        self._pending = bytearray()
        self._open: _Member | None = None
        self._padding = 0
        self._ended = False

    def feed(self, piece: bytes) -> None:
        """Check and write the next bytes. Raises BadRequest if they are wrong."""
        self._pending += piece
        while not self._ended and self._step():
            pass
        if self._ended:
            self._pending.clear()

    def _step(self) -> bool:
        """Take one part of the archive; return False if more bytes are needed first."""
        if self._open is not None:
            taken = self._open.write(self._pending)
            del self._pending[:taken]
            if not self._open.is_complete:
                return False
            self._finish_file(self._open)
            self._open = None
            return True
        if self._padding:
            skipped = min(self._padding, len(self._pending))
            del self._pending[:skipped]
            self._padding -= skipped
            return self._padding == 0
        if len(self._pending) < BLOCK:
            return False
        header = bytes(self._pending[:BLOCK])
        del self._pending[:BLOCK]
        if not any(header):  # two empty blocks end an archive; one is as good
            self._ended = True
        else:
            self._begin_file(header)
        return True

    def _begin_file(self, header: bytes) -> None:
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise wrong("not_tar", f"The body is not a readable tar archive: {error}") from error
        name = info.name.removeprefix("./")
        if info.type == tarfile.DIRTYPE:
            return
        if not info.isreg():
            raise wrong(
                "not_a_file", f"{name[:100]!r} is not a regular file; links are not accepted."
            )
        require_known(name)
        if name in self.files:
            raise wrong("twice", f"{name} is in the archive twice. Send each file once.")
        if len(self.files) >= MAX_FILES:
            raise wrong("too_many", f"The archive has more than {MAX_FILES:,} files.")
        is_weights = WEIGHT_FILE.match(name) is not None
        if not is_weights and info.size > MAX_OTHER_BYTES:
            raise wrong(
                "too_large",
                f"{name} has {info.size:,} bytes; the limit is {MAX_OTHER_BYTES:,}.",
            )
        self.files[name] = self.new_file()
        self.names.add(name)
        self._open = _Member(name, info.size, self.files[name], is_weights=is_weights)

    def take_stored(self, name: str, size: int, path: Path) -> None:
        """Check a file that is in the store already; of weights, only the header is read.

        Raises BadRequest if it is wrong.
        """
        require_known(name)
        if name in self.names:
            raise wrong("twice", f"{name} is there twice. Send each file once.")
        self.names.add(name)
        member = _Member(name, size, None, is_weights=WEIGHT_FILE.match(name) is not None)
        with path.open("rb") as file:
            while not member.is_known and (piece := file.read(PIECE_BYTES)):
                member.write(bytearray(piece))
        self._finish_file(member)

    def _finish_file(self, member: "_Member") -> None:
        self._padding = -member.size % BLOCK
        if member.name == CONFIG:
            try:
                self.config = parse_config(bytes(member.content))
                self.config.model()
            except UnsupportedModel as error:
                raise wrong("unsupported_model", str(error)) from error
            self.config_text = member.content.decode()
        else:
            self.weights |= member.tensors
            if len(self.weights) > MAX_TENSORS:
                raise wrong("too_many", f"The model has more than {MAX_TENSORS:,} tensors.")

    def finish(self) -> ModelSpec:
        """End the archive; return the network it describes. Raises BadRequest for missing parts."""
        if self._open is not None:
            raise wrong(
                "torn",
                f"The archive ends inside {self._open.name}, {self._open.missing:,} bytes too "
                "early. Send it again.",
            )
        if self._pending:
            raise wrong("not_tar", "The archive ends in the middle of a header. Send it again.")
        if self.config is None:
            raise wrong(
                "no_config", f"The archive has no {CONFIG}. Upload the whole folder of a model."
            )
        model = self.config.model()
        missing = [
            name for name in hf_weights(model) if not {name, codes_name(name)} & self.weights
        ]
        if missing:
            raise wrong(
                "weights_missing",
                f"{len(missing):,} weights are missing from the safetensors files, such as "
                f"{', '.join(missing[:NAMES_TOLD])}. Upload all of them.",
            )
        if "model.safetensors" not in self.names and INDEX not in self.names:
            raise wrong(
                "no_index",
                f"The weights are split over several files, but {INDEX} is missing. "
                "Upload it, too.",
            )
        return model

    @property
    def has_tokenizer(self) -> bool:
        return TOKENIZER in self.names

    def close(self) -> None:
        """Remove the files that were not kept."""
        for file in self.files.values():
            file.__exit__()


class _Member:
    """A file of the archive, being received."""

    def __init__(
        self, name: str, size: int, file: IncomingFile | None, *, is_weights: bool
    ) -> None:
        self.name, self.size, self.missing, self.file = name, size, size, file
        self.content = bytearray()  # of a small file; of weights, their header
        self.tensors: frozenset[str] = frozenset()
        """Names in the header of weights; names too long for any known model are left out."""
        self._header_read = False
        self._is_weights = is_weights

    @property
    def is_complete(self) -> bool:
        return self.missing == 0

    @property
    def is_known(self) -> bool:
        """True if all that is checked has been seen."""
        return self._header_read or self.is_complete

    def write(self, pending: bytearray) -> int:
        """Take the bytes that belong to this file; return their number."""
        piece = bytes(pending[: self.missing])
        if self.file is not None:
            self.file.write(piece)
        self.missing -= len(piece)
        if not self._is_weights:
            self.content += piece
        elif not self._header_read:
            self.content += piece
            self._read_header()
        if self.is_complete and self._is_weights and not self._header_read:
            raise self._torn()
        return len(piece)

    def _read_header(self) -> None:
        """Read the header of safetensors: its length, then JSON with every tensor's place."""
        if len(self.content) < 8:
            return
        length = int.from_bytes(self.content[:8], "little")
        if length > self.size - 8:
            raise self._torn()
        if length > MAX_HEADER_BYTES:
            raise wrong(
                "too_large",
                f"The header of {self.name} has {length:,} bytes; the limit is "
                f"{MAX_HEADER_BYTES:,}.",
            )
        if len(self.content) < 8 + length:
            return
        try:
            header = json.loads(self.content[8 : 8 + length])
            header.pop("__metadata__", None)
            ends = [tensor["data_offsets"][1] for tensor in header.values()]
            whole = max(ends, default=0) == self.size - 8 - length
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            raise self._torn() from None
        if not whole:
            raise self._torn()
        self.tensors = frozenset(name for name in header if len(name) <= LONGEST_TENSOR_NAME)
        self._header_read = True
        self.content.clear()

    def _torn(self) -> BadRequest:
        return wrong(
            "torn",
            f"{self.name} is truncated or is not a safetensors file. Download or save it again.",
        )


def require_known(name: str) -> None:
    """Raise BadRequest for a file that a model does not need, or must not have."""
    if WEIGHT_FILE.match(name) or name in OTHER_FILES:
        return
    if PurePosixPath(name).suffix in PICKLES:
        raise wrong(
            "pickle",
            f"{name[:100]} is not accepted, because opening it can run code. Save the model "
            "as safetensors: model.save_pretrained(DIR, safe_serialization=True).",
        )
    raise wrong(
        "unknown_file",
        f"{name[:100]!r} is not a known model file. Accepted are model.safetensors (or its "
        f"parts) and {', '.join(OTHER_FILES)}.",
    )
