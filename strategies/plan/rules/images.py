"""Rules about text and image models: the datasets, fields and axes that each supports."""

from collections.abc import Iterator

from strategies.plan.built_in.datasets import BUILT_IN
from strategies.plan.image_shapes import image_shape
from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.spec import DataSpec, ModelName, ModelSpec
from strategies.plan.words import counted

TEXT_ONLY = {
    "model": ("heads", "kv_heads", "ffn_width", "tied_embeddings", "rope_base", "rope_scaling"),
    "data": ("tokenizer", "vocabulary_size", "sequence_length", "packing"),
}
IMAGES_ONLY = {"data": ("image_shape", "classes", "pixel_mean", "pixel_deviation")}
WHY_NOT = {
    "tensor": "tensor parallel splits attention heads and a vocabulary",
    "context": "context parallel splits samples along their tokens, and an image is one",
    "pipeline": "its layers produce images of different sizes",
}


def fields_belong_to_model(resolved: ResolvedSpec) -> Iterator[Problem]:
    """Refuse fields that the model does not use."""
    spec = resolved.spec
    reads = "images" if spec.model.name.reads_images else "text"
    others = TEXT_ONLY if spec.model.name.reads_images else IMAGES_ONLY
    parts: dict[str, ModelSpec | DataSpec] = {"model": spec.model, "data": spec.data}
    for part, names in others.items():
        for name in names:
            value = getattr(parts[part], name)
            if value != type(parts[part]).model_fields[name].default:
                yield Problem(
                    code="not_supported_by_model",
                    param=f"{part}.{name}",
                    message=f"{spec.model.name} reads {reads}, which has no {name} "
                    f"(asked for: {value}); leave it out",
                )


def dataset_is_readable(resolved: ResolvedSpec) -> Iterator[Problem]:
    name, dataset = resolved.spec.model.name, resolved.spec.data.dataset
    if dataset not in BUILT_IN or (BUILT_IN[dataset] == "npz") == name.reads_images:
        return
    fitting = [other for other, kind in BUILT_IN.items() if (kind == "npz") == name.reads_images]
    holds, others = ("text", "gpt or llama") if name.reads_images else ("images", "mlp or cnn")
    yield Problem(
        code="not_supported_by_model",
        param="data.dataset",
        message=f"{dataset} holds {holds}, which model {name} cannot read; take {others}, or "
        f"dataset {', '.join(fitting)}",
    )


def images_are_known(resolved: ResolvedSpec) -> Iterator[Problem]:
    data = resolved.spec.data
    if not resolved.spec.model.name.reads_images or BUILT_IN.get(data.dataset) == "npz":
        return
    if data.image_shape is None:
        yield Problem(
            code="image_shape_missing",
            param="data.image_shape",
            message="the planner does not read the images, so give their height and width "
            "and, if there are several, channels (MNIST: [28, 28])",
        )
    if data.classes is None:
        yield Problem(
            code="classes_missing",
            param="data.classes",
            message="the planner does not read the labels, so give the number of classes "
            "(MNIST: 10); a larger number is fine",
        )


def images_survive_halving(resolved: ResolvedSpec) -> Iterator[Problem]:
    """Refuse more layers of cnn than the image can be halved, since each halves height and
    width."""
    model, data = resolved.spec.model, resolved.spec.data
    if model.name is not ModelName.CNN:
        return
    if data.image_shape is None and BUILT_IN.get(data.dataset) != "npz":
        return
    shape = image_shape(data)
    most = min(shape.height, shape.width).bit_length() - 1
    if model.layers > most:
        yield Problem(
            code="image_too_small",
            param="model.layers",
            message=f"every layer of cnn halves the image, and {shape.height} x {shape.width} can "
            f"be halved {counted(most, 'time')}, not {model.layers}; "
            + (f"take {counted(most, 'layer')}, or mlp" if most else "take mlp"),
        )


def images_are_not_split(resolved: ResolvedSpec) -> Iterator[Problem]:
    """Refuse tensor and context parallelism, which split heads and tokens that image models
    lack."""
    name, layout = resolved.spec.model.name, resolved.layout
    if not name.reads_images:
        return
    refused = ["tensor", "context"] if name is ModelName.MLP else ["pipeline", "tensor", "context"]
    for axis in refused:
        degree = getattr(layout, axis)
        if degree > 1:
            ranks = layout.batch_degree * layout.tensor * layout.context
            ranks *= layout.pipeline if "pipeline" in refused else 1
            advice = f"take strategy ddp, fsdp or zero1 over {ranks} data-parallel ranks"
            if axis == "pipeline":
                advice += ", or mlp, whose layers are all alike"
            yield Problem(
                code="not_supported_by_model",
                param=f"parallelism.{axis}_parallel_degree",
                message=f"{name} cannot be split along the {axis} axis (degree {degree}): "
                f"{WHY_NOT[axis]}; {advice}",
            )
