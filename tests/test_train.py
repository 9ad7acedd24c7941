"""The whole of a run: what it leaves, how it goes on, what it refuses."""

import dataclasses
import functools
import itertools
import json
import math
import os
import pty
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

import train
from configs.load import SECTIONS, Config, from_plain, make_parser, read_config
from data.batches import open_batches
from model.gpt import GPT, next_token_loss
from run.checkpoint import load_checkpoint, save_checkpoint
from run.folder import open_run
from run.log import Metrics, progress_bar
from run.snapshots import find_snapshots, snapshot_steps
from training.config import TrainConfig
from training.optim import Optimizer
from training.processes import Processes
from training.runtime import StopSignal, start_runtime

ROOT = Path(__file__).parent.parent
DEBUG = str(ROOT / "configs" / "debug.yaml")
QUICK = [DEBUG, "--train.max_steps=24", "--train.eval_every=8", "--train.save_every=8"]
QUICK += ["--train.log_every=1", "--train.sample_tokens=10", "--train.tensorboard=false"]
QUICK += [f"--data.source={ROOT / 'README.md'}"]  # a text that is soon evaluated
DROPOUT = ["--model.dropout=0.2", "--model.attn_dropout=0.1"]


def short_text() -> list[str]:
    """Flags for a text that is soon evaluated, also where two threads have one core."""
    Path("short.txt").write_text("a short text to train on\n" * 100)
    return ["--data.source=short.txt"]


def read(run: Path | str, key: str) -> dict[int, float]:
    """A number of metrics.jsonl by its step; no step may stand twice."""
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    pairs = [(line["step"], line[key]) for line in lines if key in line]
    assert len(dict(pairs)) == len(pairs), "a step stands twice"
    return dict(pairs)


def same_bits(run_a: str, run_b: str) -> None:
    """Everything that training goes on from is the same in two runs, to the last bit."""
    (header_a, a), (header_b, b) = (
        load_checkpoint(Path(run) / "last.safetensors") for run in (run_a, run_b)
    )
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different
    for field in ("step", "val_loss", "best_val_loss", "evals_since_best"):
        assert getattr(header_a, field) == getattr(header_b, field)


def write_at_once(metrics: Metrics, *args: Any, write: Any = Metrics.write) -> None:
    """Metrics.write, on the disk as soon as it returns."""
    write(metrics, *args)
    metrics.flush()


class StopAt:
    """Press Ctrl-C in the middle of a step, as a person would."""

    def __init__(self, step: int) -> None:
        self.step, self.calls, self.train_step = step, 0, train.train_step

    def __call__(self, *args: Any) -> tuple[float, float]:
        self.calls += 1
        if self.calls == self.step:
            os.kill(os.getpid(), signal.SIGINT)
        return self.train_step(*args)


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda step: monkeypatch.setattr(train, "train_step", StopAt(step))


# --- what a run leaves ---------------------------------------------------------------------------


def test_a_run_leaves_all_it_promises(debug_run: Path) -> None:
    names = {path.name for path in debug_run.iterdir() if "events" not in path.name}
    checkpoints = {"best.safetensors", "last.safetensors", "snapshots"}
    assert names == {"config.yaml", "run.json", "metrics.jsonl", ".lock"} | checkpoints
    losses, validation = read(debug_run, "train_loss"), read(debug_run, "val_loss")
    assert list(losses) == [10, 20, 30, 40, 50, 60]
    assert list(validation) == [30, 60]
    assert losses[60] < losses[10] < math.log(200)
    assert validation[60] < validation[30]
    for step, bits in read(debug_run, "bits_per_char").items():
        assert bits == pytest.approx(validation[step] / math.log(2))


def test_a_run_says_what_was_run(debug_run: Path) -> None:
    saved = read_config(make_parser(SECTIONS), [], str(debug_run / "config.yaml"))
    assert saved == read_config(make_parser(SECTIONS), [], DEBUG)
    for which in ("best", "last"):
        header, _ = load_checkpoint(debug_run / f"{which}.safetensors")
        assert from_plain(header.config, "here") == saved
        assert len(header.corpus["sha256"]) == 64
        assert header.corpus["source"].startswith("the manual of Python 3.")
        assert header.best_val_loss == min(read(debug_run, "val_loss").values())
    facts = json.loads((debug_run / "run.json").read_text())
    assert facts["corpus"] == header.corpus
    assert facts["torch"] == torch.__version__


def test_best_holds_weights_and_last_everything(debug_run: Path) -> None:
    _, best = load_checkpoint(debug_run / "best.safetensors")
    _, last = load_checkpoint(debug_run / "last.safetensors")
    assert {name.split(".")[0] for name in best} == {"model"}
    assert {name.split(".")[0] for name in last} == {"model", "optimizer", "generator"}


