"""Import a model from another tool as a run, or export a run.

python convert.py export runs/my-run my-folder                  a folder for transformers
python convert.py import my-folder --run gpt2                   a GPT-2 from a folder
python convert.py import hub:openai-community/gpt2 --run gpt2   or from the Hugging Face Hub
python convert.py import ../nanoGPT/out/ckpt.pt --run nanogpt   a checkpoint of nanoGPT
python convert.py import model.pt --chars input.txt             your own state_dict

If transformers is installed, every command but the last compares the logits. No code in the files
is executed.
"""

import common.start

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from common.errors import UserError, command, printable, shell_word
from common.fields import STRICT
from configs.load import build, nearest, read_command_line
from formats.folder import download, read_folder, write_folder
from formats.imported import compare_logits
from formats.nanogpt import read_nanogpt
from formats.own import read_weights
from run.checkpoint import open_run, save_checkpoint
from run.folder import RUNS, check_unused, find_run, lock_run, make_folder, save_config


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

    chars: str | None = None
    """For a saved state_dict: path of the text whose distinct characters, sorted, are its
    vocabulary."""

    activation: str | None = None
    """For a saved state_dict: the activation; if omitted, the format's default."""


def export(run: str, folder: str, options: Export) -> None:
    """Write the folder, and compare the logits that transformers computes from it."""
    saved = open_run(find_run(run), options.checkpoint)
    model = saved.model()
    said = write_folder(model, saved.tokenizer, saved.start_token, Path(folder))
    print(f"{saved}, as {said}")


def import_(word: str, options: Import) -> None:
    """Read the model that the word names, compare its logits, and save it as a run, which cannot be
    resumed because it has no optimizer state."""
    if options.run is not None:
        check_unused(RUNS / options.run)  # fail before the model is read
    path = download(word.removeprefix("hub:")) if word.startswith("hub:") else Path(word)
    if options.chars and options.tokenizer:
        raise UserError("--tokenizer and --chars exclude each other; give one")
    if options.chars:
        imported = read_weights(path, options.chars, options.activation)
    else:
        read = read_folder if path.is_dir() else read_nanogpt
        imported = read(path, Path(options.tokenizer) if options.tokenizer else None)
    print(f"model: {imported.model.num_parameters():,} parameters, {imported.model.config}")
    print(compare_logits(imported.model, imported.original))
    folder = make_folder(options.run, Path(word.removeprefix("hub:")).name or "model")
    saved = imported.saved(folder, word)
    with lock_run(folder):
        save_config(folder, saved.config, printable(f"imported from {word}"))
        save_checkpoint(saved.path, saved.tensors, saved.header)
    run, text = shell_word(folder), shell_word(Path(imported.source))
    print(f"next:\n  python sample.py {run}\n  python study.py report {run} --source {text}")


COMMANDS: dict[str, tuple[Callable[..., None], type, list[str]]] = {
    "export": (export, Export, ["RUN", "FOLDER"]),
    "import": (import_, Import, ["FOLDER, hub:OWNER/NAME, ckpt.pt or model.pt"]),
}


@command
def main(argv: list[str]) -> int:
    """Read the command, its words and the flags."""
    if argv[:1] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    name, *rest = argv or [""]
    if name not in COMMANDS:
        raise UserError(f"name a command: {', '.join(COMMANDS)}{nearest(name, COMMANDS)}")
    convert, kind, words = COMMANDS[name]
    usage = f"python convert.py {name} {' '.join(words)} [--flag VALUE ...]"
    given, values = read_command_line({"": kind}, rest, usage, kind.__doc__ or "", len(words))
    if len(given) < len(words):
        raise UserError(f"{name} takes {' and '.join(words)}: {usage}")
    convert(*given, build(kind, values[""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
