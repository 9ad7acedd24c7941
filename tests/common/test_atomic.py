"""Atomic writes: a file or a folder is complete or absent at every moment."""

import os
from pathlib import Path

import pytest

from common.atomic import atomic_folder, write_atomically
from tests.conftest import posix


@posix
def test_planted_symlink_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda length: "guessed")
    (tmp_path / "private").write_bytes(b"mine")
    (tmp_path / ".writing-guessed-file").symlink_to("private")
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "private").read_bytes() == b"mine"


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_failed_write_leaves_no_scratch_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, moment, full)
    with pytest.raises(OSError, match=f"No space left.*{path.name}"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    with pytest.raises(KeyError), atomic_folder(tmp_path / "a") as made:
        (made / "part").touch()
        raise KeyError
    assert not [*tmp_path.iterdir()]
    with atomic_folder(tmp_path / "a") as made:
        (made / "whole").touch()
        assert not (tmp_path / "a").exists()
    assert [*tmp_path.rglob("*")] == [tmp_path / "a", tmp_path / "a" / "whole"]
    with pytest.raises(OSError), atomic_folder(tmp_path / "a"):
        pass  # another process was faster
    assert [*tmp_path.rglob("*")] == [tmp_path / "a", tmp_path / "a" / "whole"]
