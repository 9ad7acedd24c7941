"""How many steps fit into the minutes."""

import dataclasses
import math
import time
from collections.abc import Callable

from configs.config import Config
from data.batches import Batches
from training.machine import Machine, Processes
from training.step import make_model, train_step

SHUTDOWN = 1.0  # seconds for checkpoints and exit
EVALUATIONS = 4  # of a run, at least, unless they take more than half of the time


def fit_steps(
    config: Config,
    batches: Batches,
    machine: Machine,
    processes: Processes,
    began: float,
    done: int,
) -> tuple[int, int]:
    """Return `done` plus the number of steps that fit into `minutes`, counted from `began`, and the
    number of steps between evaluations, of which there are at least four, unless they take more
    than half of the time; print both.

    It times a model that is then discarded. The run is bitwise identical to one with these numbers
    as `--train.max_steps` and `--train.eval_every`, from the same weights.
    """
    # A learning rate of 0 cannot diverge.
    train = dataclasses.replace(config.train, learning_rate=0.0, muon_learning_rate=0.0)
    vocab_size = batches.tokenizer.vocab_size
    model, optimizer = make_model(dataclasses.replace(config, train=train), vocab_size, machine)
    ddp_model, batch = processes.wrap_ddp(model), batches.train_batch(0, train.batch_size)
    shard = batch.chunk(processes.world_size)[processes.rank]
    token = shard[:1, :1].to(machine.device)

    def seconds_of(compute: Callable[[], object]) -> float:
        """Return the mean time of a computation, from 2% of the minutes."""
        seconds: list[float] = []
        while len(seconds) < 3 or sum(seconds[2:]) < min(4.0, 1.2 * train.minutes):
            start = time.perf_counter()
            compute()
            seconds += processes.mean(time.perf_counter() - start)
        return sum(seconds[2:]) / len(seconds[2:])  # the first two warm up

    # Reading a number waits for a GPU.
    step = seconds_of(lambda: train_step(ddp_model, optimizer, shard, train, 0)[0].item())
    sampled = seconds_of(lambda: model.forward(token).sum().item())
    # A forward pass costs a third of a step, and a token of a sample is a pass of one position.
    tokens = min(batches.validation_tokens, train.eval_tokens) * len(batches.evaluated)
    if train.sample_tokens:  # `choose_decoder` reads a context three times
        tokens += 3 * config.model.block_size
    evaluation = step * tokens / (3 * train.batch_size * config.model.block_size)
    evaluation += train.sample_tokens * sampled
    (passed,) = processes.mean(time.perf_counter() - began)
    left = 60 * train.minutes - passed - SHUTDOWN
    steps = max(1, int((left - evaluation) / (step + evaluation / train.eval_every)))
    eval_every = train.eval_every
    if steps < EVALUATIONS * eval_every:
        count = max(1, min(EVALUATIONS, int(left / 2 / evaluation)))
        steps = max(1, int((left - count * evaluation) / step))
        eval_every = math.ceil(steps / count)
    print(
        f"{steps:,} steps, {1000 * step:,.1f} ms each, fit into {train.minutes:g} min here, the "
        f"same as --train.max_steps {done + steps} --train.eval_every {eval_every}"
    )
    return done + steps, eval_every
