"""The same training in torchtitan's own trainer (0.3.0): its Llama, which fuses query, key and
value, its FSDP over all ranks, its compilation, CUDA graphs, chunked loss, clipping and optimizer.

First weights, samples, weight decay and learning rate are ours. torchtitan takes samples from the
host, where it counts their valid tokens. Nothing but the training step is on. torchtitan is no
dependency of the project (`pip install torchtitan==0.3.0`): it is imported when it is used.
"""

import os
import tempfile
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from strategies.plan.run_directory import RunPlan
from strategies.plan.shapes import ffn_width, head_width, heads, kv_heads, vocabulary_size
from strategies.plan.spec import ActivationCheckpointing, ModelSpec, Precision
from strategies.train.engine import Batch
from strategies.train.init import build_model, own_region

NEVER = 10**9
DTENSORS = "partial_dtensor"
"""Types of distributed weights. With torch 2.13 the default, spmd_types, runs on one rank only."""
ALONE = {
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
}
"""Variables that torchrun would give to a process alone; port 0 is any that is free."""
NAMES = {
    **{"tok_embeddings": "embedding", "lm_head": "head", "ffn_norm": "feed_forward_norm"},
    **{"wo": "output", "w1": "gate", "w2": "down", "w3": "up"},
}
"""Our names of the parts that torchtitan names otherwise."""
OVERWRITTEN = {"weight": nn.init.ones_}


class Absent:
    """Configuration of a part that the trainer does not get."""

    def build(self, **_: object) -> None:
        pass


def torchtitan(
    run_plan: RunPlan, *, attention: str = "flex", cuda_graphs: bool = True
) -> Callable[[list[Batch], int, float], Tensor]:
    """Return a step of torchtitan's trainer, by default with its own attention and CUDA graphs.

    `attention` is torchtitan's name of a kernel, or `sdpa` for the causal one of torch, which it
    has for models without documents.
    """
    if "RANK" not in os.environ:
        os.environ.update(ALONE)
    config = config_of(run_plan, attention, cuda_graphs)
    trainer = titan("trainer").Trainer(config)
    load_weights(trainer.model_parts[0], run_plan, trainer.device)
    trainer.step = 1  # the only one that is logged whatever the configuration says
    losses: list[Tensor] = []
    forward_backward = trainer.forward_backward_step

    def forward_backward_step(**arguments: Any) -> Tensor:
        loss: Tensor = forward_backward(**arguments)
        losses.append(loss.detach().clone())  # a CUDA graph writes the next one over it
        return loss

    trainer.forward_backward_step = forward_backward_step

    def step(batches: list[Batch], valid_tokens: int, rate: float) -> Tensor:
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        trainer.step += 1
        trainer.gc_handler.run(trainer.step)
        losses.clear()
        samples = [sample_of(batch, masked=attention != "sdpa") for batch in batches]
        trainer.train_step(iter(samples))
        total = torch.stack(losses).sum()
        dist.all_reduce(total)
        return total

    weakref.finalize(step, trainer.close)  # CUDA graphs go before the process group
    return step


def titan(module: str) -> Any:
    return import_module(f"torchtitan.{module}")


def sample_of(batch: Batch, *, masked: bool) -> tuple[dict[str, Tensor], Tensor]:
    """Return a batch as torchtitan's loader would; a masked kernel asks for positions."""
    assert batch.documents_BT is None, "documents are not given to torchtitan"
    if not masked:
        return {"input": batch.inputs_BT}, batch.labels_BT
    positions_BT = torch.arange(batch.inputs_BT.shape[1]).repeat(len(batch.inputs_BT), 1)
    return {"input": batch.inputs_BT, "positions": positions_BT}, batch.labels_BT


def config_of(run_plan: RunPlan, attention: str, cuda_graphs: bool) -> Any:
    """Return the trainer's configuration for a plan."""
    spec, configs, losses = run_plan.spec, titan("config"), titan("components.loss")
    half, pure = Precision.BFLOAT16, Precision.PURE_BFLOAT16
    vocabulary = vocabulary_size(spec.data)
    return titan("trainer").Trainer.Config(
        model_spec=titan("protocols.model_spec").ModelSpec(
            name="llama3",
            flavor="ours",
            model=model_config(run_plan, attention),
            parallelize_fn=titan("models.llama3").parallelize_llama,
            pipelining_fn=None,
            post_optimizer_build_fn=None,
            state_dict_adapter=None,
        ),
        dump_folder=tempfile.gettempdir(),
        metrics=titan("components.metrics").MetricsProcessor.Config(log_freq=NEVER),
        tokenizer=Absent(),
        dataloader=Absent(),
        optimizer=optimizer_config(run_plan),
        lr_scheduler=titan("components.optimizer").LRSchedulersContainer.Config(warmup_steps=0),
        training=configs.TrainingConfig(
            local_batch_size=run_plan.plan.micro_batch_size,
            global_batch_size=spec.training.global_batch_size,
            seq_len=spec.data.sequence_length,
            max_norm=spec.training.max_grad_norm,
            steps=spec.training.steps,
            dtype="bfloat16" if spec.precision is pure else "float32",
            mixed_precision_param="bfloat16" if spec.precision in (half, pure) else "float32",
            disable_cuda_graphs=not cuda_graphs,
        ),
        parallelism=configs.ParallelismConfig(spmd_backend=DTENSORS),
        activation_checkpoint=checkpointing_config(spec.activation_checkpointing),
        compile=configs.CompileConfig(enable=spec.compile is True),
        comm=configs.CommConfig(trace_buf_size=0),
        debug=configs.DebugConfig(seed=spec.training.seed, deterministic=spec.deterministic),
        loss=losses.ChunkedLossWrapper.Config(
            loss_fn=losses.CrossEntropyLoss.Config(global_vocab_size=vocabulary)
        ),
    )


