"""Import a model from another tool as a run, or export a run.

python -m formats export runs/my-run my-folder                  a folder for transformers
python -m formats import my-folder --run gpt2                   a GPT-2 from a folder
python -m formats import hub:openai-community/gpt2 --run gpt2   or from the Hugging Face Hub
python -m formats import ../nanoGPT/out/ckpt.pt --run nanogpt   a checkpoint of nanoGPT

If transformers is installed, every command compares the logits. No code in the files is executed.
"""

import common.start

import sys
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from common.errors import command, printable, shell_word
from configs.config import STRICT
from configs.load import Command, read_subcommand
from formats.hugging_face import download, read_folder, write_folder
from formats.imported import compare_logits
from formats.nanogpt import read_nanogpt
from training.checkpoint import open_run, save_checkpoint
from training.folder import RUNS, check_unused, lock_run, make_folder, save_config


@dataclass(frozen=True, config=STRICT)
class Export:
    """Export a run as a folder that transformers opens, with its tokenizer"""

    checkpoint: Literal["best", "last"] = "best"
    """Use the weights with the lowest validation loss (best) or of the last step (last)."""


@dataclass(frozen=True, config=STRICT)
class Import:
    """Import a model as a run"""

    run: str | None = None
    """Name of the new run, a folder in runs/; if omitted, the model's name and the time."""

    tokenizer: str | None = None
    """Path of nanoGPT's meta.pkl, or of a folder with a tokenizer; if omitted, the model's."""


def export(run: str, folder: str, options: Export) -> None:
    """Write the folder, and compare the logits that transformers computes from it."""
    saved = open_run(run, options.checkpoint)
    model = saved.model()
    said = write_folder(model, saved.tokenizer, saved.start_token, Path(folder))
    print(f"{saved}, as {said}")


def import_(word: str, options: Import) -> None:
    """Read the model that the word names, compare its logits, and save it as a run, which cannot be
    resumed because it has no optimizer state."""
    if options.run is not None:
        check_unused(RUNS / options.run)  # fail before the model is read
    path = download(word.removeprefix("hub:")) if word.startswith("hub:") else Path(word)
    read = read_folder if path.is_dir() else read_nanogpt
    imported = read(path, Path(options.tokenizer) if options.tokenizer else None)
    print(f"model: {imported.model.num_parameters():,} parameters, {imported.model.config}")
    print(compare_logits(imported.model, imported.original))
    folder = make_folder(options.run, Path(word.removeprefix("hub:")).name or "model")
    saved = imported.saved(folder, word)
    with lock_run(folder):
        save_config(folder, saved.config, printable(f"imported from {word}"))
        save_checkpoint(saved.path, saved.tensors, saved.header)
    run = shell_word(folder)
    text = "FILE" if imported.source == "pydocs" else shell_word(Path(imported.source))
    print(f"next:\n  python sample.py {run}\n  python study.py report {run} --source {text}")


COMMANDS = {
    "export": Command(Export, export, "RUN FOLDER"),
    "import": Command(Import, import_, "FOLDER|hub:OWNER/NAME|ckpt.pt"),
}


@command
def main(argv: list[str]) -> int:
    """Read the command, its words and the flags."""
    if argv[:1] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    name, words, (options,) = read_subcommand(COMMANDS, argv, "python -m formats")
    COMMANDS[name].do(*words, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
