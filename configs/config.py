"""Every field of a run, in three sections: the text (data), the network (model), training (train).

Each field is a flag, such as --model.n_layer, and the docstring under it is the flag's help. Where
a field names an entry of a table, as `activation` does of ACTIVATIONS in model/gpt.py, the
choices are spelled out here, and a test compares them with the table.
"""

import math
import reprlib
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

# Nothing is converted: 3.0 is not an integer, and "yes" is not a boolean. Any limit on the length
# of strings makes pydantic reject bytes that are not Unicode, which JSON cannot represent.
STRICT = ConfigDict(
    strict=True,
    extra="forbid",
    allow_inf_nan=False,
    use_attribute_docstrings=True,
    str_min_length=0,
)

Count = Annotated[int, Field(ge=1, lt=2**63)]
Natural = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0)]
LearningRate = Annotated[float, Field(ge=0, le=1e30)]  # an update in float32 has no room for more

Kernel = Literal["fused", "explicit"]


def unpack(config: object, *fields: str) -> None:
    """Replace a list of one value by the value, which means the same."""
    for name in fields:
        value = getattr(config, name)
        if isinstance(value, list) and len(value) == 1:
            object.__setattr__(config, name, value[0])


@dataclass(frozen=True, config=STRICT)
class DataConfig:
    """The text: where it comes from, and how it becomes tokens."""

    source: list[str] | str = "pydocs"
    """Text to train on: pydocs (the reference manual that comes with CPython), a file, a glob,
    hub:OWNER/NAME or hub:OWNER/NAME@REVISION (a dataset of the Hugging Face Hub; a branch is
    downloaded once and kept, a commit fixes the exact text), or a task, whose sequences are
    generated (docs/tasks.md). For several files, repeat the flag."""

    tokenizer: Literal["char", "byte", "bpe"] = "char"
    """Kind of tokens: characters, bytes of UTF-8, or subwords by byte-level BPE, as in GPT-2,
    learned from the text."""

    vocab_size: Annotated[int, Field(ge=257, le=60_000)] = 1024
    """For bpe: number of distinct tokens, including 256 bytes. A short text gives fewer."""

    val_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Fraction of each file for validation. Its splits are training, validation and test, in this
    order. Of many files whose part would be shorter than a context, whole files are drawn."""

    test_fraction: Fraction = 0.0
    """Fraction of each file for the test split, which only study.py evaluate uses."""

    separator: str = ""
    """Text to insert between files, and between the rows of a table or a Hub dataset. If empty, a
    newline is inserted between the rows of a table. In bash, $'\\n' is a newline."""

    hub_config: str = ""
    """Configuration of the Hub dataset, if it has several."""

    hub_split: str = "train"
    """Split of the Hub dataset; train+validation+test joins three splits."""

    column: list[str] | str = "text"
    """Column with the text, of a Hub dataset or a table: .csv, .tsv, .jsonl, .ndjson, .json,
    .parquet. For several, such as author and text, repeat the flag: they are joined with a
    colon."""

    task_kinds: Count | None = None
    """For a task: number of its kinds of tokens, such as the states of markov (docs/tasks.md). If
    omitted, that of the published experiment."""

    task_length: Count | None = None
    """For a task: length of what its sequences contain, such as the digits of addition
    (docs/tasks.md)."""

    task_held_out: Fraction = 0.1
    """For modular and addition: fraction of the sums that only validation has."""

    task_ignored: Fraction = 0.5
    """For flipflop: fraction of the instructions that are i (ignore)."""

    task_order: Literal["highest", "lowest", "carry"] = "highest"
    """For addition: the digit of the answer that comes first; after the last carry, the lowest."""

    def __post_init__(self) -> None:
        unpack(self, "source", "column")
        if "\\n" in self.separator:
            raise ValueError("separator has a backslash and an n; in bash, a newline is $'\\n'")
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError("val_fraction and test_fraction leave nothing to train on")


@dataclass(frozen=True, config=STRICT)
class ModelConfig:
    """The network: its size, and the choices inside a block."""

    block_size: Annotated[int, Field(ge=1, le=2**20)] = 256
    """Maximum context length, in tokens."""

    n_layer: Annotated[int, Field(ge=1, le=1000)] = 4
    """Number of blocks."""

    n_head: Count = 4
    """Number of attention heads in a block, each of width n_embd / n_head."""

    n_kv_head: Count | None = None
    """Number of heads of keys and values, each shared by n_head / n_kv_head heads of queries:
    grouped-query attention, or, with 1, multi-query attention. If omitted, n_head."""

    n_embd: Annotated[int, Field(ge=1, le=10**5)] = 128
    """Width of the residual stream."""

    mlp_ratio: Annotated[int, Field(ge=0, le=100)] = 4
    """Neurons of an MLP, as a multiple of n_embd. 0 leaves out the MLPs: attention only."""

    window: list[Natural] | Natural = 0
    """Number of positions that a query attends to, its own and those before it: sliding-window
    attention. 0 is the whole context. For one number for each layer, repeat the flag."""

    norm: Literal["layer", "none"] = "layer"
    """Normalization of what each sublayer and the output head read: LayerNorm, or none, as in
    models whose weights are to be read. Queries and keys have qk_norm."""

    positions: Literal["learned", "rotary", "none"] = "rotary"
    """Position encoding: learned embeddings, rotary, or none; with none, only the causal mask
    distinguishes positions."""

    ngrams: Annotated[int, Field(ge=1, le=16)] = 1
    """Add embeddings of the n-grams that end with each token, from bigrams up to this n. 1 adds
    none. Each n has a table of at most 16,381 rows, which n-grams share by hashing."""

    activation: Literal["gelu", "gelu_tanh", "relu", "relu2"] = "relu2"
    """Nonlinearity of the MLP: GELU, its tanh approximation as in GPT-2, ReLU, or squared ReLU."""

    qk_norm: bool = True
    """Apply LayerNorm to the queries and keys of each head (Dehghani et al. 2023)."""

    tie_embeddings: bool = False
    """Share the weights of the token embedding and the output head."""

    zero_init: bool = True
    """Initialize the projections into the residual stream to zero, so that each block starts as the
    identity. If false, initialize them to small random numbers, as in GPT-2."""

    bias: bool = False
    """Use biases in the linear layers of the blocks and in LayerNorm."""

    head_bias: bool = False
    """Use a bias in the output head; requires tie_embeddings false."""

    dropout: Fraction | None = None
    """Dropout probability of the embedding and of each sublayer's output. If omitted, it is 0 at
    first, and rises with the number of times that the text has been read, so that the model does
    not memorize it (docs/training.md)."""

    attn_dropout: Fraction = 0.0
    """Dropout probability of the attention weights."""

    attention: Kernel = "fused"
    """fused uses PyTorch's fused kernel, or, in bfloat16 or with attn_dropout on a CPU, two
    matmuls, which are faster. explicit computes the formula step by step. They agree up to
    rounding."""

    def __post_init__(self) -> None:
        unpack(self, "window")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd {self.n_embd} must be divisible by n_head {self.n_head}")
        if self.n_head % self.kv_heads:
            raise ValueError(f"n_head {self.n_head} must be divisible by n_kv_head {self.kv_heads}")
        if isinstance(self.window, list) and len(self.window) != self.n_layer:
            raise ValueError(f"window must be one number, or {self.n_layer}, one for each layer")
        if self.head_bias and self.tie_embeddings:
            raise ValueError("head_bias must be false with tie_embeddings")
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError("n_embd / n_head must be even for rotary positions")
        if self.qk_norm and self.head_width == 1:  # normalized, all queries are zero
            raise ValueError("n_embd / n_head must be at least 2 with qk_norm")

    @property
    def head_width(self) -> int:
        """D = C / H."""
        return self.n_embd // self.n_head

    @property
    def kv_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.n_kv_head or self.n_head

    @property
    def windows(self) -> list[int]:
        """The window of each layer; 0 if it is not shorter than the context."""
        windows = self.window if isinstance(self.window, list) else [self.window] * self.n_layer
        return [window if window < self.block_size else 0 for window in windows]


@dataclass(frozen=True, config=STRICT)
class TrainConfig:
    """The training: steps, optimizer, evaluation, machine."""

    seed: Natural = 1337
    """Seed of the initial weights, the order of the sequences, and dropout."""

    max_steps: Count | None = None
    """Number of training steps. If omitted, as many as fit into `minutes`."""

    minutes: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Without max_steps: duration of this command, including startup and evaluations, but not
    counting n-grams. Before the learning rates decay, nothing depends on the end of the run, so
    max_steps is set when they must begin to decay, from the time that the steps so far took."""

    batch_size: Annotated[int, Field(ge=1, le=10**6)] = 8
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

    weight_decay: NonNegative | None = None
    """Decoupled weight decay of matrices and embeddings, multiplied by the learning rate. If
    omitted, it is 0.1 at first, and rises as model.dropout does."""

    ngram_decay: NonNegative | None = None
    """Weight decay of the n-gram embeddings. If omitted, weight_decay."""

    beta2: Fraction = 0.99
    """AdamW's exponential decay of the second moment."""

    grad_clip: NonNegative = 1.0
    """Clip the gradient norm to this value. 0 disables clipping."""

    eval_every: Count = 200
    """Number of steps between evaluations on the validation split."""

    eval_tokens: Count = 1_000_000
    """Maximum number of tokens in an evaluation during training. For a larger validation split,
    the same evenly spaced sequences are used every time. study.py evaluate uses the whole split."""

    sample_tokens: Annotated[int, Field(ge=0, le=10**5)] = 200
    """Number of tokens to generate at each evaluation. 0 disables samples."""

    save_every: Count = 200
    """Number of steps between checkpoints."""

    snapshots: Annotated[int, Field(ge=0, le=1000)] = 24
    """Number of snapshots of the weights in a run of 600 steps, in half precision and closest
    together at the beginning, from which `study.py report` shows how heads form. A longer run has a
    few more, and a large model fewer: about 64 MB in all. 0 disables snapshots."""

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
        if self.max_steps is None and not self.minutes:
            raise ValueError("minutes must be more than 0 without max_steps")
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
    def end(self) -> float:
        """The number of steps, infinite while it is unknown."""
        return self.max_steps or math.inf

    @property
    def decay_start(self) -> float:
        """The number of steps before the learning rates decay, infinite while it is unknown."""
        if self.max_steps is None or self.schedule == "constant":
            return self.end
        return max(self.warmup_steps, round((1 - self.decay_fraction) * self.max_steps))

    @property
    def adamw_learning_rate(self) -> float:
        """The peak learning rate of AdamW."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 1e-2 if self.optimizer == "muon" else 1e-3

    @property
    def first_weight_decay(self) -> float:
        """The weight decay before it rises."""
        return 0.1 if self.weight_decay is None else self.weight_decay


@dataclass(frozen=True, config=STRICT)
class Config:
    """The whole config of a run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()


def first_error(error: ValidationError) -> tuple[str, str]:
    """Return the field of the first error, such as "train.seed", and what is wrong with it.

    An error of a whole dataclass begins with the name of the wrong field.
    """
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "value_error":
        return place, str(first["ctx"]["error"])
    if first["type"] == "unexpected_keyword_argument":
        return place, "is unknown"
    message = first["msg"].replace("Input should", "must")
    return place, f"{message}, got {reprlib.repr(first['input'])}"