def test_snapshots_are_the_weights_at_their_steps(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that a run takes after it was stopped and resumed."""
    flags = [*QUICK, "--train.snapshots=5", *short_text()]
    assert train.main([*flags, "--run=whole"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(train, "train_step", StopAt(6))
        assert train.main([*flags, "--run=parts"]) == 130
    assert list(find_snapshots(Path("runs/parts"))) == [0, 1, 3]
    assert train.main(["--resume=runs/parts"]) == 0
    whole, parts = (find_snapshots(Path("runs") / run) for run in ("whole", "parts"))
    assert list(whole) == list(parts) == snapshot_steps(TrainConfig(max_steps=24, snapshots=5), 1)
    for step, path in whole.items():
        a, b = load_file(path), load_file(parts[step])
        assert all(torch.equal(a[name], b[name]) for name in a.keys() | b.keys()), step
    _, tensors = load_checkpoint(Path("runs/whole/last.safetensors"))
    last = load_file(whole[24])
    for name, tensor in last.items():
        assert torch.equal(tensor, tensors[name].half()), name


def test_tensorboard_reads_it_all_back(debug_run: Path) -> None:
    events = EventAccumulator(str(debug_run)).Reload()
    for name in ("train_loss", "val_loss", "bits_per_char", "learning_rate", "grad_norm"):
        seen = {event.step: event.value for event in events.Scalars(name)}
        assert seen == pytest.approx(read(debug_run, name), rel=1e-6)
    assert [event.step for event in events.Scalars("tokens_per_second")] == list(range(10, 61, 10))
    assert [event.step for event in events.Tensors("sample/text_summary")] == [30, 60]


def test_it_says_what_matters(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main([*QUICK, "--run", "a", "--train.threads=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("device cpu, 1 thread, computing in ")
    number = r"\d\.\d+"
    rungs = f"to beat: uniform {number}, unigram {number}, bigram {number} nats/char"
    assert re.fullmatch(rungs, lines[3])
    evaluations = [line for line in lines if line.startswith("step ")]
    assert len(evaluations) == 3
    measured = f"step  8  validation {number} nats/char  {number} bits/char  training {number}"
    assert re.match(measured + "  beats uniform", evaluations[0])
    assert any(line.startswith("    | ") for line in lines)
    assert lines[-3:] == ["next:", "  python sample.py runs/a", "  tensorboard --logdir runs"]


# --- evaluation and the step ---------------------------------------------------------------------


def setup(*flags: str) -> tuple[Config, Any, GPT, Any]:
    config = read_config(make_parser(SECTIONS), [*QUICK[1:], *flags], DEBUG)
    batches = open_batches(config.data, config.model.block_size, config.train.seed)
    torch.manual_seed(0)
    model = GPT(config.model, batches.tokenizer.vocab_size)
    return config, batches, model, start_runtime(config.train)


def evaluated(model: GPT, batches: Any, runtime: Any, *processes: Processes) -> Any:
    split = batches.validation(8)
    return train.evaluate(model, model, split, batches.tokenizer, runtime, StopSignal(), *processes)


def test_evaluation_is_the_mean_over_every_token(workplace: Path) -> None:
    _, batches, model, runtime = setup("--train.precision=float32", "--model.dropout=0.5")
    state = torch.get_rng_state()
    measured = evaluated(model, batches, runtime)
    assert torch.equal(state, torch.get_rng_state()), "evaluation drew random numbers"
    assert model.training
    model.eval()
    nats = [
        next_token_loss(model(windows[:, :-1]), windows[:, 1:], "sum").item()
        for windows in batches.validation(64)
    ]
    tokens = len(batches.val_tokens) - 1
    assert measured["val_loss"] == pytest.approx(sum(nats) / tokens, rel=1e-5)


def test_several_processes_share_out_the_evaluation(workplace: Path) -> None:
    _, batches, model, runtime = setup()
    parts = []

    class Counting(Processes):
        def sum(self, numbers: Sequence[float]) -> list[float]:
            parts.append(list(numbers))
            return list(numbers)

    for rank, size in ((0, 1), (0, 3), (1, 3), (2, 3)):
        processes = Counting(rank, size)
        evaluated(model, batches, runtime, processes)
    whole, *shares = parts
    assert [sum(share[i] for share in shares) for i in range(1, 4)] == whole[1:]
    assert sum(share[0] for share in shares) == pytest.approx(whole[0])
    assert all(0 < share[1] < whole[1] for share in shares)


def test_bits_per_char_of_bytes(workplace: Path) -> None:
    (workplace / "t.txt").write_text("日本語" * 200)
    _, batches, model, runtime = setup("--data.source=t.txt", "--data.tokenizer=byte")
    measured = evaluated(model, batches, runtime)
    assert measured is not None
    ratio = measured["bits_per_char"] / (measured["val_loss"] / math.log(2))
    assert ratio == pytest.approx(3, rel=0.05), "a character here is three bytes"


def test_a_run_is_measured_on_what_it_was_not_trained_on(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "README.md").read_text()
    (workplace / "t.txt").write_text(text[:-3000] + "é" * 3000)
    flags = ["--data.source=t.txt", "--data.tokenizer=byte", "--data.test_fraction=0.2"]
    flags += ["--train.max_steps=8", "--train.eval_every=4", "--train.save_every=4"]
    assert train.main([DEBUG, *flags, "--run=a"]) == 0
    out = capsys.readouterr().out
    before = {path: path.read_bytes() for path in Path("runs/a").rglob("*") if path.is_file()}
    assert train.main(["--evaluate=a"]) == 0
    *_, measuring, validation, test = capsys.readouterr().out.splitlines()
    assert measuring == "measuring runs/a/best.safetensors, step 8"
    best = min(read("runs/a", "val_loss").values())
    assert validation.startswith(f"validation {best:.4f} nats/byte  {best / math.log(2):.3f} bits/")
    assert f"{best:.4f} nats/byte  {best / math.log(2):.3f} bits/byte" in out
    numbers = re.fullmatch(
        r"test       ([\d.]+) nats/byte  ([\d.]+) bits/byte  ([\d.]+) bits/char", test
    )
    assert numbers is not None
    nats, bits, bits_per_char = map(float, numbers.groups())
    assert bits == pytest.approx(nats / math.log(2), abs=1e-3) and nats > best
    assert bits_per_char > 1.2 * bits, "some characters of the test split are two bytes"
    after = {path: path.read_bytes() for path in Path("runs/a").rglob("*") if path.is_file()}
    assert before == after, "measuring writes nothing"
    (workplace / "t.txt").write_text(text)
    assert train.main(["--evaluate=a"]) == 0
    assert "note: this is not the text that it was trained on" in capsys.readouterr().out


class Descent(Optimizer):
    """Plain gradient descent, whose step is the gradient."""

    @torch.no_grad()
    def step(self, share: float) -> None:
        for name, weight in self.parameters.items():
            weight.sub_(self.gradient(name), alpha=share)


def test_accumulated_gradients_are_those_of_the_whole_batch(workplace: Path) -> None:
    results = []
    for pieces in (1, 4):
        config, batches, model, _ = setup(
            f"--train.grad_accum_steps={pieces}", "--train.grad_clip=0"
        )
        optimizer = Descent(model, config.train)
        loss, norm = train.train_step(
            model, model, optimizer, 1.0, batches.train(0, 16), config.train
        )
        results.append([torch.tensor([loss, norm]), *(p.detach() for p in model.parameters())])
    for whole, accumulated in zip(*results, strict=True):
        torch.testing.assert_close(whole, accumulated, rtol=1e-4, atol=1e-6)


def test_clipping_limits_the_gradient(workplace: Path) -> None:
    config, batches, model, _ = setup("--train.grad_clip=0.01")
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = Descent(model, config.train)
    _, norm = train.train_step(model, model, optimizer, 1.0, batches.train(0, 4), config.train)
    moved = torch.cat([(a - b).flatten() for a, b in zip(before, model.parameters(), strict=True)])
    assert norm > 0.01
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_is_never_learned(workplace: Path, where: str) -> None:
    config, batches, model, _ = setup()
    weight = model.get_parameter("blocks.1.mlp.up.weight")
    if where == "loss":
        with torch.no_grad():
            weight[0, 0] = math.nan
    else:
        weight.register_hook(lambda gradient: gradient * math.inf)
    optimizer = Optimizer(model, config.train)
    before = [p.detach().clone() for p in model.parameters()]
    # A loss that is not a number spoils every gradient, the first of them the embedding's.
    named = "token_embedding" if where == "loss" else "blocks.1.mlp.up.weight"
    with pytest.raises(FloatingPointError, match=rf"gradient norm (nan|inf), first in {named}"):
        train.train_step(model, model, optimizer, 1.0, batches.train(0, 4), config.train)
    for a, b in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert b.grad is None
    assert not any(tensor.any() for state in optimizer.state.values() for tensor in state.values())


def test_a_run_that_diverges_says_where_and_keeps_its_checkpoint(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = iter(range(100))

    train_step = train.train_step

    def diverge(*args: Any) -> tuple[float, float]:
        if next(steps) == 10:
            raise FloatingPointError("the loss is nan; nothing was learned")
        return train_step(*args)

    with monkeypatch.context() as patch:
        patch.setattr(train, "train_step", diverge)
        assert train.main([*QUICK, "--run=a"]) == 2
    error = capsys.readouterr().err
    assert (
        "error: at step 11, learning rate 0.01 (Muon's 0.012): the loss is nan; nothing was learned"
        in error
    )
    assert "runs/a stays as it was saved at step 8" in error
    assert "a lower --train.learning_rate and --train.muon_learning_rate" in error
    assert train.main([*QUICK, "--run=b"]) == 0
    assert train.main(["--resume=a"]) == 0
    same_bits("runs/a", "runs/b")


@pytest.mark.parametrize("tensorboard", [False, True])
def test_a_full_disk_ends_in_one_line_and_the_run_goes_on_when_there_is_room(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tensorboard: bool,
) -> None:
    """Files may not grow past a size from the eleventh step on, as where a quota is used up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    flags = [*QUICK, *DROPOUT, f"--train.tensorboard={tensorboard}".lower()]
    assert train.main([*flags, "--run=whole"]) == 0
    steps = iter(range(100))
    train_step = train.train_step

    def fill(*args: Any) -> tuple[float, float]:
        if next(steps) == 10:
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
        return train_step(*args)

    with monkeypatch.context() as patch:
        patch.setattr(train, "train_step", fill)
        try:
            assert train.main([*flags, "--run=parts"]) == 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    error = capsys.readouterr().err
    assert error == "error: could not write to runs/parts: File too large\n"
    assert load_checkpoint(Path("runs/parts/last.safetensors"))[0].step == 8
    assert train.main(["--resume=parts"]) == 0
    assert read("runs/parts", "train_loss") == read("runs/whole", "train_loss")
    same_bits("runs/parts", "runs/whole")


@pytest.mark.parametrize("eval_every", [3, 1000])
def test_weights_that_a_step_ruined_are_never_saved(
    workplace: Path, capsys: pytest.CaptureFixture[str], eval_every: int
) -> None:
    """Its loss and gradient were finite; what became of the weights shows only afterwards, when
    they are evaluated, or saved."""
    flags = [*QUICK, *short_text(), f"--train.eval_every={eval_every}", "--train.save_every=3"]
    flags += ["--train.learning_rate=1e30", "--train.optimizer=adamw", "--train.warmup_steps=5000"]
    assert train.main([*flags, "--run=a"]) == 2
    assert re.search(r"error: at step \d+, learning rate .*e\+\d+: ", capsys.readouterr().err)
    for path in Path("runs/a").glob("*.safetensors"):
        header, tensors = load_checkpoint(path)
        assert all(tensor.isfinite().all() for tensor in tensors.values())
        assert header.val_loss is None or math.isfinite(header.val_loss)
    for line in Path("runs/a/metrics.jsonl").read_text().splitlines():
        assert "NaN" not in line and "Infinity" not in line


# --- stopping and going on -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "threads", "optimizer", "precision", "ngrams"),
    [
        (1, 1, "muon", "float32", 1),
        (8, 1, "muon", "bfloat16", 2),
        (13, 1, "muon", "float32", 2),
        (9, 2, "muon", "bfloat16", 1),
        (13, 1, "adamw", "float32", 2),
        (5, 1, "adamw", "bfloat16", 1),
    ],
)
def test_stopped_and_resumed_is_as_never_stopped(
    workplace: Path,
    stop: int,
    threads: int,
    optimizer: str,
    precision: str,
    ngrams: int,
    stop_at: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = [*QUICK, *DROPOUT, "--train.grad_accum_steps=2", f"--train.threads={threads}"]
    flags += [f"--train.optimizer={optimizer}", f"--train.precision={precision}"]
    flags += [f"--model.ngrams={ngrams}"]
    if threads > 1 or precision == "bfloat16":  # slow beside other work, and where it is imitated
        flags += [*short_text(), "--train.max_steps=10", "--model.n_layer=1"]
    assert train.main([*flags, "--run=whole"]) == 0
    stop_at(stop)
    assert train.main([*flags, "--run=parts"]) == 130
    assert f"stopped at step {stop}; go on with: python train.py --resume runs/parts" in (
        capsys.readouterr().out
    )
    assert list(read("runs/parts", "train_loss")) == list(range(1, stop + 1))
    assert train.main(["--resume", "runs/parts"]) == 0
    for key in ("train_loss", "val_loss", "grad_norm", "learning_rate"):
        assert read("runs/parts", key) == read("runs/whole", key)
    same_bits("runs/parts", "runs/whole")
    kept = {name.split(".")[-1] for name in open_run(Path("runs/parts"), "last").tensors}
    assert ("momentum" in kept) == (optimizer == "muon")


def test_resuming_takes_back_what_came_after_the_last_checkpoint(workplace: Path) -> None:
    """As after a crash: metrics are ahead of the checkpoint that survived."""
    assert train.main([*QUICK, *DROPOUT, "--run=whole"]) == 0
    assert train.main([*QUICK, *DROPOUT, "--run=parts", "--train.max_steps=16"]) == 0
    ahead = Path("runs/whole/metrics.jsonl").read_text()
    Path("runs/parts/metrics.jsonl").write_text(ahead + '{"step": 25, "tr')
    assert train.main(["--resume=parts", "--train.max_steps=24"]) == 0
    assert list(read("runs/parts", "train_loss")) == list(range(1, 25))


@pytest.mark.parametrize("step", [8, 24])
def test_stopped_in_the_middle_of_an_evaluation(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """It is given up, and made when the run goes on; also the last one."""
    assert train.main([*QUICK, *DROPOUT, "--run=whole"]) == 0
    evaluate = train.evaluate

    def interrupted(split: Iterator[Tensor]) -> Iterator[Tensor]:
        for number, windows in enumerate(split):
            assert number < 3, "the evaluation goes on after the stop"
            if number == 2:
                os.kill(os.getpid(), signal.SIGINT)
            yield windows

    def looks(forward: Any, model: GPT, split: Any, *others: Any) -> dict[str, float] | None:
        if max(read("runs/parts", "train_loss")) == step:
            split = interrupted(split)
        return evaluate(forward, model, split, *others)

    with monkeypatch.context() as patch:
        patch.setattr(train, "evaluate", looks)
        patch.setattr(Metrics, "write", write_at_once)
        assert train.main([*QUICK, *DROPOUT, "--run=parts"]) == 130
    assert list(read("runs/parts", "val_loss")) == list(range(8, step, 8))
    assert load_checkpoint(Path("runs/parts/last.safetensors"))[0].step == step
    assert train.main(["--resume", "runs/parts"]) == 0
    assert read("runs/parts", "val_loss") == read("runs/whole", "val_loss")
    assert read("runs/parts", "train_loss") == read("runs/whole", "train_loss")
    same_bits("runs/parts", "runs/whole")


def test_more_threads_than_here_are_not_taken_in_silence(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*QUICK, "--run=a", *short_text()]) == 0
    path = Path("runs/a/last.safetensors")
    header, tensors = load_checkpoint(path)
    save_checkpoint(path, tensors, dataclasses.replace(header, threads=4096, processor="Z80"))
    assert train.main(["--resume=a", "--train.max_steps=25"]) == 0
    printed = capsys.readouterr().out
    assert "note: threads 4096 -> 1: sums are rounded otherwise from here on" in printed
    assert "note: processor Z80 -> " in printed


def test_two_runs_with_one_seed_are_the_same_and_looking_changes_nothing(workplace: Path) -> None:
    assert train.main([*QUICK, *DROPOUT, "--run=a"]) == 0
    often = ["--train.eval_every=3", "--train.save_every=5", "--train.sample_tokens=30"]
    assert train.main([*QUICK, *DROPOUT, "--run=b", *often]) == 0
    assert train.main([*QUICK, *DROPOUT, "--run=c", "--train.seed=1"]) == 0
    assert read("runs/a", "train_loss") == read("runs/b", "train_loss")
    same_bits("runs/a", "runs/b")
    assert read("runs/a", "train_loss")[1] != read("runs/c", "train_loss")[1]


def test_a_longer_run_says_what_becomes_of_the_schedule(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*QUICK, "--run=a", *short_text()]) == 0
    assert train.main(["--resume=a"]) == 0
    assert "runs/a is complete at step 24; go on with a larger --train.max_steps" in (
        capsys.readouterr().out
    )
    assert train.main(["--resume=a", "--train.max_steps=30", "--train.threads=2"]) == 0
    text = capsys.readouterr().out
    assert "note: max_steps 24 -> 30: the learning rates follow the new schedule" in text
    assert "note: threads 1 -> 2: sums are rounded otherwise from here on" in text
    assert list(read("runs/a", "train_loss")) == list(range(1, 31))
    assert "max_steps: 30" in Path("runs/a/config.yaml").read_text()


