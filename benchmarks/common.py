"""Shared parts of the benchmarks: options, alternating measurements, and the table of results.

A row of results is a dictionary whose keys are the columns of the table. A list in it has one
number per repetition: the table shows the median (minimum to maximum), the JSON line every number.
"""

import glob
import json
import math
import multiprocessing
import os
import platform
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field

from common.errors import UserError
from configs.config import Config, Count, ModelConfig, TrainConfig
from configs.load import SECTIONS, Values, read_command_line, read_config
from lens.tables import Table
from training.machine import Processes, prepare_machine

ROOT = Path(__file__).parent.parent

Row = dict[str, Any]
Result = TypeVar("Result")
AnyOptions = TypeVar("AnyOptions")


# Flags of several benchmarks
NANOGPT = "Path of a checkout of github.com/karpathy/nanoGPT; if given, it is measured as well."
NanoGPT = Annotated[str, Field(description=NANOGPT)]
Repetitions = Annotated[
    Count,
    Field(description="Number of measurements of each row, alternating with its rivals."),
]


def read_options(
    kind: type[AnyOptions], argv: list[str], words: str = "", **sections: type
) -> tuple[AnyOptions, str | None, Values]:
    """Read a benchmark's own options, the positional argument, and the flags of `sections`.

    Args:
        words: the positional argument in the usage line; if empty, none is accepted.
    """
    usage = f"python -m benchmarks.{Path(sys.argv[0]).stem} {words} [--flag VALUE ...]"
    sections = {"": kind, **sections}
    given, (options,), values = read_command_line(sections, argv, usage, "", bool(words))
    return options, next(iter(given), None), values


def containing(word: str | None, names: Iterable[str]) -> list[str]:
    """Return the names that have this word in them, all if it is None.

    Raises:
        UserError: if no name has it.
    """
    names = [*names]
    found = [name for name in names if (word or "") in name]
    if not found:
        raise UserError(f"no name contains {word}: {', '.join(names)}")
    return found


def alternate(
    rivals: Mapping[str, Callable[[], Row]], repetitions: int, speed: str = "", **labels: str
) -> list[Row]:
    """Measure each rival once, then each again, so that a slow period of the machine affects all.

    Args:
        speed: the key by which to compare the others with the first, repetition by repetition.

    Returns:
        A row for each rival: the labels, its name, and the measurements as lists.
    """
    rows: list[Row] = [{**labels, "by": name} for name in rivals]
    for _ in range(repetitions):
        for row, measure in zip(rows, rivals.values(), strict=True):
            found = measure()
            print(f"{row['by']}: {found}", file=sys.stderr)
            for key, value in found.items():
                row.setdefault(key, []).append(value)
    for row in rows[1:] if speed else []:
        pairs = zip(rows[0][speed], row[speed], strict=True)
        row["times_as_fast"] = [b / a if speed == "seconds" else a / b for a, b in pairs]
    return rows


def collect(labels: Row, runs: Sequence[Row], shows: Callable[[Row], bool] | None = None) -> Row:
    """Return one row of several runs: the labels, in how many of them the result shows, and what
    was measured as lists; texts are joined."""
    row = labels | ({"shown": f"{sum(map(shows, runs))} of {len(runs)}"} if shows else {})
    for key in dict.fromkeys(key for run in runs for key in run):
        values = [run[key] for run in runs if key in run]
        row[key] = "; ".join(values) if isinstance(values[0], str) else values
    return row


def heading(key: str) -> str:
    """Return a key in words."""
    return key.replace("_", " ")


def formatted(value: float | str) -> str:
    """Return a number with four significant digits, and anything else as text."""
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    digits = 3 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, digits)}f}"


def median_and_range(values: Sequence[float]) -> str:
    """Return 'median (minimum to maximum)', or the only number."""
    middle, least, most = map(formatted, (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})" if len(values) > 1 else middle


def report(
    benchmark: str,
    rows: list[Row],
    summarize: Callable[[Sequence[float]], str] = median_and_range,
    machine: Row | None = None,
) -> None:
    """Print the machine and the table of rows, then everything as one line of JSON."""
    machine = machine or in_fresh_process(describe_machine)
    print(", ".join(f"{heading(key)} {value}" for key, value in machine.items()))
    keys = list(dict.fromkeys(key for row in rows for key in row))
    table = [[heading(key) for key in keys]]
    for row in rows:
        values = [row.get(key, "") for key in keys]
        table.append([summarize(v) if isinstance(v, list) else formatted(v) for v in values])
    print(Table(table, words=sum(isinstance(value, str) for value in rows[0].values())))
    print(json.dumps({"benchmark": benchmark, "machine": machine, "rows": rows}))


