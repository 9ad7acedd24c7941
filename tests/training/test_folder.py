"""Folders of runs: names, locking, and finding a run."""

import os
import time
from pathlib import Path

import pytest

import train
from common.errors import UserError
from training.folder import find_run, lock_run, make_folder

# --- new runs ------------------------------------------------------------------------------------


def test_new_run_gets_the_given_name_or_a_default(workplace: Path) -> None:
    assert make_folder("a b", "ignored") == Path("runs/a b") and Path("runs/a b").is_dir()
    for name in ("", ".", "..", "a/b", "../a"):
        with pytest.raises(UserError, match=r"^--run '.*' must be a name, not a path"):
            make_folder(name, "ignored")
    run = make_folder(None, "stem")
    assert run.is_dir() and run.name.startswith(f"stem-{time.strftime('%Y')}")
    assert make_folder(None, "stem") != run  # of the same second


def test_only_a_run_without_checkpoints_is_replaced(workplace: Path) -> None:
    run = make_folder("a", "")
    for name in ("config.yaml", ".lock", "metrics.jsonl", "events.out.1", "notes.txt"):
        (run / name).touch()
    assert make_folder("a", "") == run
    (run / "last.safetensors").touch()
    with pytest.raises(UserError, match=r"^runs/a exists; use --resume runs/a, or"):
        make_folder("a", "")


# --- locking -------------------------------------------------------------------------------------


def test_lock_is_exclusive_and_removes_only_own_scratch_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "snapshots").mkdir()
    own = [".writing-1-last.safetensors", "snapshots/.writing-2-1.safetensors"]
    others = [".writing-3-report.html", "last.safetensors", "notes.txt"]
    for name in (*own, *others):
        (tmp_path / name).touch()
    with lock_run(tmp_path):
        left = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
        assert sorted(left) == sorted([*others, ".lock"])
        assert train.main([f"--resume={tmp_path}"]) == 2
        assert capsys.readouterr().err.startswith("error: another process is training")
    with lock_run(tmp_path):
        pass


# --- finding a run -------------------------------------------------------------------------------


def test_run_is_found_by_path_by_name_or_as_the_newest(workplace: Path) -> None:
    with pytest.raises(UserError, match=r"there is no run in runs/ yet; make one with"):
        find_run(None)
    for time_, name in ((50, "newest"), (40, "old")):
        file = make_folder(name, "") / "last.safetensors"
        file.touch()
        os.utime(file, (time_, time_))
    make_folder("empty", "")
    Path("old").mkdir()  # not a run, despite its name
    assert find_run(None) == Path("runs/newest")
    os.utime("runs/old/last.safetensors", (60, 60))  # training went on
    Path("runs/newest/report.html").touch()
    assert find_run(None) == Path("runs/old")
    assert find_run("old") == find_run("runs/old") == Path("runs/old")
    (Path("old") / "last.safetensors").touch()
    assert find_run("old") == Path("old")  # a path takes precedence
    for name, hint in (("runs/empty", ""), ("runs/newets", "; did you mean newest?")):
        with pytest.raises(UserError) as error:
            find_run(name)
        assert str(error.value) == f"there is no run {name} (a folder with last.safetensors){hint}"
