"""How a command ends: in one clear line for whatever a user can cause, never in a traceback."""

import functools
import io
import os
import re
import sys
from collections.abc import Callable

OUT_OF_MEMORY = re.compile("out of memory|can't allocate memory|not enough memory", re.IGNORECASE)
LONGEST = 600  # characters of a message; what was given may be a million of them


class UserError(Exception):
    """An error the user can fix. The message says what is wrong, where, and what to do."""


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
            # Lines appear at once, also in a file; a character that the terminal cannot show is
            # shown by its number.
            sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
        try:
            code = main(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()  # so that a closed pipe is met here, not while Python exits
            return code
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
            return 130
        except BrokenPipeError:  # `python sample.py | head`: the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except (UserError, FloatingPointError, OSError, MemoryError, RuntimeError) as error:
            message = explain(error)
            if message is None:
                raise
            print(f"error: {printable(message)}", file=sys.stderr)
            if "TORCHELASTIC_RUN_ID" in os.environ:
                note = "note: the error is in the line above, not in torchrun's report that follows"
                print(note, file=sys.stderr)
            return 2

    return run


def explain(error: Exception) -> str | None:
    """What to say of an error; None for a bug of ours."""
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or error}{where}"
    if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)):
        return (
            "out of memory; take a smaller --train.batch_size (or more "
            "--train.gradient_accumulation_steps), fewer samples, or a smaller model"
        )
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return f"torch.compile failed ({reason}); --train.compile false trains without it"
    return None if isinstance(error, RuntimeError) else str(error)


def printable(text: str) -> str:
    """The text in one line, without characters that would act on a terminal: names and values in
    messages come from files that anyone may have made."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in shorten(text))
    return shorten(shown)


def shorten(text: str) -> str:
    """The text, or both ends of a long one."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2 - 3
    return f"{text[:half]} ... {text[-half:]}"
