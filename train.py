"""Train a GPT. The loop is `train`, the life of a run is `main`.

python train.py                                       train for a minute on Python's manual
python train.py configs/shakespeare_3min.yaml --model.n_layer 6
python train.py --resume runs/my-run                  continue where the run stopped
python train.py --init_from runs/my-run --data.source letters.txt
python train.py --help                                explain every field
"""

import common.start

import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from common.errors import UserError, command, shell_word
from common.fields import STRICT
from configs.load import SECTIONS, Config, Values, build, read_command_line, read_config, read_yaml
from data.batches import Batches, TaskBatches, check_cached, open_batches
from model.gpt import GPT
from run.checkpoint import (
    Header,
    SavedRun,
    copy_into,
    half_precision,
    model_tensors,
    open_run,
    optimizer_tensors,
    save_in_run,
    snapshot_steps,
)
from run.folder import check_changes, find_run, lock_run, make_folder, save_config
from run.log import Log
from sampling.generate import generate_text
from training.optim import Optimizer, get_lr_scale, get_multi_token_weight
from training.processes import Processes, join_processes, read_processes
from training.runtime import StopSignal, start_machine
from training.size import describe_size, fit_steps
from training.step import TrainState, evaluate, make_model, print_losses, read_results, train_step


@dataclass(frozen=True, config=STRICT)
class Options:
    """The run"""

    run: str | None = None
    """Name of the new run, a folder in runs/. If omitted, the config's name and the time."""

    resume: str | None = None
    """Resume this run where it stopped."""

    init_from: str | None = None
    """Start a new run from the best weights of this run, with its config and vocabulary."""

    evaluate: str | None = None
    """Measure the best weights of this run on the validation and test splits."""

    def __post_init__(self) -> None:
        if [self.resume, self.evaluate, self.init_from or self.run].count(None) < 2:
            raise ValueError(
                "resume, --evaluate and --init_from exclude each other; --run names a new run"
            )


def train(
    folder: Path | None,
    header: Header,
    batches: Batches,
    model: GPT,
    optimizer: Optimizer,
    processes: Processes,
    read_every: int,
) -> int:
    """Train until `max_steps`, the target loss, or a signal to stop; return the signal, or 0.

    All that changes is in `model`, `optimizer` and `header.state`. Results are read, which waits
    for a GPU, at least every `read_every` steps. FloatingPointError names one that is not finite.
    """
    config, state, ddp_model = header.config, header.state, processes.wrap_ddp(model)
    snapshots = snapshot_steps(config.train, model.num_parameters())
    pending: list[tuple[Tensor, Tensor]] = []  # results that are still on the device
    lr_scale = pending_since = 0.0
    began, first = time.perf_counter() - state.seconds, state.step
    with StopSignal() as stop, Log(folder, config, state, batches.baselines, stop) as log:
        while True:
            ended, stopped = state.step >= config.train.max_steps, False
            evaluating = state.step > state.last_eval_step and (
                ended or state.step % config.train.eval_every == 0
            )
            saving = state.step == first or state.step % config.train.save_every == 0

            # 1. Read the results, if something needs them.
            due = evaluating or saving or state.step in snapshots or state.step % read_every == 0
            if pending and due:
                results = read_results(pending, state.step, optimizer, processes, stop)
                state.train_loss, grad_norm, stopped = results
                state.seconds = time.perf_counter() - began
                log.training(len(pending), time.perf_counter() - pending_since, lr_scale, grad_norm)
                pending = []

            # 2. Evaluate and save what is due. Return if training is over or told to stop.
            if evaluating and not stopped:
                stopped = validate(folder, header, batches, model, processes, stop, log)
                state.seconds = time.perf_counter() - began
            reached = state.val_loss is not None and state.val_loss <= config.train.target_loss
            if saving or ended or reached or stopped:
                tensors = model_tensors(model) | optimizer_tensors(optimizer)
                save_in_run(folder, "last", tensors, header)
            if state.step in snapshots:
                save_in_run(folder, f"snapshots/{state.step:08d}", half_precision(model), header)
            if ended or reached or stopped:
                return (stop.number or signal.SIGTERM) if stopped else 0  # told to another process

            # 3. One step. Its batch and its dropout follow from the seed and the step's number.
            if not pending:
                pending_since = time.perf_counter()
            lr_scale = get_lr_scale(state.step, config.train)
            weight = get_multi_token_weight(state.step, config.train)
            batch = batches.train_batch(state.step, config.train.batch_size)
            shard = batch.chunk(processes.world_size)[processes.rank]
            rng = np.random.default_rng([config.train.seed, state.step, processes.rank])
            torch.manual_seed(int(rng.integers(2**63)))
            pending.append(train_step(ddp_model, optimizer, shard, config.train, lr_scale, weight))
            state.step += 1


