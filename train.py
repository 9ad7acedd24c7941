"""Train a GPT. The loop is `train`, the life of a run is `main`.

python train.py                                       train for a minute on Python's manual
python train.py configs/shakespeare_3min.yaml --model.n_layer 6
python train.py --resume runs/my-run                  continue where the run stopped
python train.py --init_from runs/my-run --data.source letters.txt
python train.py --help                                explain every field
"""

import common.start

import dataclasses
import functools
import math
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common.errors import UserError, command, shell_word
from configs.config import STRICT, Config, TrainConfig
from configs.load import SECTIONS, read_command_line
from data.batches import Batches
from data.tasks import TASKS
from model.fast.choose import choose_decoder
from model.generate import Sampling, generate
from model.gpt import GPT
from training.budget import expect_steps, set_end
from training.checkpoint import (
    Header,
    half_precision,
    model_tensors,
    open_run,
    optimizer_tensors,
    save_in_run,
)
from training.evaluate import evaluate_splits
from training.folder import find_run, lock_run, make_folder, rewind, save_config
from training.log import Log
from training.machine import Processes, StopSignal, join_processes, read_processes
from training.optim import Optimizer, get_lr_scale, regularization, update_weights
from training.start import start_again, start_from, start_new
from training.state import TrainState
from training.step import compute_gradients, make_model

EXIT = 1.0  # seconds for the last checkpoint and the end of the command
SNAPSHOT_BYTES = 64e6  # maximum size of all snapshots of a run
OVERFIT = 0.005  # nats per token by which the last evaluation is worse than the best
SIGPIPE = 13  # a closed pipe or terminal; Windows does not have this signal


@dataclass(frozen=True, config=STRICT)
class Options:
    """The run"""

    run: str | None = None
    """Name of the new run, a folder in runs/. If omitted, the config's name and the time."""

    resume: str | None = None
    """Resume this run where it stopped."""

    init_from: str | None = None
    """Start a new run from the best weights of this run, with its config and vocabulary."""

    def __post_init__(self) -> None:
        if self.resume is not None and (self.init_from is not None or self.run is not None):
            raise ValueError("resume excludes --init_from and --run, which make a new run")


