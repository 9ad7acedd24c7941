"""Errors: whatever a user can cause ends a command with one line, not with a traceback."""

import functools
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """An error that the user can fix. The message says what is wrong, where, and how to fix it."""

    def _render_traceback_(self) -> list[str]:
        """Return one line for a notebook; IPython calls this method."""
        return [f"error: {printable(str(self))}"]


@contextmanager
def as_user_error(path: Path | str, what: str = "is damaged") -> Iterator[None]:
    """Convert any error while reading an untrusted file into one line that names the file.

    Each format is read by a library with its own exceptions for invalid files.

    Raises:
        UserError: for any error inside the `with` block.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and isinstance(path, Path):
            raise UserError(f"there is no {error.filename or path}") from error
        reason = " ".join(str(error).split())
        if isinstance(error, KeyError):  # whose text is the key alone
            reason = f"unknown or missing: {reason}"
        raise UserError(f"{path} {what}: {reason}") from error


def command(main: Callable[[list[str]], int]) -> Callable[..., int]:
    """Convert `main(arguments) -> exit code` into a command that reports errors in one line.

    A `UserError` and errors of the operating system (no such file, no permission, disk full) exit
    with 2, Ctrl-C exits with 130. Any other exception is a bug and keeps its traceback.
    """

    @functools.wraps(main)
    def reporting(argv: list[str] | None = None) -> int:
        if sys.stderr is None:  # closed, as by 2>&-
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - to the end
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Lines appear at once, also in a file. A character that the terminal cannot show is
            # escaped.
            sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
        try:
            code = main(sys.argv[1:] if argv is None else argv)
            print(end="", flush=True)  # detect a closed pipe here, not while Python exits
            return code
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
            return 130
        except BrokenPipeError:  # as in `python sample.py | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except Exception as error:
            message = str(error)
            if isinstance(error, OSError) and error.strerror:
                message = error.strerror + (f": {error.filename}" if error.filename else "")
            elif re.search("(?i)MemoryError|out of memory|can't allocate memory", repr(error)):
                message = (
                    "out of memory; start a new run with more --train.gradient_accumulation_steps "
                    "or a smaller model (--init_from RUN keeps the weights)"
                )
            elif type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                reason = " ".join(message.split())
                message = f"torch.compile failed; use --train.compile false: {reason}"
            elif not isinstance(error, OSError | UserError | FloatingPointError):
                raise
            print(f"error: {printable(message)}", file=sys.stderr)
            return 2

    return reporting


def shell_word(path: Path) -> str:
    """Return a path as one word of a command that can be pasted into a shell."""
    return shlex.quote(printable(path.as_posix()))


def printable(text: str) -> str:
    """Return the text in one line, with control characters escaped, because names and values in
    messages may come from untrusted files. A long text is cut in the middle, because the end of an
    error says how to fix it."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= 600 else f"{text[:298]}...{text[-299:]}"
