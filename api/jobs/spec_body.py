"""The body of a request that is a job: JSON or YAML, read by our own loader."""

from typing import Annotated, Any

from fastapi import Depends, Request

from api.web.auth import SignedIn
from core.base.strict_text import SpecText, parse

EXAMPLE = {
    "name": "gpt-ddp",
    "model": {"name": "gpt", "layers": 4, "width": 160, "heads": 4},
    "data": {"dataset": "python-stdlib", "tokenizer": "bytes", "sequence_length": 128},
    "training": {
        "steps": 400,
        "global_batch_size": 8,
        "learning_rate": 0.002,
        "warmup_steps": 20,
        "schedule": "cosine",
        "max_grad_norm": 1.0,
        "seed": 1,
    },
    "parallelism": {"strategy": "ddp"},
    "precision": "float32",
    "checkpoint": {"every_steps": 200, "keep_last": 2},
    "resources": {"nodes": 1, "ranks_per_node": "auto", "wall_time": "20min"},
}


def body_of(schema: dict[str, Any], example: object) -> dict[str, Any]:
    """Return the OpenAPI of a body that the platform's own loader reads."""
    content = {"schema": schema, "example": example}
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": content,
                "application/yaml": {"schema": {"type": "string"}},
            },
        }
    }


JOB_SPECS = [
    {"$ref": "#/components/schemas/JobSpec"},
    {"$ref": "#/components/schemas/ScriptJobSpec"},
    {"$ref": "#/components/schemas/WorkbenchJobSpec"},
]
JOB_BODY = body_of({"anyOf": JOB_SPECS}, EXAMPLE)
PLAN_BODY = body_of(
    {"anyOf": [{"$ref": "#/components/schemas/PlanRequest"}, *JOB_SPECS]}, {"spec": EXAMPLE}
)


async def whole_body(request: Request, person: SignedIn) -> bytes:
    """Return the body as received; it is read only for signed-in people."""
    return await request.body()


def spec_text(
    request: Request, body: Annotated[bytes, Depends(whole_body)]
) -> tuple[SpecText, bytes]:
    """Return the body as plain data and as received."""
    return parse(body, request.headers.get("content-type", "")), body


SpecBody = Annotated[tuple[SpecText, bytes], Depends(spec_text)]
