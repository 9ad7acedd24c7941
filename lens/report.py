"""The command report: an HTML page that runs the model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from common.atomic import write_atomically
from common.errors import printable
from configs.config import STRICT
from lens.report_data import check_supported, make_page, through_training
from lens.subject import Checkpoint, Prompt, Sequences, Source, Subject
from lens.tables import check_path


@dataclass(frozen=True, config=STRICT)
class Report:
    """Write an interactive HTML page, to open from disk"""

    out: str | None = None
    """Path of the page, which ends in .html; if omitted, report.html in the run's folder."""

    max_mb: Annotated[float, Field(gt=0)] = 16.0
    """Maximum size of the page in megabytes. If not everything fits, the page has fewer snapshots
    of the run, with weights rounded to 8 bits."""

    prompt: Prompt = None
    source: Source = None
    checkpoint: Checkpoint = "best"
    sequences: Sequences = None


def report(word: str | None, options: Report) -> Iterator[str]:
    """Write the page, and yield where it is."""
    subject = Subject(word, options)
    path = Path(options.out or subject.run / "report.html")
    check_path("--out", path, ".html")
    check_supported(subject)
    sequences_BT, snapshots = subject.sequences(options.sequences), through_training(subject)
    content = make_page(subject, sequences_BT, snapshots, options.max_mb * 1e6)
    write_atomically(path, content.encode())
    yield f"{printable(str(path))}, {len(content) / 1e6:.1f} MB: open it in a browser"
