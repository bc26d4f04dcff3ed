"""Models to start from: an archive is checked while it streams, and kept or refused as a whole."""

import io
import json
import struct
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from api.files.model_check import ModelCheck
from api.files.store import Store
from core.base.errors import ServiceError
from core.process.settings import ApiSettings
from core.tables.files import Model, StoredFile
from strategies.plan.hugging_face.hf_names import hf_weights
from strategies.plan.spec import ModelSpec
from tests.api.conftest import World, running_world
from tests.api.shapes import heartbeat, job_spec, place

# The same on every database: once is enough.
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
}
SHAPE = {
    "name": "llama",
    "layers": 1,
    "width": 16,
    "heads": 2,
    "kv_heads": 1,
    "ffn_width": 24,
}


def safetensors(names: list[str]) -> bytes:
    """A file of one number a tensor: what is inside, the API does not ask."""
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
        for i, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(4 * len(names))


def weights(**changes: Any) -> list[str]:
    return list(hf_weights(ModelSpec.model_validate({**SHAPE, **changes})))


def files(**changes: Any) -> dict[str, bytes]:
    """A whole model; `changes` of config.json."""
    return {
        "config.json": json.dumps({**CONFIG, **changes}).encode(),
        "model.safetensors": safetensors(weights()),
        "tokenizer.json": b"{}",
    }


def tar(contents: dict[str, bytes], *, type: bytes = tarfile.REGTYPE) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size, info.linkname = len(content), "/etc/passwd"
            info.type = tarfile.DIRTYPE if name.endswith("/") else type
            archive.addfile(info, io.BytesIO(content))
    return body.getvalue()


def upload(world: World, content: Any, name: str = "tiny", **headers: str) -> Any:
    return world.ann.post(
        "/v1/models", params={"name": name}, content=content, headers=headers or None
    )


def fine_tuning(**model: Any) -> dict[str, Any]:
    data = {"dataset": "python-stdlib", "tokenizer": "bytes", "sequence_length": 64}
    spec = job_spec(data=data)
    return {**spec, "model": {**SHAPE, "checkpoint": "tiny", **model}}


def nothing_left(world: World) -> bool:
    with world.database.read() as session:
        rows = session.scalar(select(func.count()).select_from(Model))
        stored = session.scalar(select(func.count()).select_from(StoredFile))
    return not rows and not stored and not list(world.store.incoming.iterdir())


@on_sqlite
def test_a_model_is_kept_and_a_job_starts_from_it(world: World) -> None:
    answer = upload(world, tar({"./": b"", **files()}))
    assert answer.status_code == 201, answer.text
    model = answer.json()
    assert model["architecture"] == "LlamaForCausalLM"
    assert model["model"] == {**SHAPE, "checkpoint": "tiny"}
    assert (model["vocabulary_size"], model["has_tokenizer"]) == (256, True)
    assert model["size"] == sum(len(content) for content in files().values())
    assert world.ann.get("/v1/models/tiny").json() == model
    assert world.ann.get("/v1/models").json()["data"] == [model]

    job = world.ann.post("/v1/jobs", json=fine_tuning()).json()["id"]
    sha256 = {file["path"]: file["sha256"] for file in model["files"]}
    config = f"/v1/node/files/{sha256['config.json']}"
    assert world.node.get(config).status_code == 404  # nothing on the node needs it yet
    place(world.database, job)
    (order,) = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    assert {file["path"] for file in order["model"]} == set(files())
    assert world.node.get(config).content == files()["config.json"]

    assert world.ann.delete("/v1/models/tiny").status_code == 204
    assert world.ann.get("/v1/models/tiny").status_code == 404
    assert world.node.get(config).status_code == 200
    assert upload(world, tar(files())).status_code == 201  # the name is free again


@on_sqlite
def test_a_repeated_upload_makes_one_model(world: World) -> None:
    key = {"Idempotency-Key": "one"}
    first = upload(world, tar(files()), **key).json()
    assert upload(world, tar(files()), **key).json() == first
    assert upload(world, tar(files())).json()["version"] == 2  # without the key: the next version
    assert world.bob.get(f"/v1/models/{first['id']}").status_code == 404
    assert world.bob.delete(f"/v1/models/{first['id']}").status_code == 404
    borrowed = world.bob.post("/v1/jobs", json=fine_tuning(checkpoint=first["id"]))
    assert borrowed.json()["code"] == "unknown_model"


