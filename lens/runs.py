"""The command runs: which run is best, and how the runs differ."""

import csv
import dataclasses
import io
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic.dataclasses import dataclass

from common.atomic import write_atomically
from common.errors import UserError, printable, reading
from common.fields import STRICT
from lens.tables import Table, check_path
from model.gpt import GPT
from run.checkpoint import open_run
from run.folder import RUNS, find_run
from run.log import read_metrics


@dataclass(frozen=True, config=STRICT)
class Runs:
    """Print a line per run, best first, and the config fields that differ"""

    csv: str | None = None
    """Also write the table to this file, as CSV in full precision."""


def runs(names: Sequence[str], options: Runs) -> Iterator[str | Table]:
    """Yield a row for each run, or for those named, which fails if one cannot be read.

    Raises:
        UserError: if none can be read.
    """
    check_path(options.csv, "--csv", b'run,"loss, ')
    everything = sorted(path.parent for path in RUNS.glob("*/last.safetensors"))
    folders, rows = dict.fromkeys(map(find_run, names)) or everything or [find_run(None)], []
    for folder in folders:
        try:
            rows.append(read_run(folder))
        except UserError as error:
            print(f"left out: {printable(str(error))}", file=sys.stderr)
    if not rows:
        raise UserError("no run can be read")
    run, loss, bits, tokenizer, *known = rows[0]
    differ = [name for name in rows[0] if any(row.get(name) != rows[0][name] for row in rows)]
    if tokenizer in differ:
        loss = bits
        yield "losses in bits/char: the runs have different tokens"
    filled = [name for name in known if any(row.get(name) is not None for row in rows)]
    columns = [run, loss, *(name for name in filled if "." not in name or name in differ)]
    rows.sort(key=lambda row: (row[loss] is None, row[loss]))
    table = [columns, *([row[name] for name in columns] for row in rows)]
    yield Table(table, form=".4f", failed=len(rows) < len(folders))
    if options.csv is not None:
        content = io.StringIO()
        csv.writer(content, lineterminator="\n").writerows(table)
        write_atomically(Path(options.csv), content.getvalue().encode())


def read_run(folder: Path) -> dict[str, Any]:
    """Return what is known of a run, without reading its weights.

    Raises:
        UserError: if the checkpoint or the metrics cannot be read.
    """
    with reading(folder, "cannot be read"):
        saved, metrics = open_run(folder, "last", weights=False), read_metrics(folder)
        with torch.device("meta"):
            model = GPT(saved.config.model, saved.tokenizer.vocab_size)
        state, config = saved.header.state, dataclasses.asdict(saved.config)
        speeds = [line["tokens_per_second"] for line in metrics if "tokens_per_second" in line]
        bits = [line["bits_per_char"] for line in metrics if "bits_per_char" in line]
        baselines = [line["baselines"] for line in metrics if "baselines" in line]
        counted = [min(losses.values()) for losses in baselines if "bigram" in losses]
        evaluations = [line for line in metrics if "val_loss" in line]
        best = min(evaluations, key=lambda line: line["val_loss"], default={})
        below = None
        if counted and state.best_val_loss is not None:
            below = counted[0] - state.best_val_loss
        return {
            "run": printable(folder.name),
            f"loss, nats/{saved.config.data.unit}": state.best_val_loss,
            "loss, bits/char": min(bits, default=None),
            "tokenizer": saved.header.tokenizer,
            "below counting": below,
            "accuracy": best.get("accuracy"),
            "minutes": state.seconds / 60,
            "steps": state.step,
            "parameters": model.num_parameters(),
            "tokens/s": round(statistics.median(speeds)) if speeds else None,
            "text": saved.header.corpus.source,
        } | {f"{part}.{name}": str(x) for part in config for name, x in config[part].items()}
