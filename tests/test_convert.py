"""The mistakes one makes with convert.py. (That it converts is in tests/formats.)"""

from pathlib import Path

import pytest

import convert
from tests.conftest import make_run


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "name what to do: python convert.py export RUN FOLDER, or python convert.py import"),
        (["exprot"], "WHAT; did you mean export?"),
        (["export", "a"], "export takes RUN and FOLDER: python convert.py export RUN FOLDER [--fl"),
        (
            ["import", "--run=g"],
            "import takes FOLDER, hub:OWNER/NAME, ckpt.pt or model.pt: python conv",
        ),
        (["export", "a", "b", "--checkpont=last"], "--checkpont; did you mean --checkpoint?"),
        (["export", "a", "b", "--checkpoint=first"], "--checkpoint must be 'best' or 'last'"),
        (["import", "absent"], "there is no absent; name a folder, hub:OWNER/NAME, or a file"),
        (["import", "full", "--run=a"], "runs/a exists; resume it"),
        (["import", "full", "--chars=a", "--tokenizer=b"], "give --tokenizer or --chars"),
        (["export", "a", "full"], "full exists; name a new folder"),
        (["export", "a", "no/such"], "No such file or directory: "),
    ],
)
def test_a_mistake_is_one_line(
    workplace: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    make_run(Path("runs/a"))
    Path("full").mkdir()
    before = sorted(Path().rglob("*"))
    assert convert.main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err
    assert sorted(Path().rglob("*")) == before, "something is left"
