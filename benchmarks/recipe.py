"""What a config reaches over several seeds, and what each part of the recipe adds to it.

python -m benchmarks.recipe configs/shakespeare_1min.yaml --data.source tinyshakespeare.txt
python -m benchmarks.recipe --changes true --train.max_steps 200 --data.source tinyshakespeare.txt

Each row is `python train.py` in an empty folder, once for each seed: seconds of the whole process,
and the loss of the last weights on the first half of the validation split, where settings were
chosen, on the second, and on the whole. With --changes there is a row for each choice of the
recipe taken back alone, and for some that were not taken.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from pydantic.dataclasses import dataclass

from benchmarks.common import (
    ROOT,
    describe,
    in_fresh_process,
    machine,
    passed_on,
    print_json,
    run_command,
)
from common.errors import command
from common.fields import STRICT, Count
from common.tables import print_table
from configs.load import SECTIONS, build, read_command_line, read_config
from data.batches import open_batches
from model.gpt import next_token_loss
from run.checkpoint import open_run
from training.runtime import pick_device

ADAMW = "--train.optimizer=adamw --train.learning_rate=3e-3 --train.warmup_steps=50"
CHANGES = {
    "learned positions": "--model.positions=learned",
    "no QK-norm": "--model.qk_norm=false",
    "GELU": "--model.activation=gelu",
    "SwiGLU": "--model.activation=swiglu",
    "RMSNorm": "--model.norm=rmsnorm",
    "output projections not from zero": "--model.zero_init=false",
    "tied head": "--model.tie_embeddings=true",
    "biases": "--model.bias=true",
    "AdamW": ADAMW,
    "cosine from the start": "--train.schedule=cosine --train.decay_fraction=1",
    "100 steps of warm-up": "--train.warmup_steps=100",
    "half the batch, twice the steps": "--train.batch_size=8 --train.max_steps=400",
    "bigrams embedded": "--model.ngrams=2",
    "bigrams and trigrams embedded": "--model.ngrams=3",
    "n-grams up to four embedded": "--model.ngrams=4",
}


@dataclass(frozen=True, config=STRICT)
class Options:
    """What to measure"""

    seeds: Count = 3
    """Runs of each row, with seeds 1337, 1338 and so on."""

    changes: bool = False
    """Measure each change alone too."""


@torch.no_grad()
def halves(run: Path) -> tuple[float, float, float]:
    """Losses of a run's last weights on the first half of the validation split, on the second, and
    on the whole, in float32, in nats per token."""
    saved = open_run(run, "last")
    config, device = saved.config, pick_device("auto")
    batches = open_batches(config.data, config.model.block_size, 0, saved.tokenizer)
    model = saved.model(device)
    losses = torch.cat(
        [
            next_token_loss(model(w[:, :-1].to(device)), w[:, 1:].to(device), "none").cpu()
            for w in batches.validation(config.train.batch_size)
        ]
    ).double()
    middle = len(losses) // 2
    return losses[:middle].mean().item(), losses[middle:].mean().item(), losses.mean().item()


def train_and_measure(config: str, flags: list[str], seed: int) -> dict[str, float]:
    """One run in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(ROOT / "train.py"), *([config] if config else []), *flags]
        arguments += [f"--train.seed={seed}", "--run=measured"]
        ended = run_command(arguments, Path(folder))
        first, second, whole = in_fresh_process(halves, Path(folder) / "runs" / "measured")
    return {
        "seconds": ended.seconds,
        "megabytes": ended.megabytes,
        "first_half": first,
        "second_half": second,
        "whole": whole,
    }


def mean_and_deviation(values: list[float], digits: int = 4) -> str:
    """'mean ± standard deviation'."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


@command
def main(argv: list[str]) -> int:
    """Train every row with every seed and print what it reached."""
    usage = "python -m benchmarks.recipe [CONFIG.yaml] [--flag VALUE ...]"
    word, values = read_command_line(
        {"": Options} | SECTIONS, argv, usage, "Measure a config over seeds."
    )
    options = build(Options, values[""])
    file = str(Path(word).resolve()) if word else ""
    config = read_config(values, file or None)
    if config.train.minutes:  # all runs make the same number of steps, unless a time is asked for
        values["train"].setdefault("minutes", 0.0)
    training_flags = passed_on(values, config)
    facts = in_fresh_process(machine, pick_device("auto"))
    print(describe(facts))

    rows = [["", "seconds", "MB", "first half", "second half", "whole", "against the first row"]]
    results: list[dict[str, Any]] = []
    base: list[float] = []
    table = {Path(file).stem or "the default": ""} | (CHANGES if options.changes else {})
    for name, change in table.items():
        runs = [
            train_and_measure(file, training_flags + change.split(), 1337 + n)
            for n in range(options.seeds)
        ]
        columns = {key: [run[key] for run in runs] for key in runs[0]}
        base = base or columns["whole"]
        difference = statistics.mean(columns["whole"]) - statistics.mean(base)
        row = [name, mean_and_deviation(columns["seconds"], 1)]
        row += [f"{max(columns['megabytes']):.0f}"]
        row += [mean_and_deviation(columns[key]) for key in ("first_half", "second_half", "whole")]
        rows.append([*row, f"{difference:+.4f}" if change else ""])
        results.append({"name": name, "flags": change, "runs": runs})
        print("  ".join(rows[-1]), file=sys.stderr)  # so that one sees how far it is
    print_table(rows)
    print_json({"benchmark": "recipe", "machine": facts, "rows": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
