"""A picture that could not be saved is an error before anything is measured."""

from pathlib import Path

import pytest

from common.errors import UserError
from lens.pictures import new_picture


def test_a_picture_names_a_new_file_in_a_folder(workplace: Path) -> None:
    Path("there.svg").write_text("somebody's")
    for name in ("a.txt", "a", "nowhere/a.svg", "there.svg"):
        with pytest.raises(UserError, match=f"^--picture '?{name}"):
            new_picture(name)
    assert Path("there.svg").read_text() == "somebody's"
