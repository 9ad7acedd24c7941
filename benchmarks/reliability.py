"""Nothing is lost: kill the training, fill its disk, and compare what is left.

python -m benchmarks.reliability --kills 200 --full_disks 20

Runs are killed with SIGKILL, half of the time at any moment and half of the time while a file is
being written, resumed, killed again, and at their end compared with a run that was left alone:
weights, optimizer, losses, TensorBoard and snapshots, to the last bit. Then runs are started on
disks too small for them (Linux's tmpfs, in a namespace of its own), and resumed with room enough.
"""

import dataclasses
import logging
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
from tqdm import tqdm

import train
from benchmarks.common import ROOT, print_json
from common.errors import UserError, command
from common.fields import Checked, Natural
from common.tables import print_table
from configs.load import build, read_command_line
from run.checkpoint import load_checkpoint, read_tensors
from run.metrics import read_metrics
from run.snapshots import FORMAT as SNAPSHOT
from run.snapshots import find_snapshots

STEPS = 40
FLAGS = [str(ROOT / "configs" / "debug.yaml"), f"--data.source={ROOT / 'README.md'}", "--run=a"]
FLAGS += [f"--train.max_steps={STEPS}", "--train.eval_every=4", "--train.sample_tokens=5"]
FLAGS += ["--train.save_every=1", "--train.log_every=1", "--train.snapshots=6"]
FLAGS += ["--train.threads=1", "--train.gradient_accumulation_steps=2", "--model.dropout=0.2"]
FLAGS += ["--model.n_embd=64"]  # so that writing takes a while
CLOCK = {"seconds", "tokens_per_second"}  # what no two runs have in common

SMALL_DISK = """
mount -t tmpfs -o size="$1"k tmpfs disk && cd disk || exit 99
shift
"$@" > ../printed 2> ../said
code=$?
mount -o remount,size=100m . || exit 99
cd .. && cp -r disk/. after && exit $code
"""


@dataclass(frozen=True)
class Options(Checked):
    """How often to try"""

    kills: Natural = 200
    """Times that the training process is killed."""

    full_disks: Natural = 20
    """Sizes of disk, from room for nothing to room for nearly all."""

    seed: Natural = 0
    """Decides the moments."""


@dataclass
class Tally:
    """What was tried and what became of it."""

    tried: int = 0
    while_writing: int = 0
    finished: int = 0
    broken: list[str] = dataclasses.field(default_factory=list)
    """Promises that did not hold, in words."""


def run_here(folder: str, arguments: list[str]) -> None:
    """Train in a folder; what it prints goes to a file there."""
    tqdm.set_lock(RLock())  # its own is shared between processes, and not freed by a killed one
    os.chdir(folder)
    sys.stdout = sys.stderr = open("log.txt", "a")  # noqa: SIM115 - until the process ends
    sys.exit(train.main(arguments))


class Trainer:
    """Starts processes that train, without importing PyTorch for each of them anew."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["train", EventAccumulator.__module__])
        self.last_start = 0

    def start(self, folder: Path) -> BaseProcess:
        """Start the run in a folder, or resume it."""
        # TensorBoard orders files by the second in their names; people do not resume as fast.
        while int(time.time()) <= self.last_start:
            time.sleep(0.02)
        self.last_start = int(time.time())
        there = (folder / "runs" / "a" / "last.safetensors").exists()
        arguments = ["--resume=a"] if there else FLAGS
        process = self.context.Process(target=run_here, args=(str(folder), arguments))
        process.start()
        return process


def kill(process: BaseProcess, run: Path, moments: random.Random) -> None:
    """Kill a process sooner or later, every other time while it writes; it may end before that."""
    process.join(moments.uniform(0, 1.2))
    if moments.random() < 0.5:
        while process.is_alive() and not half_written(run):
            pass
        time.sleep(moments.uniform(0, 0.001))
    process.kill()
    process.join()


def half_written(run: Path) -> bool:
    """Whether a file is being written, or was when its process was killed."""
    folders = [folder for folder in (run, run / "snapshots") if folder.is_dir()]
    return any(name.startswith(".writing-") for folder in folders for name in os.listdir(folder))


def step_of(run: Path, tally: Tally) -> int:
    """The step that a run would resume from. Its checkpoint is whole; its metrics reach there."""
    try:
        header, _ = load_checkpoint(run / "last.safetensors")
    except UserError as error:
        if (run / "last.safetensors").exists():
            tally.broken.append(str(error))
        return -1
    logged = [line["step"] for line in read_metrics(run) if "train_loss" in line]
    if logged[: header.state.step] != list(range(1, header.state.step + 1)):
        tally.broken.append(f"metrics do not reach step {header.state.step}: {logged}")
    return header.state.step


def differences(run: Path, whole: Path) -> list[str]:
    """In what a run differs from one that was left alone; times aside."""
    found = []
    for which in ("last", "best"):
        (header_a, a), (header_b, b) = (
            load_checkpoint(folder / f"{which}.safetensors") for folder in (run, whole)
        )
        found += [f"{which}: {name}" for name in a.keys() ^ b.keys()]
        found += [f"{which}: {name}" for name in a.keys() & b.keys() if bits(a[name], b[name])]
        header_a.state.seconds = header_b.state.seconds
        if header_a != header_b:
            found.append(f"the header of {which}")
    if [untimed(line) for line in read_metrics(run)] != [untimed(x) for x in read_metrics(whole)]:
        found.append("metrics.jsonl")
    shown, expected_shown = events_of(run), events_of(whole)
    for tag in shown.keys() | expected_shown.keys():
        if shown.get(tag) != expected_shown.get(tag):
            found.append(f"TensorBoard's {tag}: {shown.get(tag)}, not {expected_shown.get(tag)}")
    taken, expected = find_snapshots(run), find_snapshots(whole)
    found += [f"snapshot {step}" for step in taken.keys() ^ expected.keys()]
    for step in taken.keys() & expected.keys():
        a, b = (read_tensors(paths[step], SNAPSHOT)[1] for paths in (taken, expected))
        found += [f"snapshot {step}: {name}" for name in b if bits(a[name], b[name])]
    if list(run.rglob(".writing-*")):
        found.append("half-written files are left")
    return found


def bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors differ in any bit."""
    return not (a.dtype == b.dtype and torch.equal(a, b))


