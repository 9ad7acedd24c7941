"""A run's folder: one process at a time, nothing overwritten, nothing that leads out of it."""

import dataclasses
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sample
import study
import train
from benchmarks import compare
from common.errors import UserError
from run.checkpoint import (
    FORMAT,
    load_checkpoint,
    read_tensors,
    save_checkpoint,
    write_tensors,
)
from run.folder import find_run, hold, make_folder, make_unused, open_run, refuse_existing
from run.log import read_metrics
from training.size import memory_here

ROOT = Path(__file__).parent.parent.parent
DEBUG = str(ROOT / "configs" / "debug.yaml")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four steps on a text that is soon read."""
    folder = tmp_path_factory.mktemp("finished")
    flags = [DEBUG, f"--data.source={ROOT / 'README.md'}", "--train.max_steps=4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train.main([*flags, "--train.eval_every=2", "--run=debug"]) == 0
    return folder / "runs" / "debug"


@pytest.fixture
def run(finished: Path, workplace: Path) -> Path:
    """A copy of it, runs/debug of an empty folder."""
    shutil.copytree(finished, "runs/debug")
    return Path("runs/debug")


def error_of(capsys: pytest.CaptureFixture[str], main: Callable[..., int], *argv: str) -> str:
    """The one line that a command ends with."""
    capsys.readouterr()
    assert main(list(argv)) == 2, argv
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1, error
    return error


# --- one process at a time -----------------------------------------------------------------------


def test_a_folder_is_held_once(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    for left in (tmp_path / ".writing-1-last.safetensors", tmp_path / "snapshots" / ".writing-2-x"):
        left.touch()
    with hold(tmp_path):
        assert not list(tmp_path.rglob(".writing-*")), "what a killed process left is still there"
        with pytest.raises(UserError, match="another process is training"), hold(tmp_path):
            pass
    with hold(tmp_path):
        pass


def test_two_processes_on_one_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second is refused, whether it resumes or starts anew, and the first loses nothing."""
    command = [sys.executable, str(ROOT / "train.py"), "--resume=debug", "--train.max_steps=100000"]
    first = subprocess.Popen([*command, "--train.save_every=5"], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    while "going on with" not in (line := first.stdout.readline()):
        assert line, "the first did not start"
    busy = "another process is training runs/debug; wait for it or stop it"
    assert busy in error_of(capsys, train.main, "--resume=debug", "--train.max_steps=7")
    assert "runs/debug exists" in error_of(capsys, train.main, DEBUG, "--run=debug")
    while not any(line["step"] > 4 for line in read_metrics(run)):
        assert first.poll() is None, "the first has ended"
        time.sleep(0.02)
    first.terminate()
    first.communicate()
    assert first.returncode == 143
    header, _ = load_checkpoint(run / "last.safetensors")
    steps = [line["step"] for line in read_metrics(run)]
    assert header.step > 4 and max(steps) <= header.step


def test_unnamed_runs_of_one_second_have_folders_of_their_own(workplace: Path) -> None:
    made = [make_unused(Path("runs/default-1")) for _ in range(3)]
    assert [path.name for path in made] == ["default-1", "default-1-2", "default-1-3"]


def test_a_run_that_never_saved_gives_its_name_back(workplace: Path) -> None:
    run = make_folder("a", None, None)
    for name in ("config.yaml", "run.json", ".lock", "events.out.tfevents.1", ".writing-1-x"):
        (run / name).touch()
    (run / "metrics.jsonl").touch()
    assert train.main([DEBUG, "--run=a", "--train.max_steps=1"]) == 0
    with pytest.raises(UserError, match="runs/a exists; go on with --resume runs/a"):
        refuse_existing(run)


@pytest.mark.parametrize("name", ["last.safetensors", "notes.txt", "snapshots"])
def test_what_is_somebodys_keeps_its_name(workplace: Path, name: str) -> None:
    (workplace / "runs" / "a").mkdir(parents=True)
    (workplace / "runs" / "a" / name).touch()
    with pytest.raises(UserError, match="runs/a exists"):
        make_folder("a", None, None)
    assert [path.name for path in (workplace / "runs" / "a").iterdir()] == [name]


def test_metrics_without_a_checkpoint_are_somebodys_too(workplace: Path) -> None:
    run = make_folder("a", None, None)
    (run / "metrics.jsonl").write_text('{"step": 1, "train_loss": 2.0}\n')
    with pytest.raises(UserError, match="runs/a exists"):
        refuse_existing(run)


# --- folders that cannot be written --------------------------------------------------------------


def without_privilege(*words: str) -> "subprocess.CompletedProcess[str]":
    """A command of ours, by somebody whom permissions bind: they do not bind root."""
    bind = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    command = [*bind, sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_read_only_folders_are_named(run: Path) -> None:
    script = str(ROOT / "train.py")
    before = {path: path.read_bytes() for path in run.rglob("*.*")}
    run.chmod(0o500)
    run.parent.chmod(0o500)
    try:
        ended = without_privilege(script, "--resume=debug", "--train.max_steps=7")
        assert ended.returncode == 2
        assert ended.stderr == "error: Permission denied: runs/debug/config.yaml\n"
    finally:
        run.parent.chmod(0o700)
        run.chmod(0o700)
    assert {path: path.read_bytes() for path in run.rglob("*.*")} == before


# --- a folder from a stranger ---------------------------------------------------------------------

COMMANDS: list[tuple[Callable[..., int], list[str]]] = [
    (train.main, ["--resume=runs/debug", "--train.max_steps=5"]),
    (train.main, ["--init_from=runs/debug", "--train.max_steps=1"]),
    (sample.main, ["runs/debug", "--max_new_tokens=2"]),
    (study.main, ["trace", "runs/debug", "--prompt=an"]),
    (compare.main, ["runs/debug", "runs/debug"]),
]


class Bomb:
    """Pickled, it writes a file when it is opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


FILES = ["config.yaml", "run.json", "metrics.jsonl", "best.safetensors", "last.safetensors"]


@pytest.mark.parametrize("name", [*FILES, "snapshots/00000000.safetensors", "events"])
def test_a_pickle_in_place_of_any_file_is_not_run(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = next(run.glob("events.*")) if name == "events" else run / name
    torch.save(Bomb(), "saved")
    for content in (pickle.dumps(Bomb()), Path("saved").read_bytes()):
        target.write_bytes(content)
        for main, argv in COMMANDS:
            capsys.readouterr()
            code = main(argv)
            error = capsys.readouterr().err
            assert code == 0 or (code == 2 and "error: " in error.splitlines()[-1]), error
            if code == 2 and name in ("best.safetensors", "last.safetensors"):
                assert f"{name} is damaged" in error
            target.write_bytes(content)  # a command may have put a whole one there
        if name == "config.yaml":
            assert f"{target} is not a YAML file" in error_of(capsys, train.main, str(target))
    assert not Path("exploded").exists()


@pytest.mark.parametrize("name", [*FILES, "snapshots", "events.out.tfevents.9", ".lock"])
def test_links_out_of_a_run_are_refused(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = Path("outside") / name
    outside.parent.mkdir()
    if (run / name).exists():
        shutil.move(run / name, outside)
    else:
        outside.write_text("mine")
    (run / name).symlink_to(outside.absolute())
    before = outside.read_bytes() if outside.is_file() else sorted(outside.iterdir())
    for main, argv in COMMANDS:
        assert f"{name} leads out of the run" in error_of(capsys, main, *argv)
    assert before == (outside.read_bytes() if outside.is_file() else sorted(outside.iterdir()))


def test_a_link_to_nothing_is_refused_and_one_inside_is_not(run: Path) -> None:
    (run / "best.safetensors").unlink()
    (run / "best.safetensors").symlink_to("last.safetensors")
    assert find_run("debug") == run
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(Path("absent").absolute())
    with pytest.raises(UserError, match=r"metrics.jsonl leads out of the run, to .*absent"):
        find_run("debug")


def forge(run: Path, **changes: Any) -> None:
    """Write checkpoints that are whole, and say something else of the model or of its text."""
    for which in ("best", "last"):
        header, tensors = load_checkpoint(run / f"{which}.safetensors")
        for key, value in changes.items():
            part, _, field = key.partition("__")
            plain = header.config[part] if part in header.config else getattr(header, part)
            plain[field] = value
        save_checkpoint(run / f"{which}.safetensors", tensors, header)


HUGE = 10**15
FORGED: list[tuple[dict[str, Any], str]] = [
    ({"model__n_layer": HUGE}, "n_layer|describes a model of"),
    ({"model__n_embd": 2 * HUGE}, "n_embd|describes a model of"),
    ({"model__block_size": HUGE}, "block_size"),
    ({"model__n_head": 3}, "must be divisible by --model.n_head 3"),
    ({"model__n_layer": -1}, "--model.n_layer must be a number of at least 1, got -1"),
    ({"model__n_layer": "many"}, "--model.n_layer must be a whole number, got 'many'"),
    ({"model__attention": "\x1b[31m"}, "--model.attention must be one of fused, explicit"),
    ({"tokenizer__chars": "ab"}, "does not fit its own config|the model has never seen"),
    ({"tokenizer__chars": "aa"}, "not a description of a tokenizer"),
    ({"tokenizer__kind": "pickle"}, "not a description of a tokenizer"),
]


@pytest.mark.parametrize(("changes", "message"), FORGED, ids=str)
def test_a_forged_header_is_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    forge(run, **changes)
    for main, argv in COMMANDS[:-1]:  # the last looks at no weights
        error = error_of(capsys, main, *argv)
        assert any(part in error for part in message.split("|")), error
        assert "\x1b" not in error


IMPOSSIBLE: list[dict[str, Any]] = [
    {"step": -5},
    {"step": 10**30},
    {"step": True},
    {"threads": -5},
    {"processes": 0},
    {"evaluated": 30},
    {"train_loss": None},
    {"best_val_loss": None},
    {"evals_since_best": -1},
]


@pytest.mark.parametrize("changes", IMPOSSIBLE, ids=str)
def test_a_header_that_cannot_be_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    path = run / "last.safetensors"
    header, tensors = load_checkpoint(path)
    save_checkpoint(path, tensors, dataclasses.replace(header, **changes))
    error = error_of(capsys, train.main, "--resume=debug", "--train.max_steps=9")
    assert f"last.safetensors is damaged: {next(iter(changes))} in its header is" in error


def test_weights_that_are_not_finite_are_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for which in ("best", "last"):
        header, tensors = load_checkpoint(run / f"{which}.safetensors")
        tensors["model.head.weight"][0, 0] = torch.nan
        save_checkpoint(run / f"{which}.safetensors", tensors, header)
    for main, argv in COMMANDS:
        assert "model.head.weight is no longer finite" in error_of(capsys, main, *argv)


def test_what_is_no_file_is_refused(run: Path) -> None:
    (run / "loop").symlink_to("loop")
    with pytest.raises(UserError, match=r"loop leads nowhere; remove that link|loop is no file"):
        find_run("debug")
    (run / "loop").unlink()
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(UserError, match=r"metrics.jsonl is no file and no folder; remove it"):
        find_run("debug")


def test_nesting_without_end_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "best.safetensors"
    header, tensors = read_tensors(path, FORMAT)
    for depth in (100, 100_000):
        deep = header.replace('"n_layer": 2', f'"n_layer": {"[" * depth}{"]" * depth}')
        write_tensors(path, tensors, FORMAT, deep)
        error = error_of(capsys, sample.main, "debug")
        assert (
            "--model.n_layer must be a whole number" in error or "best.safetensors is dam" in error
        )
    (run / "config.yaml").write_text("a: " + "[" * 100_000)
    assert "is not a YAML file" in error_of(capsys, train.main, str(run / "config.yaml"))
    (run / "metrics.jsonl").write_text("[" * 100_000 + "\n")
    assert "was never evaluated" in error_of(capsys, compare.main, "debug", "debug")


def test_a_run_is_opened_without_its_folder(run: Path) -> None:
    """All that sampling needs is in the checkpoint."""
    shutil.copy(run / "last.safetensors", "other.safetensors")
    Path("alone").mkdir()
    shutil.move("other.safetensors", "alone/last.safetensors")
    assert open_run(find_run("alone")).header.step == 4


def test_a_checkpoint_too_large_to_hold_is_not_read(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its end is a hole, which takes no room on a disk and would in memory."""
    here = memory_here(torch.device("cpu"))
    if here is None:
        pytest.skip("this system does not tell its memory")
    for which in ("best", "last"):
        os.truncate(run / f"{which}.safetensors", here * 6 // 10)
    for main, argv in COMMANDS[:-1]:
        assert "is too large for this machine: " in error_of(capsys, main, *argv)


@pytest.mark.parametrize("vocabulary", [2, 17, 50_000])
def test_a_run_on_repeated_strings_may_lie_about_its_vocabulary(
    workplace: Path, capsys: pytest.CaptureFixture[str], vocabulary: int
) -> None:
    flags = ["--data.source=repeat", "--data.repeat_max_period=16", "--train.max_steps=2"]
    assert train.main([DEBUG, *flags, "--data.repeat_vocab=20", "--run=debug"]) == 0
    lie = {"data__repeat_vocab": vocabulary, "data__repeat_max_period": min(16, vocabulary)}
    forge(Path("runs/debug"), **lie, data__repeat_min_period=2)
    for verb in ("trace", "heads", "compare", "verify"):
        if code := study.main([verb, "debug"]):
            assert code == 2 and "--data.source repeat has characters" in capsys.readouterr().err
