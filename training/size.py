"""The size of a model, and how many steps fit into the minutes."""

import sys
import time

from data.batches import Batches
from model.config import ModelConfig
from model.gpt import GPT
from training.config import TrainConfig
from training.processes import Processes
from training.runtime import Machine
from training.step import make_model, train_step


def describe_model(model: GPT) -> str:
    """Return the size of a model in one line."""
    config = model.config
    return (
        f"{config.n_layer} layers x {config.n_embd} wide, {config.n_head} heads, context "
        f"{config.block_size}, {model.num_parameters():,} parameters"
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

    def seconds_since(start: float) -> float:  # the mean, so that all processes agree
        return processes.all_reduce(time.perf_counter() - start)[0] / processes.world_size

    model, optimizer = make_model(config, train, batches.tokenizer.vocab_size, machine)
    ddp_model, batch = processes.wrap_ddp(model), batches.train_batch(0, train.batch_size)
    shard = batch.chunk(processes.world_size)[processes.rank]
    for steps in range(-1, sys.maxsize):  # -1 and 0 are warmup
        # A learning rate of 0 cannot diverge. Half of the steps of a run have the second loss.
        weight = train.multi_token * (steps % 2)
        loss, _ = train_step(ddp_model, optimizer, shard, train, 0.0, weight)
        loss.item()  # waits for a GPU
        if steps < 1:
            start = time.perf_counter()
        elif seconds_since(start) > min(5.0, 1.8 * train.minutes):  # 3%, at most 5 s
            break
    seconds_per_step = seconds_since(start) / steps
    # A forward pass costs a third of a training step.
    tokens = min(batches.validation_tokens, train.eval_tokens)
    evaluation = seconds_per_step * tokens / (3 * train.batch_size * config.block_size)
    start = time.perf_counter()
    for _ in range(20):  # a token of a sample is a forward pass of one position
        model.forward(shard[:1, :1].to(machine.device)).sum().item()
    evaluation += train.sample_tokens * seconds_since(start) / 20
    left = 60 * train.minutes - seconds_since(began) - 1.0  # 1 s for checkpoints and exit
    seconds_on_average = seconds_per_step + evaluation / train.eval_every
    fitting = max(1, int((left - evaluation) / seconds_on_average))
    print(
        f"{fitting:,} steps, {1000 * seconds_per_step:,.1f} ms each, fit into {train.minutes:g} "
        f"min here; to repeat this run: --train.max_steps {fitting}"
    )
    return fitting
