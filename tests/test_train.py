"""Whole runs of train.py: results, files, duration, failures, resuming and rejected commands."""

import common.start

import dataclasses
import itertools
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

import sample
import study
import train
from configs.config import TrainConfig
from configs.load import SECTIONS, read_command_line, read_config
from data.batches import open_batches
from data.ngrams import open_baselines
from model.generate import Sampling, generate
from model.gpt import GPT
from tests.conftest import DEBUG, ROOT, make_run, posix
from tests.jobs import start_command
from training.checkpoint import (
    Header,
    load_checkpoint,
    model_tensors,
    open_run,
    save_checkpoint,
)
from training.evaluate import evaluate
from training.folder import find_snapshots, read_metrics
from training.machine import Processes, prepare_machine
from training.optim import Muon, get_lr_scale, make_optimizer, regularization, update_weights
from training.state import TrainState
from training.step import compute_gradients, make_model

TEXT = "a short text to train on, again and again\n" * 60
SHORT = [DEBUG, "--train.max_steps=24", "--train.eval_every=8", "--train.save_every=5"]
SHORT += ["--train.log_every=1", "--train.sample_tokens=10", "--train.tensorboard=false"]
SHORT += ["--train.snapshots=7", "--train.precision=float32", "--data.source=short.txt"]
# The run that tests stop and resume has dropout and several batches in an evaluation.
DROPOUT = [*SHORT, "--model.dropout=0.2", "--model.attn_dropout=0.1", "--train.batch_size=4"]
DROPOUT += ["--train.gradient_accumulation_steps=2"]