def train(
    folder: Path | None,
    header: Header,
    batches: Batches,
    model: GPT,
    optimizer: Optimizer,
    processes: Processes,
    deadline: float = math.inf,
    about: str = "",
) -> int:
    """Train to the last step, or to a signal to stop; return the signal, or 0.

    All that changes is in `model`, `optimizer` and the header's state, and `max_steps` is set if it
    is not.

    Args:
        folder: of the run; None in a process that neither writes nor prints.
        header: of the run's checkpoints.
        deadline: the time at which a run without `max_steps` has to end, by `time.perf_counter`.
        about: the comments of config.yaml.

    Raises:
        FloatingPointError: naming the step whose loss or gradient is not finite.
    """
    config, state, size = header.config, header.state, model.num_parameters()
    plan = config.train
    ddp_model: nn.Module = model
    if processes.world_size > 1:
        ddp_model = DistributedDataParallel(model)  # averages gradients over the processes
        ddp_model.broadcast_buffers = False  # they are constant; the argument is deprecated
    read_every = 1 if header.machine.device == "cpu" else plan.log_every  # reading waits for a GPU
    pending: list[tuple[Tensor, Tensor]] = []  # losses and gradient norms, on the device
    readings = [(state.step, 0.0)]  # numbers of steps, and the seconds they took in this session
    busy, stopped = 0.0, 0  # seconds of the steps in this session; the signal to stop
    eval_seconds: float | None = None  # of the last evaluation
    began, first = time.perf_counter() - state.seconds, state.step
    with StopSignal() as stop, Log(folder, config, state, batches) as log:
        if plan.max_steps is not None:
            log.print(describe_end(config, batches, model))
        while True:
            # 1. While the end is unknown, expect it after each reading, and set it if the learning
            # rates have to decay from here on.
            if plan.max_steps is None and state.step == readings[-1][0] > first:
                left = deadline - time.perf_counter()
                (expected,) = processes.mean(
                    expect_steps(config, batches, readings, eval_seconds, left)
                )
                log.steps = int(expected)
                if ended := set_end(plan, state.step, expected):
                    plan, config = ended, dataclasses.replace(config, train=ended)
                    header = dataclasses.replace(header, config=config)
                    log.print(describe_end(config, batches, model))
                    if folder:
                        save_config(folder, config, about)

            # 2. Evaluate and save what is due. Return if training is over or told to stop.
            due = due_at(state.step, plan, size)
            if "evaluation" in due and state.step > state.last_eval_step and not stopped:
                started = time.perf_counter()
                model.eval()
                evaluations = evaluate_splits(model, batches, config, processes, stop)
                if evaluations is None:
                    stopped = processes.max(stop.number)
                else:
                    if state.record(evaluations["validation"].loss):
                        save_in_run(folder, "best", model_tensors(model), header)
                    log.evaluation(evaluations)
                    if folder:
                        log.sample(sample(model, batches, config))
                    eval_seconds = time.perf_counter() - started
                model.train()
                state.seconds = time.perf_counter() - began
            # The first is saved at once, so that a run that is killed early can be resumed.
            if stopped or state.step == first:
                due.add("checkpoint")
            save_due(due, folder, model, optimizer, header)
            if "end" in due or stopped:
                return stopped

            # 3. Compute a step's gradients. Its batch and its dropout follow from the seed and its
            # index.
            started = time.perf_counter()
            index, state.step = state.step, state.step + 1
            count = plan.batch_size
            batch, passes = batches.train_batch(index, count), batches.passes(index, count)
            shard = batch.chunk(processes.world_size)[processes.rank]
            rng = np.random.default_rng([plan.seed, index, processes.rank])
            torch.manual_seed(int(rng.integers(2**63)))
            model.dropout.p, weight_decay = regularization(
                optimizer.weights, passes, len(batches.tokens["training"]), config
            )
            loss, norm = compute_gradients(ddp_model, optimizer.weights, shard, plan)
            pending.append((loss, norm))

            # 4. Read the results, if something needs them, before the weights are updated.
            reading = state.step % read_every == 0 or due_at(state.step, plan, size)
            if reading:
                losses, norms = (
                    processes.mean(*torch.stack(each).tolist())
                    for each in zip(*pending, strict=True)
                )
                check_results(losses, norms, state.step, optimizer.weights)
            update_weights(optimizer, norm, plan, index, weight_decay)
            busy += time.perf_counter() - started
            if reading:
                readings.append((state.step, busy))
                state.train_loss, state.seconds = losses[-1], time.perf_counter() - began
                log.training(busy, norms[-1], get_lr_scale(index, plan))
                pending = []
                stopped = processes.max(stop.number or (0 if log.is_open else SIGPIPE))


def due_at(step: int, plan: TrainConfig, size: int) -> set[str]:
    """Return what is due after this many steps of a model with `size` weights, for which their
    results have to be read."""
    ended, decays = step >= plan.end, step == plan.decay_start
    is_due = {
        "end": ended,
        "decay": decays,
        "evaluation": ended or step % plan.eval_every == 0,
        "checkpoint": ended or decays or step % plan.save_every == 0,
        "snapshot": step in snapshot_steps(plan, size),
        # To know early how long a step takes, also on a GPU
        "estimate": plan.max_steps is None and step <= plan.warmup_steps,
    }
    return {name for name, due in is_due.items() if due}


