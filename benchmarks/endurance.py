"""Memory stays flat: an hour of training, a million characters written, a gigabyte of text read.

python -m benchmarks.endurance
python -m benchmarks.endurance --minutes 5 --characters 100000 --megabytes 100

Each part is a process of its own, whose memory is looked at ten times a second. On Linux that is
what it holds for itself; pages of mapped files, which the system takes back at need, do not count.
"""

import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.common import ROOT, print_json
from common.atomic import sync
from common.errors import UserError, command, require_at_least
from common.tables import print_table
from configs.load import build, make_parser, read_flags, split_positional
from data.config import DataConfig
from data.sources import open_source, read_file

PREPARE = """
from data.config import DataConfig
from data.corpus import load_corpus
load_corpus(DataConfig(source="large.txt"))
"""


@dataclass(frozen=True)
class Options:
    """How long, and how much"""

    minutes: float = 60.0
    """Of training, with the default config. 0 leaves it out."""

    characters: int = 1_000_000
    """Written in one stream by a small model. 0 leaves it out."""

    megabytes: int = 1_000
    """Of text, turned into tokens. 0 leaves it out."""

    def __post_init__(self) -> None:
        require_at_least(
            0, minutes=self.minutes, characters=self.characters, megabytes=self.megabytes
        )


def memory_of(pid: int) -> float:
    """What a process holds now, in MB; 0 when it has ended."""
    status = Path(f"/proc/{pid}/status")
    if sys.platform == "linux":
        try:
            lines = status.read_text().splitlines()
        except OSError:
            return 0.0
        return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1e3
    said = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True)
    return int(said.stdout or 0) / 1e3


def watch(arguments: list[str], folder: Path, what: str, seconds: float = 0.0) -> dict[str, Any]:
    """Run a Python command, for so many seconds where they are given, and watch its memory.

    Returns:
        Seconds, and megabytes after a tenth of them, at the end and at most.

    Raises:
        UserError: when it fails.
    """
    with open(folder / "said", "w") as said:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=said
        )
        began, memory = time.perf_counter(), []
        try:
            with tqdm(desc=what, unit="MB", leave=False, disable=None) as bar:
                while process.poll() is None:
                    memory.append(memory_of(process.pid))
                    time.sleep(0.1)
                    bar.set_postfix_str(f"{memory[-1]:.0f} MB")
                    if 0 < seconds < time.perf_counter() - began:
                        process.terminate()  # it saves and ends with 143, if it has begun
                        process.wait()
        finally:
            process.kill()  # nothing is left running when this one is stopped
    if process.returncode not in (0, 143, -signal.SIGTERM):
        last = (folder / "said").read_text().strip().splitlines()[-1:]
        raise UserError(f"{what}: exit code {process.returncode}: {''.join(last)}")
    held = [megabytes for megabytes in memory if megabytes]
    return {
        "what": what,
        "seconds": round(time.perf_counter() - began, 1),
        "after_a_tenth": held[len(held) // 10],
        "at_the_end": held[-1],
        "at_most": max(held),
    }


def look_up(path: Path) -> float:
    """Seconds to read a file and look each of its bytes up in a table, the least that must be."""
    table = np.arange(256, dtype=np.uint8)
    began = time.perf_counter()
    for chunk in read_file(path):
        table[np.frombuffer(chunk, np.uint8)]
    return time.perf_counter() - began


@command
def main(argv: list[str]) -> int:
    """Run the parts that were asked for."""
    usage = "python -m benchmarks.endurance [--flag VALUE ...]"
    parser = make_parser({"": Options}, usage, "Watch memory over a long time.")
    options = build(Options, read_flags(parser, split_positional(argv, most=0)[1]))
    results = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as place:
        work, script = Path(place), str(ROOT / "train.py")
        if options.minutes:
            what = f"trained for {options.minutes:g} minutes"
            endless = [script, "--run=long", "--train.max_steps=1000000000"]
            results.append(watch(endless, work, what, 60 * options.minutes))
        if options.characters:
            small = [script, str(ROOT / "configs" / "debug.yaml"), "--run=small"]
            watch(small, work, "trained the model that writes")
            write = [str(ROOT / "sample.py"), "small", f"--max_new_tokens={options.characters}"]
            results.append(watch(write, work, f"wrote {options.characters:,} characters"))
        if options.megabytes:
            text = b"".join(open_source(DataConfig()).parts[0].read())
            with open(work / "large.txt", "wb") as file:
                for start in range(0, options.megabytes * 10**6, len(text)):
                    file.write(text[: options.megabytes * 10**6 - start])
                sync(file)  # so that the disk is not busy with it below
            prepare = ["-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}){PREPARE}"]
            what = f"read {options.megabytes:,} MB of text"
            results.append(watch(prepare, work, what))
            results[-1]["look_up_seconds"] = look_up(work / "large.txt")
    rows = [["", "seconds", "MB after a tenth", "MB at the end", "MB at most"]]
    for result in results:
        row = [result["what"], f"{result['seconds']:,.0f}"]
        rows.append([*row, *(f"{result[key]:,.0f}" for key in list(result)[2:5])])
    print_table(rows)
    if options.megabytes:
        taken, least = results[-1]["seconds"], results[-1]["look_up_seconds"]
        print(
            f"\ntext became tokens at {options.megabytes / taken:,.0f} MB/s; reading its bytes and "
            f"looking each up once, at {options.megabytes / least:,.0f} MB/s, is "
            f"{taken / least:.1f} times as fast"
        )
    print_json({"benchmark": "endurance", "parts": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
