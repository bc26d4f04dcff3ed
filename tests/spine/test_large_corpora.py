"""A node that turns no dataset into tokens trains on compressed shards as on one plain file."""

import json
import random
from pathlib import Path

import pytest
import zstandard

from tests.running import running_platform
from tests.spine.jobs import get, losses, spec, submit, wait_for_end
from trainyard import Trainyard

pytestmark = [pytest.mark.gloo, pytest.mark.slow]


def test_compressed_shards_are_counted_and_give_the_curve_of_one_file(tmp_path: Path) -> None:
    chosen = random.Random(5)
    lines = [
        json.dumps({"text": "".join(chosen.choices("abcdé ", k=chosen.randint(20, 300)))}) + "\n"
        for _ in range(900)
    ]
    (tmp_path / "plain.jsonl").write_text("".join(lines))
    shards = []
    for number in range(3):
        name = f"{number}.jsonl.zst"
        some = "".join(lines[300 * number : 300 * (number + 1)])
        (tmp_path / name).write_bytes(zstandard.compress(some.encode()))
        shards.append((tmp_path / name, name))
    cache = tmp_path / "cache"
    settings = {"TRAINYARD_WHOLE_TOKENS_GIB": "0", "XDG_CACHE_HOME": str(cache)}
    with running_platform(settings) as platform, platform.http() as http:
        with Trainyard(platform.url, platform.token) as client:
            client.datasets.upload(tmp_path / "plain.jsonl", "plain")
            client.datasets.upload_files(shards, "shards")
        curves = []
        for dataset, ranks in (("plain", 1), ("shards", 1), ("shards", 2)):
            data = {"dataset": dataset, "tokenizer": "bytes", "sequence_length": 64}
            job = submit(http, spec(steps=12, ranks=ranks, data=data))
            wait_for_end(http, job)
            assert get(http, job)["state"] == "succeeded", get(http, job)["reason"]
            curves.append(losses(http, job))
    plain, compressed, of_two_ranks = curves
    assert sorted(plain) == list(range(1, 13))
    assert compressed == plain
    assert of_two_ranks == pytest.approx(plain, rel=1e-5)
    indexes = [path for path in (cache / "trainyard/indexes").iterdir() if path.is_dir()]
    assert len(indexes) == 2  # the third job found that of the second
    assert not (cache / "trainyard/tokens").exists()
