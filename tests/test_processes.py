"""Several processes are one run: the same losses, one writer, an end when one of them is gone."""

import os
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import train
from run.checkpoint import load_checkpoint
from run.metrics import read_metrics
from tests.jobs import run_job, start_command, start_job

ROOT = Path(__file__).parent.parent
FLAGS = [str(ROOT / "configs" / "debug.yaml"), f"--data.source={ROOT / 'README.md'}"]
FLAGS += ["--train.max_steps=20", "--train.eval_every=8", "--train.log_every=1"]
FLAGS += ["--train.save_every=5", "--train.sample_tokens=5", "--train.tensorboard=false"]
FLAGS += ["--train.precision=float32", "--train.threads=1", "--train.schedule=constant"]
LEARNED = ("train_loss", "val_loss", "grad_norm", "bits_per_char")
TOLERANCE = 1e-5  # relative: sums of a batch in another order, over 20 steps


def learned(run: str) -> dict[tuple[int, str], float]:
    lines = read_metrics(Path("runs") / run)
    found = [((line["step"], key), line[key]) for line in lines for key in LEARNED if key in line]
    assert len(dict(found)) == len(found), "a step stands twice"
    return dict(found)


def tensors(run: str) -> dict[str, torch.Tensor]:
    return load_checkpoint(Path("runs") / run / "last.safetensors")[1]


def same_losses(run: str, other: str) -> None:
    a, b = learned(run), learned(other)
    assert a.keys() == b.keys() and len(a) == 2 * 20 + 2 * 3
    for key in a:
        assert a[key] == pytest.approx(b[key], rel=TOLERANCE), key


def test_one_two_and_four_processes_follow_the_same_losses(workplace: Path) -> None:
    flags = [*FLAGS, "--train.gradient_accumulation_steps=2"]
    assert train.main([*flags, "--run=one"]) == 0
    for size, name in ((2, "two"), (4, "four")):
        assert run_job(size, [*flags, f"--run={name}"]) == [0] * size
        same_losses("one", name)
        names = {path.name for path in Path("runs", name).iterdir()}
        assert names == {path.name for path in Path("runs/one").iterdir()}
        assert Path("said-1").read_text() == "", "only the first speaks"
    header, _ = load_checkpoint(Path("runs/four/last.safetensors"))
    assert header.machine.processes == 4
    assert "one of 4 processes" in Path("said-0").read_text()
    assert run_job(2, ["--evaluate=four"]) == [0, 0]
    assert f"\nvalidation {header.state.best_val_loss:.4f} nats/char" in Path("said-0").read_text()


def test_a_text_that_is_not_there_ends_every_process_with_one_line(workplace: Path) -> None:
    assert run_job(2, [*FLAGS, "--data.source=absent.txt"]) == [2, 2]
    for rank in range(2):
        *_, said = Path(f"said-{rank}").read_text().splitlines()
        assert said.startswith("error: no text at absent.txt")


def test_a_job_that_diverges_ends(workplace: Path) -> None:
    flags = ["--train.learning_rate=1e30", "--train.muon_learning_rate=1e30", "--run=a"]
    assert run_job(2, [*FLAGS, *flags, "--train.grad_clip=0"]) == [2, 2]
    for rank in range(2):
        *_, said = Path(f"said-{rank}").read_text().splitlines()
        assert said.startswith("error: at step ") and "start again with a lower" in said.lower()


def test_resumed_by_as_many_to_the_last_bit_and_by_another_number(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*FLAGS, "--model.dropout=0.2", "--model.attn_dropout=0.1"]
    assert run_job(2, [*flags, "--run=whole"]) == [0, 0]
    assert run_job(2, [*flags, "--run=parts", "--train.max_steps=9"]) == [0, 0]
    shutil.copytree("runs/parts", "runs/alone")
    assert run_job(2, ["--resume=parts", "--train.max_steps=20"]) == [0, 0]
    whole, parts = tensors("whole"), tensors("parts")
    assert whole.keys() == parts.keys() >= {"generator.cpu", "generator.cpu.1"}
    assert not [name for name in whole if not torch.equal(whole[name], parts[name])]
    states = whole["generator.cpu"], whole["generator.cpu.1"]
    assert not torch.equal(*states), "both drop the same"
    assert train.main(["--resume=alone", "--train.max_steps=12"]) == 0
    assert "note: processes 2 -> 1: sums round differently" in capsys.readouterr().out


def test_a_process_that_is_gone_ends_the_job_and_the_run_goes_on(workplace: Path) -> None:
    first, second = start_job(2, [*FLAGS, "--run=a", "--train.max_steps=100000"])
    metrics = Path("runs/a/metrics.jsonl")
    while not (metrics.exists() and len(read_metrics(metrics.parent)) > 12):
        assert first.is_alive()
        time.sleep(0.02)
    second.kill()
    first.join()
    assert first.exitcode == 2
    said = Path("said-0").read_text().splitlines()[-1]
    assert (
        said
        == "error: another process of this job is gone; the run resumes from its last checkpoint"
    )
    step = load_checkpoint(Path("runs/a/last.safetensors"))[0].state.step
    assert train.main(["--resume=a", f"--train.max_steps={step + 3}"]) == 0
    logged = [line["step"] for line in read_metrics(metrics.parent) if "train_loss" in line]
    assert logged == list(range(1, step + 4))


def test_a_signal_to_one_stops_all_at_the_same_step(workplace: Path) -> None:
    job = start_job(2, [*FLAGS, "--run=a", "--train.max_steps=100000"])
    while not (Path("runs/a/metrics.jsonl").exists() and len(read_metrics(Path("runs/a"))) > 3):
        assert job[0].is_alive()
        time.sleep(0.02)
    pid: Any = job[1].pid
    os.kill(pid, signal.SIGTERM)
    for process in job:
        process.join()
    header, _ = load_checkpoint(Path("runs/a/last.safetensors"))
    assert f"stopped at step {header.state.step}; resume with" in Path("said-0").read_text()
    assert job[1].exitcode == 143


def test_a_batch_is_shared_evenly_or_not_at_all(workplace: Path) -> None:
    assert run_job(3, [*FLAGS, "--run=a"]) == [2, 2, 2]
    error = "error: --train.batch_size 16 must be divisible by 3 processes times"
    assert Path("said-0").read_text().splitlines()[-1].startswith(error)
    assert not Path("runs").exists()


def test_torchrun_on_two_nodes(workplace: Path) -> None:
    """Two groups that meet on a loopback address; each finds its own way to the text."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1"]
    torchrun += ["--master_addr=127.0.0.1", f"--master_port={port}"]
    script = ["--", str(ROOT / "train.py"), *FLAGS, "--run=nodes"]
    nodes = [
        start_command(f"node-{rank}", [*torchrun, f"--node_rank={rank}", *script])
        for rank in range(2)
    ]
    for node in nodes:
        node.join()
    assert [node.exitcode for node in nodes] == [0, 0]
    assert train.main([*FLAGS, "--run=one"]) == 0
    same_losses("one", "nodes")