def test_the_number_of_threads_belongs_to_the_run(workplace: Path) -> None:
    """Whoever chose it: the config, or PyTorch where it ran."""
    assert train.main([*QUICK, "--run=a", "--train.threads=2", *short_text()]) == 0
    torch.set_num_threads(2)
    assert train.main([*QUICK, "--run=b", "--train.max_steps=1", *short_text()]) == 0
    torch.set_num_threads(1)
    assert train.main(["--resume=b", "--train.max_steps=2"]) == 0
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert train.main(["--resume=a", "--train.max_steps=25"]) == 0
    assert torch.get_num_threads() == 2


def test_best_and_patience_outlive_a_stop(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, stop_at: Callable[[int], None]
) -> None:
    losses = {4: 2.0, 8: 3.0, 12: 2.5, 16: 2.4, 20: 1.0, 24: 1.0}

    def looks(*args: Any) -> dict[str, float]:
        step = max(read("runs/a", "train_loss") or {0: 0.0})
        return {"val_loss": losses[step], "bits_per_char": 1.0}

    monkeypatch.setattr(Metrics, "write", write_at_once)
    monkeypatch.setattr(train, "evaluate", looks)
    stop_at(10)
    flags = [*QUICK, "--run=a", "--train.eval_every=4", "--train.patience=3"]
    assert train.main(flags) == 130
    assert train.main(["--resume=a"]) == 0
    best, _ = load_checkpoint(Path("runs/a/best.safetensors"))
    last, _ = load_checkpoint(Path("runs/a/last.safetensors"))
    assert (best.step, best.best_val_loss) == (4, 2.0)
    assert (last.step, last.best_val_loss, last.evals_since_best) == (16, 2.0, 3)


