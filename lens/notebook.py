"""The report page in a cell of Jupyter or Colab.

from lens.notebook import show
show("my-run")                  a run, by default the newest
show(model, text)               your own GPT, and the text that it was trained on
show([model, ...], text)        copies of it, made during training: the page has a slider
"""

import html
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from common.errors import UserError
from configs.load import build
from formats.own import open_module
from lens.report_data import check_supported, make_page, through_training
from lens.subject import MeasureOptions, Subject
from model.gpt import GPT

# The height of the whole page, so that nothing scrolls inside the notebook: the font grows with the
# width, and a page narrower than 1000px has fewer columns.
FITS = "max(880px, 64cqw, min(1480px, (1000px - 100cqw) * 9999))"


@dataclass(frozen=True)
class Page:
    """The page, which a notebook displays."""

    content: str = field(repr=False)

    def _repr_html_(self) -> str:
        style = f"border: 0; width: 100%; height: {FITS}"
        frame = f'<iframe srcdoc="{html.escape(self.content)}" style="{style}"></iframe>'
        return f'<div style="container-type: inline-size">{frame}</div>'


@contextmanager
def cache_in(folder: str) -> Iterator[None]:
    """Keep tokenized texts in this folder inside the `with` block."""
    before = os.environ.get("GLASSGPT_CACHE", "")
    os.environ["GLASSGPT_CACHE"] = folder
    try:
        yield
    finally:
        os.environ["GLASSGPT_CACHE"] = before


def show(
    model: nn.Module | list[Any] | str | None = None,
    text: str | None = None,
    *,
    tokenizer: Any = None,
    max_mb: float = 4.0,
    **flags: Any,
) -> Page:
    """Return the report page of a run, or of a GPT module.

    Args:
        model: a run's name or folder, by default the newest run; or a module, such as the GPT of
            Karpathy's lecture, nanoGPT or minGPT, your own, or a GPT2LMHeadModel of transformers;
            or a list of copies of one module, made during training, in order.
        text: the text to measure on; for a module, its training text.
        tokenizer: the module's tokenizer; if omitted, tokens are the sorted characters of the text.
        max_mb: maximum size of the page in megabytes; a smaller page has fewer snapshots.
        flags: other flags of `study.py report`, such as prompt="to be".

    Raises:
        UserError: for a module that is not recognized, or computes different logits; for a model
            that the page cannot compute; for a text that is not a str.
    """
    if not isinstance(text, str | None):
        raise UserError(f"text must be a str, got {type(text).__name__}; pass path.read_text()")
    snapshots: Iterable[tuple[int, GPT]]
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        if text is not None:
            stack.enter_context(cache_in(scratch))  # the text is not kept
            flags["source"] = str(Path(scratch, "text.txt"))
            Path(flags["source"]).write_text(text, encoding="utf-8", newline="")
        options = build(MeasureOptions, flags, "")
        if isinstance(model, str | Path | None):
            subject = Subject(model, options)
            snapshots = through_training(subject)
        else:
            modules = model if isinstance(model, list) else [model]
            if not (text and modules):
                raise UserError("give the training text: show(model, text)")
            imported, name = open_module(modules, text, tokenizer), type(modules[-1]).__name__
            subject = Subject(None, options, imported.saved(Path(name), name))
            snapshots = enumerate([*imported.earlier, imported.model])
        check_supported(subject)
        sequences_BT = subject.sequences(options.sequences)
        return Page(make_page(subject, sequences_BT, snapshots, max_mb * 1e6))
