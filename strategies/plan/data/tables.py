"""Tables as rows of a dataset: parquet, and arrow as files or streams. Needs pyarrow, which is
imported only when such a file is read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROWS_AT_ONCE = 512
COLUMNS = ("text", "prompt", "completion", "messages")


class NoTables(Exception):
    """A file that is not a readable table, or a machine without pyarrow."""


def table_rows(path: Path, format: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number, from 1 on, and fields of every row; a few hundred are in memory at a time.

    Only the columns that a row may have are read. Raises NoTables.
    """
    number = 0
    for batch in batches(path, format):
        for fields in batch.to_pylist():
            number += 1
            yield number, {name: value for name, value in fields.items() if value is not None}


def batches(path: Path, format: str) -> Iterator[Any]:
    """Yield the record batches of a table. Raises NoTables."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise NoTables(
            f"is {format}, but pyarrow is not installed here: pip install pyarrow"
        ) from error
    try:
        if format == "parquet":
            with parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as table:
                wanted = [name for name in table.schema_arrow.names if name in COLUMNS]
                yield from table.iter_batches(batch_size=ROWS_AT_ONCE, columns=wanted)
            return
        with pyarrow.memory_map(str(path)) as source:
            for batch in _arrow_batches(pyarrow, source):
                wanted = [name for name in batch.schema.names if name in COLUMNS]
                for at in range(0, batch.num_rows, ROWS_AT_ONCE):
                    yield batch.select(wanted).slice(at, ROWS_AT_ONCE)
    except (pyarrow.ArrowException, OSError) as error:
        raise NoTables(f"is not a readable {format} file: {error}") from error


def _arrow_batches(pyarrow: Any, source: Any) -> Iterator[Any]:
    """Yield the batches of a file or a stream; `datasets` writes streams."""
    try:
        reader = pyarrow.ipc.open_file(source)
    except pyarrow.ArrowInvalid:
        source.seek(0)
        yield from pyarrow.ipc.open_stream(source)
        return
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)