def test_stopped_before_the_first_step(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train.main([*QUICK, *DROPOUT, "--run=whole"]) == 0
    with monkeypatch.context() as patch:

        def interrupted(*args: Any, **options: Any) -> Any:
            os.kill(os.getpid(), signal.SIGINT)
            return progress_bar(*args, **options)

        patch.setattr(train, "progress_bar", interrupted)
        assert train.main([*QUICK, *DROPOUT, "--run=parts"]) == 130
    assert train.main(["--resume=parts"]) == 0
    same_bits("runs/parts", "runs/whole")


def test_early_stopping(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = iter([3.0, 2.0, 2.5, 2.4, 1.0])
    monkeypatch.setattr(
        train, "evaluate", lambda *args: {"val_loss": next(losses), "bits_per_char": 1.0}
    )
    assert train.main([*QUICK, "--run=a", "--train.eval_every=4", "--train.patience=2"]) == 0
    assert "stopping early: 2 evaluations without a new best" in capsys.readouterr().out
    best, _ = load_checkpoint(Path("runs/a/best.safetensors"))
    last, _ = load_checkpoint(Path("runs/a/last.safetensors"))
    assert (best.step, best.best_val_loss) == (8, 2.0)
    assert (last.step, last.val_loss, last.best_val_loss) == (16, 2.4, 2.0)


def test_a_run_stops_at_its_target(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {4: 3.0, 8: 2.5, 12: 2.0, 16: 1.5, 20: 1.6, 24: 1.4}

    def looks(*args: Any) -> dict[str, float]:
        return {"val_loss": losses[max(read("runs/a", "train_loss"))], "bits_per_char": 1.0}

    monkeypatch.setattr(Metrics, "write", write_at_once)
    monkeypatch.setattr(train, "evaluate", looks)
    flags = ["--train.eval_every=4", "--train.save_every=100"]
    assert train.main([*QUICK, *flags, "--run=a", "--train.target_loss=2"]) == 0
    out = capsys.readouterr().out
    assert "stopping: the validation loss is at or below 2.0" in out
    assert "done: runs/a, 12 steps" in out
    for which in ("best", "last"):
        header, _ = load_checkpoint(Path(f"runs/a/{which}.safetensors"))
        assert (header.step, header.val_loss, header.best_val_loss) == (12, 2.0, 2.0)

    # Another target belongs to no run for ever; none is none.
    assert train.main(["--resume=a", "--train.target_loss=1.5"]) == 0
    assert load_checkpoint(Path("runs/a/last.safetensors"))[0].step == 16
    assert train.main(["--resume=a", "--train.target_loss=0"]) == 0
    assert load_checkpoint(Path("runs/a/last.safetensors"))[0].step == 24


def test_a_target_that_was_reached_survives_a_stop(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped, or killed, between the evaluation that ends the run and its end."""
    flags = [*QUICK, *short_text(), "--train.target_loss=99", "--run=a"]
    assert train.main(flags) == 0
    before = load_checkpoint(Path("runs/a/last.safetensors"))[0]
    assert before.step == 8
    capsys.readouterr()
    assert train.main(["--resume=a"]) == 0
    assert "stopping: the validation loss is at or below 99" in capsys.readouterr().out
    assert load_checkpoint(Path("runs/a/last.safetensors"))[0].step == 8


def test_a_signal_while_processes_agree_is_not_lost(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, calls = Processes.most, itertools.count()

    def interrupted(self: Processes, number: int) -> int:
        if next(calls) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return most(self, number)

    monkeypatch.setattr(Processes, "most", interrupted)
    assert train.main([*QUICK, "--run=a"]) == 143
    assert load_checkpoint(Path("runs/a/last.safetensors"))[0].step < 8


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_real_signal_saves_says_how_to_go_on_and_leaves_nothing_running(
    workplace: Path, number: signal.Signals, code: int
) -> None:
    command = [sys.executable, str(ROOT / "train.py"), *QUICK, "--run=a"]
    command += ["--train.max_steps=100000", "--train.eval_every=100000"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    metrics = Path("runs/a/metrics.jsonl")
    while process.poll() is None and not Path("runs/a/last.safetensors").exists():
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == code, err
    assert "Traceback" not in err
    header, _ = load_checkpoint(Path("runs/a/last.safetensors"))
    assert f"stopped at step {header.step}; go on with: python train.py --resume runs/a" in out
    assert len(metrics.read_text().splitlines()) == header.step
    with pytest.raises(ProcessLookupError):  # nobody is left in its group
        os.killpg(process.pid, 0)


def test_a_second_real_ctrl_c_stops_at_once(workplace: Path) -> None:
    """As it does in a terminal, where Ctrl-C before the first step ends in silence."""
    program = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "import train\n"
        "def step(*args, inner=train.train_step):\n"
        "    if args[3] < 1:  # the learning rate falls\n"
        "        os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGINT)\n"
        "    return inner(*args)\n"
        "train.train_step = step\n"
        "sys.exit(train.main(sys.argv[1:]))"
    )
    flags = [*QUICK, "--run=a", "--train.warmup_steps=0", "--train.decay_fraction=0.5"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 130
    assert "stopped at once; from the last checkpoint: python train.py --resume" in ended.stderr
    assert load_checkpoint(Path("runs/a/last.safetensors"))[0].step == 8


def test_a_closed_pipe_saves_what_was_learned(workplace: Path) -> None:
    flags = shlex.join([*QUICK, "--run=a", "--train.save_every=1000", "--train.max_steps=2000"])
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'train.py'))} {flags}"
    result = subprocess.run(f"{command} | head -n 6", shell=True, capture_output=True, text=True)
    assert len(result.stdout.splitlines()) == 6
    assert "Traceback" not in result.stderr
    header, _ = load_checkpoint(Path("runs/a/last.safetensors"))
    assert header.step == max(read("runs/a", "train_loss"))
    assert 0 < header.step < 2000, "nobody reads it any more, and it goes on"


def test_a_closed_terminal_saves_what_was_learned(workplace: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *QUICK, "--run=a", "--train.max_steps=100000"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    shown = b""
    while b"step      8" not in shown:
        shown += os.read(leader, 1000)
    os.close(leader)  # from here on every write to the terminal fails
    process.send_signal(signal.SIGHUP)
    assert process.wait() != 0
    header, _ = load_checkpoint(Path("runs/a/last.safetensors"))
    assert header.step == max(read("runs/a", "train_loss")) >= 8


def test_a_second_ctrl_c_stops_at_once(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = iter(range(100))

    def twice(*args: Any) -> tuple[float, float]:
        if next(calls) == 10:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return train_step(*args)

    train_step = train.train_step
    with monkeypatch.context() as patch:
        patch.setattr(train, "train_step", twice)
        assert train.main([*QUICK, "--run=a"]) == 130
    assert "stopped at once; from the last checkpoint: python train.py --resume runs/a" in (
        capsys.readouterr().err
    )
    assert load_checkpoint(Path("runs/a/last.safetensors"))[0].step == 8
    assert train.main(["--resume=a"]) == 0
    assert list(read("runs/a", "train_loss")) == list(range(1, 25))


def test_ctrl_c_while_pytorch_loads_is_quiet(workplace: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), DEBUG], stderr=subprocess.PIPE, text=True
    )
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode in (-signal.SIGINT, 130)
    assert "Traceback" not in err


def test_an_edited_config_is_not_taken_in_silence(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*QUICK, "--run=a"]) == 0
    path = Path("runs/a/config.yaml")
    path.write_text(path.read_text().replace("max_steps: 24", "max_steps: 99"))
    assert train.main(["--resume=a", "--train.max_steps=25"]) == 0
    assert "note: runs/a/config.yaml was edited; a run goes on as it was" in capsys.readouterr().out


# --- other text, other weights, refusals ---------------------------------------------------------


def test_init_from_goes_on_with_other_text(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*QUICK, "--run=a"]) == 0
    (workplace / "letters.txt").write_text("the letters of a friend\n" * 100)
    flags = ["--init_from=runs/a", "--data.source=letters.txt", "--run=b"]
    flags += ["--train.learning_rate=1e-9", "--train.muon_learning_rate=1e-9"]
    assert train.main([*flags, "--train.max_steps=1"]) == 0
    a, b = open_run(Path("runs/a")), open_run(Path("runs/b"))
    assert a.tokenizer == b.tokenizer
    for name, tensor in a.tensors.items():
        torch.testing.assert_close(tensor, b.tensors[name], rtol=0, atol=1e-6)
    assert b.header.step == 1
    assert b.config.data.source == "letters.txt"

    # The new run knows more characters than its text has, and can be gone on with all the same.
    assert train.main(["--resume=b", "--train.max_steps=3"]) == 0
    assert open_run(Path("runs/b"), "last").tokenizer == a.tokenizer

    (workplace / "strange.txt").write_text("日本" * 500)
    assert train.main(["--init_from=a", "--data.source=strange.txt"]) == 2
    assert "never seen '日' '本'" in capsys.readouterr().err
    assert train.main(["--init_from=a", "--model.n_layer=3"]) == 2
    assert "--init_from cannot change model.n_layer from 2 to 3" in capsys.readouterr().err


REFUSED = [
    (["--resume=a", "--model.n_layer=3"], "--resume cannot change model.n_layer from 2 to 3"),
    (["--resume=a", "--train.learning_rate=1"], "--resume cannot change train.learning_rate from"),
    (["--resume=a", "--train.optimizer=adamw"], "change train.optimizer from muon to adamw"),
    (["--resume=a", "--model.ngrams=3"], "--resume cannot change model.ngrams from 1 to 3"),
    (["--resume=a", "--train.seed=2"], "--resume cannot change train.seed from 1337 to 2"),
    (["--resume=a", "--data.tokenizer=byte"], "--resume cannot change data.tokenizer"),
    (
        ["--resume=a", "--data.source=other.txt"],
        "the text is not the one that runs/a was trained on",
    ),
    (["--resume=a", "--run=b"], "--resume takes a run as it is: no --run, --init_from or"),
    (["--resume=a", "--init_from=a"], "--resume takes a run as it is: no --run, --init_from or"),
    (["--resume=a", "--evaluate=a"], "--resume takes a run as it is: no --run, --init_from or"),
    (["--evaluate=a", "--run=b"], "--evaluate takes a run as it is: no --run, --init_from or"),
    (["--resume="], "is not a run: it has no last.safetensors"),
    (["--evaluate="], "is not a run: it has no last.safetensors"),
    (["--evaluate=a", "--data.val_fraction=0.5"], "--evaluate cannot change data.val_fraction"),
    (["--evaluate=a", "--data.test_fraction=0.5"], "--evaluate cannot change data.test_fraction"),
    ([DEBUG, "--data.test_fraction=1e-9"], "the test split has 0 tokens, and a window needs"),
    (
        [DEBUG, "--data.source=repeat", "--data.repeat_max_period=9", "--data.test_fraction=0.1"],
        "--data.source repeat has no end, so it takes no --data.test_fraction",
    ),
    (["--resume=absent"], "there is no run absent; runs/ has 1, among them a"),
    (["--resume=folder"], "folder is not a run: it has no last.safetensors"),
    (["--init_from=other.txt"], "other.txt is a file; name the run's folder"),
    ([DEBUG, "--run=a"], "runs/a exists; go on with --resume runs/a"),
    ([DEBUG, "--run=a/b"], "must be a name for a folder in runs/, not a path"),
    ([DEBUG, "--run=.."], "must be a name for a folder in runs/, not a path"),
    ([DEBUG, "--run="], "must be a name for a folder in runs/, not a path"),
]


def test_what_is_refused_leaves_the_run_as_it_was(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*QUICK, "--run=a"]) == 0
    (workplace / "folder").mkdir()
    (workplace / "other.txt").write_text("another text\n" * 100)
    before = {path: path.read_bytes() for path in Path("runs/a").rglob("*.*")}
    for argv, message in REFUSED:
        capsys.readouterr()
        assert train.main(argv) == 2, argv
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
    assert {path: path.read_bytes() for path in Path("runs/a").rglob("*.*")} == before
    assert [path.name for path in Path("runs").iterdir()] == ["a"]


def test_compile_is_asked_for_and_its_failure_is_one_line(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_compiler(model: GPT) -> Callable[..., Any]:
        def fail(*args: Any) -> Any:
            raise RuntimeError("no C++ compiler\nand much more")

        return fail

    monkeypatch.setattr(torch, "compile", no_compiler)
    assert train.main([*QUICK, "--run=a", "--train.compile=true"]) == 2
    assert "torch.compile failed (RuntimeError: no C++ compiler); --train.compile false" in (
        capsys.readouterr().err
    )


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # PyTorch 2.13, of its own doing
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_compiled_is_the_same_model(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    config, batches, model, runtime = setup(f"--train.precision={precision}", "--model.ngrams=2")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    windows, results = batches.train(0, 4), []
    for compiled in (False, True):
        forward = runtime.forward_of(model, compiled)
        optimizer = Descent(model, config.train)
        results.append(train.train_step(forward, model, optimizer, 0.0, windows, config.train))
    assert results[0] == pytest.approx(results[1], rel=1e-5)


def test_a_config_that_nobody_edited_is_not_called_edited(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*QUICK, "--run=a"]) == 0
    assert train.main(["--resume=a", "--train.max_steps=25"]) == 0
    printed = capsys.readouterr().out
    assert "note: max_steps 24 -> 25" in printed and "was edited" not in printed
