"""How many steps fit into the minutes. Before the learning rates decay, nothing in a run depends on
its end, so the end is set as late as possible."""

import dataclasses
import math
from collections.abc import Sequence

from configs.config import TrainConfig


def expect_steps(
    plan: TrainConfig,
    readings: Sequence[tuple[int, float]],
    evaluation: float | None,
    evaluation_steps: float,
    left: float,
) -> float:
    """Return the number of steps of a run that ends in `left` seconds.

    The time of a step is the mean since the middle reading, because the first steps are slower.

    Args:
        readings: at two times or more, the number of steps and the seconds that they took so far.
        evaluation: seconds of the last evaluation; None before the first.
        evaluation_steps: how many steps the first evaluation is expected to take.
    """
    (first, before), (done, seconds) = readings[(len(readings) - 1) // 2], readings[-1]
    step = (seconds - before) / (done - first)
    evaluation = evaluation_steps * step if evaluation is None else evaluation
    return done + max(0.0, left - evaluation) / (step + evaluation / plan.eval_every)


def set_end(plan: TrainConfig, done: int, expected: float) -> TrainConfig | None:
    """Return the plan with the expected number of steps, or None if the learning rates need not
    decay before the next step. A run that is late ends later: what is done had no decay."""
    ended = dataclasses.replace(plan, max_steps=max(done, int(expected)))
    if ended.decay_start > done:
        return None
    if ended.decay_start < done and plan.decay_fraction < 1:
        ended = dataclasses.replace(plan, max_steps=math.ceil(done / (1 - plan.decay_fraction)))
    return ended
