"""Study the attention of a trained run, by default the newest, on any prompt, or compare runs.

python study.py COMMAND [RUN] [--flag VALUE ...]
python study.py heads                                    what each head does, in a line
python study.py scores runs/my-run --prompt "ROMEO:"     another run, another text
python study.py examples L1H2                            the places at which a head matters
python study.py token '\\n'                              what each head does at newlines
python study.py runs [RUN...]                            all runs, or some, best first
python study.py trace --help                             every flag of a command
"""

import common.start

import sys
from itertools import pairwise
from pathlib import Path

from pydantic.dataclasses import dataclass
from pydantic_core import to_json

from common.atomic import write_atomically
from common.errors import UserError, command
from configs.config import STRICT
from configs.load import Command, read_subcommand
from lens.compare import Compare, compare
from lens.evaluate import Evaluate, losses_of_splits
from lens.examples import Examples, examples
from lens.heads import Heads, heads
from lens.ngrams import Ngrams, ngrams
from lens.paths import Paths, paths
from lens.report import Report, report
from lens.runs import Runs, runs
from lens.scores import Scores, scores
from lens.tables import Table, check_path
from lens.token import Probability, Token, probability, token
from lens.trace import Random, Trace, random, trace
from lens.verify import Verify, verify

# Each yields what to print: texts and tables.
COMMANDS = {
    "evaluate": Command(Evaluate, losses_of_splits, "[RUN]"),
    "trace": Command(Trace, trace, "[RUN]"),
    "probability": Command(Probability, probability, "TOKEN [RUN]"),
    "verify": Command(Verify, verify, "[RUN]"),
    "compare": Command(Compare, compare, "[RUN]"),
    "random": Command(Random, random, ""),
    "heads": Command(Heads, heads, "[RUN...]"),
    "scores": Command(Scores, scores, "[RUN]"),
    "examples": Command(Examples, examples, "HEADS [RUN]"),
    "token": Command(Token, token, "TOKEN [RUN]"),
    "ngrams": Command(Ngrams, ngrams, "[RUN]"),
    "paths": Command(Paths, paths, "[RUN]"),
    "report": Command(Report, report, "[RUN]"),
    "runs": Command(Runs, runs, "[RUN...]"),
}


@dataclass(frozen=True, config=STRICT)
class Output:
    """The flag of every command"""

    json: str | None = None
    """Also write the tables to this .json file, in full precision."""


# Flags of earlier versions that are commands now.
MOVED = {
    "--examples": "examples HEADS [RUN]",
    "--at": "token TOKEN [RUN]",
    "--to": "token TOKEN [RUN]",
    "--of": "probability TOKEN [RUN]",
    "--random": "random",
}


@command
def main(argv: list[str]) -> int:
    """Read the command, its words and the flags."""
    if argv[:1] in (["--help"], ["-h"]):
        print(__doc__)
        for name, each in COMMANDS.items():
            print(f"{name:<12}{each.flags.__doc__}")
        return 0
    for flag in [word.split("=")[0] for word in argv]:
        if flag in MOVED:
            raise UserError(f"{flag} is a command now: python study.py {MOVED[flag]}")
    name, words, (options, output) = read_subcommand(COMMANDS, argv, "python study.py", Output)
    if output.json is not None:
        check_json(Path(output.json), name)
    parts: list[str | Table] = []
    for part in COMMANDS[name].do(*words, options):
        print(f"\n{part}" if parts else part)
        parts.append(part)
    if output.json is not None:
        write_json(Path(output.json), argv, parts)
    return int(any(isinstance(part, Table) and part.failed for part in parts))


def check_json(path: Path, name: str) -> None:
    """Check --json before anything is measured.

    Raises:
        UserError: for a command without tables, a path that cannot be written, or another program's
            file.
    """
    if name == "report":
        raise UserError("report prints no tables; omit --json")
    check_path("--json", path, ".json")
    if path.exists() and not path.read_bytes().startswith(b'{"study":'):
        raise UserError(f"--json {path} was not written by study.py; choose another name")


def write_json(path: Path, argv: list[str], parts: list[str | Table]) -> None:
    """Write the rows of the tables, and the line above each, in full precision."""
    titles, tables = [], []
    for above, part in pairwise(["", *parts]):
        if isinstance(part, Table):
            titles.append("" if isinstance(above, Table) else above)
            tables.append(part.full or part.rows)
    results = {"study": argv, "titles": titles, "tables": tables}
    write_atomically(path, to_json(results, inf_nan_mode="null"))


if __name__ == "__main__":
    sys.exit(main())
