"""How a command ends: one clear line for whatever a person can cause, never a traceback."""

import functools
import io
import os
import re
import sys
from collections.abc import Callable

OUT_OF_MEMORY = re.compile("out of memory|can't allocate memory|not enough memory", re.IGNORECASE)


class UserError(Exception):
    """Something the person at the keyboard can mend. The message says what, where, and how."""


def command(main: Callable[[list[str]], int]) -> Callable[..., int]:
    """Turn `main(arguments) -> exit code` into a command that reports errors in one line.

    A `UserError` and what the operating system refuses (no such file, no permission, disk
    full) exit with 2, Ctrl-C with 130. Anything else is a bug of ours and keeps its traceback.
    """

    @functools.wraps(main)
    def run(argv: list[str] | None = None) -> int:
        for name in ("stdout", "stderr"):  # closed by whoever started this
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Lines appear as they are written, also in a file; and a character that the terminal
            # cannot show is shown by its number.
            sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
        try:
            code = main(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()  # so that a closed pipe is met here, not while Python exits
            return code
        except UserError as error:
            print(f"error: {printable(str(error))}", file=sys.stderr)
            return 2
        except FloatingPointError as error:
            print(f"error: {printable(str(error))}", file=sys.stderr)
            return 2
        except BrokenPipeError:  # `python sample.py | head`: the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            print(f"error: {printable(f'{error.strerror or error}{where}')}", file=sys.stderr)
            return 2
        except (MemoryError, RuntimeError) as error:  # PyTorch's own are RuntimeErrors
            if isinstance(error, RuntimeError) and not OUT_OF_MEMORY.search(str(error)):
                raise
            print(
                "error: out of memory; take a smaller --train.batch_size (or more "
                "--train.grad_accum_steps), fewer samples, or a smaller model",
                file=sys.stderr,
            )
            return 2
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
            return 130

    return run


def printable(text: str) -> str:
    """The text in one line, without characters that would act on a terminal: names and values in
    messages come from files that anyone may have made."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def require_at_least(minimum: float, **fields: float) -> None:
    """Refuse values below `minimum` (or not a number), naming the flag.

    Flags are given as `room__field=value` and named as `--room.field`.

    Raises:
        ValueError: for the first field that is too small.
    """
    for name, value in fields.items():
        if not value >= minimum or value == float("inf"):
            flag = name.replace("__", ".")
            raise ValueError(f"--{flag} must be a number of at least {minimum}, got {value}")


def require_fraction(**fields: float) -> None:
    """Refuse values outside [0, 1), naming the flag as `require_at_least` does.

    Raises:
        ValueError: for the first field that is not a fraction.
    """
    for name, value in fields.items():
        if not 0 <= value < 1:
            flag = name.replace("__", ".")
            raise ValueError(f"--{flag} must be in [0, 1), got {value}")
