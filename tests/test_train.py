"""The whole of a run: what it computes, what it leaves, how it is resumed, what it refuses."""

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

import train
from configs.load import from_plain, read_config
from data.batches import open_batches
from model.generate import generate
from model.gpt import GPT, next_token_loss
from run.checkpoint import load_checkpoint, save_checkpoint
from run.log import Logger
from run.metrics import Metrics
from run.saved import open_run
from run.snapshots import find_snapshots, snapshot_steps
from training.config import TrainConfig
from training.optim import Optimizer, get_lr_scale
from training.processes import Processes
from training.step import Evaluation, evaluate, train_step

ROOT = Path(__file__).parent.parent
DEBUG = str(ROOT / "configs" / "debug.yaml")
QUICK = [DEBUG, "--train.max_steps=24", "--train.eval_every=8", "--train.save_every=8"]
QUICK += ["--train.log_every=1", "--train.sample_tokens=10", "--train.tensorboard=false"]
DROPOUT = ["--model.dropout=0.2", "--model.attn_dropout=0.1"]
LIMIT = 120  # seconds after which a test that waits for a process gives up


@pytest.fixture(autouse=True)
def short_text(workplace: Path) -> None:
    """A text that is soon evaluated, for whoever adds SHORT to the flags."""
    (workplace / "short.txt").write_text("a short text to train on, again and again\n" * 60)


SHORT = [*QUICK, "--data.source=short.txt"]


def read(run: Path | str, key: str) -> dict[int, float]:
    """A number of metrics.jsonl by its step; no step may stand twice."""
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    pairs = [(line["step"], line[key]) for line in lines if key in line]
    assert len(dict(pairs)) == len(pairs), "a step stands twice"
    return dict(pairs)


def state_of(run: str, which: str = "last") -> Any:
    return load_checkpoint(Path("runs") / run / f"{which}.safetensors")[0].state


