"""A model and conversations are uploaded, tuned on two ranks, and come back for transformers."""

import json
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.running import Running, wait_for
from tests.spine.jobs import wait_for_end
from trainyard.client import Trainyard
from trainyard.errors import Invalid

pytestmark = [pytest.mark.gloo, pytest.mark.slow]

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
QUESTION = {"role": "user", "content": "what?"}


def make_model(folder: Path) -> Path:
    """A tiny Qwen2 with a tokenizer of bytes and a chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["</s>", "<user>", "<assistant>"]
    bpe = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*letters, *special])}, merges=[]))
    bpe.add_special_tokens(special)
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="</s>", chat_template=TEMPLATE
    ).save_pretrained(folder)
    config = transformers.Qwen2Config(
        vocab_size=260,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_a_chat_model_is_tuned_and_comes_back(platform: Running, tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    with chats.open("w") as file:
        for number in range(40):
            answer = {"role": "assistant", "content": "four " * (1 + number % 4)}
            file.write(json.dumps({"messages": [QUESTION, answer]}) + "\n")
    folder = tmp_path / "tuned"
    folder.mkdir()
    with Trainyard(platform.url, platform.token) as client, platform.http() as http:
        model = client.models.upload(make_model(tmp_path / "model"), "tiny")
        client.datasets.upload(chats, "chats")
        spec = {
            "name": "tuned",
            "model": model.model,
            "data": {
                "dataset": "chats",
                "tokenizer": "huggingface",
                "vocabulary_size": model.vocabulary_size,
                "sequence_length": 32,
                "packing": True,
            },
            "training": {"steps": 40, "global_batch_size": 4, "learning_rate": 1e-2},
            "parallelism": {"strategy": "fsdp"},
            "resources": {"nodes": 1, "ranks_per_node": 2, "wall_time": "20min"},
        }
        with pytest.raises(Invalid, match=r"model.layers is 3 in the spec, 2 in config.json"):
            client.jobs.create({**spec, "model": {**model.model, "layers": 3}})
        job = client.jobs.create(spec)
        ended = wait_for_end(http, job.id)
        assert ended["state"] == "succeeded", ended["reason"]
        assert ended["result"]["loss_last"] < ended["result"]["loss_first"] / 2

        def kept() -> bool:
            names = {artifact.path for artifact in client.jobs.artifacts(job.id)}
            return names >= {"config.json", "model.safetensors", "tokenizer.json", "sample.txt"}

        wait_for(kept, what="the artifacts in the store")
        for artifact in client.jobs.artifacts(job.id):
            client.jobs.download(job.id, artifact, folder / artifact.path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    asked = tokenizer.apply_chat_template(
        [QUESTION], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    tuned = transformers.AutoModelForCausalLM.from_pretrained(folder)
    written = tuned.generate(**asked, max_new_tokens=4, do_sample=False)
    assert tokenizer.decode(written[0, -4:]) == "four"
