"""What the benchmarks share: fresh processes, the machine's peak, a table and a JSON line."""

import importlib.util
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import torch

from common.errors import UserError
from configs.load import SECTIONS, Config, Values
from training.runtime import computes_in_bfloat16

ROOT = Path(__file__).parent.parent
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes, of getrusage's ru_maxrss

Args = ParamSpec("Args")
Result = TypeVar("Result")


def in_fresh_process(
    function: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
) -> Result:
    """Call a function in a process of its own, so that what it measures is its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=take_all_cores) as pool:
        return pool.submit(function, *args, **kwargs).result()


def take_all_cores() -> None:
    """Keep `fit_threads` from taking fewer in one process than in the next to be compared."""
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))


def peak_memory(device: torch.device) -> float:
    """The most memory that this process has held on the device so far, in MB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    if sys.platform == "win32":  # which does not tell
        return float("nan")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT / 1e6


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    seconds: float
    """From its start to its end."""

    megabytes: float
    """Its peak memory."""

    printed: str


def run_command(arguments: list[str], folder: Path) -> Ended:
    """Run a Python command in a folder until its end.

    Raises:
        UserError: with its last line, when it fails.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=folder, stdout=output, stderr=errors
        )
        if sys.platform == "win32":
            code, megabytes = process.wait(), float("nan")
        else:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = code = os.waitstatus_to_exitcode(status)
            megabytes = usage.ru_maxrss * MAXRSS_UNIT / 1e6
        seconds = time.perf_counter() - began
        output.seek(0)
        errors.seek(0)
        printed, said = output.read(), errors.read()
    if code:
        last = (said or printed).strip().splitlines()[-1:]
        raise UserError(f"{arguments[0]} exited with {code}: {''.join(last)}")
    return Ended(seconds, megabytes, printed)


def passed_on(values: Values, config: Config) -> list[str]:
    """The flags that are train.py's, with the text, where it is one file, named from any folder."""
    source = config.data.source
    if isinstance(source, str) and Path(source).exists():
        values = values | {"data": values["data"] | {"source": str(Path(source).resolve())}}
    return [
        f"--{section}.{name}={'null' if value is None else value}"
        for section in SECTIONS
        for name, given in values[section].items()
        for value in (given if isinstance(given, list) else [given])
    ]


def wait_for(device: torch.device) -> None:
    """Return when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()


def seconds_of(function: Callable[[], Any], device: torch.device, repetitions: int) -> list[float]:
    """Seconds of each call of a function, after one that is not counted."""
    seconds = []
    for _ in range(repetitions + 1):
        wait_for(device)
        began = time.perf_counter()
        function()
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Large matrix products on this device, in GFLOP/s: the best of several."""
    n = 2048 if device.type == "cpu" else 8192
    a = torch.randn(n, n, device=device).to(dtype)
    return 2 * n**3 / min(seconds_of(lambda: a @ a, device, 10)) / 1e9


def memory_rate(device: torch.device) -> float:
    """Reading memory too large for a cache, in GB/s: the best of several."""
    x = torch.ones(128 << 20, device=device)
    return x.numel() * 4 / min(seconds_of(lambda: x.sum(), device, 5)) / 1e9


def machine(device: torch.device) -> dict[str, Any]:
    """The machine, and what it can do at best.

    Products in bfloat16 are measured only where the processor has them: elsewhere PyTorch imitates
    them, a thousand times slower, and nothing here uses them.
    """
    narrow = computes_in_bfloat16(device)
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else device.type,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "float32_gflops": round(product_rate(device, torch.float32)),
        "bfloat16_gflops": round(product_rate(device, torch.bfloat16)) if narrow else None,
        "memory_gb_per_s": round(memory_rate(device), 1),
    }


def processor() -> str:
    """Its name, where the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def describe(facts: dict[str, Any]) -> str:
    """`machine` in one line."""
    narrow = facts["bfloat16_gflops"] or "none"
    return (
        f"{facts['processor']}, device {facts['device']}, {facts['threads']} threads, "
        f"PyTorch {facts['torch']}; at best {facts['float32_gflops']} GFLOP/s in float32, "
        f"{narrow} in bfloat16, {facts['memory_gb_per_s']} GB/s from memory"
    )


def median_and_spread(values: Sequence[float], digits: int = 0) -> str:
    """'median (least to most)'."""
    middle, least, most = (
        f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return f"{middle} ({least} to {most})"


def print_json(results: Any) -> None:
    """One line, for a program to read."""
    print(json.dumps(results))


def nanogpt_model(checkout: str) -> ModuleType:
    """nanoGPT's model.py, from a checkout that the person brings.

    Raises:
        UserError: when it is not there.
    """
    path = Path(checkout) / "model.py"
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UserError(
            f"--nanogpt {checkout} is no checkout of nanoGPT: there is no {path}; "
            f"get one with: git clone https://github.com/karpathy/nanoGPT"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module
