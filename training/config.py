"""How a model is trained: how long, how fast, how often it is looked at, and on what."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from common.errors import require_at_least, require_fraction


@dataclass(frozen=True)
class TrainConfig:
    """The training: steps, optimizer, evaluation, machine."""

    seed: int = 1337
    """Decides the initial weights, the order of the windows, and dropout."""

    max_steps: int = 600
    """Updates of the weights."""

    batch_size: int = 16
    """Windows an update learns from."""

    grad_accum_steps: int = 1
    """Pieces that a batch is read in, one after the other, to save memory."""

    optimizer: Literal["muon", "adamw"] = "muon"
    """Muon for the matrices inside the blocks and AdamW for the rest, or AdamW for all."""

    learning_rate: float = 1e-2
    """Peak learning rate of AdamW."""

    muon_learning_rate: float = 0.012
    """Peak learning rate of Muon."""

    muon_momentum: float = 0.95
    """Muon's memory of the gradient."""

    warmup_steps: int = 10
    """Updates over which the learning rates rise from zero."""

    schedule: Literal["cosine", "linear", "constant"] = "linear"
    """How the learning rates fall, to the end of the run."""

    decay_fraction: float = 0.6
    """The last share of the run, over which they fall; until then they stay at their peaks."""

    final_lr_fraction: float = 0.0
    """Where they fall to, as a share of the peaks."""

    weight_decay: float = 0.1
    """Share of a weight, times the learning rate, taken off at each update; of matrices only."""

    beta1: float = 0.9
    """AdamW's memory of the gradient."""

    beta2: float = 0.99
    """AdamW's memory of the squared gradient."""

    grad_clip: float = 1.0
    """Largest norm of the gradient; a longer one is scaled down. 0 turns this off."""

    eval_every: int = 200
    """Updates between evaluations on the whole validation split."""

    patience: int = 0
    """Stop after so many evaluations without a new best. 0 turns this off."""

    target_loss: float = 0.0
    """Stop at the first evaluation at or below this loss, in nats per token. 0 turns this off."""

    sample_tokens: int = 200
    """Length of the sample written at each evaluation. 0 turns this off."""

    save_every: int = 200
    """Updates between checkpoints."""

    snapshots: int = 12
    """Weights kept along the way, at log-spaced steps and in half precision, so that `study.py
    report` can show heads as they form. 0 turns this off."""

    snapshot_mb: float = 64.0
    """Room for them in megabytes; where it is too little for all, fewer are kept."""

    log_every: int = 10
    """Updates between lines of metrics."""

    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the computation; auto takes bfloat16 where the device computes in it."""

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
            train__muon_learning_rate=self.muon_learning_rate,
            train__warmup_steps=self.warmup_steps,
            train__weight_decay=self.weight_decay,
            train__grad_clip=self.grad_clip,
            train__patience=self.patience,
            train__target_loss=self.target_loss,
            train__sample_tokens=self.sample_tokens,
            train__threads=self.threads,
            train__snapshots=self.snapshots,
            train__snapshot_mb=self.snapshot_mb,
        )
        rates = {
            "learning_rate": self.learning_rate,
            "muon_learning_rate": self.muon_learning_rate,
        }
        for name, rate in rates.items():
            if rate > 1e30:  # a step of float32 numbers has no room for more
                raise ValueError(f"--train.{name} must be at most 1e30, got {rate}")
        for name, number in dataclasses.asdict(self).items():
            if isinstance(number, int) and number >= 2**63:
                raise ValueError(f"--train.{name} must be below 2**63, got {number}")
        require_fraction(
            train__beta1=self.beta1,
            train__beta2=self.beta2,
            train__muon_momentum=self.muon_momentum,
        )
        shares = {
            "final_lr_fraction": self.final_lr_fraction,
            "decay_fraction": self.decay_fraction,
        }
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise ValueError(f"--train.{name} must be in [0, 1], got {share}")
        if self.batch_size % self.grad_accum_steps:
            raise ValueError(
                f"--train.batch_size {self.batch_size} must be divisible by "
                f"--train.grad_accum_steps {self.grad_accum_steps}"
            )

    @property
    def piece_size(self) -> int:
        """Windows read at once."""
        return self.batch_size // self.grad_accum_steps
