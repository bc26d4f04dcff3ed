"""Specs in rows that earlier versions wrote are read."""

import json

import pytest

from core.spec.spec import read_job_spec, stored_spec

SPEC = {
    "name": "old",
    "model": {"name": "gpt", "layers": 2, "width": 32, "heads": 2},
    "data": {"dataset": "python-stdlib", "sequence_length": 32},
    "training": {"steps": 10, "global_batch_size": 4, "learning_rate": 1e-3},
    "parallelism": {"strategy": "single"},
    "resources": {"wall_time": "20min"},
}


@pytest.mark.parametrize("allowed", [False, True])
def test_a_row_from_before_allow_oom_had_its_name_is_read(allowed: bool) -> None:
    row = json.loads(read_job_spec(SPEC).model_dump_json())
    del row["resources"]["allow_oom"]
    row["resources"]["may_run_out_of_memory"] = allowed
    found = stored_spec(row)
    assert found is not None
    assert found.resources.allow_oom is allowed
    assert "may_run_out_of_memory" not in found.model_dump_json()
