"""How long a run takes: the time that is left is the truth and does not jump; what fits, fits."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.config import TrainConfig
from training.pace import WARMUP, Pace, evaluations_left
from training.state import TrainState

SECONDS = st.floats(1e-4, 1e3)
COUNT = st.integers(1, 300)


def evaluated(config: TrainConfig) -> list[int]:
    """The steps after which a run is evaluated."""
    state, steps = TrainState(), []
    for state.step in range(config.max_steps + 1):
        state.train_loss = 1.0
        if state.evaluation_due(config):
            state.record(1.0)
            steps.append(state.step)
    return steps


@given(COUNT, COUNT, COUNT)
def test_evaluations_that_are_left(max_steps: int, eval_every: int, further: int) -> None:
    """Those that training makes; also of a run that is resumed after its end."""
    config = TrainConfig(max_steps=max_steps, eval_every=eval_every)
    steps, state = evaluated(config), TrainState()
    for step in steps:
        assert evaluations_left(config, state) == len([s for s in steps if s >= step])
        state.step, state.last_eval_step = step, step
    assert evaluations_left(config, state) == 0
    longer = replace(config, max_steps=max_steps + further)
    expected = [s for s in evaluated(longer) if s > max_steps]
    assert evaluations_left(longer, state) == len(expected)


@given(
    st.integers(100, 1000), COUNT, SECONDS, st.floats(0.5, 2.0), st.floats(1, 30), st.integers(0, 9)
)
def test_the_time_left_is_the_truth_and_does_not_jump(
    max_steps: int, eval_every: int, step: float, error: float, guess: float, slower: int
) -> None:
    """With steps and evaluations that take as long each time, after a slow start: from the first
    that counts on it is off by no more than the guess of an evaluation is, until one was seen."""
    config = TrainConfig(max_steps=max_steps, eval_every=eval_every)
    pace, state, evaluation = Pace(guess), TrainState(), error * guess * step
    ends = evaluated(config)
    last: float | None = None
    for number in range(1, max_steps + 1):
        assert (pace.left(config, state) is None) == (number <= WARMUP + 1)
        state.step = number
        pace.saw_step(step * (1 + slower) if number <= WARMUP else step)
        truth = (max_steps - number) * step + evaluations_left(config, state) * evaluation
        left = pace.left(config, state)
        if left is not None:
            off = 0.0 if pace.evaluations else abs(1 - error)
            off *= evaluations_left(config, state) * guess * step
            assert abs(left - truth) <= off + 1e-6 * truth
            if last is not None:
                assert last - left == pytest.approx(step, rel=1e-3)
        last = left
        if number in ends:
            state.last_eval_step = number
            pace.saw_evaluation(evaluation)
            last = None
    assert pace.left(config, state) == 0


@given(st.lists(st.floats(0.7, 1.4), min_size=200, max_size=200))
def test_steps_that_vary_move_it_little(factors: list[float]) -> None:
    """By less than 2% of what is left from one step to the next, after the twentieth."""
    config, pace, state = TrainConfig(max_steps=1000), Pace(10.0), TrainState()
    lefts = []
    for state.step, factor in enumerate(factors, start=1):
        pace.saw_step(0.1 * factor)
        lefts.append(pace.left(config, state) or 0.0)
    for before, after in itertools.pairwise(lefts[20:]):
        assert abs(after / (before - 0.1) - 1) < 0.02


@given(st.floats(0.1, 1e4), SECONDS, SECONDS, COUNT)
def test_as_many_steps_as_fit(
    seconds: float, step: float, evaluation: float, eval_every: int
) -> None:
    """With their evaluations they take no longer, and ten more would."""
    config = TrainConfig(eval_every=eval_every)
    pace = Pace(0.0)
    for _ in range(WARMUP):
        pace.saw_step(1e9)
    pace.saw_step(step)
    pace.saw_evaluation(evaluation)
    steps = pace.steps_in(seconds, config)

    def takes(steps: int) -> float:
        evaluations = -(-steps // eval_every)
        return steps * step + evaluations * evaluation

    assert steps == 1 or takes(steps) <= seconds * (1 + 1e-9)
    assert takes(steps + (1 if steps < 100 else 10)) > seconds * (1 - 1e-9)
    assert steps <= 100 or steps % 10 == 0


def test_the_first_guess_is_by_flops() -> None:
    """1,200 tokens forward are as much as 400 forward and backward: two steps of 4 x 50."""
    pace = Pace.by_flops(TrainConfig(batch_size=4, max_steps=10, eval_every=20), 50, 1200)
    for _ in range(WARMUP + 1):
        pace.saw_step(3.0)
    state = TrainState(step=3, train_loss=1.0)
    assert pace.left(TrainConfig(max_steps=10, eval_every=20), state) == 7 * 3 + 2 * 3
