"""Measure the wall-clock seconds of `python train.py`, start to exit, to reach a validation loss.

python -m benchmarks.time_to_loss --data.source tinyshakespeare.txt --nanogpt ../nanoGPT
python -m benchmarks.time_to_loss configs/shakespeare_1min.yaml --loss 1.7 --train.max_steps 600

Each repetition is a whole run, with the next seed and an empty folder, whose last evaluation, a
full pass over the validation split, must be at or below the loss. With --nanogpt, it alternates
with the CPU recipe for Tiny Shakespeare in nanoGPT's README, on the same text.
"""

import pickle
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from pydantic.dataclasses import dataclass

from benchmarks import common as frame
from common.errors import UserError, command
from configs.config import STRICT, NonNegative
from data.corpus import Text, load_text
from training.folder import read_metrics

# From nanoGPT's README, "I only have a macbook", on the CPU.
NANOGPT_RECIPE = shlex.split(
    "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 "
    "--log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 "
    "--max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)


@dataclass(frozen=True, config=STRICT)
class Options:
    """Measure the time to reach a loss"""

    repetitions: frame.Repetitions = 3
    nanogpt: frame.NanoGPT = ""

    loss: NonNegative = 1.8857
    """Validation loss to reach, in nats per token. nanoGPT's CPU recipe ends at the default."""


def last_evaluation(run: Path) -> frame.Row:
    """Return the loss and the step of a run's last evaluation."""
    last = [line for line in read_metrics(run) if "val_loss" in line][-1]
    return {"validation_loss": last["val_loss"], "steps": last["step"]}


def nanogpts(checkout: str, text: Text) -> frame.Row:
    """Run nanoGPT's recipe in a copy of the checkout; the time excludes preparing its data.

    The loss is nanoGPT's estimate.
    """
    tokens = text.tokens.astype(np.uint16)
    boundary = int(0.9 * len(tokens))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "nanoGPT"
        shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git", "out*"))
        data = copy / "data" / "shakespeare_char"
        # The files of its prepare.py, which requires packages that this project does not.
        tokens[:boundary].tofile(data / "train.bin")
        tokens[boundary:].tofile(data / "val.bin")
        meta = pickle.dumps({"vocab_size": text.tokenizer.vocab_size})
        (data / "meta.pkl").write_bytes(meta)
        seconds, printed = frame.run_command(["train.py", *NANOGPT_RECIPE], copy)
    losses = re.findall(r"step \d+: train loss [\d.]+, val loss ([\d.]+)", printed)
    return {"seconds": seconds, "validation_loss": float(losses[-1])}


@command
def main(argv: list[str]) -> int:
    """Time the runs alternately."""
    options, file, config, flags = frame.read_training(
        Options, argv, str(frame.ROOT / "docs/speedrun/1.8857.yaml")
    )
    rivals: dict[str, Callable[[], frame.Row]] = {
        Path(file).stem: partial(
            frame.train, file, flags, count(config.train.seed), last_evaluation
        )
    }
    if options.nanogpt:
        rivals["nanoGPT"] = partial(nanogpts, options.nanogpt, load_text(config.data))
    rows = frame.alternate(rivals, options.repetitions, "seconds")
    frame.report("time_to_loss", rows)
    if max(rows[0]["validation_loss"]) > options.loss:
        raise UserError(f"not every run reached {options.loss}; raise --train.max_steps or --loss")
    return 0


if __name__ == "__main__":
    sys.exit(main())
