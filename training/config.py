"""How a model is trained: how long, how fast, how often it is evaluated, and on what."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from common.fields import STRICT, Count, Fraction, Natural, NonNegative

LearningRate = Annotated[float, Field(ge=0, le=1e30)]  # an update in float32 has no room for more


@dataclass(frozen=True, config=STRICT)
class TrainConfig:
    """The training: steps, optimizer, evaluation, machine."""

    seed: Natural = 1337
    """Decides the initial weights, the order of the sequences, and dropout."""

    minutes: NonNegative = 1.0
    """About how long the whole run takes, start and evaluations included: some steps are timed, and
    max_steps is set to what fits, and saved. 0 trains for max_steps instead; giving max_steps does
    the same."""

    max_steps: Count = 600
    """Number of training steps."""

    batch_size: Count = 16
    """Sequences in a step."""

    gradient_accumulation_steps: Count = 1
    """Micro-batches that a batch is split into, one after the other, to save memory."""

    optimizer: Literal["muon", "adamw"] = "muon"
    """Muon for the matrices inside the blocks and AdamW for the rest, or AdamW for all."""

    learning_rate: LearningRate | None = None
    """Peak learning rate of AdamW; by default 1e-2 with Muon, and 1e-3 without it."""

    muon_learning_rate: LearningRate = 0.012
    """Peak learning rate of Muon."""

    muon_momentum: Fraction = 0.95
    """Momentum of Muon."""

    warmup_steps: Natural = 10
    """Steps over which the learning rates rise from zero."""

    schedule: Literal["cosine", "linear", "constant"] = "linear"
    """How the learning rates fall, to the end of the run."""

    decay_fraction: Annotated[float, Field(ge=0, le=1)] = 0.6
    """Final fraction of the run over which the learning rates decay."""

    final_lr_fraction: Fraction = 0.0
    """The learning rates at the end, as a fraction of their peaks."""

    weight_decay: NonNegative = 0.1
    """Decoupled weight decay, times the learning rate; of matrices and embeddings only."""

    ngram_decay: NonNegative | None = None
    """Weight decay of the n-gram embeddings, which memorize; by default that of the rest."""

    beta1: Fraction = 0.9
    """AdamW's exponential decay of the first moment."""

    beta2: Fraction = 0.99
    """AdamW's exponential decay of the second moment."""

    grad_clip: NonNegative = 1.0
    """Clip the gradient norm to this value. 0 disables clipping."""

    multi_token: NonNegative = 0.0
    """Initial weight of an extra loss, for predicting the token after the next from the same
    logits; it falls to zero by the middle of the run. Multi-token prediction (Gloeckle et al. 2024)
    without a head of its own."""

    eval_every: Count = 200
    """Steps between evaluations on the validation split."""

    eval_tokens: Count = 1_000_000
    """Largest number of tokens in an evaluation during training: of a larger validation split,
    evenly spaced sequences, the same ones every time. --evaluate measures the whole split."""

    target_loss: NonNegative = 0.0
    """Stop when the validation loss is at or below this, in nats per token."""

    sample_tokens: Annotated[int, Field(ge=0, le=10**5)] = 200
    """Tokens generated at each evaluation. 0 turns this off."""

    save_every: Count = 200
    """Steps between checkpoints."""

    snapshots: Annotated[int, Field(ge=0, le=1000)] = 24
    """Number of snapshots of the weights kept along the way, in half precision and closest together
    at the beginning, so that `study.py report` can show heads as they form. 0 turns this off."""

    snapshot_mb: NonNegative = 64.0
    """Room for the snapshots in megabytes; where it is too little for all, fewer are kept."""

    log_every: Count = 10
    """Steps between lines of metrics."""

    tensorboard: bool = True
    """Write TensorBoard events as well as metrics.jsonl."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the computation; auto takes bfloat16 where the device computes in it."""

    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads; 0 takes all cores. Fewer can be faster while other programs keep cores busy."""

    compile: bool = False
    """Compile the model with torch.compile: slow to start, then faster."""

    def __post_init__(self) -> None:
        if self.batch_size % self.gradient_accumulation_steps:
            raise ValueError(
                f"batch_size {self.batch_size} must be divisible by "
                f"gradient_accumulation_steps {self.gradient_accumulation_steps}"
            )

    @property
    def micro_batch_size(self) -> int:
        """Sequences in a forward and backward pass, over all processes."""
        return self.batch_size // self.gradient_accumulation_steps

    @property
    def adamw_learning_rate(self) -> float:
        """The peak learning rate of AdamW."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 1e-2 if self.optimizer == "muon" else 1e-3