@pytest.fixture(autouse=True)
def short_text(workplace: Path) -> None:
    (workplace / "short.txt").write_text(TEXT, newline="\n")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with dropout that was not stopped."""
    folder = tmp_path_factory.mktemp("whole")
    with chdir(folder):
        Path("short.txt").write_text(TEXT, newline="\n")
        assert train.main([*DROPOUT, "--run=whole"]) == 0
    return folder / "runs" / "whole"


def read(run: Path | str, key: str) -> dict[int, float]:
    """Return the values of a metric by step; assert that no step is logged twice."""
    pairs = [(line["step"], line[key]) for line in read_metrics(Path(run)) if key in line]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def state_of(run: str, which: str = "last") -> TrainState:
    return load_checkpoint(Path("runs", run, f"{which}.safetensors"))[0].state


def assert_same_run(run_a: Path, run_b: Path) -> None:
    """Assert that two runs have bitwise identical resumable state, metrics and snapshots."""
    (header_a, a), (header_b, b) = (
        load_checkpoint(run / "last.safetensors") for run in (run_a, run_b)
    )
    header_b.state.seconds = header_a.state.seconds
    assert header_a.state == header_b.state
    assert_same_tensors(a, b)
    for key in ("train_loss", "val_loss", "grad_norm", "learning_rate", "bits_per_char"):
        assert read(run_a, key) == read(run_b, key)
    snapshots_a, snapshots_b = find_snapshots(run_a), find_snapshots(run_b)
    assert snapshots_a.keys() == snapshots_b.keys() and len(snapshots_a) >= 3
    for step, path in snapshots_a.items():
        assert_same_tensors(load_file(path), load_file(snapshots_b[step]))


def assert_same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


@contextmanager
def at_step(step: int, do: Callable[[GPT], None]) -> Iterator[None]:
    """Call `do` with the model during a training step of this session, counted from 1, with two
    micro-batches."""
    forward, passes = GPT.forward, itertools.count(1)

    def watched(model: GPT, *args: Any) -> Tensor:
        if model.training and torch.is_grad_enabled() and next(passes) == 2 * step:
            do(model)
        return forward(model, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GPT, "forward", watched)
        yield


def ctrl_c(*model: GPT) -> None:
    signal.raise_signal(signal.SIGINT)


def contents() -> dict[Path, bytes]:
    """Return the content of every file of every run."""
    return {path: path.read_bytes() for path in Path("runs").rglob("*.*")}


# --- results and files ---------------------------------------------------------------------------


@pytest.mark.parametrize("rising", [False, True])
def test_run_matches_a_plain_training_loop(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rising: bool,
) -> None:
    """Repeat the loop in plain code: all numbers are bitwise identical. Dropout is 0.2, or it rises
    as in a large model."""
    monkeypatch.setattr("training.optim.SIZE", 1000)
    flags = ["--train.seed=5", "--train.warmup_steps=3", "--train.gradient_accumulation_steps=2"]
    flags += [] if rising else ["--model.dropout=0.2"]
    flags += ["--train.eval_every=7", "--train.save_every=5"]
    flags += ["--train.sample_tokens=20", "--train.snapshots=5"]
    assert train.main([*SHORT, *flags, "--run=a"]) == 0
    run = Path("runs/a")
    config = open_run(run).config
    batches = open_batches(config.data, config.model.block_size, 5)
    tokens = len(batches.tokens["training"])
    torch.manual_seed(5)
    model = GPT(config.model, batches.tokenizer.vocab_size)
    optimizer = make_optimizer(model, config.train)
    numbers: dict[str, dict[int, float]] = {"train_loss": {}, "grad_norm": {}, "learning_rate": {}}
    val_loss, weights, said = dict[int, float](), {}, list[str]()
    for step in range(25):
        if step:
            batch = batches.train_batch(step - 1, 16)
            seed = np.random.default_rng([5, step - 1, 0]).integers(2**63)
            torch.manual_seed(int(seed))
            passes = (step - 1) * 16 * 32 / len(batches.tokens["training"])
            rates = regularization(optimizer.weights, passes, tokens, config)
            model.dropout.p = rates[0] if rising else 0.2
            loss, norm = compute_gradients(model, optimizer.weights, batch, config.train)
            update_weights(optimizer, norm, config.train, step - 1, rates[1])
            numbers["train_loss"][step], numbers["grad_norm"][step] = loss.item(), norm.item()
            numbers["learning_rate"][step] = get_lr_scale(step - 1, config.train) * 1e-2
        weights[step] = {name: tensor.half() for name, tensor in model_tensors(model).items()}
        if step in (7, 14, 21, 24):
            split = batches.split("validation", 8)
            result = evaluate(model.eval(), split, batches, Processes())
            assert result
            val_loss[step] = result.loss
            prompt = torch.tensor([[batches.corpus.start_token]])
            generator = torch.Generator().manual_seed(5)
            sampled = generate(model, prompt, 20, Sampling(), generator)
            sample = batches.tokenizer.decode([int(token) for token in sampled])
            model.train()
            said += [f"    | {line}" for line in sample.splitlines()]
    for key, expected in (numbers | {"val_loss": val_loss}).items():
        assert read(run, key) == expected
    _, last = load_checkpoint(run / "last.safetensors")
    assert all(torch.equal(last[name], tensor) for name, tensor in model_tensors(model).items())
    best = min(val_loss, key=lambda step: val_loss[step])
    assert (state_of("a", "best").step, state_of("a").best_val_loss) == (best, val_loss[best])
    snapshots = find_snapshots(run)
    assert snapshots.keys() == train.snapshot_steps(TrainConfig(max_steps=24, snapshots=5), 1)
    for step, path in snapshots.items():
        assert_same_tensors(load_file(path), weights[step])
    printed = capsys.readouterr().out.splitlines()
    passes = 24 * 16 * 32 / len(batches.tokens["training"])
    dropout, decay = regularization(optimizer.weights, passes, tokens, config)
    said_of_both = f"dropout {f'rises to {dropout:.2g}' if rising else '0.2'}"
    said_of_both += f", weight decay rises to {decay:.2g}"
    assert f"--train.max_steps 24 reads the text {passes:.1f} times, {said_of_both}" in printed
    assert [line for line in printed if line.startswith("    | ")] == said


def test_snapshots_follow_their_count_and_size_limit_and_do_not_know_the_end() -> None:
    default = TrainConfig(max_steps=600)
    assert sorted(train.snapshot_steps(default, 1)) == [
        *(0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181),
        *(285, 330, 375, 420, 465, 510, 555, 600),
    ]
    for count, parameters, steps in (
        *((0, 1, set()), (1, 1, {0, 600}), (2, 1, {0, 600}), (3, 1, {0, 16, 600})),
        (5, 1, {0, 6, 40, 420, 600}),
        (5, 32 * 10**6 // 3, {0, 16, 600}),  # exactly 64 MB
        (5, 32 * 10**6 // 3 + 1, {0, 600}),
        (5, 33 * 10**6, set()),
    ):
        plan = dataclasses.replace(default, snapshots=count)
        assert train.snapshot_steps(plan, parameters) == steps, count
        longer = train.snapshot_steps(dataclasses.replace(plan, max_steps=6000), parameters)
        unknown = train.snapshot_steps(dataclasses.replace(plan, max_steps=None), parameters)
        assert {s for s in steps if s < 240} == {s for s in longer if s < 240}
        assert {s for s in longer if s < 2400} == {s for s in unknown if s < 2400}


def test_run_folder_has_the_documented_files(whole: Path) -> None:
    files = "config.yaml metrics.jsonl .lock snapshots "
    files += "best.safetensors last.safetensors before_decay.safetensors"
    assert {path.name for path in whole.iterdir()} == set(files.split())


# --- how many steps fit into the minutes ---------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a simulated time, which moves with the model and its updates: a batch of one sequence
    takes 2/3 of a second for the gradients and 1/3 for the update, and a forward pass 1/3, or less
    for fewer tokens. Counting n-grams takes 100 seconds."""
    now, forward, update = [1000.0], GPT.forward, Muon.step

    def slow_forward(model: GPT, tokens: Tensor, *args: Any) -> Tensor:
        trains = model.training and torch.is_grad_enabled()
        now[0] += tokens.numel() / 32 * (2 / 3 if trains else 1 / 3)
        return forward(model, tokens, *args)

    def slow_update(*args: Any) -> None:
        now[0] += 1 / 3
        update(*args)

    def slow_baselines(*args: Any) -> dict[str, float]:
        now[0] += 100
        return open_baselines(*args)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(GPT, "forward", slow_forward)
    monkeypatch.setattr(Muon, "step", slow_update)
    monkeypatch.setattr("data.batches.open_baselines", slow_baselines)
    return now


