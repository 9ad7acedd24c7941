"""Multi-process training: the losses of one process, one writer, an error if a process is lost."""

import os
import re
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import train
from tests.conftest import DEBUG, ROOT, posix
from tests.jobs import run_job, start_job
from tests.test_train import assert_same_tensors, read, state_of
from training.checkpoint import load_checkpoint

pytestmark = posix  # on Windows, gloo in PyTorch's wheels does not find the other processes
FLAGS = [DEBUG, f"--data.source={ROOT / 'README.md'}"]
FLAGS += ["--train.max_steps=10", "--train.eval_every=4", "--train.log_every=1"]
FLAGS += ["--train.save_every=5", "--train.sample_tokens=5", "--train.tensorboard=false"]
FLAGS += ["--train.precision=float32", "--train.threads=1", "--train.schedule=constant"]
FLAGS += ["--train.gradient_accumulation_steps=2"]
TASK = [DEBUG, "--data.source=brackets", *FLAGS[2:]]
TOLERANCE = 1e-5  # relative; over 10 steps, a batch is summed in a different order


def output_of(rank: int) -> str:
    """Return the stdout and then the stderr of one process of a job."""
    return "".join(Path(f"said-{rank}-{name}").read_text() for name in ("stdout", "stderr"))


def assert_same_checkpoint(name: str, other: str) -> None:
    """Assert that the last checkpoints of two runs have bitwise identical tensors."""
    a, b = (load_checkpoint(Path("runs", run, "last.safetensors"))[1] for run in (name, other))
    assert_same_tensors(a, b)


def wait_for(step: int, process: BaseProcess) -> None:
    """Wait until the job that trains runs/a has logged this step."""
    while max(read("runs/a", "train_loss"), default=0) < step:
        assert process.is_alive()
        time.sleep(0.02)


@pytest.mark.slow
def test_four_processes_match_the_losses_of_one(workplace: Path) -> None:
    """They also count the answers of a task together."""
    assert train.main([*TASK, "--run=alone"]) == 0
    assert run_job(4, [*TASK, "--run=four"]) == [0, 0, 0, 0]
    alone, run = Path("runs/alone"), Path("runs/four")
    for key, count in {"train_loss": 10, "grad_norm": 10, "val_loss": 3}.items():
        assert len(read(run, key)) == count
        assert read(run, key) == pytest.approx(read(alone, key), rel=TOLERANCE), key
    for key in ("accuracy", "train_accuracy"):
        assert read(run, key) == pytest.approx(read(alone, key), abs=2e-3), key
    assert {path.name for path in run.iterdir()} == {path.name for path in alone.iterdir()}
    assert "processes 4" in output_of(0)
    assert "step" not in output_of(1)  # only rank 0 prints


FAILURES = [
    ("--train.batch_size=6", "error: --train.batch_size 6 must be divisible by 2 processes times"),
    ("--train.learning_rate=1e30 --train.muon_learning_rate=1e30", "error: at step "),
    ("--run=taken", "error: runs/taken exists"),  # only rank 0 checks this
]


@pytest.mark.parametrize(("flags", "message"), FAILURES)
def test_failure_ends_every_process_with_an_error_line(
    workplace: Path, flags: str, message: str
) -> None:
    taken = workplace / "runs" / "taken" / "last.safetensors"
    taken.parent.mkdir(parents=True)
    taken.touch()
    assert run_job(2, [*FLAGS, *flags.split()]) == [2, 2]
    assert output_of(0).splitlines()[-1].startswith(message)
    assert output_of(1).splitlines()[-1].startswith("error: ")


def test_resume_is_bitwise_identical_with_same_process_count(workplace: Path) -> None:
    """Each process has its own dropout: with one for both, on sequences that are all the same, they
    would train as one process does with half of the batch."""
    Path("same.txt").write_text("ab" * 9999)
    flags = [DEBUG, *FLAGS[2:], "--model.dropout=0.2", "--model.attn_dropout=0.1"]
    flags += ["--data.source=same.txt", "--train.eval_tokens=99", "--train.max_steps=6"]
    flags += ["--train.weight_decay=0.1"]  # which else rises with the size of the batch
    assert run_job(2, [*flags, "--run=whole"]) == [0, 0]
    assert train.main([*flags, "--run=half", "--train.batch_size=8"]) == 0
    whole, half = (read(Path("runs", run), "train_loss")[6] for run in ("whole", "half"))
    assert abs(whole - half) > 1e-4
    assert run_job(2, [*flags, "--run=parts", "--train.max_steps=3"]) == [0, 0]
    assert run_job(2, ["--resume=parts", "--train.max_steps=6"]) == [0, 0]
    assert_same_checkpoint("whole", "parts")


def test_timed_job_repeats_bitwise_from_its_config(workplace: Path) -> None:
    flags = [flag for flag in FLAGS if "max_steps" not in flag and "schedule" not in flag]
    flags += ["--train.warmup_steps=1", "--model.ngrams=2"]
    assert run_job(2, [*flags, "--train.minutes=0.05", "--run=timed"]) == [0, 0]
    steps = state_of("timed").step
    assert f"--train.max_steps {steps} reads the text " in output_of(0)
    assert run_job(2, ["runs/timed/config.yaml", "--run=again"]) == [0, 0]
    assert_same_checkpoint("timed", "again")


def test_killed_process_ends_the_job_and_the_run_resumes(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One process resumes the run of two, and prints the machine of the previous session."""
    first, second = start_job(2, [*FLAGS, "--run=a", "--train.max_steps=100000"])
    wait_for(9, first)
    second.kill()
    first.join()
    assert first.exitcode == 2
    last = output_of(0).splitlines()[-1]
    assert re.fullmatch("error: .+; resume the run from its last checkpoint", last)
    step = state_of("a").step
    assert train.main(["--resume=a", f"--train.max_steps={step + 3}"]) == 0
    assert "previous session: device cpu, " in capsys.readouterr().out
    assert list(read("runs/a", "train_loss")) == list(range(1, step + 4))


def test_signal_to_one_process_stops_all_at_the_same_step(workplace: Path) -> None:
    job = start_job(2, [*FLAGS, "--run=a", "--train.max_steps=100000"])
    wait_for(4, job[0])
    os.kill(job[1].pid or 0, signal.SIGTERM)
    for process in job:
        process.join()
    assert f"stopped at step {state_of('a').step}; resume with" in output_of(0)
    assert [process.exitcode for process in job] == [143, 143]
