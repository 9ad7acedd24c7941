"""Where a run stands: when it evaluates, what is the best, why it ends."""

import math

from hypothesis import given
from hypothesis import strategies as st

from training.config import TrainConfig
from training.state import TrainState


def test_evaluations_are_at_intervals_and_at_the_end_and_once() -> None:
    config = TrainConfig(max_steps=11, eval_every=4, save_every=3)
    due = []
    for step in range(12):
        state = TrainState(step=step, train_loss=1.0)
        if state.evaluation_due(config):
            due.append(step)
            state.record(1.0)
            assert not state.evaluation_due(config), "it is made already"
    assert due == [4, 8, 11]
    made = TrainState(step=8, train_loss=1.0, last_eval_step=4, val_loss=1.0, best_val_loss=1.0)
    assert made.evaluation_due(config)


@given(
    losses=st.lists(st.integers(1, 6).map(float), min_size=1, max_size=12),
    patience=st.integers(0, 3),
    target=st.sampled_from([0.0, 1.0, 2.5]),
)
def test_a_run_ends_at_its_target_at_the_end_of_patience_or_of_its_steps(
    losses: list[float], patience: int, target: float
) -> None:
    """Evaluated at every second step; the reasons recomputed from the list of losses."""
    config = TrainConfig(
        max_steps=2 * len(losses), eval_every=2, patience=patience, target_loss=target
    )
    state = TrainState()
    assert state.ended(config) is None
    for i, loss in enumerate(losses):
        state.step, state.train_loss = 2 * i + 1, 9.0
        assert state.ended(config) is None, "between evaluations nothing ends it"
        state.step = 2 * i + 2
        before = losses[:i]
        assert state.record(loss) == (loss < min(before, default=math.inf)), "an equal loss is not"
        best = min(losses[: i + 1])
        since = i - losses.index(best)
        expected = TrainState(state.step, 0.0, 9.0, state.step, loss, best, since)
        assert state == expected
        reason = state.ended(config)
        if target and loss <= target:
            assert reason == f"the validation loss is at or below {target}"
        elif patience and since >= patience:
            assert reason == f"{since} evaluations without a new best"
        else:
            assert reason == ("max_steps" if i + 1 == len(losses) else None)
        if reason:
            state.step += 1  # resumed: it ends when it is evaluated again
            assert state.ended(config) in (None, "max_steps")
            break
