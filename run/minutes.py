"""How many steps fit into some minutes: a few are timed, and undone."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

from run.checkpoint import load_training, training_tensors
from run.job import Job
from training.processes import Processes
from training.runtime import StopSignal
from training.step import load_batch, train_step

UNTIMED = 1.0  # seconds, about: checkpoints, snapshots, metrics, the end of the process


def fit_steps(job: Job, began: float) -> None:
    """Set `max_steps` so that the process, which began then, ends after `minutes`.

    Some steps are timed and undone, so that the same `max_steps` gives the same run to the bit.
    """
    settings, processes, pace, stop = job.config.train, job.processes, job.pace, StopSignal()
    tensors = training_tensors(job.model, job.optimizer, processes)
    before = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
    ddp_model = processes.wrap_ddp(job.compiled_model)
    batch = load_batch(job.batches, 0, settings.batch_size, job.runtime.device, processes)
    sequences = settings.micro_batch_size // processes.world_size
    split = job.batches.validation(sequences)
    part = list(itertools.islice(split, 4 * processes.world_size))
    length = min(32, settings.sample_tokens)

    def seconds_of(function: Callable[[], object]) -> float:
        start = time.perf_counter()
        function()
        return on_first_process(processes, time.perf_counter() - start)

    enough = min(5.0, 1.8 * settings.minutes)  # seconds: a thirtieth
    while pace.step_seconds < enough:  # the first steps do not count
        # As long as any other, but at a learning rate of zero none diverges.
        pace.saw_step(seconds_of(lambda: train_step(ddp_model, job.optimizer, batch, 0, processes)))
    for _ in range(2):  # the first time is slower
        evaluation = seconds_of(lambda: job.evaluate(lambda _: iter(part), stop))
    evaluation *= job.batches.validation_tokens / sum(batch[:, 1:].numel() for batch in part)
    if length:
        sample = seconds_of(lambda: job.sample(length, stop))
        evaluation += sample * settings.sample_tokens / length
    pace.saw_evaluation(evaluation)

    spent = on_first_process(processes, time.perf_counter() - began)
    steps = pace.steps_in(60 * settings.minutes - spent - UNTIMED, settings)
    job.config = replace(job.config, train=replace(settings, max_steps=steps, minutes=0.0))
    load_training(job.model, job.optimizer, before, job.run, processes.rank)
    minutes = "a minute is" if settings.minutes == 1 else f"{settings.minutes:g} minutes are"
    print(
        f"{minutes} {steps:,} step{'s' * (steps > 1)} here, {1000 * pace.step:,.1f} ms each; "
        f"to repeat this run: --train.max_steps {steps}"
    )


def on_first_process(processes: Processes, seconds: float) -> float:
    """Its seconds, in all processes, which must agree on the number of steps."""
    return processes.sum([seconds if processes.is_main else 0.0])[0]
