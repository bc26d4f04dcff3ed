"""Program that trains a byte-level BPE tokenizer on a node: `bpe_program.py FOLDER SIZE`.

`trainyard tokenizers train` sends this file as a job of its own. It needs the tokenizers library,
which the nodes have with transformers, and for tables pyarrow. The same texts and size give the
same tokenizer, whatever the number of threads.
"""

import gzip
import io
import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

END = "<|endoftext|>"
LINES_AT_ONCE = 1000


def main(folder: Path, size: int, output: Path) -> None:
    """Train, and write tokenizer.json and what transformers wants beside it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(folder), trainer)
    if tokenizer.get_vocab_size() < size:
        print(f"The text has {tokenizer.get_vocab_size():,} tokens, fewer than {size:,}.")  # noqa: T201
    tokenizer.save(str(output / "tokenizer.json"))
    beside = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END}
    (output / "tokenizer_config.json").write_text(json.dumps(beside, indent=2))


def texts(folder: Path) -> Iterator[str]:
    """Yield the texts of a dataset's files, in the order of their paths."""
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        suffix = path.with_suffix("").suffix if path.suffix in (".gz", ".zst") else path.suffix
        if suffix in (".jsonl", ".ndjson"):
            with opened(path) as lines:
                for line in lines:
                    if line.strip():
                        yield text_of(json.loads(line))
        elif suffix in (".parquet", ".arrow"):
            yield from (text_of(row) for row in rows(path))
        elif path.is_file():
            with opened(path) as file, io.TextIOWrapper(file, encoding="utf-8") as text:
                while some := "".join(islice(text, LINES_AT_ONCE)):
                    yield some


def opened(path: Path) -> Any:
    """Open a file to read its bytes, unpacked."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".zst":
        import zstandard

        return zstandard.open(path, "rb")
    return path.open("rb")


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table."""
    import pyarrow
    from pyarrow import parquet

    if path.suffix == ".parquet":
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=LINES_AT_ONCE):
            yield from batch.to_pylist()
        return
    with pyarrow.memory_map(str(path)) as source:
        for batch in pyarrow.ipc.open_stream(source):
            yield from batch.to_pylist()


def text_of(row: dict[str, Any]) -> str:
    """Return all text of a row: a text, a prompt with its completion, or messages."""
    if row.get("text") is not None:
        return str(row["text"])
    if row.get("prompt") is not None:
        return f"{row['prompt']}{row['completion']}"
    return "\n".join(message["content"] for message in row["messages"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(os.environ["TRAINYARD_OUTPUT"]))
