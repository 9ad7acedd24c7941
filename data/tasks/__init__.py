"""The tasks by the name that `--data.source` gives. task.py has what they share."""

from typing import Any

from configs.config import DataConfig
from data.tasks.addition import Addition
from data.tasks.brackets import Brackets
from data.tasks.flipflop import FlipFlop
from data.tasks.markov import Markov
from data.tasks.maximum import Maximum
from data.tasks.modular import Modular
from data.tasks.recall import Recall
from data.tasks.repeat import Repeat, RepeatFixed
from data.tasks.sink import Sink
from data.tasks.stories import Stories
from data.tasks.task import Task
from data.tasks.wrap import Wrap

TASKS: dict[Any, type[Task]] = {
    "repeat": Repeat,
    "repeat_fixed": RepeatFixed,
    "sink": Sink,
    "markov": Markov,
    "modular": Modular,
    "flipflop": FlipFlop,
    "brackets": Brackets,
    "addition": Addition,
    "recall": Recall,
    "wrap": Wrap,
    "maximum": Maximum,
    "stories": Stories,
}
# What names a text
SOURCES = (
    f"files, globs such as 'poems/*.txt', pydocs, hub:OWNER/NAME, or a task: {', '.join(TASKS)}"
)


def is_task(config: DataConfig) -> bool:
    """Return whether the config names a task instead of a text."""
    return str(config.source) in TASKS
