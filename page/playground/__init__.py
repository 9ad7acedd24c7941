"""What the playground begins with: the setting of each task, and the defaults of train.py."""

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from configs.config import Config, ModelConfig, TrainConfig
from configs.load import Loader, build, fields_of, read_config
from data.tasks import TASKS
from model.gpt import NGRAM_ROWS
from page.html import SUPPORTED, WORD, fill_page, to_json
from page.playground.stories import some_stories
from training.optim import MOMENTUM, NEWTON_SCHULZ, OPTIMIZERS

PAGE = Path(__file__).parent
STORIES = 60  # of some 25,000 characters
SETTINGS = yaml.load((PAGE / "tasks.yaml").read_bytes(), Loader)


def make_playground() -> str:
    """Return the HTML of the page that trains a model by itself."""
    return fill_page("playground/main.js", to_json(playground_data()), [])


def playground_data() -> dict[str, Any]:
    """Return the defaults of train.py, the first sentence of the help of each field of a model and
    its training, the config and the description of each task, and what both need to know."""
    fields = fields_of(ModelConfig) | fields_of(TrainConfig)
    sentences = {name: " ".join(each.description.split()) for name, each in fields.items()}
    return {
        "supported": SUPPORTED,
        "word": WORD,
        "ngram_rows": NGRAM_ROWS,
        "muon": {"momentum": MOMENTUM, "newton_schulz": NEWTON_SCHULZ},
        "usual": {name: [task.kinds[0], task.length[0]] for name, task in TASKS.items()},
        "defaults": dataclasses.asdict(Config()),
        "omitted": {name: rates_of(build(TrainConfig, {"optimizer": name})) for name in OPTIMIZERS},
        "stories": "\n".join(some_stories(STORIES)),
        "help": {name: text.partition(". ")[0].rstrip(".") for name, text in sentences.items()},
        "tasks": {
            task: {key: SETTINGS[task][key] for key in ("about", "watch")} | config_of(task)
            for task in SETTINGS
        },
    }


def config_of(task: str) -> dict[str, Any]:
    """Return the config of a task as plain data. It has LayerNorm, because the page knows no other
    norm, and its learning rates are constant after a warmup, because a page may train on."""
    file = PAGE.parent.parent / f"configs/tasks/{task}.yaml"
    start = Config(dataclasses.replace(Config().data, source=task))
    config = read_config(SETTINGS[task], str(file) if file.exists() else None, start)
    train = dataclasses.replace(config.train, schedule="constant", **rates_of(config.train))
    model = dataclasses.replace(config.model, norm="layer")
    return dataclasses.asdict(Config(config.data, model, train))


def rates_of(train: TrainConfig) -> dict[str, Any]:
    """Return what a field that is omitted means."""
    return {
        "learning_rate": train.adamw_learning_rate,
        "weight_decay": train.first_weight_decay,
    }