def untimed(line: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics but for its times."""
    return {key: number for key, number in line.items() if key not in CLOCK}


def events_of(run: Path) -> dict[str, list[tuple[int, Any]]]:
    """What TensorBoard shows of a run, by its tag: steps and values."""
    events = EventAccumulator(str(run), size_guidance={"tensors": 0}).Reload()
    return {
        tag: [
            (event.step, make_ndarray(event.tensor_proto).item()) for event in events.Tensors(tag)
        ]
        for tag in set(events.Tags()["tensors"]) - CLOCK
    }


def finish(process: BaseProcess, folder: Path, whole: Path | None, tally: Tally) -> None:
    """Wait for a run's end and compare it."""
    process.join()
    if process.exitcode != 0:
        said = (folder / "log.txt").read_text().strip().splitlines()[-1:]
        tally.broken.append(f"a run ended with {process.exitcode}: {''.join(said)}")
    elif whole is not None:
        tally.finished += 1
        tally.broken += differences(folder / "runs" / "a", whole)


def try_kills(trainer: Trainer, work: Path, whole: Path, options: Options) -> Tally:
    """Kill runs so often, resuming each until it ends."""
    moments, tally = random.Random(options.seed), Tally()
    with tqdm(total=options.kills, desc="killed", leave=False, disable=None) as bar:
        while tally.tried < options.kills:
            folder = work / f"killed-{tally.finished}"
            folder.mkdir()
            run, step = folder / "runs" / "a", -1
            while True:
                process = trainer.start(folder)
                if tally.tried < options.kills:
                    kill(process, run, moments)
                process.join()
                if process.exitcode != -9:
                    finish(process, folder, whole, tally)
                    break
                tally.tried += 1
                bar.update()
                tally.while_writing += half_written(run)
                reached = step_of(run, tally)
                if reached < step:
                    tally.broken.append(f"step {step} was saved, and {reached} is left")
                step = reached
            shutil.rmtree(folder)
    return tally


def try_full_disks(trainer: Trainer, work: Path, whole: Path, options: Options) -> Tally:
    """Start runs on disks too small for them; resume each with room enough."""
    tally = Tally()
    size = sum(path.stat().st_size for path in whole.parent.parent.rglob("*")) // 1024
    for number in tqdm(range(options.full_disks), desc="disks", leave=False, disable=None):
        folder = work / f"disk-{number}"
        (folder / "disk").mkdir(parents=True)
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, "-"]
        command += [str(8 + number * size // options.full_disks), sys.executable]
        ended = subprocess.run([*command, str(ROOT / "train.py"), *FLAGS], cwd=folder)
        if ended.returncode == 99 or not (folder / "after").exists():
            raise UserError("cannot mount a small disk here; --full_disks 0 does without")
        tally.tried += 1
        said = (folder / "said").read_text().splitlines()
        clear = len(said) == 1 and said[0].startswith("error: ") and "No space left" in said[0]
        if ended.returncode not in (0, 2) or (ended.returncode == 2 and not clear):
            tally.broken.append(f"on a full disk: exit code {ended.returncode}, {said[-1:]}")
        step_of(folder / "after" / "runs" / "a", tally)
        finish(trainer.start(folder / "after"), folder / "after", whole, tally)
        shutil.rmtree(folder)
    return tally


@command
def main(argv: list[str]) -> int:
    """Try all that was asked for; exits with 1 when a promise did not hold."""
    usage = "python -m benchmarks.reliability [--flag VALUE ...]"
    _, values = read_command_line(
        {"": Options}, argv, usage, "Kill runs and fill disks; lose nothing.", words=0
    )
    options = build(Options, values[""])
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells each event it takes back
    began, trainer = time.perf_counter(), Trainer()
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        (work / "whole").mkdir()
        whole, tally = work / "whole" / "runs" / "a", Tally()
        finish(trainer.start(work / "whole"), work / "whole", None, tally)
        if tally.broken:
            raise UserError(tally.broken[0])
        disks = try_full_disks(trainer, work, whole, options)  # first: not all systems have them
        killed = try_kills(trainer, work, whole, options)
    rows = [["", "tried", "while writing", "runs finished", "promises broken"]]
    for name, tally in (("killed", killed), ("full disk", disks)):
        writing = str(tally.while_writing) if tally is killed else ""
        counts = [str(tally.tried), writing, str(tally.finished), str(len(tally.broken))]
        rows.append([name, *counts])
    print_table(rows)
    broken = killed.broken + disks.broken
    for promise in broken:
        print(f"broken: {promise}")
    facts = {"benchmark": "reliability", "seconds": round(time.perf_counter() - began, 1)}
    tallies = {"killed": dataclasses.asdict(killed), "full_disks": dataclasses.asdict(disks)}
    print_json(facts | tallies)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