@on_sqlite
def test_a_spec_of_another_shape_is_refused_field_by_field(world: World) -> None:
    no_tokenizer = {name: content for name, content in files().items() if "tok" not in name}
    assert upload(world, tar(no_tokenizer)).status_code == 201
    wrong = world.ann.post("/v1/jobs", json=fine_tuning(layers=2, rope_base=5e5)).json()
    assert (wrong["code"], wrong["param"]) == ("bad_checkpoint", "model.checkpoint")
    assert "model.layers is 2 in the spec, 1 in config.json" in wrong["detail"]
    assert "model.rope_base is 500000.0 in the spec" in wrong["detail"]
    spec = fine_tuning()
    spec["data"] |= {"tokenizer": "huggingface", "vocabulary_size": 256}
    assert world.ann.post("/v1/jobs", json=spec).json()["code"] == "no_tokenizer"
    assert world.ann.post("/v1/jobs", json=fine_tuning(checkpoint="hub:a/b@main")).is_success


@on_sqlite
def test_a_model_that_gptq_has_rounded_is_kept(world: World) -> None:
    rounded = {"quant_method": "gptq", "bits": 4}
    contents = files(quantization_config=rounded)
    parts = ("qweight", "qzeros", "scales", "g_idx")
    names = [name for name in weights() if "proj.weight" not in name]
    for name in set(weights()) - set(names):
        names += [f"{name.removesuffix('weight')}{part}" for part in parts]
    contents["model.safetensors"] = safetensors(names)
    assert upload(world, tar(contents)).status_code == 201
    awq = upload(world, tar(files(quantization_config={**rounded, "quant_method": "awq"})), "other")
    assert awq.status_code == 422
    assert "form is GPTQ with 4 bits" in awq.text


@on_sqlite
def test_what_is_no_model_is_refused_and_leaves_nothing(world: World) -> None:
    whole = files()
    torn = {**whole, "model.safetensors": whole["model.safetensors"][:-1]}
    rows: list[tuple[bytes, str, str]] = [
        (b"", "no_config", "no config.json"),
        (b"x" * 5000, "not_tar", "tar archive"),
        (tar(whole)[:700], "torn", "too early"),
        (tar(whole)[:400], "not_tar", "middle of a header"),
        (tar({"../config.json": b"{}"}), "unknown_file", "'../config.json'"),
        (tar({"/etc/passwd": b"{}"}), "unknown_file", "passwd"),
        (tar({"a/config.json": b"{}"}), "unknown_file", "a/config.json"),
        (tar({"pytorch_model.bin": b"PK"}), "pickle", "safe_serialization"),
        (tar({"modeling.py": b"import os"}), "unknown_file", "modeling.py"),
        (tar({"config.json": b""}, type=tarfile.SYMTYPE), "not_a_file", "links"),
        (tar({"config.json": b"[]"}), "unsupported_model", "config.json"),
        (tar(files(architectures=["GPT2LMHeadModel"])), "unsupported_model", "LlamaForCausalLM ("),
        (tar(files(num_hidden_layers=10**30)), "unsupported_model", "layers"),
        (tar(torn), "torn", "model.safetensors is truncated"),
        (tar({**whole, "model.safetensors": b""}), "torn", "model.safetensors is truncated"),
        (tar({**whole, "model.safetensors": b"\xff" * 99}), "torn", "model.safetensors"),
        (tar(files(num_hidden_layers=2)), "weights_missing", "model.layers.1."),
        (
            tar({"config.json": whole["config.json"]} | {f"{i:03}": b"" for i in range(3)}),
            "unknown_file",
            "'000'",
        ),
    ]
    for body, code, word in rows:
        answer = upload(world, body)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (422, code), problem
        assert word in problem["detail"], problem
    in_parts = {"config.json": whole["config.json"]}
    in_parts["model-00001-of-00001.safetensors"] = whole["model.safetensors"]
    assert upload(world, tar(in_parts)).json()["code"] == "no_index"
    assert upload(world, tar(in_parts) + tar(in_parts)).status_code == 422
    assert nothing_left(world)
    in_parts["model.safetensors.index.json"] = b"{}"
    assert upload(world, tar(in_parts)).status_code == 201


