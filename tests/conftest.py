"""Fixtures and settings that all tests share."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Use one thread, here and in the commands that tests start: models this small are no faster with
# more, and much slower if other programs use the same cores. PyTorch, which reads this, is imported
# only in the functions below, because pytest-xdist's controller does not need it.
os.environ["OMP_NUM_THREADS"] = "1"

# The tests compute on the CPU, also on a machine with a GPU.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Print --help at its default width, and keep tokens in the folder of each test.
os.environ.pop("COLUMNS", None)
os.environ.pop("GLASSGPT_CACHE", None)

# Files of tests need not survive a power failure.
os.fsync = lambda fd: None

# Background jobs of a shell ignore Ctrl-C. The commands that tests interrupt must not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Timings vary between machines, so Hypothesis's deadline is off. The examples are the same in every
# run, so that results are reproducible. All examples of a test share its temporary folder.
settings.register_profile(
    "glassgpt",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("glassgpt")

# The tests expect forward slashes in printed paths.
if os.name == "nt":
    windows_str = Path.__str__
    Path.__str__ = lambda path: windows_str(path).replace("\\", "/")  # type: ignore[method-assign]

posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no fork, named pipes or killpg")

ROOT = Path(__file__).parent.parent
DEBUG = str(ROOT / "configs" / "debug.yaml")


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Yield one browser for all tests: Playwright allows only one in a process."""
    from benchmarks.browser import start_browser
    from common.errors import UserError

    try:
        with start_browser() as started:
            yield started
    except UserError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the Report of tests/reports.py, made once."""
    from tests.reports import make_report

    return make_report(tmp_path_factory.mktemp("page"))


def make_run(
    run: Path,
    chars: str | None = "\n abcdefghijklmnopqrstuvwxyz",
    source: str = "absent.txt",
    tokenizer: Any = None,
    **choices: Any,
) -> Path:
    """Save a run of random weights without training; `best` and `last` have different weights.

    Args:
        chars: the vocabulary; None for bytes.
        tokenizer: replaces `chars`.
        choices: fields of the model config.
    """
    import torch

    from configs.config import Config, DataConfig, ModelConfig, TrainConfig
    from data.corpus import Corpus
    from data.tokenizer import ByteTokenizer, CharTokenizer
    from model.gpt import GPT
    from training.checkpoint import Header, model_tensors, optimizer_tensors, save_checkpoint
    from training.machine import Machine
    from training.optim import make_optimizer
    from training.state import TrainState

    tokenizer = tokenizer or (CharTokenizer(chars) if chars else ByteTokenizer())
    data = DataConfig(source=source, tokenizer=tokenizer.to_dict()["kind"])
    model = ModelConfig(**{"n_layer": 3, "n_head": 2, "n_embd": 16, "block_size": 12} | choices)
    config = Config(data, model, TrainConfig(max_steps=4, eval_every=2, batch_size=2))
    run.mkdir(parents=True, exist_ok=True)
    for which, step in (("best", 2), ("last", 3)):
        torch.manual_seed(step)
        gpt = GPT(model, tokenizer.vocab_size)
        for weight in gpt.parameters():
            torch.nn.init.normal_(weight, 0.0, 0.3)
        state = TrainState(step, 1.0, 2.0, last_eval_step=2, val_loss=2.5, best_val_loss=2.5)
        machine = Machine("cpu", "none", 1, 1, "float32", torch.__version__)
        header = Header(config, tokenizer.to_dict(), Corpus("a text", 1), machine, state)
        optimizer = make_optimizer(gpt, config.train)
        tensors = model_tensors(gpt) | optimizer_tensors(optimizer)
        save_checkpoint(run / f"{which}.safetensors", tensors, header)
    return run


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Reset the number of threads after each test."""
    import torch

    yield
    torch.set_num_threads(1)