def same_bits(run_a: str, run_b: str) -> None:
    """Everything that training resumes from, and all that was measured, is the same in two runs, to
    the last bit."""
    (header_a, a), (header_b, b) = (
        load_checkpoint(Path("runs") / run / "last.safetensors") for run in (run_a, run_b)
    )
    assert a.keys() == b.keys()
    assert not [name for name in a if not torch.equal(a[name], b[name])]
    header_b.state.seconds = header_a.state.seconds
    assert header_a.state == header_b.state
    for key in ("train_loss", "val_loss", "grad_norm", "learning_rate", "bits_per_char"):
        assert read(f"runs/{run_a}", key) == read(f"runs/{run_b}", key)


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, do: Callable[[], None]) -> None:
    """Do something in the middle of an update, counted from 1 in this session."""
    calls = itertools.count(1)

    def patched(*args: Any) -> tuple[float, float]:
        if next(calls) == step:
            do()
        return train_step(*args)

    monkeypatch.setattr(train, "train_step", patched)


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have metrics on the disk as soon as they are written."""
    write = Metrics.write

    def patched(metrics: Metrics, *args: Any) -> None:
        write(metrics, *args)
        metrics.flush()

    monkeypatch.setattr(Metrics, "write", patched)


def evaluations(monkeypatch: pytest.MonkeyPatch, run: str, losses: dict[int, float]) -> None:
    """Have evaluations find these losses, by their steps."""

    def patched(*args: Any) -> Evaluation:
        return Evaluation(losses[max(read(f"runs/{run}", "train_loss"))], 1.0)

    flushed(monkeypatch)
    monkeypatch.setattr(train, "evaluate", patched)


# --- what a run computes, and what it leaves -----------------------------------------------------


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_run_is_its_seed_its_batches_and_its_schedule(workplace: Path, optimizer: str) -> None:
    """The loop once more, without all that surrounds it: every number is the same to the bit."""
    flags = [
        *SHORT,
        f"--train.optimizer={optimizer}",
        "--train.seed=5",
        "--train.precision=float32",
    ]
    flags += [
        "--train.eval_every=7",
        "--train.warmup_steps=3",
        "--train.gradient_accumulation_steps=2",
    ]
    flags += [
        "--train.sample_tokens=20",
        "--train.save_every=5",
        "--train.tensorboard=true",
        *DROPOUT,
    ]
    assert train.main([*flags, "--run=a"]) == 0
    config = open_run(Path("runs/a")).config
    batches = open_batches(config.data, config.model.block_size, 5)
    torch.manual_seed(5)
    model = GPT(config.model, batches.tokenizer.vocab_size)
    optimizer_ = Optimizer(model, config.train)
    expected: dict[str, dict[int, float]] = {"train_loss": {}, "grad_norm": {}, "learning_rate": {}}
    val_loss: dict[int, float] = {}
    samples: dict[int, str] = {}
    for step in range(1, 25):
        lr_scale = get_lr_scale(step - 1, config.train)
        batch = batches.train(step - 1, 16)
        loss, norm = train_step(model, optimizer_, batch, lr_scale)
        expected["train_loss"][step], expected["grad_norm"][step] = loss, norm
        expected["learning_rate"][step] = lr_scale * (1e-2 if optimizer == "muon" else 1e-3)
        if step % 7 == 0 or step == 24:
            model.eval()
            with torch.no_grad():
                found = [
                    (next_token_loss(model(b[:, :-1]), b[:, 1:], "sum").item(), b[:, 1:].numel())
                    for b in batches.validation(8)
                ]
            model.train()
            val_loss[step] = sum(f[0] for f in found) / sum(f[1] for f in found)
            prompt = torch.tensor([[batches.info["start_token"]]])
            generator = torch.Generator().manual_seed(5)
            drawn = generate(model, prompt, 20, temperature=0.8, generator=generator)
            samples[step] = batches.tokenizer.decode([int(token) for token in drawn])
    for key, numbers in expected.items():
        assert read("runs/a", key) == numbers
    assert read("runs/a", "val_loss") == val_loss
    _, last = load_checkpoint(Path("runs/a/last.safetensors"))
    for name, weight in model.named_parameters():
        assert torch.equal(last[f"model.{name}"], weight)
    assert torch.equal(last["generator.cpu"], torch.get_rng_state())
    best = min(val_loss, key=lambda step: val_loss[step])
    assert (state_of("a", "best").step, state_of("a").best_val_loss) == (best, val_loss[best])
    texts = EventAccumulator("runs/a").Reload().Tensors("sample/text_summary")
    shown = {t.step: t.tensor_proto.string_val[0].decode() for t in texts}
    lines = {s: "".join(f"    {x}\n" for x in text.splitlines()) for s, text in samples.items()}
    assert shown == lines


def test_a_run_leaves_all_it_promises(debug_run: Path) -> None:
    names = {path.name for path in debug_run.iterdir() if "events" not in path.name}
    checkpoints = {"best.safetensors", "last.safetensors", "snapshots"}
    assert names == {"config.yaml", "run.json", "metrics.jsonl", ".lock"} | checkpoints
    losses, validation = read(debug_run, "train_loss"), read(debug_run, "val_loss")
    assert list(losses) == [10, 20, 30, 40, 50, 60]
    assert list(validation) == [30, 60]
    assert losses[60] < losses[10] < math.log(200)
    for step, bits in read(debug_run, "bits_per_char").items():
        assert bits == pytest.approx(validation[step] / math.log(2))
    events = EventAccumulator(str(debug_run)).Reload()
    for name in ("train_loss", "val_loss", "bits_per_char", "learning_rate", "grad_norm"):
        seen = {event.step: event.value for event in events.Scalars(name)}
        assert seen == pytest.approx(read(debug_run, name), rel=1e-6)

    saved = read_config({}, str(debug_run / "config.yaml"))
    assert saved == read_config({}, DEBUG)
    kinds = {"best": {"model"}, "last": {"model", "optimizer", "generator"}}
    for which, kind in kinds.items():
        header, tensors = load_checkpoint(debug_run / f"{which}.safetensors")
        assert {name.split(".")[0] for name in tensors} == kind
        assert from_plain(header.config, "here") == saved
        assert header.corpus["source"].startswith("the manual of Python 3.")
        assert header.state.best_val_loss == min(validation.values())
    facts = json.loads((debug_run / "run.json").read_text())
    assert facts["corpus"] == header.corpus and facts["torch"] == torch.__version__


def test_snapshots_are_the_weights_at_their_steps(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that a run takes after it was stopped and resumed."""
    flags = [*SHORT, "--train.snapshots=5"]
    assert train.main([*flags, "--run=whole"]) == 0
    with monkeypatch.context() as patch:
        at_step(patch, 6, ctrl_c)
        assert train.main([*flags, "--run=parts"]) == 130
    assert list(find_snapshots(Path("runs/parts"))) == [0, 1, 3]
    assert train.main(["--resume=runs/parts"]) == 0
    whole, parts = (find_snapshots(Path("runs") / run) for run in ("whole", "parts"))
    assert list(whole) == list(parts) == snapshot_steps(TrainConfig(max_steps=24, snapshots=5), 1)
    for step, path in whole.items():
        a, b = load_file(path), load_file(parts[step])
        assert all(torch.equal(a[name], b[name]) for name in a.keys() | b.keys()), step
    _, tensors = load_checkpoint(Path("runs/whole/last.safetensors"))
    for name, tensor in load_file(whole[24]).items():
        assert torch.equal(tensor, tensors[name].half()), name


