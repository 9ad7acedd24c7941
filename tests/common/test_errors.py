"""A command prints one line for an error that a user can cause, and a traceback for a bug."""

import os
import shlex
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError, as_user_error, command, printable
from tests.conftest import ROOT, posix


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that raises `error`."""

    @command
    def main(argv: list[str]) -> int:
        raise error

    return main([])


MEMORY = "error: out of memory; start a new run with more --train.gradient_"
ENDS = [
    (FloatingPointError("not finite"), 2, "error: not finite\n"),
    (OSError(28, "No space left", "a file"), 2, "error: No space left: a file\n"),
    (UserError("\x1b[31mred\nnext\u202e日"), 2, "error: \\x1b[31mred\\nnext\\u202e日\n"),
    (MemoryError(), 2, MEMORY),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2, MEMORY),
    (KeyboardInterrupt(), 130, "\ninterrupted\n"),
]


@pytest.mark.parametrize(("error", "code", "line"), ENDS, ids=repr)
def test_user_error_prints_one_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    assert exit_code(error) == code
    out, said = capsys.readouterr()
    assert out == "" and said.startswith(line) and said.count("\n") == max(1, line.count("\n"))


def test_bug_keeps_its_traceback_and_success_its_exit_code() -> None:
    with pytest.raises(ValueError, match="a bug"):
        exit_code(ValueError("a bug"))
    assert command(lambda argv: 7)([]) == 7


def test_error_while_reading_a_file_names_the_file() -> None:
    for error in (KeyError("x"), RecursionError("y"), RuntimeError("a\n  b"), OSError(5, "z")):
        with (
            pytest.raises(UserError, match=r"^a.file is damaged: \S.*$"),
            as_user_error("a.file"),
        ):
            raise error
    with (
        pytest.raises(UserError, match=r"damaged: unknown or missing: 'x'$"),
        as_user_error("a.file"),
    ):
        raise KeyError("x")
    with pytest.raises(UserError, match="said already"), as_user_error("a.file"):
        raise UserError("said already")


@given(st.text(max_size=9), st.integers(1, 300))
def test_printable_text_is_short_without_control_characters(part: str, times: int) -> None:
    text = part * times
    shown = printable(text)
    whole = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    assert shown.isprintable() and len(shown) == min(600, len(whole))
    assert shown[:298] == whole[:298] and shown[-299:] == whole[-299:]


def test_output_may_be_closed_or_lack_a_character() -> None:
    """The output is less than a line, so it stays in a buffer until the command ends."""
    program = "import sys\nfrom common.errors import command\n"
    program += "sys.exit(command(lambda argv: print('é日', end='') or 0)([]))"
    words = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(words, env=environment, capture_output=True)
    assert ended.stdout == b"\\xe9\\u65e5"
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(words, env=environment, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


@posix
@pytest.mark.parametrize("streams", ["2>&-", ">&- 2>&-"])
def test_closed_streams_keep_the_exit_code(streams: str) -> None:
    program = "import sys\nfrom common.errors import UserError, command\n@command\n"
    program += "def main(argv):\n  sys.stderr.write('note')\n  raise UserError('wrong')\n"
    words = shlex.join([sys.executable, "-c", program + "sys.exit(main([]))"])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(f"{words} {streams}", shell=True, env=environment).returncode == 2
