"""A run while it trains."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from configs.load import Config
from data.batches import Batches
from model.generate import Sampling, generate
from model.gpt import GPT
from run.checkpoint import Header
from training.optim import Optimizer
from training.pace import Pace
from training.processes import Processes
from training.runtime import Runtime, StopSignal
from training.state import TrainState
from training.step import Evaluation, evaluate

# A part of the text in batches of so many sequences.
Split = Callable[[int], Iterator[Tensor]]


@dataclass
class Job:
    """What is trained, on what, and where it stands."""

    run: Path
    config: Config
    model: GPT
    compiled_model: nn.Module
    """The same, compiled if the config says so."""
    optimizer: Optimizer
    batches: Batches
    runtime: Runtime
    processes: Processes
    pace: Pace
    state: TrainState = field(default_factory=TrainState)

    def header(self) -> Header:
        """What a checkpoint says of itself now."""
        return Header(
            config=self.config,
            tokenizer=self.batches.tokenizer.to_dict(),
            corpus=self.batches.info,
            machine=self.runtime.machine(self.processes.world_size),
            state=self.state,
        )

    def evaluate(self, split: Split, stop: StopSignal, skip: int = 0) -> Evaluation | None:
        """The loss over a split, as many sequences at a time as in training."""
        batches = split(self.config.train.micro_batch_size // self.processes.world_size)
        tokenizer, device = self.batches.tokenizer, self.runtime.device
        return evaluate(self.compiled_model, batches, tokenizer, device, stop, self.processes, skip)

    def sample(self, length: int, stop: StopSignal) -> str:
        """A text of so many tokens by the model, or its beginning if stopped; drawn from a
        generator of its own."""
        prompt = torch.tensor([[self.batches.info["start_token"]]], device=self.runtime.device)
        generator = torch.Generator().manual_seed(self.config.train.seed)
        tokens = generate(self.model, prompt, length, Sampling(), generator)
        kept = itertools.takewhile(lambda _: not stop, tokens)
        return self.batches.tokenizer.decode([int(token) for token in kept])
