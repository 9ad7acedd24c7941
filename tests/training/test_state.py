"""The state of a run: its evaluations, its best loss, and when it ends."""

import math

from hypothesis import given
from hypothesis import strategies as st

from training.config import TrainConfig
from training.step import TrainState


@given(
    losses=st.lists(st.integers(1, 6).map(float), min_size=1, max_size=12),
    target=st.sampled_from([0.0, 1.0, 2.5]),
)
def test_run_ends_at_target_loss_or_max_steps(losses: list[float], target: float) -> None:
    """Evaluate at every second step; recompute the state from the list of losses."""
    config = TrainConfig(max_steps=2 * len(losses), eval_every=2, target_loss=target)
    state = TrainState()
    for i, loss in enumerate(losses):
        state.step = 2 * i + 1
        assert not state.ended(config)  # nothing ends a run between evaluations
        state.step = 2 * i + 2
        assert state.record(loss) == (loss < min(losses[:i], default=math.inf))  # a tie is not
        best = min(losses[: i + 1])
        assert state == TrainState(state.step, 0.0, None, state.step, loss, best)
        assert state.ended(config) == (loss <= target or i + 1 == len(losses))
        if loss <= target:
            break
