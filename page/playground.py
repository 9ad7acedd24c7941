"""What the playground begins with: the setting of each task, and the defaults of train.py."""

import dataclasses
from pathlib import Path
from typing import Any

from configs.load import Config, Values, read_config

CONFIGS = Path(__file__).parent.parent / "configs/tasks"
WITHOUT_CONFIG = {"repeat", "text"}
# What configs/tasks says and the page does not do.
OMITTED = {"eval_every", "save_every", "sample_tokens", "snapshots", "threads"}

# What each task has instead of its config, to be watched in a tab.
CHANGES: dict[str, Values] = {
    "repeat": {
        "data": {"repeat_vocab": 32, "repeat_min_period": 4, "repeat_max_period": 16},
        "model": {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32},
        "train": {"batch_size": 32, "max_steps": 200},
    },
    "sink": {"train": {"max_steps": 600}},
    "markov": {},
    "modular": {"model": {"n_embd": 96}, "train": {"batch_size": 256, "max_steps": 500}},
    "flipflop": {"train": {"max_steps": 200}},
    "brackets": {},
    "addition": {
        "data": {"task_length": 2},
        "model": {"n_embd": 64},
        "train": {"max_steps": 500, "seed": 2},
    },
    "recall": {},
    "text": {
        "data": {"source": "pasted.txt"},
        "model": {"n_layer": 2, "n_embd": 64, "block_size": 64},
        "train": {"batch_size": 32, "max_steps": 600},
    },
}

ABOUT = {
    "repeat": (
        "It trains on random strings, repeated: only the second copy can be predicted. A head in "
        "layer 1 finds the previous occurrence of a token and attends to the token after it: an "
        "induction head, whose map is a stripe. It needs a previous-token head in layer 0: ablate "
        "that, and the stripe breaks."
    ),
    "sink": (
        "A Markov chain of letters, where a digit repeats the token before it. The only head "
        "copies that token at digits; elsewhere it has nothing to do, and attends to the "
        "first token: a sink."
    ),
    "markov": (
        "Markov chains, each with its own rule, to be found from the context: the model first "
        "counts tokens, then suddenly pairs of tokens. Watch the loss pass both baselines."
    ),
    "modular": (
        "Sums modulo 97, each number one character, most of them held out. The model memorizes "
        "the sums that it sees, and later, suddenly, solves the others: grokking. Watch the gap "
        "between the two accuracies."
    ),
    "flipflop": (
        "Bits that are written, read and ignored. After r comes the bit of the last write, at "
        "any distance: a head learns to find it."
    ),
    "brackets": (
        "Brackets that close in the right order. A head learns to find the innermost open one."
    ),
    "addition": (
        "Sums of two-digit numbers, some of them held out. After a plateau, whose length "
        "depends on the seed, heads find the digits to add, and the accuracy jumps."
    ),
    "recall": (
        "Keys, each followed by its value, which is constant within a sequence. A head finds "
        "the same key earlier, and attends to its value."
    ),
    "text": "Characters of a text. The last tenth is held out.",
}


def playground_data() -> dict[str, Any]:
    """Return the defaults of train.py, and the config and the description of each task."""
    tasks = {name: {"about": ABOUT[name], **config_of(name)} for name in CHANGES}
    return {"defaults": dataclasses.asdict(Config()), "tasks": tasks}


def config_of(task: str) -> dict[str, Any]:
    """Return the config of a task as plain data. Its learning rates are constant after a warmup,
    because a page may train on."""
    file = None if task in WITHOUT_CONFIG else str(CONFIGS / f"{task}.yaml")
    start = Config(dataclasses.replace(Config().data, source=task))
    config = read_config(CHANGES[task], file, start)
    train = dataclasses.replace(
        config.train, learning_rate=config.train.adamw_learning_rate, schedule="constant"
    )
    plain = dataclasses.asdict(dataclasses.replace(config, train=train))
    plain["train"] = {name: x for name, x in plain["train"].items() if name not in OMITTED}
    return plain
