"""The progress of a run keeps its best loss."""

import math

import pytest

from training.state import TrainState


def test_state_keeps_the_best_loss_and_its_step() -> None:
    state, losses = TrainState(), [3.0, 2.0, 2.0, 4.0, 1.0]  # a tie is not better
    for i, loss in enumerate(losses):
        state.step = 2 * i + 2
        assert state.record(loss) == (loss < min(losses[:i], default=math.inf))
        best = min(losses[: i + 1])
        best_step = 2 * losses.index(best) + 2
        assert state == TrainState(state.step, 0.0, None, state.step, loss, best, best_step)
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(FloatingPointError, match=f"^at step {state.step}: validation loss "):
            state.record(bad)
    assert state.best_val_loss == min(losses)
