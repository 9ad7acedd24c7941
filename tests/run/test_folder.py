"""A run's folder: one process at a time, nothing overwritten, nothing that leads out of it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import train
from common.errors import UserError
from run.checkpoint import load_checkpoint
from run.folder import (
    check_unused,
    find_run,
    hold,
    make_folder,
    make_unused,
    without_links,
)
from run.metrics import read_metrics
from tests.conftest import DEBUG, ROOT
from tests.jobs import start_command
from tests.run.conftest import COMMANDS, Errors

# --- a new run -----------------------------------------------------------------------------------


def test_a_new_run_has_the_name_that_is_asked_for(workplace: Path) -> None:
    assert make_folder("a b", "ignored") == Path("runs/a b") and Path("runs/a b").is_dir()
    for name in ("", "..", ".", "a/b", "/tmp", "a\n", "a/", "\x1b[31m"):
        with pytest.raises(UserError, match=r"^--run '.*' must be a name for a folder in runs/"):
            make_folder(name, "ignored")
    first, second = make_folder(None, "stem"), make_folder(None, "stem")
    assert first != second and all(path.is_dir() for path in (first, second))
    assert all(path.name.startswith(f"stem-{time.strftime('%Y')}") for path in (first, second))
    made = [make_unused(Path("runs/default")) for _ in range(3)]
    assert [path.name for path in made] == ["default", "default-2", "default-3"]


@pytest.mark.parametrize("what", ["link", "file"])
def test_runs_that_is_no_folder_is_an_error_and_no_endless_search(
    workplace: Path, what: str
) -> None:
    Path("runs").symlink_to("nowhere") if what == "link" else Path("runs").touch()
    for name in (None, "a"):
        with pytest.raises(OSError):
            make_folder(name, "stem")


def test_no_other_run_is_overwritten_but_one_that_never_saved(workplace: Path) -> None:
    run = make_folder("a", "")
    for name in ("config.yaml", "run.json", ".lock", "metrics.jsonl", "events.out.1", ".writing-1"):
        (run / name).touch()
    check_unused(run)
    assert make_folder("a", "") == run
    for name in ("last.safetensors", "notes.txt", "snapshots"):
        (run / name).touch()
        with pytest.raises(UserError, match=r"^runs/a exists; resume it with --resume runs/a, or"):
            make_folder("a", "")
        (run / name).unlink()
    (run / "metrics.jsonl").write_text('{"step": 1, "train_loss": 2.0}\n')
    Path("runs/file").touch()
    for name in ("a", "file"):
        with pytest.raises(UserError, match=f"runs/{name} exists"):
            make_folder(name, "")


# --- one process at a time -----------------------------------------------------------------------


def test_a_folder_is_held_once_and_left_clean(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    for left in (tmp_path / ".writing-1-last.safetensors", tmp_path / "snapshots" / ".writing-2-x"):
        left.touch()
    with hold(tmp_path):
        assert not list(tmp_path.rglob(".writing-*")), "what a killed process left is still there"
        with pytest.raises(UserError, match="another process is training"), hold(tmp_path):
            pass
    with hold(tmp_path):
        pass


def test_a_second_process_on_a_run_is_refused_and_a_signal_to_the_first_loses_nothing(
    run: Path, errors: Errors
) -> None:
    flags = ["--resume=a", "--train.max_steps=1000000", "--train.save_every=5"]
    first = start_command("first", ["train.py", *flags, "--train.log_every=1"])
    while not any(line["step"] > 9 for line in read_metrics(run)):
        assert first.is_alive(), Path("first-stderr").read_text()
        time.sleep(0.02)
    try:
        resumed, anew = errors(
            [(train.main, ["--resume=a", "--train.max_steps=7"]), (train.main, [DEBUG, "--run=a"])]
        )
    finally:
        first.terminate()
        first.join()
    assert resumed == "error: another process is training runs/a; wait for it or stop it\n"
    assert anew.startswith("error: runs/a exists; ")
    assert first.exitcode == 143 and "Traceback" not in Path("first-stderr").read_text()
    step = load_checkpoint(run / "last.safetensors")[0].state.step
    line = f"stopped at step {step}; resume with: python train.py --resume runs/a\n"
    assert Path("first-stdout").read_text().endswith(line)
    logged = [line["step"] for line in read_metrics(run) if "train_loss" in line]
    assert logged[-6:] == list(range(step - 5, step + 1))


def test_a_folder_that_cannot_be_written_is_named(run: Path) -> None:
    """By somebody whom permissions bind: they do not bind root."""
    bind = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    before = {path: path.read_bytes() for path in run.rglob("*.*")}
    run.chmod(0o500)
    try:
        words = [sys.executable, str(ROOT / "train.py"), "--resume=a", "--train.max_steps=7"]
        ended = subprocess.run([*bind, *words], capture_output=True, text=True)
    finally:
        run.chmod(0o700)
    assert ended.returncode == 2
    assert ended.stderr == "error: Permission denied: runs/a/config.yaml\n"
    assert {path: path.read_bytes() for path in run.rglob("*.*")} == before


# --- an old run ----------------------------------------------------------------------------------


def test_a_run_is_found_by_path_by_name_and_as_the_newest(workplace: Path) -> None:
    with pytest.raises(UserError, match=r"there is no run in runs/ yet; make one with"):
        find_run(None)
    with pytest.raises(UserError, match=r"^there is no run a; runs/ is empty$"):
        find_run("a")
    for time_, name in ((30, "other"), (50, "newest"), (40, "old")):
        folder = make_folder(name, "")
        (folder / "last.safetensors").touch()
        os.utime(folder / "last.safetensors", (time_, time_))
    make_folder("empty", "")
    assert find_run(None) == Path("runs/newest")
    assert find_run("old") == find_run("runs/old") == Path("runs/old")
    assert find_run(str(workplace / "runs/old")) == workplace / "runs/old"
    Path("old").mkdir()
    assert find_run("old") == Path("runs/old"), "a folder of that name that is no run"
    (Path("old") / "last.safetensors").touch()
    assert find_run("old") == Path("old"), "a path comes first"
    with pytest.raises(UserError, match=r"^runs/empty is not a run: it has no last.safetensors$"):
        find_run("empty")
    with pytest.raises(UserError, match=r"^there is no run newets; runs/ has 3, among them newest"):
        find_run("newets")
    with pytest.raises(UserError, match=r"is a file; name the run's folder, runs/old$"):
        find_run("runs/old/last.safetensors")


def test_no_link_leads_out_of_a_run(run: Path, errors: Errors) -> None:
    outside = Path("outside").absolute()
    outside.mkdir()
    for name in (".lock", "config.yaml", "absent", "snapshots/1.safetensors", "snapshots"):
        kept, place = run / "kept", run / name
        if place.exists():
            place.rename(kept)
        for target in (outside, outside / "nowhere"):
            place.symlink_to(target)
            with pytest.raises(UserError) as error:
                find_run("a")
            line = f"runs/a/{name} leads out of the run, to {target}; remove that link"
            assert str(error.value) == line
            place.unlink()
        if kept.exists():
            kept.rename(place)
    (run / "last.safetensors").rename(outside / "last.safetensors")
    (run / "last.safetensors").symlink_to(outside / "last.safetensors")
    for line in errors(COMMANDS):
        assert "runs/a/last.safetensors leads out of the run, to " in line


def test_links_inside_are_followed_and_what_is_no_file_is_refused(run: Path) -> None:
    (run / "best.safetensors").unlink()
    (run / "best.safetensors").symlink_to("last.safetensors")
    assert without_links(run) == run
    for name, target, message in (
        ("loop", "loop", "loop leads nowhere; remove|loop is neither a file nor a folder"),
        ("inside", "gone", "inside is neither a file nor a folder; remove it"),
        ("pipe", "", "pipe is neither a file nor a folder; remove it"),
    ):
        os.symlink(target, run / name) if target else os.mkfifo(run / name)
        with pytest.raises(UserError, match=message):
            find_run("a")
        (run / name).unlink()
