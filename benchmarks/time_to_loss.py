"""Seconds of the whole process, from the command to its end, until a validation loss is reached.

python -m benchmarks.time_to_loss --loss 1.8857 --data.source tinyshakespeare.txt
python -m benchmarks.time_to_loss --data.source tinyshakespeare.txt --nanogpt ../nanoGPT
python -m benchmarks.time_to_loss configs/shakespeare_1min.yaml --loss 1.7 --train.max_steps 600

Each repetition is `python train.py` with a seed of its own, in an empty folder, so that nothing is
kept from the one before; it stops at the first evaluation, a full pass over the validation split,
that is at or below the loss. With --nanogpt each is followed by the whole of nanoGPT's own recipe
for Tiny Shakespeare on a CPU, as its README gives it, on the same text.
"""

import pickle
import re
import shlex
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from benchmarks.common import (
    ROOT,
    describe,
    in_fresh_process,
    machine,
    median_and_spread,
    nanogpt_model,
    passed_on,
    print_json,
    run_command,
)
from common.errors import UserError, command
from common.fields import STRICT, Count
from common.tables import print_table
from configs.load import (
    SECTIONS,
    build,
    read_command_line,
    read_config,
)
from data.corpus import Corpus, load_corpus
from run.metrics import read_metrics
from training.runtime import pick_device

CONFIG = ROOT / "configs" / "shakespeare_10s.yaml"

# nanoGPT's README, "I only have a macbook", with the device that it is run on there.
NANOGPT_RECIPE = shlex.split(
    "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 "
    "--log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 "
    "--max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)


@dataclass(frozen=True, config=STRICT)
class Options:
    """What to reach"""

    loss: Annotated[float, Field(gt=0)] = 1.8857
    """Validation loss, in nats per token. (The default is where nanoGPT's CPU recipe ends.)"""

    repetitions: Count = 3
    """Each with a seed of its own: 1337, 1338 and so on."""

    nanogpt: str = ""
    """A checkout of nanoGPT, to run its recipe in turn with ours."""


def ours(config: Path, flags: list[str], loss: float, seed: int) -> dict[str, Any]:
    """One run of train.py, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(ROOT / "train.py"), str(config), *flags, "--run=timed"]
        arguments += [f"--train.target_loss={loss}", f"--train.seed={seed}"]
        ended = run_command(arguments, Path(folder))
        lines = read_metrics(Path(folder) / "runs" / "timed")
    last = [line for line in lines if "val_loss" in line][-1]
    found = {"seed": seed, "val_loss": last["val_loss"], "steps": last["step"]}
    return found | {"seconds": ended.seconds, "megabytes": ended.megabytes}


def theirs(checkout: str, corpus: Corpus) -> dict[str, Any]:
    """nanoGPT's recipe, in a copy of the checkout; preparing its data is not counted."""
    tokens = corpus.tokens.astype(np.uint16)
    boundary = int(0.9 * len(tokens))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "nanoGPT"
        shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git", "out*"))
        data = copy / "data" / "shakespeare_char"
        # What its prepare.py makes of the text, which needs packages that are not needed here.
        tokens[:boundary].tofile(data / "train.bin")
        tokens[boundary:].tofile(data / "val.bin")
        meta = pickle.dumps({"vocab_size": corpus.tokenizer.vocab_size})
        (data / "meta.pkl").write_bytes(meta)
        ended = run_command(["train.py", *NANOGPT_RECIPE], copy)
    losses = re.findall(r"step \d+: train loss [\d.]+, val loss ([\d.]+)", ended.printed)
    return {
        "seconds": ended.seconds,
        "own_val_loss": float(losses[-1]),
        "megabytes": ended.megabytes,
    }


@command
def main(argv: list[str]) -> int:
    """Time the runs one after the other and print what they took."""
    usage = "python -m benchmarks.time_to_loss [CONFIG.yaml] [--loss L] [--section.field VALUE ...]"
    word, values = read_command_line(
        {"": Options} | SECTIONS, argv, usage, "Time a run until it reaches a loss."
    )
    options = build(Options, values[""])
    file = Path(word).resolve() if word else CONFIG
    config = read_config(values, str(file))
    training_flags = passed_on(values, config)
    corpus = None
    if options.nanogpt:
        nanogpt_model(options.nanogpt)
        corpus = load_corpus(config.data)

    facts = in_fresh_process(machine, pick_device("auto"))
    print(describe(facts))
    runs, nano = [], []
    for n in range(options.repetitions):
        runs.append(ours(file, training_flags, options.loss, config.train.seed + n))
        if corpus is not None:
            nano.append(theirs(options.nanogpt, corpus))

    heading = ["run", "seed", "steps", "validation loss", "MB", "seconds"]
    rows = [heading + (["nanoGPT's seconds", "its loss", "times faster"] if nano else [])]
    for n, run in enumerate(runs):
        row = [file.stem, str(run["seed"]), str(run["steps"])]
        row += [f"{run['val_loss']:.4f}", f"{run['megabytes']:.0f}", f"{run['seconds']:.1f}"]
        if nano:
            ratio = nano[n]["seconds"] / run["seconds"]
            row += [f"{nano[n]['seconds']:.1f}", f"{nano[n]['own_val_loss']:.4f}", f"{ratio:.1f}"]
        rows.append(row)
    print_table(rows)
    seconds = [run["seconds"] for run in runs]
    reached = all(run["val_loss"] <= options.loss for run in runs)
    print(f"{options.loss} nats in {median_and_spread(seconds, 1)} s")
    result = {"benchmark": "time_to_loss", "loss": options.loss, "reached": reached}
    result |= {"seconds": statistics.median(seconds), "runs": runs, "machine": facts}
    if nano:
        ratios = [
            theirs["seconds"] / run["seconds"] for theirs, run in zip(nano, runs, strict=True)
        ]
        print(f"nanoGPT's recipe takes {median_and_spread(ratios, 1)} times as long")
        result |= {"nanogpt": nano, "ratios": ratios}
    print_json(result)
    if not reached:
        raise UserError(f"not every run reached {options.loss}; train longer, or ask for less")
    return 0


if __name__ == "__main__":
    sys.exit(main())