def test_it_prints_what_matters(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main([*SHORT, "--run", "a", "--train.threads=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("device cpu, 1 thread, computing in ")
    assert lines[1] == "text: short.txt, 2,520 tokens (15 different), 252 held out for validation"
    assert lines[2].startswith("model: 2 layers x 32 wide, 2 heads, context 32, 2")
    number = r"\d\.\d{4}"
    assert re.fullmatch(
        f"to beat: uniform {math.log(15):.4f}, unigram {number}, bigram {number} nats/char",
        lines[3],
    )
    found = read("runs/a", "val_loss")
    train_loss, bits = read("runs/a", "train_loss"), read("runs/a", "bits_per_char")
    printed = [line for line in lines if line.startswith("step ")]
    for line, step in zip(printed, (8, 16, 24), strict=True):
        numbers = f"{found[step]:.4f} nats/char  {bits[step]:.3f} bits/char"
        start = f"step {step:2}  validation {numbers}  training {train_loss[step]:.4f}  beats "
        assert line.startswith(start)
    assert any(line.startswith("    | ") for line in lines)
    seconds = state_of("a").seconds
    best = min(found.values())
    done = f"done: runs/a, 24 steps in {seconds:.0f} s, best validation loss {best:.4f}"
    next_ = ["next:", "  python sample.py runs/a", "  tensorboard --logdir runs"]
    assert lines[-4:] == [done, *next_]


def test_a_run_is_measured_on_what_is_held_out(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "README.md").read_text()[:9000]
    (workplace / "t.txt").write_text(text[:-1500] + "é" * 1500)
    flags = ["--data.source=t.txt", "--data.tokenizer=byte", "--data.test_fraction=0.2"]
    flags += ["--train.max_steps=9", "--train.eval_every=4", "--train.save_every=4"]
    assert train.main([DEBUG, *flags, "--run=a"]) == 0
    before = {path: path.read_bytes() for path in Path("runs/a").rglob("*") if path.is_file()}
    saved = open_run(Path("runs/a"))
    batches = open_batches(saved.config.data, 32, 0, saved.tokenizer)
    model, expected = saved.model(torch.device("cpu")), {}
    with torch.no_grad():
        for name, split in (("validation", batches.validation(4)), ("test", batches.test(4))):
            sequences = list(split)
            nats = sum(next_token_loss(model(s[:, :-1]), s[:, 1:], "sum").item() for s in sequences)
            tokens = torch.cat([s[:, 1:].flatten() for s in sequences])
            characters = ((tokens & 0xC0) != 0x80).sum().item()
            nats, bits = nats / len(tokens), nats / math.log(2) / characters
            expected[name] = (nats, nats / math.log(2), bits)
    assert expected["test"][2] > 1.2 * expected["test"][1], "some characters are two bytes"
    capsys.readouterr()
    assert train.main(["--evaluate=a", "--train.precision=float32"]) == 0
    *_, measuring, validation, test = capsys.readouterr().out.splitlines()
    assert measuring == f"measuring runs/a/best.safetensors, step {saved.header.state.step}"
    for line, (name, numbers) in zip((validation, test), expected.items(), strict=True):
        pattern = name + r" +([\d.]+) nats/byte  ([\d.]+) bits/byte  ([\d.]+) bits/char"
        match = re.fullmatch(pattern, line)
        assert match is not None
        assert [float(group) for group in match.groups()] == pytest.approx(numbers, abs=6e-4)
    after = {path: path.read_bytes() for path in Path("runs/a").rglob("*") if path.is_file()}
    assert before == after, "measuring writes nothing"
    (workplace / "t.txt").write_text(text)
    assert train.main(["--evaluate=a"]) == 0
    assert "note: this is not the text that it was trained on" in capsys.readouterr().out


# --- what goes wrong -----------------------------------------------------------------------------


def test_a_run_that_diverges_says_where_and_keeps_its_checkpoint(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def diverge() -> None:
        raise FloatingPointError("the loss is nan")

    with monkeypatch.context() as patch:
        at_step(patch, 11, diverge)
        assert train.main([*SHORT, "--run=a"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "error: at step 11, learning rate 0.01 (Muon's 0.012): the loss is nan; runs/a stays as it "
        "was saved at step 8. Start again with a lower --train.learning_rate and "
        "--train.muon_learning_rate, from the beginning or with --init_from runs/a\n"
    )
    assert train.main([*SHORT, "--run=b"]) == 0
    assert train.main(["--resume=a"]) == 0
    same_bits("a", "b")


@pytest.mark.parametrize("tensorboard", ["false", "true"])
def test_a_full_disk_ends_in_one_line_and_the_run_resumes_when_there_is_room(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tensorboard: str,
) -> None:
    """Files may not grow past a size from the eleventh step on, as where a quota is used up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    flags = [*SHORT, *DROPOUT, f"--train.tensorboard={tensorboard}"]
    assert train.main([*flags, "--run=whole"]) == 0
    with monkeypatch.context() as patch:
        at_step(patch, 11, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1])))
        try:
            assert train.main([*flags, "--run=parts"]) == 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().err == "error: could not write to runs/parts: File too large\n"
    assert state_of("parts").step == 8
    assert train.main(["--resume=parts"]) == 0
    same_bits("parts", "whole")


@pytest.mark.parametrize("eval_every", [3, 1000])
def test_weights_that_a_step_ruined_are_never_saved(
    workplace: Path, capsys: pytest.CaptureFixture[str], eval_every: int
) -> None:
    """Its loss and gradient were finite; what became of the weights shows only afterwards, when
    they are evaluated, or saved."""
    flags = [*SHORT, f"--train.eval_every={eval_every}", "--train.save_every=3"]
    flags += ["--train.learning_rate=1e30", "--train.optimizer=adamw", "--train.warmup_steps=5000"]
    assert train.main([*flags, "--run=a"]) == 2
    assert re.search(r"error: at step \d+, learning rate .*e\+\d+: ", capsys.readouterr().err)
    for path in Path("runs/a").glob("*.safetensors"):
        header, tensors = load_checkpoint(path)
        assert all(tensor.isfinite().all() for tensor in tensors.values())
        assert header.state.val_loss is None or math.isfinite(header.state.val_loss)
    for line in Path("runs/a/metrics.jsonl").read_text().splitlines():
        assert "NaN" not in line and "Infinity" not in line


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # PyTorch 2.13, of its own doing
def test_compile_is_asked_for_and_its_failure_is_one_line(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_compiler(*args: Any) -> None:
        raise RuntimeError("no C++ compiler\nand much more")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=no_compiler))
    assert train.main([*SHORT, "--run=a", "--train.compile=true"]) == 2
    assert "torch.compile failed (BackendCompilerFailed: " in (capsys.readouterr().err)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # PyTorch 2.13, of its own doing
def test_compiled_is_the_same_run(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    flags = [*SHORT, "--train.precision=float32", "--model.ngrams=2", "--train.max_steps=3"]
    for compiled in ("false", "true"):
        assert train.main([*flags, f"--train.compile={compiled}", f"--run={compiled}"]) == 0
    for key in ("train_loss", "val_loss"):
        assert read("runs/false", key) == pytest.approx(read("runs/true", key), rel=1e-4)


# --- stopping and resuming -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "threads", "optimizer", "precision", "ngrams"),
    [
        (1, 1, "muon", "float32", 1),
        (13, 1, "muon", "float32", 2),
        (9, 2, "muon", "bfloat16", 2),
        (8, 1, "adamw", "bfloat16", 1),
    ],
)
def test_stopped_and_resumed_is_as_never_stopped(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stop: int,
    threads: int,
    optimizer: str,
    precision: str,
    ngrams: int,
) -> None:
    flags = [*SHORT, *DROPOUT, "--train.gradient_accumulation_steps=2"]
    flags += [f"--train.optimizer={optimizer}", f"--train.precision={precision}"]
    flags += [f"--model.ngrams={ngrams}", f"--train.threads={threads}"]
    if threads > 1 or precision == "bfloat16":  # slow beside other work, and where it is imitated
        flags += ["--train.max_steps=10", "--model.n_layer=1"]
    assert train.main([*flags, "--run=whole"]) == 0
    with monkeypatch.context() as patch:
        at_step(patch, stop, ctrl_c)
        assert train.main([*flags, "--run=parts"]) == 130
    assert f"stopped at step {stop}; resume with: python train.py --resume runs/parts" in (
        capsys.readouterr().out
    )
    assert list(read("runs/parts", "train_loss")) == list(range(1, stop + 1))
    assert train.main(["--resume", "runs/parts"]) == 0
    same_bits("parts", "whole")
    kept = {name.split(".")[-1] for name in open_run(Path("runs/parts"), "last").tensors}
    assert ("momentum" in kept) == (optimizer == "muon")


def test_resuming_removes_what_came_after_the_last_checkpoint(workplace: Path) -> None:
    """As after a crash: metrics are ahead of the checkpoint that survived."""
    assert train.main([*SHORT, *DROPOUT, "--run=whole"]) == 0
    assert train.main([*SHORT, *DROPOUT, "--run=parts", "--train.max_steps=16"]) == 0
    ahead = Path("runs/whole/metrics.jsonl").read_text()
    Path("runs/parts/metrics.jsonl").write_text(ahead + '{"step": 25, "tr')
    assert train.main(["--resume=parts", "--train.max_steps=24"]) == 0
    assert list(read("runs/parts", "train_loss")) == list(range(1, 25))


@pytest.mark.parametrize("step", [8, 16])
def test_stopped_in_the_middle_of_an_evaluation(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """It is given up, and made when the run is resumed; also the last one."""
    flags = [*SHORT, *DROPOUT, "--train.gradient_accumulation_steps=8", "--train.max_steps=16"]
    assert train.main([*flags, "--run=whole"]) == 0

    def interrupted(split: Iterator[Tensor]) -> Iterator[Tensor]:
        for number, batch in enumerate(split):
            assert number < 3, "the evaluation continues after the stop"
            if number == 2:
                ctrl_c()
            yield batch

    def patched(forward: Any, split: Any, *others: Any) -> Evaluation | None:
        if max(read("runs/parts", "train_loss")) == step:
            split = interrupted(split)
        return evaluate(forward, split, *others)

    with monkeypatch.context() as patch:
        patch.setattr(train, "evaluate", patched)
        flushed(patch)
        assert train.main([*flags, "--run=parts"]) == 130
    assert list(read("runs/parts", "val_loss")) == list(range(8, step, 8))
    assert state_of("parts").step == step
    assert train.main(["--resume", "runs/parts"]) == 0
    same_bits("parts", "whole")


def test_stopped_before_the_first_step(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train.main([*SHORT, *DROPOUT, "--run=whole"]) == 0
    with monkeypatch.context() as patch:
        enter = Logger.__enter__

        def interrupted(logger: Logger) -> Logger:
            ctrl_c()
            return enter(logger)

        patch.setattr(Logger, "__enter__", interrupted)
        assert train.main([*SHORT, *DROPOUT, "--run=parts"]) == 130
    assert train.main(["--resume=parts"]) == 0
    same_bits("parts", "whole")


def test_one_seed_is_one_run_and_looking_changes_nothing(workplace: Path) -> None:
    assert train.main([*SHORT, *DROPOUT, "--run=a"]) == 0
    often = ["--train.eval_every=3", "--train.save_every=5", "--train.sample_tokens=30"]
    assert train.main([*SHORT, *DROPOUT, "--run=b", *often]) == 0
    assert train.main([*SHORT, *DROPOUT, "--run=c", "--train.seed=1"]) == 0
    a, b = (load_checkpoint(Path(f"runs/{run}/last.safetensors"))[1] for run in "ab")
    assert not [name for name in a if not torch.equal(a[name], b[name])]
    assert read("runs/a", "train_loss") == read("runs/b", "train_loss")
    assert read("runs/a", "train_loss")[1] != read("runs/c", "train_loss")[1]


def test_a_checkpoint_is_saved_as_often_as_the_config_says(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, int] = {}
    calls = itertools.count()

    def look(*args: Any) -> tuple[float, float]:
        seen[next(calls)] = state_of("a").step
        return train_step(*args)

    monkeypatch.setattr(train, "train_step", look)
    flags = ["--train.save_every=5", "--train.eval_every=7", "--train.max_steps=17"]
    assert train.main([*SHORT, "--run=a", *flags]) == 0
    assert seen == {step: step - step % 5 for step in range(17)}
    assert state_of("a").step == 17


def test_what_resuming_changes_is_said(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main([*SHORT, "--run=a"]) == 0
    assert train.main(["--resume=a"]) == 0
    assert "runs/a is complete at step 24; train on with a larger --train.max_steps" in (
        capsys.readouterr().out
    )
    path = Path("runs/a/last.safetensors")
    header, tensors = load_checkpoint(path)
    other = dataclasses.replace(header.machine, threads=4096, processor="Z80")
    save_checkpoint(path, tensors, dataclasses.replace(header, machine=other))
    assert train.main(["--resume=a", "--train.max_steps=30"]) == 0
    text = capsys.readouterr().out
    assert "note: max_steps 24 -> 30: the learning rates follow the new schedule" in text
    assert "note: threads 4096 -> 1: sums round differently from here on" in text
    assert "note: processor Z80 -> " in text and "was edited" not in text
    assert list(read("runs/a", "train_loss")) == list(range(1, 31))
    file = Path("runs/a/config.yaml")
    assert "max_steps: 30" in file.read_text()
    file.write_text(file.read_text().replace("max_steps: 30", "max_steps: 99"))
    assert train.main(["--resume=a", "--train.max_steps=31"]) == 0
    assert "note: runs/a/config.yaml was edited; a run resumes as it was" in capsys.readouterr().out


def test_the_number_of_threads_belongs_to_the_run(workplace: Path) -> None:
    """Whoever chose it: the config, or PyTorch where it ran."""
    assert train.main([*SHORT, "--run=a", "--train.threads=2", "--train.max_steps=1"]) == 0
    torch.set_num_threads(2)
    assert train.main([*SHORT, "--run=b", "--train.max_steps=1"]) == 0
    for run in "ab":
        torch.set_num_threads(1)
        assert train.main([f"--resume={run}", "--train.max_steps=2"]) == 0
        assert torch.get_num_threads() == 2


LOSSES = {4: 3.0, 8: 2.0, 12: 2.5, 16: 2.0, 20: 1.9, 24: 1.5}


def test_early_stopping_and_best_outlive_a_stop(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*SHORT, "--run=a", "--train.eval_every=4", "--train.patience=2"]
    evaluations(monkeypatch, "a", LOSSES)
    at_step(monkeypatch, 14, ctrl_c)
    assert train.main(flags) == 130
    assert state_of("a").evals_since_best == 1
    assert train.main(["--resume=a"]) == 0
    assert "done (2 evaluations without a new best): runs/a, 16 steps" in capsys.readouterr().out
    assert (state_of("a", "best").step, state_of("a", "best").best_val_loss) == (8, 2.0)
    last = state_of("a")
    assert (last.step, last.val_loss, last.best_val_loss, last.evals_since_best) == (
        16,
        2.0,
        2.0,
        2,
    )


def test_a_run_stops_at_its_target(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluations(monkeypatch, "a", LOSSES)
    flags = ["--train.eval_every=4", "--train.save_every=100", "--train.target_loss=2"]
    assert train.main([*SHORT, *flags, "--run=a"]) == 0
    line = "done (the validation loss is at or below 2.0): runs/a, 8 steps"
    assert line in capsys.readouterr().out
    for which in ("best", "last"):
        state = state_of("a", which)
        assert (state.step, state.val_loss, state.best_val_loss) == (8, 2.0, 2.0)
    assert train.main(["--resume=a"]) == 0  # as when it was killed before its end
    assert line in capsys.readouterr().out
    assert train.main(["--resume=a", "--train.target_loss=1.9"]) == 0
    assert state_of("a").step == 20
    assert train.main(["--resume=a", "--train.target_loss=0"]) == 0
    assert state_of("a").step == 24


def test_a_signal_while_processes_agree_is_not_lost(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_reduce_max, calls = Processes.all_reduce_max, itertools.count()

    def interrupted(self: Processes, number: int) -> int:
        if next(calls) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return all_reduce_max(self, number)

    monkeypatch.setattr(Processes, "all_reduce_max", interrupted)
    assert train.main([*SHORT, "--run=a"]) == 143
    assert state_of("a").step < 8


# --- real processes ------------------------------------------------------------------------------


def wait_until(ready: Callable[[], bool], process: "subprocess.Popen[Any]") -> None:
    """Until what the process makes is there; a test that waits too long fails."""
    end = time.monotonic() + LIMIT
    while not ready():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)


def test_a_real_signal_saves_says_how_to_resume_and_leaves_nothing_running(
    workplace: Path,
) -> None:
    command = [sys.executable, str(ROOT / "train.py"), *SHORT, "--run=a"]
    command += ["--train.max_steps=100000", "--train.eval_every=100000"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    metrics = Path("runs/a/metrics.jsonl")
    wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 143, err
    assert "Traceback" not in err
    step = state_of("a").step
    assert f"stopped at step {step}; resume with: python train.py --resume runs/a" in out
    assert list(read("runs/a", "train_loss")) == list(range(1, step + 1))
    with pytest.raises(ProcessLookupError):  # nobody is left in its group
        os.killpg(process.pid, 0)


def test_a_second_ctrl_c_stops_at_once(workplace: Path) -> None:
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
    flags = [*SHORT, "--run=a", "--train.warmup_steps=0", "--train.decay_fraction=0.5"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=LIMIT,
    )
    assert ended.returncode == 130
    assert "stopped at once; from the last checkpoint: python train.py --resume runs/a" in (
        ended.stderr
    )
    assert state_of("a").step == 8
    assert train.main(["--resume=a"]) == 0
    assert list(read("runs/a", "train_loss")) == list(range(1, 25))


def test_a_closed_pipe_saves_what_was_learned(workplace: Path) -> None:
    flags = shlex.join([*SHORT, "--run=a", "--train.save_every=1000", "--train.max_steps=2000"])
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'train.py'))} {flags}"
    result = subprocess.run(
        f"{command} | head -n 6", shell=True, capture_output=True, text=True, timeout=LIMIT
    )
    assert len(result.stdout.splitlines()) == 6
    assert "Traceback" not in result.stderr
    step = state_of("a").step
    assert step == max(read("runs/a", "train_loss"))
    assert 0 < step < 2000, "nobody reads it any more, and it continues"


def test_a_closed_terminal_saves_what_was_learned(workplace: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *SHORT, "--run=a", "--train.max_steps=100000"],
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
    assert process.wait(LIMIT) != 0
    assert state_of("a").step == max(read("runs/a", "train_loss")) >= 8


def test_ctrl_c_while_pytorch_loads_is_quiet(workplace: Path) -> None:
    """A module in place of NumPy, which is imported with PyTorch, says when."""
    (workplace / "numpy.py").write_text("print('loading', flush=True)\nimport time\ntime.sleep(99)")
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), DEBUG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(workplace)},
    )
    assert process.stdout is not None and process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode in (-signal.SIGINT, 130)
    assert err == ""


# --- other text, other weights, refusals ---------------------------------------------------------


def test_init_from_starts_a_new_run_on_other_text(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*SHORT, "--run=a"]) == 0
    (workplace / "letters.txt").write_text("a rain again, in no train\n" * 100)
    flags = ["--init_from=runs/a", "--data.source=letters.txt", "--run=b"]
    flags += ["--train.learning_rate=1e-9", "--train.muon_learning_rate=1e-9"]
    flags += ["--train.weight_decay=0", "--train.max_steps=1"]
    (workplace / "letters.txt").write_text("again, a train to trainon\n" * 100)
    assert train.main(flags) == 0
    a, b = open_run(Path("runs/a")), open_run(Path("runs/b"), "last")
    assert a.tokenizer == b.tokenizer
    for name, tensor in a.tensors.items():
        torch.testing.assert_close(tensor, b.tensors[name], rtol=0, atol=1e-6)
    assert b.header.state.step == 1
    assert b.config.data.source == "letters.txt"
    assert json.loads(Path("runs/b/run.json").read_text())["init_from"] == "runs/a"

    # The new run knows more characters than its text has, and can be resumed all the same.
    assert train.main(["--resume=b", "--train.max_steps=3"]) == 0
    assert open_run(Path("runs/b"), "last").tokenizer == a.tokenizer

    (workplace / "strange.txt").write_text("日本" * 500)
    assert train.main(["--init_from=a", "--data.source=strange.txt"]) == 2
    assert "never seen '日' '本'" in capsys.readouterr().err


REFUSED = [
    (["--resume=a", "--model.n_layer=3"], "--resume cannot change model.n_layer from 2 to 3"),
    (["--init_from=a", "--model.n_layer=3"], "--init_from cannot change model.n_layer from 2 to 3"),
    (["--evaluate=a", "--data.val_fraction=0.5"], "--evaluate cannot change data.val_fraction"),
    (
        ["--resume=a", "--data.source=other.txt"],
        "the text is not the one that runs/a was trained on",
    ),
    (["--resume=a", "--run=b"], "--resume takes a run as it is: no --run with it"),
    (["--resume=a", "--init_from=a"], "--resume takes a run as it is: no --init_from with it"),
    (["--resume=a", "--evaluate=a"], "--resume takes a run as it is: no --evaluate with it"),
    (["--evaluate=a", "--run=b"], "--evaluate takes a run as it is: no --run with it"),
    (["--resume="], "is not a run: it has no last.safetensors"),
    (["--evaluate="], "is not a run: it has no last.safetensors"),
    ([DEBUG, "--data.test_fraction=1e-9"], "the test split has 0 tokens, and a sequence needs"),
    (
        [DEBUG, "--data.source=repeat", "--data.repeat_max_period=9", "--data.test_fraction=0.1"],
        "--data.source repeat has no end, so it takes no --data.test_fraction",
    ),
    (["--resume=absent"], "there is no run absent; runs/ has 1, among them a"),
    (
        ["--init_from=resume"],
        "there is no run resume; nanoGPT's --init_from=resume is here: --resume RUN",
    ),
    (["--resume=folder"], "folder is not a run: it has no last.safetensors"),
    (["--init_from=other.txt"], "other.txt is a file; name the run's folder"),
    ([DEBUG, "--run=a"], "runs/a exists; resume it with --resume runs/a"),
    ([DEBUG, "--run=a/b"], "must be a name for a folder in runs/, not a path"),
    ([DEBUG, "--run=.."], "must be a name for a folder in runs/, not a path"),
    ([DEBUG, "--run="], "must be a name for a folder in runs/, not a path"),
]


def test_what_is_refused_leaves_the_run_as_it_was(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*SHORT, "--run=a"]) == 0
    (workplace / "folder").mkdir()
    size = (workplace / "short.txt").stat().st_size
    (workplace / "other.txt").write_text("another text\n" * 1000)
    os.truncate(workplace / "other.txt", size)
    before = {path: path.read_bytes() for path in Path("runs/a").rglob("*.*")}
    for argv, message in REFUSED:
        capsys.readouterr()
        assert train.main(argv) == 2, argv
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
    assert {path: path.read_bytes() for path in Path("runs/a").rglob("*.*")} == before
    assert [path.name for path in Path("runs").iterdir()] == ["a"]