# The tokens of an evaluation, and the seconds before the clock of the minutes starts.
SOURCES = [
    (["--data.source=short.txt"], 251, 100),
    (["--data.source=brackets", "--train.eval_tokens=160"], 2 * 160, 0),  # also of training
]


@pytest.mark.parametrize(("source", "tokens", "counting"), SOURCES)
def test_minutes_limit_every_session_and_repeat_as_steps(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    clock: list[float],
    source: list[str],
    tokens: int,
    counting: int,
) -> None:
    """A new run, the run made longer, and another one that starts from it. Each is bitwise
    identical to a run with the number of steps that it prints."""
    flags = [flag for flag in SHORT[:-1] if "max_steps" not in flag] + source
    flags += ["--train.batch_size=1", "--train.eval_every=9", "--train.save_every=50"]
    flags += ["--model.n_layer=1", "--model.n_embd=8", "--train.sample_tokens=0"]
    for run, minutes, words, repeated in (
        ("a", 1, [*flags, "--run=a"], [*flags, "--run=a2"]),
        ("a", 0.75, ["--resume=a"], [*flags, "--run=a3"]),
        ("b", 0.9, ["--init_from=a", "--run=b"], ["--init_from=a", "--run=b2"]),
    ):
        began = clock[0]
        monkeypatch.setattr(common.start, "BEGAN", began - 7.0)
        assert train.main([*words, f"--train.minutes={minutes}"]) == 0
        steps = state_of(run).step
        assert 60 * minutes - 4 < clock[0] - (began - 7.0) - counting <= 60 * minutes
        assert f"--train.max_steps {steps} " in capsys.readouterr().out
        assert read_config({}, f"runs/{run}/config.yaml").train.max_steps == steps
        assert train.main([*repeated, f"--train.max_steps={steps}"]) == 0
        assert_same_run(Path("runs", run), Path("runs", repeated[-1][6:]))


