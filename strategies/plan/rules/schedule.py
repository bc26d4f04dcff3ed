"""Rules about warm-up, evaluation and the number of steps."""

from collections.abc import Iterator

from strategies.plan.rules.problem import Problem, ResolvedSpec


def steps_make_sense(resolved: ResolvedSpec) -> Iterator[Problem]:
    spec = resolved.spec
    training = spec.training
    if training.warmup_steps > training.steps:
        yield Problem(
            code="out_of_range",
            param="training.warmup_steps",
            message=f"a warm-up of {training.warmup_steps} steps is longer than the whole run of "
            f"{training.steps}; take {training.steps} or fewer",
        )
    if training.eval_every_steps is not None and spec.data.held_out == 0:
        yield Problem(
            code="nothing_held_out",
            param="training.eval_every_steps",
            message=f"evaluation every {training.eval_every_steps} steps needs held-out data, "
            "but data.held_out is 0; set it to 0.1, for example, or leave "
            "eval_every_steps out",
        )
    if spec.checkpoint.keep_best and training.eval_every_steps is None:
        yield Problem(
            code="nothing_to_compare",
            param="checkpoint.keep_best",
            message="keep_best compares losses on held-out data; give the interval of "
            "evaluations, for example training.eval_every_steps: "
            f"{spec.checkpoint.every_steps or training.steps}",
        )