@on_sqlite
def test_a_model_over_the_cap_is_refused(settings: ApiSettings) -> None:
    small = settings.model_copy(update={"max_model_bytes": 5000})
    with running_world(small) as world:
        assert upload(world, tar(files())).json()["code"] == "too_large"
        assert upload(world, iter([tar(files())])).status_code == 413
        assert nothing_left(world)


@given(st.data())
def test_an_archive_is_read_the_same_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    store.create()
    body = bytearray(tar(files()))
    if data.draw(st.booleans()):
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(body)))

    def run(parts: list[bytes]) -> tuple[str, object]:
        check = ModelCheck(store.incoming_file)
        try:
            for part in parts:
                check.feed(part)
            check.finish()
        except ServiceError as refused:
            return refused.code, refused.message
        finally:
            check.close()
        return "kept", {name: file.size for name, file in check.files.items()}

    assert run([bytes(body)]) == run([bytes(body[:cut]), bytes(body[cut:])])
    assert not list(store.incoming.iterdir())


def with_header(size: int) -> dict[str, bytes]:
    """A whole model whose weights have a header of so many bytes, filled up with blanks."""
    whole = files()
    weights_file = whole["model.safetensors"]
    (length,) = struct.unpack("<Q", weights_file[:8])
    text = weights_file[8 : 8 + length].ljust(size)
    whole["model.safetensors"] = struct.pack("<Q", size) + text + weights_file[8 + length :]
    return whole


@on_sqlite
def test_a_header_larger_than_models_have_is_refused_by_its_size(world: World) -> None:
    fits = world.ann.post("/v1/models?name=fits", content=tar(with_header(4 << 20)))
    assert fits.status_code == 201, fits.text
    refused = world.ann.post("/v1/models?name=more", content=tar(with_header((4 << 20) + 1)))
    assert (refused.status_code, refused.json()["code"]) == (422, "too_large")
    assert "4,194,305 bytes; the limit is 4,194,304" in refused.json()["detail"]


def feed(check: ModelCheck, body: bytes) -> None:
    for start in range(0, len(body), 1 << 20):
        check.feed(body[start : start + (1 << 20)])


def test_a_huge_header_is_not_kept_in_memory(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.create()
    body = tar(with_header(84 << 20))
    check = ModelCheck(store.incoming_file)
    tracemalloc.start()
    try:
        with pytest.raises(ServiceError, match="the limit is 4,194,304"):
            feed(check, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        check.close()
    assert peak < 16 << 20


def in_two_parts(num_tensors: int) -> bytes:
    return tar(
        {
            f"model-0000{part}-of-00002.safetensors": safetensors(
                [f"t{n}" for n in range(part, num_tensors + 1, 2)]
            )
            for part in (1, 2)
        }
    )


def test_no_more_tensors_are_remembered_than_a_model_has(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.create()
    check, another = ModelCheck(store.incoming_file), ModelCheck(store.incoming_file)
    check.feed(in_two_parts(50_000))
    with pytest.raises(ServiceError, match="more than 50,000 tensors"):
        another.feed(in_two_parts(50_001))
    check.close()
    another.close()


@on_sqlite
def test_frozen_weights_have_the_type_that_the_model_is_stored_in(world: World) -> None:
    assert upload(world, tar(files(torch_dtype="bfloat16"))).status_code == 201

    def frozen_dtype(**adapter: Any) -> str | None:
        spec = {**fine_tuning(), "precision": "bfloat16", "adapter": {"rank": 2, **adapter}}
        job = world.ann.post("/v1/jobs", json=spec).json()
        assert not any("assumes" in line for line in job["plan"]["warnings"])
        told: str | None = job["spec"]["adapter"]["frozen_dtype"]
        return told

    assert frozen_dtype() == "bfloat16"
    assert frozen_dtype(frozen_dtype="float32") == "float32"
