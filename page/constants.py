"""What the pages have from Python: what they can compute, and constants that both need."""

from typing import Any

from data.tasks import TASKS
from model.gpt import NGRAM_ROWS
from training.optim import MOMENTUM, NEWTON_SCHULZ

# Choices of page/engine/engine.js, kernels.js and tokenizer.js
SUPPORTED = {
    "norm": ["layer"],
    "positions": ["learned", "rotary", "none"],
    "activation": ["gelu", "gelu_tanh", "relu", "relu2"],
}
TOKENIZERS = ["char", "byte", "bpe", "word"]
# What a repeated string could be: without a repeated letter
WORDS = "uncopyrightable", "UNCOPYRIGHTABLE"
FOR_TRAINING: dict[str, Any] = {
    "supported": SUPPORTED,
    "words": WORDS,
    "ngram_rows": NGRAM_ROWS,
    "optimizer": {"momentum": MOMENTUM, "newton_schulz": NEWTON_SCHULZ},
    # If they are omitted in the config
    "sizes": {
        name: {"task_kinds": task.kinds[0], "task_length": task.length[0]}
        for name, task in TASKS.items()
    },
}
