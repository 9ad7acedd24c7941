"""What the playground begins with: the setting of each task, and the defaults of train.py."""

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from common.errors import UserError
from configs.config import Config, ModelConfig, TrainConfig
from configs.load import Loader, fields_of, read_config
from page.constants import FOR_TRAINING, SUPPORTED

PAGE = Path(__file__).parent
SETTINGS = yaml.load((PAGE / "tasks.yaml").read_bytes(), Loader)


def playground_data() -> dict[str, Any]:
    """Return the defaults of train.py, the first sentence of the help of each field of a model and
    its training, and the config and the description of each task."""
    fields = fields_of(ModelConfig) | fields_of(TrainConfig)
    sentences = {name: " ".join(each.description.split()) for name, each in fields.items()}
    return FOR_TRAINING | {
        "defaults": dataclasses.asdict(Config()),
        "help": {name: text.partition(". ")[0].rstrip(".") for name, text in sentences.items()},
        "tasks": {
            task: {key: SETTINGS[task][key] for key in ("about", "watch")} | config_of(task)
            for task in SETTINGS
        },
    }


def config_of(task: str) -> dict[str, Any]:
    """Return the config of a task as plain data. Its learning rates are constant after a warmup,
    because a page may train on."""
    file = PAGE.parent.parent / f"configs/tasks/{task}.yaml"
    start = Config(dataclasses.replace(Config().data, source=task))
    config = read_config(SETTINGS[task], str(file) if file.exists() else None, start)
    if config.model.norm not in SUPPORTED["norm"]:
        raise UserError(f"the page does not support model.norm {config.model.norm} of task {task}")
    train = dataclasses.replace(
        config.train, learning_rate=config.train.adamw_learning_rate, schedule="constant"
    )
    return dataclasses.asdict(dataclasses.replace(config, train=train))
