"""How long training takes on this machine: what fits into some minutes, and what is left."""

import bisect
from dataclasses import dataclass, replace

from training.config import TrainConfig
from training.state import TrainState

WARMUP = 2  # steps that are slower than the rest


@dataclass
class Pace:
    """Mean seconds of what training repeats, as far as it was seen."""

    guess: float
    """Estimated duration of an evaluation, in steps; used until one has been timed."""

    steps: int = 0
    """Steps seen, including the first `WARMUP`, whose seconds do not count."""

    step_seconds: float = 0.0
    """Total of the other steps."""

    evaluations: int = 0
    evaluation_seconds: float = 0.0
    """Total of all evaluations."""

    @classmethod
    def by_flops(cls, config: TrainConfig, block_size: int, validation_tokens: int) -> "Pace":
        """Nothing was seen yet. A validation token is a forward pass, a third of a step's FLOPs."""
        return cls(validation_tokens / (3 * config.batch_size * block_size))

    def saw_step(self, seconds: float) -> None:
        """An update took so many seconds."""
        self.steps += 1
        if self.steps > WARMUP:
            self.step_seconds += seconds

    def saw_evaluation(self, seconds: float) -> None:
        """An evaluation took so many seconds, its sample included."""
        self.evaluations += 1
        self.evaluation_seconds += seconds

    @property
    def step(self) -> float:
        """Mean seconds of an update, once one was seen that counts."""
        return self.step_seconds / (self.steps - WARMUP)

    @property
    def evaluation(self) -> float:
        """Mean seconds of an evaluation with its sample, or the estimate of it."""
        if self.evaluations:
            return self.evaluation_seconds / self.evaluations
        return self.guess * self.step

    def left(self, config: TrainConfig, state: TrainState) -> float | None:
        """Seconds until `max_steps`; None before a step was seen that counts."""
        if self.steps <= WARMUP:
            return None
        steps, evaluations = config.max_steps - state.step, evaluations_left(config, state)
        return steps * self.step + evaluations * self.evaluation

    def steps_in(self, seconds: float, config: TrainConfig) -> int:
        """The largest `max_steps` with which a new run takes at most so many seconds: at least 1,
        and above 100 a multiple of ten. At least one step that counts must have been seen."""

        def needed(steps: int) -> float:
            evaluations = evaluations_left(replace(config, max_steps=steps), TrainState())
            return steps * self.step + evaluations * self.evaluation

        steps = max(1, bisect.bisect(range(1, 10**9), seconds, key=needed))
        return steps // 10 * 10 if steps > 100 else steps


def evaluations_left(config: TrainConfig, state: TrainState) -> int:
    """Evaluations until `max_steps`: at intervals, and at the end."""
    following = (state.last_eval_step // config.eval_every + 1) * config.eval_every
    before_the_end = len(range(following, config.max_steps, config.eval_every))
    return before_the_end + (state.last_eval_step < config.max_steps)