def in_fresh_process(function: Callable[..., Result], *args: Any) -> Result:
    """Call a function in a new process, so that memory and threads are measured separately. What
    it prints, such as the size of nanoGPT's model, goes to stderr."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, os.dup2, (2, 1)) as pool:
        return pool.submit(function, *args).result()


def run_command(arguments: list[str], folder: Path) -> tuple[float, str]:
    """Run a Python command in a folder.

    Returns:
        Wall-clock seconds from start to exit, and the printed output.

    Raises:
        UserError: with the last line of its errors, if it fails.
    """
    began = time.perf_counter()
    environment = os.environ | {"GLASSGPT_CACHE": "cache"}  # inside the folder
    ended = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    seconds = time.perf_counter() - began
    if ended.returncode:
        *_, last = ["", *ended.stderr.strip().splitlines()]
        raise UserError(last.removeprefix("error: ") or f"exit status {ended.returncode}")
    return seconds, ended.stdout


def read_training(
    kind: type[AnyOptions], argv: list[str], default: str = ""
) -> tuple[AnyOptions, str, Config, list[str]]:
    """Read a benchmark's own options, a config file, and train.py's flags.

    Args:
        default: the config file if none is named; empty for train.py's default.

    Returns:
        The options, the file, the config, and the flags, with an absolute path of the text.
    """
    options, word, values = read_options(kind, argv, "[CONFIG.yaml]", **SECTIONS)
    file = str(Path(word).resolve()) if word else default
    config = read_config(values, file or None)
    if (source := absolute(config.data.source)) != config.data.source:
        values["data"]["source"] = source
    return options, file, config, flags_of({name: values[name] for name in SECTIONS})


def absolute(source: list[str] | str) -> Any:
    """Return the absolute paths of the sources that are files or globs."""
    if isinstance(source, list):
        return [absolute(each) for each in source]
    is_local = Path(source).exists() or glob.glob(source)
    return str(Path(source).resolve()) if is_local else source


def flags_of(values: Values) -> list[str]:
    """Return values, by section and name, as flags of train.py."""
    return [
        f"--{section}.{name}={value}"
        for section, fields in values.items()
        for name, given in fields.items()
        for value in (given if isinstance(given, list) else [given])
    ]


def train(
    file: str, flags: list[str], seeds: Iterator[int], describe: Callable[[Path], Row]
) -> Row:
    """Train with the next seed in an empty folder.

    Args:
        file: the config file; empty for train.py's default.
        describe: called with the folder of the run.

    Returns:
        The wall-clock seconds, and what `describe` returned.
    """
    arguments = [str(ROOT / "train.py"), *[file] * bool(file), *flags]
    arguments += [f"--train.seed={next(seeds)}", "--run=run"]
    with tempfile.TemporaryDirectory() as folder:
        seconds, _ = run_command(arguments, Path(folder))
        return {"seconds": seconds} | describe(Path(folder, "runs", "run"))


def seconds_of(function: Callable[[], Any], device: str, repetitions: int) -> list[float]:
    """Return the seconds of each call of a function, after a warmup call."""
    synchronize = getattr(torch, device).synchronize
    seconds = []
    for _ in range(repetitions + 1):
        synchronize()
        began = time.perf_counter()
        function()
        synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def peak_memory(device: str) -> float:
    """Return the peak memory of this process on the device so far, in MB."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    import resource  # which Windows lacks

    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def matmul_gflops(device: str, dtype: torch.dtype) -> float:
    """Return the throughput of large matmuls on this device: the best of several."""
    n = 2048 if device == "cpu" else 8192
    a = torch.randn(n, n, dtype=dtype, device=device)
    return 2 * n**3 / min(seconds_of(lambda: a @ a, device, 10)) / 1e9


def describe_machine() -> Row:
    """Return the machine's name, and its peak throughput in the precision of training."""
    machine = prepare_machine(TrainConfig(), Processes())
    device, precision = machine.device, machine.precision
    return {
        "processor": processor(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
        "PyTorch": torch.__version__,
        f"{precision}_GFLOP/s": round(matmul_gflops(device, getattr(torch, precision))),
    }


def processor() -> str:
    """Return the processor's name, if the system provides it."""
    info = Path("/proc/cpuinfo")
    names = re.findall("model name.*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor()


def nanogpt(checkout: str, config: ModelConfig, vocab_size: int) -> Any:
    """Return nanoGPT's model of the same size, from a checkout."""
    module = runpy.run_path(str(Path(checkout) / "model.py"))
    names = ("block_size", "n_layer", "n_head", "n_embd", "dropout", "bias")
    sizes = {name: getattr(config, name) for name in names}
    return module["GPT"](module["GPTConfig"](**sizes, vocab_size=vocab_size))
