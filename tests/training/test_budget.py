"""The end of a run fits into its time, and no step before it was set depends on it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from configs.config import Config, TrainConfig
from training.budget import expect_steps, set_end
from training.optim import get_lr_scale


def test_steps_are_expected_to_take_as_long_as_the_later_half() -> None:
    """After 4 steps, of which the last two took 2 s each, 50 s are left, and an evaluation after
    every 10 steps and at the end takes 10 s, or as long as 5 steps."""
    readings = [(0, 0.0), (1, 70.0), (2, 80.0), (3, 82.0), (4, 84.0)]
    config = Config(train=TrainConfig(eval_every=10, batch_size=4))
    tokens = 3 * 5 * 4 * config.model.block_size // 2  # of each split
    batches: Any = SimpleNamespace(validation_tokens=tokens, evaluated=["validation", "training"])
    for evaluation in (10.0, None):
        expected = expect_steps(config, batches, readings, evaluation, 50.0)
        assert expected == pytest.approx(4 + 40 / (2 + 10 / 10))
    assert expect_steps(config, batches, readings, 10.0, 9.0) == 4  # there is no time left


@given(st.integers(1, 300), st.floats(0, 2000), st.floats(0, 1), st.integers(0, 400))
def test_end_is_set_late_and_changes_no_earlier_step(
    done: int, expected: float, decay_fraction: float, warmup_steps: int
) -> None:
    assume(decay_fraction < 0.999 or done <= warmup_steps)
    plan = TrainConfig(decay_fraction=decay_fraction, warmup_steps=warmup_steps)
    ended = set_end(plan, done, expected)
    if ended is None:
        assert replace(plan, max_steps=max(done, int(expected))).decay_start > done
        return
    assert ended.max_steps and ended.max_steps >= max(done, int(expected))
    for step in range(done):
        assert get_lr_scale(step, ended) == get_lr_scale(step, plan)
