"""What may change when a run is resumed, measured, or gives its weights to another."""

from common.errors import UserError
from configs.load import Config, to_plain

# What --resume may change: where and how long it computes, how often it evaluates, logs and saves;
# not what it learns. (The text may have moved; another text has another hash.)
RESUME = {
    "data.source",
    "data.hub_revision",
    "model.attention",
    "train.max_steps",
    "train.target_loss",
    "train.eval_every",
    "train.eval_tokens",
    "train.sample_tokens",
    "train.save_every",
    "train.log_every",
    "train.tensorboard",
    "train.snapshots",
    "train.snapshot_mb",
    "train.device",
    "train.precision",
    "train.threads",
    "train.compile",
}
# What --init_from and --evaluate may not change: what gives the weights their meaning...
VOCABULARY = {"data.tokenizer", "data.vocab_size"}
MODEL_MAY_CHANGE = {"model.dropout", "model.attn_dropout", "model.attention"}
# ... and, for --evaluate, which part of a text the run has never seen.
SPLITS = {"data.val_fraction", "data.test_fraction", "data.separator"}


def may_change(field: str, flag: str) -> bool:
    """Return whether --resume, --init_from or --evaluate may change a field of the config."""
    if flag == "--resume":
        return field in RESUME
    if field.startswith("model."):
        return field in MODEL_MAY_CHANGE
    return field not in VOCABULARY and (field not in SPLITS or flag != "--evaluate")


def check_changes(old: Config, new: Config, flag: str) -> None:
    """Reject changes of the config that `flag` does not allow.

    Raises:
        UserError: naming the first such field.
    """
    after = to_plain(new)
    for section, values in to_plain(old).items():
        for name, value in values.items():
            now, field = after[section][name], f"{section}.{name}"
            if now != value and not may_change(field, flag):
                hint = "; --train.max_steps sets how far it trains" * (name == "minutes")
                raise UserError(f"{flag} cannot change {field} from {value} to {now}{hint}")
