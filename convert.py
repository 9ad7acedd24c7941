"""Bring a model here from elsewhere, or take one there.

python convert.py export runs/my-run my-folder                  a folder for transformers
python convert.py import my-folder --run gpt2                   a GPT-2 from such a folder
python convert.py import hub:openai-community/gpt2 --run gpt2   or from the hub
python convert.py import ../nanoGPT/out/ckpt.pt --run theirs    a checkpoint of nanoGPT

Both end by comparing the logits, if transformers is installed: pip install transformers.
No code in the files is run.
"""

import signal

if __name__ == "__main__":  # Ctrl-C ends at once and quietly, also while libraries are loaded
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)

import common.start  # noqa: F401 - loads PyTorch

# isort: split
import sys
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass

from common.errors import UserError, command, printable
from common.fields import STRICT
from configs.load import Config, build, nearest, read_command_line
from data.config import DataConfig
from formats.folder import download, load_original, read_folder, write_folder
from formats.imported import Imported, largest_differences
from formats.nanogpt import read_nanogpt
from model.gpt import GPT
from run.checkpoint import Header, model_tensors, open_run, save_checkpoint
from run.folder import RUNS, check_unused, describe_run, find_run, hold, make_folder
from training.config import TrainConfig
from training.runtime import Machine, fit_threads
from training.size import check_memory, decoding_bytes
from training.state import TrainState

SAME = 1e-3  # rounding in float32, of a model whose logits are large, is less


@dataclass(frozen=True, config=STRICT)
class Export:
    """A run as a folder that transformers opens, with its tokenizer"""

    checkpoint: Literal["best", "last"] = "best"
    """The weights of the lowest validation loss, or those of the last step."""


@dataclass(frozen=True, config=STRICT)
class Import:
    """A model from elsewhere as a run"""

    run: str | None = None
    """Name of the new run, a folder in runs/; without it, the model's name and the time."""

    tokenizer: str | None = None
    """A meta.pkl of nanoGPT, or a folder with a tokenizer; without it, the one beside the model."""


def export(run: str, folder: str, options: Export) -> int:
    """Write the folder, and compare what transformers makes of it."""
    saved = open_run(find_run(run), options.checkpoint)
    arch = write_folder(saved, Path(folder))
    print(f"{printable(str(saved))}, as {arch.class_name} in {printable(folder)}")
    compare(saved.model(torch.device("cpu")), load_original(Path(folder)))
    print(
        f"next, in Python:\n"
        f"  from transformers import pipeline\n"
        f'  print(pipeline("text-generation", "{printable(folder)}")("the ")[0]["generated_text"])'
    )
    return 0


def import_(word: str, options: Import) -> int:
    """Read what the word names, and make a run of it."""
    if options.run is not None:
        check_unused(RUNS / options.run)  # rather refused now than at the end
    path = download(word.removeprefix("hub:")) if word.startswith("hub:") else Path(word)
    tokenizer = Path(options.tokenizer) if options.tokenizer else None
    if path.is_dir():
        imported = read_folder(path, tokenizer)
    elif path.is_file():
        imported = read_nanogpt(path, tokenizer)
    else:
        raise UserError(
            f"there is no {word}; name a folder of transformers, hub:OWNER/NAME, or a ckpt.pt of "
            f"nanoGPT"
        )
    V, c = imported.tokenizer.vocab_size, imported.config
    check_memory(f"a model of {word}", 3 * decoding_bytes(c, 1, V), torch.device("cpu"))
    model = imported.model()
    print(
        f"model: {c.n_layer} layers x {c.n_embd} wide, {c.n_head} heads, context {c.block_size}, "
        f"{V:,} tokens, {model.num_parameters():,} parameters"
    )
    stem = Path(word.removeprefix("hub:")).name or "model"
    compare(model, imported.original)
    config = config_of(imported)
    run = make_folder(options.run, stem)
    save_run(run, model.float(), config, imported, word)
    where = printable(str(run))
    print(f"next:\n  python sample.py {where}\n  python study.py report {where}")
    return 0


def config_of(imported: Imported) -> Config:
    """The config of the run that a model becomes.

    Raises:
        UserError: for a text or a vocabulary that no config can name.
    """
    kind = imported.tokenizer.to_dict()["kind"]
    values = {"source": imported.source, "tokenizer": kind}
    if kind == "bpe":
        values["vocab_size"] = imported.tokenizer.vocab_size
    return Config(build(DataConfig, values, "data"), imported.config, TrainConfig(minutes=0.0))


def save_run(run: Path, model: GPT, config: Config, imported: Imported, word: str) -> None:
    """Fill the folder of a run, like any other but that it has nothing to resume from."""
    corpus = {"source": f"{word}, imported", "start_token": imported.start_token}
    machine = Machine("cpu", "unknown", torch.get_num_threads(), 1, "float32", torch.__version__)
    header = Header(config, imported.tokenizer.to_dict(), corpus, machine, TrainState())
    with hold(run):
        describe_run(run, config, {"corpus": corpus, "init_from": None, "runtime": "imported"})
        save_checkpoint(run / "last.safetensors", model_tensors(model), header)


def compare(ours: GPT, theirs: Any) -> None:
    """Print how far two models are apart.

    Raises:
        UserError: when they are not the same model.
    """
    if theirs is None:
        print("not compared: transformers, which would check it, is not installed")
        return
    differences = largest_differences(ours, theirs).items()
    found = ", ".join(f"{difference:.1e} in {dtype}" for dtype, difference in differences)
    print(f"largest difference of the logits, as a fraction of the largest: {found}")
    if not max(difference for _, difference in differences) < SAME:
        raise UserError("transformers gets other logits from the same weights; please report it")


@command
def main(argv: list[str]) -> int:
    """Read the verb, what it is about, and the flags."""
    words = {"export": ["RUN", "FOLDER"], "import": ["FOLDER, hub:OWNER/NAME or ckpt.pt"]}
    if argv[:1] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    verb, *rest = argv or [""]
    if verb not in words:
        raise UserError(
            f"name what to do: python convert.py export RUN FOLDER, or python convert.py import "
            f"WHAT{nearest(verb, words)}"
        )
    wanted = words[verb]
    usage = f"python convert.py {verb} {' '.join(wanted)} [--flag VALUE ...]"
    given = [word for word in rest[: len(wanted)] if not word.startswith("-")]
    kind = Export if verb == "export" else Import
    _, values = read_command_line({"": kind}, rest[len(given) :], usage, kind.__doc__ or "", 0)
    if len(given) < len(wanted):
        raise UserError(f"{verb} takes {' and '.join(wanted)}: {usage}")
    fit_threads()
    if verb == "export":
        return export(given[0], given[1], build(Export, values[""]))
    return import_(given[0], build(Import, values[""]))


if __name__ == "__main__":
    sys.exit(main())
