"""The command runs: which run is best, and how the runs differ."""

import dataclasses
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic.dataclasses import dataclass

from common.errors import UserError, as_user_error, printable
from configs.config import STRICT
from lens.tables import Table
from model.gpt import GPT
from training.checkpoint import open_run
from training.folder import RUNS, find_run, read_metrics

TEXT = "text"  # the key of a run's corpus


@dataclass(frozen=True, config=STRICT)
class Runs:
    """Print a line per run, by text and best first, and the config fields that differ"""


def runs(names: Sequence[str], options: Runs) -> Iterator[str | Table]:
    """Yield the table of each text, with a row for each run, or for those named; it fails if one
    cannot be read. Losses on different texts are not comparable.

    Raises:
        UserError: if none can be read.
    """
    everything = sorted(path.parent for path in RUNS.glob("*/last.safetensors"))
    folders, rows = dict.fromkeys(map(find_run, names)) or everything or [find_run(None)], []
    for folder in folders:
        try:
            rows.append(read_run(folder))
        except UserError as error:
            print(f"left out: {printable(str(error))}", file=sys.stderr)
    if not rows:
        raise UserError("no run can be read")
    texts = dict[str, list[dict[str, Any]]]()
    for row in rows:
        texts.setdefault(row[TEXT].sha256 or row[TEXT].source, []).append(row)
    for number, same in enumerate(texts.values(), start=1):
        corpora = [row.pop(TEXT) for row in same]
        tokens = {corpus.tokens for corpus in corpora}
        known = f", {max(tokens):,} tokens" if len(tokens) == 1 and max(tokens) else ""
        yield printable(corpora[0].source) + known
        yield table_of_runs(same, failed=number == len(texts) and len(rows) < len(folders))


def table_of_runs(rows: list[dict[str, Any]], failed: bool) -> Table:
    """Return the runs on one text, best first, with the fields in which they differ."""
    run, loss, bits, tokenizer, below, below_bits, *known = rows[0]
    differ = [name for name in rows[0] if any(row.get(name) != rows[0][name] for row in rows)]
    if tokenizer in differ:  # nats per token are of different tokens
        loss, below = bits, below_bits
    filled = [name for name in (below, *known) if any(row.get(name) is not None for row in rows)]
    columns = [run, loss, *(name for name in filled if "." not in name or name in differ)]
    rows.sort(key=lambda row: (row[loss] is None, row[loss]))
    table = [columns, *([row[name] for name in columns] for row in rows)]
    return Table(table, form=".4f", failed=failed)


def read_run(folder: Path) -> dict[str, Any]:
    """Return what is known of a run, without reading its weights.

    Raises:
        UserError: if the checkpoint or the metrics cannot be read.
    """
    with as_user_error(folder, "cannot be read"):
        saved, metrics = open_run(folder, "last", weights=False), read_metrics(folder)
        with torch.device("meta"):
            model = GPT(saved.config.model, saved.tokenizer.vocab_size)
        state, config = saved.header.state, dataclasses.asdict(saved.config)
        speeds = [line["tokens_per_second"] for line in metrics if "tokens_per_second" in line]
        bits = min(
            (line["bits_per_char"] for line in metrics if "bits_per_char" in line), default=None
        )
        baselines = [line["baselines"] for line in metrics if "baselines" in line]
        ngrams = [min(losses.values()) for losses in baselines if "bigram" in losses]
        evaluations = [line for line in metrics if "val_loss" in line]
        best = min(evaluations, key=lambda line: line["val_loss"], default={})
        loss, below, below_bits = state.best_val_loss, None, None
        if ngrams and loss is not None:
            below = ngrams[0] - loss
            below_bits = bits and below * bits / loss
        return {
            "run": printable(folder.name),
            f"loss, nats/{saved.tokenizer.unit}": loss,
            "loss, bits/char": bits,
            "tokenizer": saved.header.tokenizer,
            "below n-grams": below,
            "below n-grams, bits/char": below_bits,
            "accuracy": best.get("accuracy"),
            "minutes": state.seconds / 60,
            "steps": state.step,
            "parameters": model.num_parameters(),
            "tokens/s": round(statistics.median(speeds)) if speeds else None,
            TEXT: saved.header.corpus,
        } | {f"{part}.{name}": str(x) for part in config for name, x in config[part].items()}
