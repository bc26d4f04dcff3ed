"""Rules about specs that cannot run, one file per subject. Pure and torch-free.

A rule is a function from a request to its problems; `ALL` lists every rule.
"""

from collections.abc import Callable, Iterator

from strategies.plan.rules import (
    adapters,
    batch,
    compiling,
    context,
    data,
    gradients,
    images,
    layout,
    model,
    offload,
    optimizer,
    pipeline,
    schedule,
    tensor,
    tiling,
    verify,
    zero,
)
from strategies.plan.rules.problem import Problem, ResolvedSpec

Rule = Callable[[ResolvedSpec], Iterator[Problem]]

ALL: tuple[Rule, ...] = (
    layout.degrees_fit,
    layout.ranks_exist,
    layout.instances_are_alone,
    images.fields_belong_to_model,
    images.dataset_is_readable,
    images.images_are_known,
    images.images_survive_halving,
    images.images_are_not_split,
    model.heads_divide,
    model.family_has_it,
    model.frequencies_are_ordered,
    tensor.matrices_divide,
    context.ulysses_divides,
    context.tokens_divide,
    batch.samples_divide,
    pipeline.stages_suit_schedule,
    pipeline.layers_bear_two_backward_passes,
    pipeline.layers_fill_stages,
    pipeline.micro_batches_fill_pipeline,
    compiling.layers_compile,
    compiling.nodes_have_a_compiler,
    schedule.steps_make_sense,
    optimizer.matrices_are_known,
    optimizer.triton_has_a_gpu,
    optimizer.codes_stay_whole,
    optimizer.scaling_has_reference,
    data.vocabulary_is_known,
    data.mixture_is_of_one_kind,
    data.stream_is_possible,
    data.packed_samples_have_labels,
    gradients.compression_needs_ddp,
    gradients.local_ranks_average,
    gradients.late_gradients_are_whole,
    tiling.tiles_are_of_text,
    tiling.loss_has_parts,
    tiling.matrices_are_gathered,
    verify.there_is_something_to_verify,
    adapters.targets_exist,
    adapters.quantised_bases_stay_whole,
    adapters.zero_trains_all,
    zero.zero_shards_alone,
    offload.offload_needs_shards,
    offload.weights_follow_the_optimizer,
    offload.sharded_parts_move_together,
    zero.zero_keeps_float32,
    zero.zero_updates_flat_rows,
)