def save_due(
    due: set[str], folder: Path | None, model: GPT, optimizer: Optimizer, header: Header
) -> None:
    """Save the checkpoints that are due; see `save_in_run`."""
    if "checkpoint" in due:
        tensors = model_tensors(model) | optimizer_tensors(optimizer)
        if "decay" in due:  # a longer run can go on from here
            save_in_run(folder, "before_decay", tensors, header)
        save_in_run(folder, "last", tensors, header)
    if "snapshot" in due:
        name = f"snapshots/{header.state.step:08d}"
        save_in_run(folder, name, half_precision(model), header)


@functools.cache
def snapshot_steps(config: TrainConfig, parameters: int) -> set[int]:
    """Return the steps of the snapshots. Those before the decay do not depend on the run's end.

    Heads form early and quickly and then change slowly, so two thirds of the snapshots grow by a
    constant factor, up to step 256. Longer runs continue them. A third is spread over the decay.
    There are `snapshots` in a run of 600 steps, or fewer if they would exceed 64 MB.
    """
    count = int(min(config.snapshots, SNAPSHOT_BYTES / (2 * parameters)))
    if not count:
        return set()
    in_decay = math.ceil(count / 3)
    steps, start = {0}, min(config.decay_start, 2.0**40)
    factor = 2 ** (8 / (count - in_decay)) if count > 1 else math.inf
    step = factor
    while step < start:
        steps.add(round(step))
        step *= factor
    if config.max_steps is not None:
        steps |= {round(x) for x in np.linspace(config.max_steps, start, in_decay, endpoint=False)}
    return steps


def describe_end(config: Config, batches: Batches, model: GPT) -> str:
    """Return in one line how long the run is, how often it reads its text, and what follows."""
    steps = config.train.max_steps or 0
    passes = batches.passes(steps, config.train.batch_size)
    weights, tokens = dict(model.named_parameters()), len(batches.tokens["training"])
    reads = f"reads the text {passes:.1f} times" if passes else "draws new sequences in each step"
    first, last = (regularization(weights, each, tokens, config) for each in (0.0, passes))
    rates = [
        f"{name} {'rises to ' * (before < after)}{after:.2g}"
        for name, before, after in zip(("dropout", "weight decay"), first, last, strict=True)
    ]
    return ", ".join([f"--train.max_steps {steps} {reads}", *rates])


def check_results(
    losses: list[float], norms: list[float], step: int, weights: dict[str, nn.Parameter]
) -> None:
    """Check the results of the last steps before the weights are updated with the last gradient.

    Args:
        step: the number of the last step.

    Raises:
        FloatingPointError: naming the first step that is not finite and, if it is the last one, the
            first weight whose gradient is not finite.
    """
    first = step - len(losses) + 1
    for i, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=first):
        if not math.isfinite(loss + norm):
            gradients = {name: weight.grad for name, weight in weights.items()}
            bad = [n for n, g in gradients.items() if g is not None and not g.isfinite().all()]
            named = f", first in {bad[0]}" if bad and i == step else ""
            raise FloatingPointError(f"at step {i}: loss {loss}, gradient norm {norm}{named}")


def sample(model: GPT, batches: Batches, config: Config) -> str:
    """Return a text of `sample_tokens` tokens with the default rule, from an RNG of its own."""
    if config.train.sample_tokens == 0:
        return ""
    device = model.token_embedding.weight.device
    prompt_BT = torch.tensor([[batches.corpus.start_token]], device=device)
    generator = torch.Generator().manual_seed(config.train.seed)
    decoder, note = choose_decoder(model)
    if note:
        print(f"note: {note}", file=sys.stderr)
    tokens = generate(decoder, prompt_BT, config.train.sample_tokens, Sampling(), generator)
    start = [batches.corpus.start_token] if batches.task else []  # which a text does not show
    return batches.tokenizer.decode([*start, *map(int, tokens)])


