"""The size of a model, and of a run: how many steps fit into the minutes."""

import time
from collections.abc import Callable
from typing import Any

from data.batches import Batches, TaskBatches
from model.config import ModelConfig
from model.gpt import GPT
from training.config import TrainConfig
from training.processes import Processes
from training.runtime import Machine
from training.step import make_model, train_step


def describe_size(model: GPT) -> str:
    """Return the shape of a model in one line."""
    config = model.config
    return (
        f"model: {config.n_layer} layers x {config.n_embd} wide, {config.n_head} heads, "
        f"context {config.block_size}, {model.num_parameters():,} parameters"
    )


def fit_steps(
    config: ModelConfig,
    train: TrainConfig,
    batches: Batches,
    machine: Machine,
    processes: Processes,
    began: float,
) -> int:
    """Return the number of steps that fit into `minutes`, counted from `began`, and print it.

    It times a model that is then discarded. The run is bitwise identical to one with
    `--train.max_steps` set to this number.
    """
    model, optimizer = make_model(config, train, batches.tokenizer.vocab_size, machine)
    ddp_model, batch = processes.wrap_ddp(model), batches.train_batch(0, train.batch_size)
    shard = batch.chunk(processes.world_size)[processes.rank]

    def seconds_of(compute: Callable[..., Any], *arguments: Any) -> float:
        """Return the mean time of a computation, from 1% of the minutes."""
        seconds: list[float] = []
        while len(seconds) < 3 or sum(seconds[2:]) < min(2.0, 0.6 * train.minutes):
            start = time.perf_counter()
            compute(*arguments)[0].sum().item()  # waits for a GPU
            seconds += processes.mean(time.perf_counter() - start)
        return sum(seconds[2:]) / len(seconds[2:])  # the first two warm up

    # A learning rate of 0 cannot diverge. Half of the steps of a run have the second loss.
    first, second = (
        seconds_of(train_step, ddp_model, optimizer, shard, train, 0.0, weight)
        for weight in (0.0, train.multi_token)
    )
    seconds_per_step = (first + second) / 2
    # A forward pass costs a third of a step, and a token of a sample is a pass of one position.
    tokens = min(batches.validation_tokens, train.eval_tokens)
    tokens *= 1 + isinstance(batches, TaskBatches)  # training sequences are evaluated as well
    evaluation = seconds_per_step * tokens / (3 * train.batch_size * config.block_size)
    evaluation += train.sample_tokens * seconds_of(model.forward, shard[:1, :1].to(machine.device))
    (passed,) = processes.mean(time.perf_counter() - began)
    left = 60 * train.minutes - passed - 1.0  # 1 s for checkpoints and exit
    steps = max(1, int((left - evaluation) / (seconds_per_step + evaluation / train.eval_every)))
    print(
        f"{steps:,} steps, {1000 * seconds_per_step:,.1f} ms each, fit into {train.minutes:g} "
        f"min here; to repeat this run: --train.max_steps {steps}"
    )
    return steps