def model_config(run_plan: RunPlan, attention: str) -> Any:
    """Return torchtitan's Llama in the shape of ours."""
    model, vocabulary = run_plan.spec.model, vocabulary_size(run_plan.spec.data)
    assert model.head_width is None, "torchtitan's Llama divides its width by its heads"
    assert not model.attention_bias, "torchtitan's Llama has no biases"
    assert not model.query_key_norms, "torchtitan's Llama norms no queries and keys"
    llama, common = titan("models.llama3"), titan("models.common")
    config = llama.Llama3Model.Config(
        dim=model.width,
        vocab_size=vocabulary,
        enable_weight_tying=model.tied_embeddings,
        tok_embeddings=common.Embedding.Config(
            num_embeddings=vocabulary, embedding_dim=model.width, param_init=OVERWRITTEN
        ),
        norm=common.RMSNorm.Config(normalized_shape=model.width, param_init=OVERWRITTEN),
        lm_head=common.Linear.Config(
            in_features=model.width, out_features=vocabulary, param_init=OVERWRITTEN
        ),
        layers=llama._build_llama3_layers(
            n_layers=model.layers,
            dim=model.width,
            n_heads=heads(model),
            n_kv_heads=kv_heads(model),
            hidden_dim=ffn_width(model),
            rope=rope_config(model, run_plan.spec.data.sequence_length),
            attn_backend="flex" if attention == "sdpa" else attention,
        ),
    )
    for _, norm, _, _ in config.traverse(common.RMSNorm.Config):
        norm.eps = model.norm_epsilon
    if attention == "sdpa":
        for layer in config.layers:
            kernel = titan("models.common.attention").ScaledDotProductAttention
            layer.attention.inner_attention = kernel.Config()
    return config


def rope_config(model: ModelSpec, sequence_length: int | None) -> Any:
    """Return torchtitan's rotary positions: neighbouring pairs of features, as ours."""
    stretched: dict[str, Any] = {}
    if model.rope_scaling is not None:
        stretched = model.rope_scaling.model_dump(exclude={"rope_type", "factor"})
        stretched |= {"scaling": "llama", "scaling_factor": model.rope_scaling.factor}
    return titan("models.common").ComplexRoPE.Config(
        dim=head_width(model), max_seq_len=sequence_length, theta=model.rope_base, **stretched
    )


def optimizer_config(run_plan: RunPlan) -> Any:
    """Return AdamW with our weight decay: matrices decay, norms do not."""
    training, optimizers = run_plan.spec.training, titan("components.optimizer")

    def group(pattern: str, weight_decay: float) -> Any:
        return optimizers.ParamGroupConfig(
            pattern=pattern,
            optimizer_name="AdamW",
            optimizer_kwargs={
                "lr": training.learning_rate,
                "betas": (training.beta1, training.beta2),
                "weight_decay": weight_decay,
            },
        )

    return optimizers.OptimizersContainer.Config(
        param_groups=[group("norm", 0.0), group(".*", training.weight_decay)]
    )


def checkpointing_config(kept: ActivationCheckpointing) -> Any:
    """Return torchtitan's policy of the same name; None keeps all activations."""
    policies = titan("distributed.activation_checkpoint")
    match kept:
        case ActivationCheckpointing.NONE:
            return None
        case ActivationCheckpointing.SELECTIVE:
            return policies.SelectiveAC.Config()
        case ActivationCheckpointing.FULL:
            return policies.FullAC.Config()


@torch.no_grad()
def load_weights(model: nn.Module, run_plan: RunPlan, device: torch.device) -> None:
    """Give torchtitan's model the first weights of ours; each rank copies its own part."""
    ours = build_model(run_plan.spec, device=device)
    weights: dict[str, Tensor] = dict(ours.named_parameters(remove_duplicate=False))
    canonical = titan("components.checkpointer.utils").canonical_fqn
    for name, parameter in model.named_parameters():
        own: Any = parameter
        own.to_local().copy_(weight_of(canonical(name), weights, run_plan)[own_region(parameter)])


def weight_of(name: str, weights: dict[str, Tensor], run_plan: RunPlan) -> Tensor:
    """Return our weight of torchtitan's name.

    A fused matrix holds, for each head of keys, its queries, the key and the value.
    """
    if not name.endswith("qkv_linear.wqkv.weight"):
        return weights[".".join(NAMES.get(part, part) for part in name.split("."))]
    prefix, model = name.removesuffix("qkv_linear.wqkv.weight"), run_plan.spec.model
    by_head = kv_heads(model), -1, head_width(model), model.width
    parts = [weights[f"{prefix}{part}.weight"].view(by_head) for part in ("query", "key", "value")]
    return torch.cat(parts, dim=1).flatten(0, 2)
