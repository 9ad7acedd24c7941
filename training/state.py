"""Where a run stands, as plain data that a checkpoint keeps."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from common.fields import STRICT, Natural, NonNegative
from training.config import TrainConfig


@dataclass(config=STRICT)
class TrainState:
    """Where a run stands."""

    step: Annotated[int, Field(ge=0, lt=2**53)] = 0
    """Steps made. `train` counts one before it makes it, so that an error names it."""

    seconds: NonNegative = 0.0
    """Wall time of the loop, evaluations included, over all sessions."""

    train_loss: NonNegative | None = None
    """Loss of the last step, in nats per token."""

    last_eval_step: Natural = 0
    """Step of the last evaluation; 0 before the first."""

    val_loss: NonNegative | None = None
    """Of that evaluation, in nats per token."""

    best_val_loss: NonNegative | None = None
    """The lowest so far."""

    def evaluation_due(self, config: TrainConfig) -> bool:
        """Return whether to evaluate before the next step: at intervals, and at the end."""
        due = self.step % config.eval_every == 0 or self.step >= config.max_steps
        return due and self.step > self.last_eval_step

    def record(self, val_loss: float) -> bool:
        """Note an evaluation; return whether it is the best so far."""
        self.last_eval_step, self.val_loss = self.step, val_loss
        best = self.best_val_loss is None or val_loss < self.best_val_loss
        if best:
            self.best_val_loss = val_loss
        return best

    def ended(self, config: TrainConfig) -> bool:
        """Return whether training is over: at its last step, or at its target loss."""
        reached = self.val_loss is not None and self.val_loss <= config.target_loss
        return reached or self.step >= config.max_steps
