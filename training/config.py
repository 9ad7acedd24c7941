"""The config of training: steps, optimizer, evaluation, and machine."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from common.fields import STRICT, Count, Fraction, Natural, NonNegative

LearningRate = Annotated[float, Field(ge=0, le=1e30)]  # an update in float32 has no room for more


@dataclass(frozen=True, config=STRICT)
class TrainConfig:
    """The training: steps, optimizer, evaluation, machine."""

    seed: Natural = 1337
    """Seed of the initial weights, the order of the sequences, and dropout."""

    minutes: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Approximate duration of the whole run, including startup and evaluations, but not counting
    n-grams. A few steps are timed, and max_steps is set accordingly. 0 uses max_steps; setting
    max_steps implies 0."""

    max_steps: Count = 600
    """Number of training steps."""

    batch_size: Count = 16
    """Number of sequences in a step."""

    gradient_accumulation_steps: Count = 1
    """Number of micro-batches that a batch is split into, to save memory."""

    optimizer: Literal["muon", "adamw"] = "muon"
    """muon uses Muon for the matrices inside the blocks and AdamW for the other weights; adamw uses
    AdamW for all weights."""

    learning_rate: LearningRate | None = None
    """Peak learning rate of AdamW. If omitted, 1e-2 with Muon and 1e-3 without it."""

    muon_learning_rate: LearningRate = 0.012
    """Peak learning rate of Muon."""

    warmup_steps: Natural = 10
    """Number of steps over which the learning rates rise from zero."""

    schedule: Literal["cosine", "linear", "constant"] = "linear"
    """Shape of the learning-rate decay."""

    decay_fraction: Annotated[float, Field(ge=0, le=1)] = 0.6
    """Final fraction of the run over which the learning rates decay."""

    final_lr_fraction: Fraction = 0.0
    """Final learning rates, as a fraction of their peaks."""

    weight_decay: NonNegative = 0.1
    """Decoupled weight decay of matrices and embeddings, multiplied by the learning rate."""

    ngram_decay: NonNegative | None = None
    """Weight decay of the n-gram embeddings. If omitted, weight_decay."""

    beta1: Fraction = 0.9
    """AdamW's exponential decay of the first moment."""

    beta2: Fraction = 0.99
    """AdamW's exponential decay of the second moment."""

    grad_clip: NonNegative = 1.0
    """Clip the gradient norm to this value. 0 disables clipping."""

    multi_token: NonNegative = 0.0
    """Initial weight of the loss for the token after the next, which the same logits predict. It
    falls to zero by the middle of the run (multi-token prediction, Gloeckle et al. 2024)."""

    eval_every: Count = 200
    """Number of steps between evaluations on the validation split."""

    eval_tokens: Count = 1_000_000
    """Maximum number of tokens in an evaluation during training. For a larger validation split,
    the same evenly spaced sequences are used every time. --evaluate uses the whole split."""

    target_loss: NonNegative = 0.0
    """Stop when the validation loss is at or below this value, in nats per token."""

    sample_tokens: Annotated[int, Field(ge=0, le=10**5)] = 200
    """Number of tokens to generate at each evaluation. 0 disables samples."""

    save_every: Count = 200
    """Number of steps between checkpoints."""

    snapshots: Annotated[int, Field(ge=0, le=1000)] = 24
    """Number of snapshots of the weights, in half precision and closest together at the beginning,
    from which `study.py report` shows how heads form. There are fewer if they would exceed 64 MB.
    0 disables snapshots."""

    log_every: Count = 10
    """Number of steps between lines of metrics. Training waits for a GPU only at these steps, and
    before evaluations and checkpoints."""

    tensorboard: bool = True
    """Write TensorBoard events as well as metrics.jsonl."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to train on; auto selects a GPU if there is one."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the computation; auto selects bfloat16 if the device supports it in hardware."""

    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Number of CPU threads; 0 uses all cores. Fewer can be faster if other programs run."""

    compile: bool = False
    """Compile the model with torch.compile, which starts slowly and then trains faster."""

    def __post_init__(self) -> None:
        if self.batch_size % self.gradient_accumulation_steps:
            raise ValueError(
                f"batch_size {self.batch_size} must be divisible by "
                f"gradient_accumulation_steps {self.gradient_accumulation_steps}"
            )

    @property
    def micro_batch_size(self) -> int:
        """Number of sequences in a forward and backward pass, over all processes."""
        return self.batch_size // self.gradient_accumulation_steps

    @property
    def adamw_learning_rate(self) -> float:
        """The peak learning rate of AdamW."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 1e-2 if self.optimizer == "muon" else 1e-3