def test_run_of_minutes_that_is_stopped_repeats_as_steps(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    """Stopped before its end is set, the resumed run sets it within the time that is left."""
    monkeypatch.setattr(common.start, "BEGAN", clock[0])
    flags = [flag for flag in DROPOUT if "max_steps" not in flag]
    flags += ["--train.batch_size=2", "--train.warmup_steps=2", "--train.sample_tokens=0"]
    with at_step(3, ctrl_c):
        assert train.main([*flags, "--train.minutes=1", "--run=a"]) == 130
    assert open_run("a", "last").config.train.max_steps is None
    monkeypatch.setattr(common.start, "BEGAN", clock[0])
    assert train.main(["--resume=a"]) == 0
    state = state_of("a")
    assert 54 < state.seconds <= 60
    assert train.main([*flags, f"--train.max_steps={state.step}", "--run=b"]) == 0
    assert_same_run(Path("runs/a"), Path("runs/b"))


# --- a longer run ---------------------------------------------------------------------------------


def assert_same_training(run: str, planned: str) -> None:
    """Assert that a run that became longer has the weights, the optimizer's state and the losses of
    the planned one. Only its best loss may be that of the shorter run."""
    (header_a, a), (header_b, b) = (
        load_checkpoint(Path("runs", name, "last.safetensors")) for name in (run, planned)
    )
    assert_same_tensors(a, b)
    assert header_a.config == header_b.config
    assert header_a.state.val_loss == header_b.state.val_loss
    for key in ("train_loss", "val_loss"):
        assert read(f"runs/{run}", key) == read(f"runs/{planned}", key)
    assert find_snapshots(Path("runs", run)).keys() == find_snapshots(Path("runs", planned)).keys()


@pytest.mark.parametrize("flags", [["--model.ngrams=2"], ["--train.schedule=cosine"]])
def test_run_that_becomes_longer_is_the_run_that_was_planned_longer(
    workplace: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    """It becomes longer in its decay and when it is finished, is killed before its new decay, and
    becomes longer again."""
    for steps in (30, 40, 60):
        name = f"--run=planned-{steps}"
        assert train.main([*DROPOUT, *flags, f"--train.max_steps={steps}", name]) == 0
    capsys.readouterr()
    with at_step(20, ctrl_c):
        assert train.main([*DROPOUT, *flags, "--run=a"]) == 130
    assert train.main(["--resume=a", "--train.max_steps=30"]) == 0
    assert "back to step 10, before the learning rates decayed\n" in capsys.readouterr().out
    assert_same_training("a", "planned-30")
    with at_step(2, ctrl_c):
        assert train.main(["--resume=a", "--train.max_steps=40"]) == 130
    assert "back to step 12, " in capsys.readouterr().out
    assert state_of("a").best_val_loss == min(read("runs/planned-30", "val_loss").values())
    assert train.main(["--resume=a"]) == 0
    assert_same_training("a", "planned-40")
    with at_step(2, ctrl_c):
        assert train.main(["--resume=a", "--train.max_steps=50"]) == 130
    assert "back to step 16, " in capsys.readouterr().out
    assert train.main(["--resume=a", "--train.max_steps=60"]) == 0  # no decay has begun
    assert "back to" not in capsys.readouterr().out
    assert_same_training("a", "planned-60")


def test_run_that_ends_earlier_than_planned_says_that_it_differs(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with at_step(15, ctrl_c):
        assert train.main([*DROPOUT, "--train.warmup_steps=2", "--run=a"]) == 130
    assert train.main(["--resume=a", "--train.max_steps=16"]) == 0
    said = "note: the result differs from a run that was planned with this end\n"
    assert said in capsys.readouterr().out
    assert state_of("a").step == 16


def test_last_line_says_what_the_last_steps_made_worse(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text to train on, whose validation split is another text, is memorized. Then neither a
    longer run nor one from its weights improves."""
    generator = np.random.default_rng(0)
    text = "".join(map(chr, generator.integers(65, 91, 600)))
    (workplace / "short.txt").write_text(text, newline="\n")
    flags = [*SHORT, "--model.n_embd=64", "--model.dropout=0", "--train.schedule=constant"]
    for words, reason in (
        ([*flags, "--run=a"], "it is overfit: the steps after that raised the loss"),
        (["--resume=a", "--train.max_steps=32"], "this session gained nothing, and ended"),
        (["--init_from=a", "--run=b"], "this session gained nothing, and ended"),
    ):
        assert train.main(words) == 0
        run = words[-1][6:] if "run" in words[-1] else "a"
        state = state_of(run)
        assert state.best_step == state_of(run, "best").step
        best = f"best validation loss {state.best_val_loss:.4f} at step {state.best_step}, "
        assert f"{best}whose weights are used\n{reason}" in capsys.readouterr().out


# --- failures ------------------------------------------------------------------------------------


def test_weights_that_are_not_finite_are_never_saved(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss and the gradient of every step are finite, because the text lacks byte 255."""

    def overflow(model: GPT) -> None:
        model.token_embedding.weight.data[255] = math.inf

    with at_step(2, overflow):
        assert train.main([*DROPOUT, "--data.tokenizer=byte", "--run=a"]) == 2
    assert capsys.readouterr().err == (
        "error: at step 5: model.token_embedding.weight is not finite; runs/a keeps its last "
        "checkpoint. Start again with a lower --train.learning_rate and "
        "--train.muon_learning_rate, or less weight decay\n"
    )
    assert state_of("a").step == 0


def start(name: str, flags: list[str], device: str) -> int:
    """Train as `main` does. On a device other than the CPU, results are read every `log_every`
    steps; the model stays on the CPU."""
    config = read_config(read_command_line(SECTIONS, flags, "", "")[2], DEBUG)
    batches = open_batches(config.data, config.model.block_size, config.train.seed)
    machine = prepare_machine(config.train, Processes())
    model, optimizer = make_model(config, batches.tokenizer.vocab_size, machine)
    folder = Path("runs", name)
    folder.mkdir(parents=True)
    machine = dataclasses.replace(machine, device=device)
    plain, corpus = batches.tokenizer.to_dict(), batches.corpus
    header = Header(config, plain, corpus, machine, TrainState())
    return train.train(folder, header, batches, model, optimizer, Processes())


RARELY = [*DROPOUT[1:], "--train.log_every=4"]
each_device = pytest.mark.parametrize("device", ["cpu", "cuda"])


@each_device
def test_speed_is_of_gradients_and_updates(
    workplace: Path, clock: list[float], device: str
) -> None:
    """Evaluations and samples take time, too, which does not count. Results are also read at steps
    that are not logged. The last speed is of the resumed run."""
    assert start("a", [*RARELY, "--train.save_every=7"], device) == 0
    assert train.main(["--resume=a", "--train.max_steps=28"]) == 0
    speeds = read("runs/a", "tokens_per_second")
    step = 4 * 2 / 3 + 1 / 3  # seconds, with four sequences of 32 tokens
    assert speeds == pytest.approx(dict.fromkeys(range(4, 29, 4), 4 * 32 / step))


@each_device
def test_nan_gradient_is_named_and_never_saved(workplace: Path, device: str) -> None:
    """The NaN of step 13 is noticed when its result is read, in step 13 or, before the next
    checkpoint, in step 15."""
    weight = "blocks.1.mlp.up.weight"

    def poison(model: GPT) -> None:
        model.get_parameter(weight).register_hook(lambda gradient: gradient * math.nan)

    flags = [*RARELY, "--train.save_every=3", "--train.eval_every=50", "--train.snapshots=0"]
    first = f", first in {weight}" * (device == "cpu")
    message = rf"^at step 13: loss \d\S+, gradient norm nan{first}$"
    with at_step(13, poison), pytest.raises(FloatingPointError, match=message):
        start("a", flags, device)
    assert state_of("a").step == 12
    assert max(read("runs/a", "train_loss")) == 12


def test_results_read_every_few_steps_change_nothing(workplace: Path) -> None:
    """The run is bitwise identical. A signal stops it when a result is read, which precedes every
    evaluation and checkpoint."""
    flags = [*RARELY, "--train.max_steps=22", "--train.save_every=7"]
    assert start("whole", flags, "cpu") == start("rarely", flags, "cuda") == 0
    assert_same_run(Path("runs/rarely"), Path("runs/whole"))
    with at_step(11, ctrl_c):
        assert start("parts", flags, "cuda") == signal.SIGINT
    assert state_of("parts").step == 12
    assert train.main(["--resume=parts"]) == 0
    assert_same_run(Path("runs/parts"), Path("runs/whole"))


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 3_000, 100_000])
def test_full_disk_is_one_error_line_and_the_run_resumes(
    workplace: Path, whole: Path, capsys: pytest.CaptureFixture[str], room: int
) -> None:
    """Limit file sizes from the first step on. The limits leave room for no metrics, for some
    metrics but no TensorBoard file, or for everything except a checkpoint."""
    resource = pytest.importorskip("resource", reason="Windows limits no sizes of files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with at_step(1, lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))):
        try:
            assert train.main([*DROPOUT, "--train.tensorboard=true", "--run=parts"]) == 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert said == "error: could not write to runs/parts: File too large\n"
    for path in Path("runs/parts").glob("*.safetensors"):
        load_checkpoint(path)
    assert train.main(["--resume=parts"]) == 0
    assert_same_run(Path("runs/parts"), whole)


# --- stopping and resuming -----------------------------------------------------------------------

KINDS = {
    "muon": ["--model.ngrams=2"],
    "adamw": ["--train.optimizer=adamw", "--train.precision=bfloat16"],
    "grouped": ["--model.n_kv_head=1", "--model.window=5", "--model.mlp_ratio=0"],
}
FEW = ["--train.max_steps=12", "--train.eval_every=4", "--train.sample_tokens=4"]
FEW += ["--model.n_layer=1", "--model.n_head=2", "--model.n_embd=16"]
# A session ends in a pass of a step, an evaluation or a sample: it is stopped or, if negative,
# killed. Or the run is studied.
ENDS = st.integers(1, 99) | st.integers(-99, -1)
STUDIES = st.sampled_from([(sample, ["a"]), (study, ["evaluate", "a"])])


@given(st.sampled_from([*KINDS]), st.lists(ENDS | STUDIES, max_size=5))
@settings(max_examples=10)
@example("muon", [-1, 7, 30, (sample, ["a"]), -20])
def test_any_order_of_sessions_ends_in_the_run_of_one(
    workplace: Path, kind: str, acts: list[Any]
) -> None:
    """Bitwise. An evaluation that is told to stop ends at once, and is done again."""
    run, whole, forward = Path("runs/a"), Path("runs", kind), GPT.forward
    flags = [*DROPOUT, *FEW, *KINDS[kind]]
    if not whole.exists():
        assert train.main([*flags, f"--run={kind}"]) == 0
    shutil.rmtree(run, ignore_errors=True)

    def session(end: int = 0) -> int:
        passes, told = itertools.count(1), list[bool]()

        def watched(model: GPT, tokens: Tensor, *args: Any) -> Tensor:
            assert model.training or len(tokens) == 1 or not told, "the evaluation goes on"
            if next(passes) == abs(end):
                if end < 0:
                    raise SystemExit
                told.append(True)
                ctrl_c()
            return forward(model, tokens, *args)

        with pytest.MonkeyPatch.context() as patch, suppress(SystemExit):
            patch.setattr(GPT, "forward", watched)
            return train.main(["--resume=a"] if run.exists() else [*flags, "--run=a"])
        return -1

    for act in acts:
        if isinstance(act, int):
            assert session(act) in (0, 130, -1)
        elif run.exists():
            main, words = act
            assert main.main(words) == 0
    assert session() == 0
    assert_same_run(run, whole)


def test_longer_run_has_its_end_at_once_and_no_snapshot_of_the_shorter(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kill the resumed run before it saves: its end is known, later snapshots of the shorter run
    are gone, and the evaluation before the checkpoint is not repeated."""

    def killed(model: GPT) -> None:
        raise SystemExit

    flags = [*DROPOUT, "--train.eval_every=5", "--train.save_every=50", "--train.max_steps=20"]
    assert train.main([*flags, "--run=a"]) == 0
    assert list(find_snapshots(Path("runs/a"))) == [0, 4, 13, 17, 20]
    with at_step(1, killed), pytest.raises(SystemExit):
        train.main(["--resume=a", "--train.max_steps=30"])
    header, _ = load_checkpoint(Path("runs/a/last.safetensors"))
    assert (header.state.step, header.config.train.max_steps) == (10, 30)
    assert header.config == read_config({}, "runs/a/config.yaml")
    assert list(find_snapshots(Path("runs/a"))) == [0, 4]
    assert capsys.readouterr().out.count("step 10  validation") == 1


# --- separate processes --------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("kind", ["terminal", "pipe"])
def test_closed_terminal_or_pipe_saves_the_run(workplace: Path, kind: str) -> None:
    """After that, every write to it fails."""
    if kind == "pipe":
        os.mkfifo("said-stdout")
    else:
        reader, terminal = os.openpty()
        for name in ("said-stdout", "said-stderr"):
            Path(name).symlink_to(os.ttyname(terminal))
    long = ["--train.max_steps=100000", "--train.save_every=100000", "--run=a"]
    process = start_command("said", ["train.py", *SHORT, *long])
    if kind == "pipe":
        reader = os.open("said-stdout", os.O_RDONLY)
    shown = os.read(reader, 1)
    if kind == "terminal":
        os.close(terminal)  # the process has it
    while b"step      8" not in shown:
        shown += os.read(reader, 1000)
        assert process.is_alive(), shown
    os.close(reader)
    process.join()
    assert process.exitcode != 0
    if kind == "pipe":
        assert process.exitcode == 141
        assert "Traceback" not in Path("said-stderr").read_text()
    assert state_of("a").step == max(read("runs/a", "train_loss")) >= 8


@posix
@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_pytorch_loads_ends_quietly_or_stays_ignored(
    workplace: Path, ignored: bool
) -> None:
    """It is ignored in the background of a script. A fake numpy.py, which PyTorch imports, exits
    with 7 after the signal."""
    Path("numpy.py").write_text(
        "import pathlib, time\n"
        "print('loading', flush=True)\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
        "raise SystemExit(7)"
    )
    handler = signal.SIG_IGN if ignored else signal.default_int_handler
    before = signal.signal(signal.SIGINT, handler)  # the process inherits what is ignored
    try:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "train.py")],
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout and process.stdout.readline() == b"loading\n"
        process.send_signal(signal.SIGINT)
        Path("go").touch()
        errors = process.communicate()[1]
    finally:
        signal.signal(signal.SIGINT, before)
    ended = process.returncode, errors
    assert ended[0] == 7 if ignored else ended in ((-signal.SIGINT, b""), (130, b""))


# --- --init_from and rejected commands -----------------------------------------------------------


@pytest.mark.parametrize("length", ["--train.max_steps=1", "--train.minutes=0.02"])
def test_init_from_starts_a_new_run_from_the_best_weights(
    workplace: Path, capsys: pytest.CaptureFixture[str], length: str
) -> None:
    """It keeps the vocabulary, although the new text has fewer characters, but not the number of
    threads. The model that is timed for `minutes` is another one."""
    a = open_run(make_run(Path("runs/a")))
    machine = dataclasses.replace(a.header.machine, threads=2)
    save_checkpoint(a.path, a.tensors, dataclasses.replace(a.header, machine=machine))
    flags = ["--init_from=runs/a", "--data.source=short.txt", length]
    flags += ["--train.learning_rate=0", "--train.muon_learning_rate=0", "--train.eval_tokens=99"]
    (workplace / "short.txt").write_text("again a train to train on\n" * 100, newline="\n")
    assert train.main(flags) == 0
    out = capsys.readouterr().out
    assert " (a vocabulary of 28), 260 held out for validation; evaluations use 99 of the" in out
    (folder,) = Path("runs").glob("from-a-*")
    b = open_run(folder, "last")
    assert b.header.machine.threads == 1
    assert a.tokenizer == b.tokenizer
    assert_same_tensors(a.model().state_dict(), b.model().state_dict())
    assert b.header.state.step == b.config.train.max_steps
    assert b.config.data.source == "short.txt"
    weights = "# weights: runs/a/best.safetensors, step 2, validation loss 2.5000 nats/char, "
    weights += "trained on a text\n"
    assert weights in (folder / "config.yaml").read_text()


def test_finished_run_says_what_to_change_and_commands_are_quoted(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, bpe = "runs/my run; rm x", ["--data.tokenizer=bpe", "--model.block_size=16"]
    assert train.main([*SHORT, *bpe, "--train.max_steps=2", f"--run={run[5:]}"]) == 0
    out = capsys.readouterr().out
    assert re.search(r" \(a vocabulary of 2\d\d\), ", out)
    assert shlex.split(out.splitlines()[-1]) == ["python", "study.py", "report", run]
    assert train.main([f"--resume={run}"]) == 0
    line = f"'{run}' is finished; to train on, raise --train.max_steps or --train.minutes\n"
    assert line in capsys.readouterr().out


REJECTED = [
    (["--resume=a", "--data.source=other.txt"], "runs/a was trained on another text, "),
    (["--resume=a", "--train.max_steps=1"], "runs/a has 2 steps; raise --train.max_steps"),
    (["--resume=a", "--train.minutes=1e-9"], "runs/a repeats its decay, which took "),
    (["--resume=a", "--run=b"], "--resume excludes --init_from and --run"),
    (["--init_from=a", "--model.n_layer=3"], "--init_from cannot change model.n_layer from 2 to 3"),
]


def test_rejected_command_leaves_run_unchanged(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--train.max_steps=2", "--train.warmup_steps=1"]
    assert train.main([*SHORT, *flags, "--run=a"]) == 0
    (workplace / "other.txt").write_text(TEXT[::-1], newline="\n")
    before = contents()
    capsys.readouterr()
    for argv, message in REJECTED:
        assert train.main(argv) == 2, argv
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
    assert contents() == before
