"""How many steps fit into the minutes. Before the learning rates decay, nothing in a run depends on
its end, so the end is set as late as possible."""

import dataclasses
import math
from collections.abc import Sequence

from configs.config import Config, TrainConfig
from data.batches import Batches


def expect_steps(
    config: Config,
    batches: Batches,
    readings: Sequence[tuple[int, float]],
    eval_seconds: float | None,
    left: float,
) -> float:
    """Return the number of steps of a run that ends in `left` seconds.

    The time of a step is the mean since the middle reading, because the first steps are slower.

    Args:
        readings: at two times or more, the number of steps and the seconds that they took so far.
        eval_seconds: of the last evaluation; None before the first.
    """
    (first, before), (done, seconds) = readings[(len(readings) - 1) // 2], readings[-1]
    step = (seconds - before) / (done - first)
    if eval_seconds is None:  # a forward pass takes a third of a step
        plan, splits = config.train, len(batches.evaluated)
        tokens = min(batches.validation_tokens, plan.eval_tokens) * splits
        eval_seconds = step * tokens / (3 * plan.batch_size * config.model.block_size)
    return done + max(0.0, left - eval_seconds) / (step + eval_seconds / config.train.eval_every)


def set_end(plan: TrainConfig, done: int, expected: float) -> TrainConfig | None:
    """Return the plan with the expected number of steps, or None if the learning rates need not
    decay before the next step. A run that is late ends later: what is done had no decay."""
    ended = dataclasses.replace(plan, max_steps=max(done, int(expected)))
    if ended.decay_start > done:
        return None
    if ended.decay_start < done and plan.decay_fraction < 1:
        ended = dataclasses.replace(plan, max_steps=math.ceil(done / (1 - plan.decay_fraction)))
    return ended
