"""The progress of a run."""

import math
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from configs.config import STRICT, Natural, NonNegative


@dataclass(config=STRICT)
class TrainState:
    """The progress of a run."""

    step: Natural = 0
    """Number of training steps so far, which is the index of the next one."""

    seconds: NonNegative = 0.0
    """Wall-clock time of the loop, including evaluations, over all sessions."""

    train_loss: NonNegative | None = None
    """Loss of the last step that was read, in nats per token."""

    last_eval_step: Annotated[int, Field(ge=-1, lt=2**63)] = 0
    """Step of the last evaluation; 0 before the first, or -1 to evaluate the initial weights."""

    val_loss: NonNegative | None = None
    """Loss of the last evaluation, in nats per token."""

    best_val_loss: NonNegative | None = None
    """Lowest loss of all evaluations."""

    best_step: Natural = 0
    """Step of the evaluation with the lowest loss."""

    def record(self, val_loss: float) -> bool:
        """Record an evaluation, and return whether it is the best so far.

        Raises:
            FloatingPointError: if the loss is not finite.
        """
        if not math.isfinite(val_loss):
            raise FloatingPointError(f"at step {self.step}: validation loss {val_loss}")
        self.last_eval_step, self.val_loss = self.step, val_loss
        best = self.best_val_loss is None or val_loss < self.best_val_loss
        if best:
            self.best_val_loss, self.best_step = val_loss, self.step
        return best
