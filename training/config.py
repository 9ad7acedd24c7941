"""How a model is trained: how long, how fast, how often it is looked at, and on what."""

from dataclasses import dataclass
from typing import Literal

from errors import require_at_least, require_fraction


@dataclass(frozen=True)
class TrainConfig:
    """The training: steps, optimizer, evaluation, machine."""

    seed: int = 1337
    """Decides the initial weights, the order of the windows, and dropout."""

    max_steps: int = 1000
    """Updates of the weights."""

    batch_size: int = 16
    """Windows an update learns from."""

    grad_accum_steps: int = 1
    """Pieces that a batch is read in, one after the other, to save memory."""

    learning_rate: float = 2e-3
    """Peak learning rate of AdamW."""

    warmup_steps: int = 50
    """Updates over which the learning rate rises from zero."""

    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after the warm-up, until max_steps."""

    final_lr_fraction: float = 0.0
    """Where it falls to, as a share of the peak."""

    weight_decay: float = 0.1
    """Share of a weight, times the learning rate, taken off at each update; of matrices only."""

    beta1: float = 0.9
    """AdamW's memory of the gradient."""

    beta2: float = 0.99
    """AdamW's memory of the squared gradient."""

    grad_clip: float = 1.0
    """Largest norm of the gradient; a longer one is scaled down. 0 turns this off."""

    eval_every: int = 250
    """Updates between evaluations on the whole validation split."""

    patience: int = 0
    """Stop after so many evaluations without a new best. 0 turns this off."""

    sample_tokens: int = 200
    """Length of the sample written at each evaluation. 0 turns this off."""

    save_every: int = 250
    """Updates between checkpoints."""

    log_every: int = 10
    """Updates between lines of metrics."""

    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the matrix products; auto takes bfloat16 where the device computes in it."""

    threads: int = 0
    """CPU threads; 0 leaves the choice to PyTorch."""

    compile: bool = False
    """Compile the model with torch.compile: slow to start, then faster."""

    def __post_init__(self) -> None:
        require_at_least(
            1,
            train__max_steps=self.max_steps,
            train__batch_size=self.batch_size,
            train__grad_accum_steps=self.grad_accum_steps,
            train__eval_every=self.eval_every,
            train__save_every=self.save_every,
            train__log_every=self.log_every,
        )
        require_at_least(
            0,
            train__seed=self.seed,
            train__learning_rate=self.learning_rate,
            train__warmup_steps=self.warmup_steps,
            train__weight_decay=self.weight_decay,
            train__grad_clip=self.grad_clip,
            train__patience=self.patience,
            train__sample_tokens=self.sample_tokens,
            train__threads=self.threads,
        )
        if self.seed >= 2**63:
            raise ValueError(f"--train.seed must be below 2**63, got {self.seed}")
        require_fraction(train__beta1=self.beta1, train__beta2=self.beta2)
        if not 0 <= self.final_lr_fraction <= 1:
            raise ValueError(
                f"--train.final_lr_fraction must be in [0, 1], got {self.final_lr_fraction}"
            )
        if self.batch_size % self.grad_accum_steps:
            raise ValueError(
                f"--train.batch_size {self.batch_size} must be divisible by "
                f"--train.grad_accum_steps {self.grad_accum_steps}"
            )
