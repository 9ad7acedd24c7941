"""The verb verify: every check on a run's own weights."""

import sys

from pydantic.dataclasses import dataclass

from common.fields import STRICT
from common.tables import print_table
from lens.checks import check_model
from lens.subject import Subject, SubjectOptions


@dataclass(frozen=True, config=STRICT)
class Verify(SubjectOptions):
    """Checks on a run's own weights, each with its tolerance"""


def verify(word: str | None, options: Verify) -> int:
    """Exit code 1 when a check fails."""
    subject = Subject(word, options)
    checks = check_model(subject.model, subject.prompt_T, subject.dtype)
    rows = [["check", "in", "verdict", "relative error", "tolerance", "where"]]
    for check in checks:
        error = "" if check.error is None else f"{check.error:.1e}"
        tolerance = "" if check.tolerance is None else f"{check.tolerance:.0e}"
        where = check.where if check.verdict == "failed" else ""
        rows.append([check.name, check.dtype, check.verdict, error, tolerance, where])
    print_table(rows, words=3)
    verdicts = [check.verdict for check in checks]
    passed, failed = verdicts.count("passed"), verdicts.count("failed")
    rest = len(checks) - passed - failed
    print(
        f"\n{passed} passed, {failed} failed, {rest} not comparable; errors are relative to the "
        f"largest number compared"
    )
    for check in checks:
        if check.verdict == "failed":
            print(f"failed: {check.name} ({check.dtype}): {check.where}", file=sys.stderr)
    return 1 if failed else 0
