"""Files of a dataset, which has one or many."""

from core.tables.files import Dataset
from core.wire.messages import FileRef
from strategies.plan.data.compression import ENDINGS

EXTENSIONS = {
    "text": "txt",
    "jsonl": "jsonl",
    "npz": "npz",
    "parquet": "parquet",
    "arrow": "arrow",
}


def files_of(dataset: Dataset) -> list[FileRef]:
    """Return the files of a dataset in their order; a single one is named by its format."""
    if dataset.files is not None:
        return [FileRef.model_validate(file) for file in dataset.files]
    compression = dataset.report.get("compression")
    path = f"data.{EXTENSIONS[dataset.format]}" + (ENDINGS[compression] if compression else "")
    return [FileRef(path=path, sha256=dataset.sha256, size=dataset.size)]