def describe_best(state: TrainState, before: TrainState) -> str:
    """Return what to know if the last weights are not the best ones.

    Args:
        before: the state when the session began.
    """
    best, last = state.best_val_loss or 0.0, state.val_loss or 0.0
    if state.step == before.step:
        return ""
    if best == before.best_val_loss or state.best_step == 0:
        what = f"this session gained nothing, and ended at {last:.4f}"
    elif last - best > OVERFIT:
        what = f"it is overfit: the steps after that raised the loss to {last:.4f}"
    else:
        return ""
    return (
        f" at step {state.best_step}, whose weights are used\n{what}; "
        f"train on more text, for fewer steps, or with more --model.dropout"
    )


@command
def main(argv: list[str]) -> int:
    """The life of a run: command line, text, model, training, and what to do next."""
    usage = "python train.py [CONFIG.yaml] [--section.field VALUE ...]"
    sections = {"": Options} | SECTIONS
    description = f"Train a GPT on a text, or on a task: {', '.join(TASKS)}."
    words, (options,), values = read_command_line(sections, argv, usage, description)
    file = words[0] if words else None
    processes, folder = read_processes(), None
    with ExitStack() as stack:  # the run's lock, and the group of processes
        # What the run starts from. What follows is the same for each.
        if options.resume is not None:
            if processes.is_main:
                folder = stack.enter_context(lock_run(find_run(options.resume)))
            start = start_again(open_run(options.resume, "last"), file, values, processes)
        elif options.init_from is not None:
            start = start_from(open_run(options.init_from), file, values, processes)
        else:
            start = start_new(file, values, processes)
        config, state, machine, batches = start[:4]
        if config.train.tensorboard and find_spec("tensorboard") is None:
            raise UserError(
                "tensorboard is not installed; install it, or --train.tensorboard false"
            )
        if config.train.compile and config.model.dropout is None:
            raise UserError(
                "--train.compile needs a --model.dropout that does not change, such as 0"
            )
        stack.enter_context(join_processes(processes, config.train, machine.device))
        about = f"{machine}\ntext: {batches.about}"
        if config.train.eval_tokens < batches.validation_tokens:
            about += f"; evaluations use {config.train.eval_tokens:,} of the validation tokens"
        about += start.weights
        print(about, *start.notes, sep="\n")
        counting = time.perf_counter()
        _ = batches.baselines  # counts n-grams, which --train.minutes does not include
        counting = time.perf_counter() - counting

        # The model, its optimizer and the folder
        model, optimizer = make_model(config, batches.tokenizer.vocab_size, machine)
        print(f"model: {model.describe()}")
        start.restore(model, optimizer)
        if folder is None and processes.is_main:
            folder = stack.enter_context(lock_run(make_folder(options.run, start.name)))
        del start  # the model and the optimizer have copies of its tensors
        if folder:
            rewind(folder, state)
            save_config(folder, config, about)

        # Training, and what to do next
        run = shell_word(folder) if folder else "the run"
        deadline = common.start.BEGAN + counting + 60 * config.train.minutes - state.seconds - EXIT
        before = dataclasses.replace(state)
        header = Header(config, batches.tokenizer.to_dict(), batches.corpus, machine, state)
        try:
            stopped = train(folder, header, batches, model, optimizer, processes, deadline, about)
        except FloatingPointError as error:
            raise UserError(
                f"{error}; {run} keeps its last checkpoint. Start again with a lower "
                f"--train.learning_rate and --train.muon_learning_rate, or less weight decay"
            ) from None
        except OSError as error:
            raise UserError(f"could not write to {run}: {error.strerror}") from error
    if stopped:
        print(f"stopped at step {state.step}; resume with: python train.py --resume {run}")
        return 128 + stopped  # as a shell reports it: 130 for Ctrl-C
    study = "report" if config.model.norm == "layer" else "heads"  # what the page supports
    print(
        f"done: {run}, {state.step} steps in {state.seconds:.0f} s, "
        f"best validation loss {state.best_val_loss:.4f}{describe_best(state, before)}\n"
        f"next:\n  python sample.py {run}\n  python study.py {study} {run}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