def validate(
    folder: Path | None,
    header: Header,
    batches: Batches,
    model: GPT,
    processes: Processes,
    stop: StopSignal,
    log: Log,
) -> bool:
    """Evaluate the model, record and log the loss, and save the weights if they are the best.

    Returns:
        Whether training was told to stop meanwhile; then nothing is recorded, and the resumed run
        evaluates again.
    """
    config = header.config.train
    rows = config.micro_batch_size // processes.world_size
    split = batches.validation_batches(rows, config.eval_tokens)
    trained = result = evaluate(model, split, batches, processes, stop)
    if result and isinstance(batches, TaskBatches):
        split = batches.training_batches(rows, config.eval_tokens)
        trained = evaluate(model, split, batches, processes, stop)
    if not result or not trained:
        return True
    if header.state.record(result.loss):
        save_in_run(folder, "best", model_tensors(model), header)
    log.evaluation(result, trained.accuracy)
    if folder:
        start = batches.corpus.start_token
        text = generate_text(model, batches.tokenizer, start, config.sample_tokens, config.seed)
        log.sample(text and batches.start + text)
    return False


@command
def main(argv: list[str]) -> int:
    """The life of a run: command line, text, number of steps, model, training."""
    usage = "python train.py [CONFIG.yaml] [--section.field VALUE ...]"
    words, values = read_command_line(
        {"": Options} | SECTIONS, argv, usage, "Train a GPT on a text."
    )
    file, options = next(iter(words), None), build(Options, values[""])
    processes = read_processes()
    with ExitStack() as stack:  # the run's lock, and the group of processes
        saved, config = open_saved(options, file, values, processes, stack)
        resumed = saved if options.resume else None
        machine = start_machine(
            config.train, processes, resumed.header.machine if resumed else None
        )
        batches = open_batches(
            config.data,
            config.model.block_size,
            config.train.seed,
            saved.tokenizer if saved else None,
        )
        stack.enter_context(join_processes(processes, config.train, machine.device))
        about = f"{machine}\ntext: {batches}" + (f"\nweights: {saved}" if saved else "")
        print(about)
        start = time.perf_counter()
        _ = batches.baselines  # before the clock of --train.minutes starts
        began = common.start.BEGAN + time.perf_counter() - start

        # The folder and the state, and the number of steps
        folder, state = None, TrainState()
        if resumed:
            resumed.check_resume(batches.corpus, config.train, machine)
            state = resumed.header.state
            folder = resumed.path.parent if processes.is_main else None
        elif not options.evaluate:
            if processes.is_main:
                origin = f"from-{saved.path.parent.name}" if saved else "default"
                folder = make_folder(options.run, Path(file).stem if file else origin)
                stack.enter_context(lock_run(folder))
            if config.train.minutes:
                steps = fit_steps(config.model, config.train, batches, machine, processes, began)
                config = read_config({"train": {"max_steps": steps}}, None, config)

        # The model and its optimizer
        model, optimizer = make_model(
            config.model, config.train, batches.tokenizer.vocab_size, machine
        )
        print(describe_size(model))
        if saved:
            copy_into(model_tensors(model), saved.tensors, saved.path)
        if options.evaluate:
            if processes.is_main:
                print_losses(model, batches, config.train, config.data)
            return 0
        if resumed:
            copy_into(optimizer_tensors(optimizer), resumed.tensors, resumed.path)
        del saved, resumed  # the model and the optimizer have copies of their tensors
        if folder:
            save_config(folder, config, about)
        header = Header(config, batches.tokenizer.to_dict(), batches.corpus, machine, state)

        # Training, and what to do next
        run = shell_word(folder) if folder else "the run"
        read_every = 1 if machine.device == "cpu" else config.train.log_every
        try:
            stop_signal = train(folder, header, batches, model, optimizer, processes, read_every)
        except FloatingPointError as error:
            raise UserError(
                f"{error}; {run} keeps its last checkpoint. Start again with a lower "
                f"--train.learning_rate and --train.muon_learning_rate"
            ) from None
        except OSError as error:
            raise UserError(f"could not write to {run}: {error.strerror}") from error
    if stop_signal:
        print(f"stopped at step {state.step}; resume with: python train.py --resume {run}")
        return 128 + stop_signal  # as a shell reports it: 130 for Ctrl-C
    print(
        f"done: {run}, {state.step} steps in {state.seconds:.0f} s, "
        f"best validation loss {state.best_val_loss:.4f}\n"
        f"next:\n  python sample.py {run}\n  python study.py report {run}"
    )
    return 0


def open_saved(
    options: Options, file: str | None, values: Values, processes: Processes, stack: ExitStack
) -> tuple[SavedRun | None, Config]:
    """Open the run to resume, evaluate or start from, if there is one; return it and the config."""
    for flag in ("resume", "evaluate", "init_from"):
        if (name := getattr(options, flag)) is not None:
            folder = find_run(name)
            if options.resume and processes.is_main:
                stack.enter_context(lock_run(folder))
            saved = open_run(folder, "last" if options.resume else "best")
            config = read_config(values, file, saved.config)
            check_changes(saved.config, config, f"--{flag}")
            if "source" not in read_yaml(file).get("data", {}) | values["data"]:
                check_cached(config.data, saved.tokenizer)  # only the saved run names the text
            return saved, config
    return None, read_config(values, file)


if __name__ == "__main__":
    sys.exit(main())
