"""Train a GPT. The loop is `train`, the command is `main`.

python train.py                                       a minute of Python's own manual
python train.py configs/shakespeare_3min.yaml --model.n_layer 6
python train.py --resume runs/my-run                  resume where it stopped
python train.py --init_from runs/my-run --data.source letters.txt
python train.py --dry_run                             how large it would be
python train.py --help                                every field
"""

import signal

if __name__ == "__main__":  # until there is something to save, Ctrl-C ends at once and quietly
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)

import common.start  # loads PyTorch

# isort: split
import functools
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from pydantic.dataclasses import dataclass

from common.errors import UserError, command, printable
from common.fields import STRICT
from configs.load import SECTIONS, Config, build, read_command_line, read_config, read_yaml
from data.batches import Batches, TextBatches, open_batches
from model.gpt import GPT
from run.checkpoint import Checkpointer, SavedRun, load_training, load_weights, open_run
from run.folder import check_unused, describe_run, find_run, hold, make_folder, save_config
from run.job import Job
from run.log import Logger
from run.minutes import fit_steps
from run.resume import check_changes, check_same_text, notes_on_resume
from run.snapshots import save_snapshot, snapshot_steps
from training.optim import Optimizer, get_lr_scale, get_multi_token_weight
from training.pace import Pace
from training.processes import Processes, exit_now, join_processes
from training.runtime import Runtime, StopSignal, start_runtime, torchrun_ranks
from training.size import check_training_memory, describe_size
from training.step import load_batch, train_step

LOADING = time.perf_counter() - common.start.BEGAN  # seconds


@dataclass(frozen=True, config=STRICT)
class Options:
    """The run"""

    run: str | None = None
    """Name of the new run, a folder in runs/; without it, the config's name and the time."""

    resume: str | None = None
    """Resume this run where it stopped."""

    init_from: str | None = None
    """Start a new run from the weights of this one, with its config and its vocabulary."""

    evaluate: str | None = None
    """Measure the best weights of this run on the splits that are held out from training."""

    dry_run: bool = False
    """Print parameters, memory and FLOPs, and train nothing."""


# --- the loop ------------------------------------------------------------------------------------


def train(job: Job, stop: StopSignal) -> str | None:
    """Train until `max_steps`, the target loss, the end of patience, or a stop signal.

    Returns:
        Why training is over; None after a stop signal, when the run can be resumed.

    Raises:
        UserError: when the loss, its gradient or the weights are not finite; the checkpoint before
            stays.
    """
    state, settings, processes = job.state, job.config.train, job.processes
    device, silent = job.runtime.device, not processes.is_main
    ddp_model = processes.wrap_ddp(job.compiled_model)
    snapshots = [] if silent else snapshot_steps(settings, job.model.num_parameters())
    baselines = job.batches.baselines()
    with Logger(job.run, job.config, state, job.pace, baselines, stop, silent) as log:
        checkpoints = Checkpointer(
            job.run, job.model, job.optimizer, processes, job.header, log.flush
        )
        with explain_failures(job, checkpoints):
            if state.step == 0:  # from the first file on, a run can be resumed
                checkpoints.save_last()
            while not processes.stop_requested(stop):
                if state.step in snapshots:
                    save_snapshot(job.run, job.model, job.header())
                if state.evaluation_due(settings):
                    log.evaluating()
                    result = job.evaluate(job.batches.validation, stop)
                    wanted = 0 if silent or result is None else settings.sample_tokens
                    sample = job.sample(wanted, stop)
                    if processes.stop_requested(stop) or result is None:
                        break  # evaluated again when the run is resumed
                    if state.record(result.val_loss):
                        checkpoints.save_best()
                    log.evaluation(result, sample)
                ended = state.ended(settings)
                if ended or state.step % settings.save_every == 0:
                    checkpoints.save_last()
                if ended:
                    return ended

                lr_scale = get_lr_scale(state.step, settings)
                multi_token_weight = get_multi_token_weight(state.step, settings)
                began = time.perf_counter()
                batch = load_batch(job.batches, state.step, settings.batch_size, device, processes)
                state.step += 1  # before the update, so that an error names the step it is in
                state.train_loss, grad_norm = train_step(
                    ddp_model, job.optimizer, batch, lr_scale, processes, multi_token_weight
                )
                log.step(lr_scale, grad_norm, time.perf_counter() - began)
            checkpoints.save_last()
    return None


# --- what can go wrong ---------------------------------------------------------------------------


@contextmanager
def explain_failures(job: Job, checkpoints: Checkpointer) -> Iterator[None]:
    """Training that diverges ends in one line."""
    first, settings = job.state.step, job.config.train
    try:
        yield
    except FloatingPointError as error:
        lr_scale, also = get_lr_scale(max(0, job.state.step - 1), settings), ""
        rate = f"{lr_scale * settings.adamw_learning_rate:.3g}"
        if settings.optimizer == "muon":
            rate += f" (Muon's {lr_scale * settings.muon_learning_rate:.3g})"
            also = " and --train.muon_learning_rate"
        saved = checkpoints.saved[0] if checkpoints.saved else first
        raise UserError(
            f"at step {job.state.step}, learning rate {rate}: {error}; "
            f"{job.run} stays as it was saved at step {saved}. "
            f"Start again with a lower --train.learning_rate{also}, from the beginning or with "
            f"--init_from {job.run}"
        ) from None


# --- the command ---------------------------------------------------------------------------------


@command
def main(argv: list[str]) -> int:
    """Hold the run's lock and the group of processes until all that uses them is gone."""
    with ExitStack() as held:
        return execute(argv, held)


def execute(argv: list[str], held: ExitStack) -> int:
    """Read the command line, open what it names, train, and say what to do next."""
    began = time.perf_counter() - LOADING
    usage = "python train.py [CONFIG.yaml] [--section.field VALUE ...]"
    sections = {"": Options} | SECTIONS
    file, values = read_command_line(sections, argv, usage, "Train a GPT on a text.")
    options = build(Options, values[""])
    saved, flag = open_source(options, held)
    config = read_config(values, file, saved.config if saved else None)
    if saved is not None:
        check_changes(saved.config, config, flag)
    threads = saved.header.machine.threads if saved and flag == "--resume" else 0
    runtime = start_runtime(config.train, threads)
    vocabulary = saved.tokenizer if saved else None
    given = values["data"] | (read_yaml(Path(file)).get("data", {}) if file else {})
    named = saved is None or "source" in given
    block_size, seed = config.model.block_size, config.train.seed
    batches = open_batches(config.data, block_size, seed, vocabulary, named)
    processes = join_processes(config.train, runtime.device, held)
    print(f"{runtime}{processes}\ntext: {batches}")
    V = batches.tokenizer.vocab_size
    if options.dry_run:
        print(describe_size(config.model, config.train, V))
        return 0
    check_training_memory(config.model, config.train, V, runtime.device)
    job = make_job(config, batches, runtime, processes)
    if saved is None or flag == "--init_from":
        start(job, options, file, saved, held, began)
    elif flag == "--evaluate":
        return measure(job, saved)
    elif not resume(job, saved):
        return 0
    del saved  # its tensors are copies of what is in the model now
    return run_job(job)


def open_source(options: Options, held: ExitStack) -> tuple[SavedRun | None, str]:
    """The run that is resumed, measured, or gives its weights, and the flag that names it.

    Raises:
        UserError: for flags that exclude each other, and a run that cannot be opened.
    """
    named = {
        "--resume": options.resume,
        "--evaluate": options.evaluate,
        "--init_from": options.init_from,
        "--run": options.run,
    }
    given = [flag for flag, name in named.items() if name is not None]
    if len(given) > 1 and given != ["--init_from", "--run"]:
        raise UserError(f"{given[0]} takes a run as it is: no {' and no '.join(given[1:])} with it")
    name = named[given[0]] if given and given[0] != "--run" else None
    if name is None:
        return None, ""
    run = find_run(name)
    if options.resume is None:
        return open_run(run, "best"), given[0]
    if torchrun_ranks()[0] == 0:
        held.enter_context(hold(run))
    return open_run(run, "last"), given[0]


def make_job(config: Config, batches: Batches, runtime: Runtime, processes: Processes) -> Job:
    """A new model and its optimizer; the weights follow from the seed."""
    seed = config.train.seed
    torch.manual_seed(seed)
    model = GPT(config.model, batches.tokenizer.vocab_size).to(runtime.device)
    if processes.rank:  # the same weights, but other dropout
        torch.manual_seed((seed + (processes.rank << 32)) % 2**63)
    compiled_model = runtime.prepare(model, config.train.compile)
    optimizer = Optimizer(model, config.train, runtime.precision)
    c = config.model
    print(
        f"model: {c.n_layer} layers x {c.n_embd} wide, {c.n_head} heads, context {c.block_size}, "
        f"{model.num_parameters():,} parameters"
    )
    pace = Pace.by_flops(config.train, c.block_size, batches.validation_tokens)
    return Job(
        Path("the run"), config, model, compiled_model, optimizer, batches, runtime, processes, pace
    )


def start(
    job: Job,
    options: Options,
    file: str | None,
    source: SavedRun | None,
    held: ExitStack,
    began: float,
) -> None:
    """Make the folder of a new run, with the weights of `source`, if there is one.

    Args:
        began: when the process did; the `minutes` of the config are counted from then.
    """
    stem = f"from-{source.path.parent.name}" if source else "default"
    if file is not None:  # runs/NAME/config.yaml is called after NAME
        stem = Path(file).parent.name if Path(file).stem == "config" else Path(file).stem
    if source is not None:
        load_weights(job.model, source.tensors, source.path)
    if job.processes.is_main:
        job.run = make_folder(options.run, stem)
        held.enter_context(hold(job.run))
        check_unused(job.run)  # once more: another process may have come first
    if job.config.train.minutes:
        fit_steps(job, began)
    if job.processes.is_main:
        facts = {"corpus": job.batches.info, "init_from": options.init_from}
        describe_run(job.run, job.config, facts | {"runtime": f"{job.runtime}{job.processes}"})


def resume(job: Job, saved: SavedRun) -> bool:
    """Continue a run; False where there is nothing left to do."""
    job.run, job.state = saved.path.parent, saved.header.state
    name = printable(str(job.run))
    check_same_text(saved, job.batches.info)
    step, max_steps = job.state.step, job.config.train.max_steps
    if step > max_steps or step == max_steps == job.state.last_eval_step:
        print(f"{name} is complete at step {step}; continue with a larger --train.max_steps")
        return False
    load_training(job.model, job.optimizer, saved.tensors, saved.path, job.processes.rank)
    print(f"resuming {name} at step {step}")
    for note in notes_on_resume(saved, job.runtime.machine(job.processes.world_size)):
        print(f"note: {printable(note)}")
    if job.processes.is_main:
        save_config(job.run, job.config)
    return True


def run_job(job: Job) -> int:
    """Train, and say how it ended and what to do next; the exit code says it too."""
    state, run = job.state, printable(str(job.run))
    with StopSignal() as stop:
        try:
            ended = train(job, stop)
        except KeyboardInterrupt:
            if job.processes.is_main:
                line = f"resume from the last checkpoint with: python train.py --resume {run}"
                print(f"\nstopped at once; {line}", file=sys.stderr)
            return exit_now(130)
    if ended is None:
        print(f"stopped at step {state.step}; resume with: python train.py --resume {run}")
        return stop.exit_code
    why = "" if ended == "max_steps" else f" ({ended})"
    print(
        f"done{why}: {run}, {state.step} steps in {state.seconds:.0f} s, "
        f"best validation loss {state.best_val_loss:.4f}\n"
        f"next:\n  python sample.py {run}\n  python study.py report {run}"
    )
    return stop.exit_code if stop else 0


def measure(job: Job, saved: SavedRun) -> int:
    """Print the loss over each split that is held out from training; the exit code."""
    print(f"measuring {printable(str(saved.path))}, step {saved.header.state.step}")
    if not saved.trained_on(job.batches.info):
        print("note: this is not the text that the run was trained on")
    load_weights(job.model, saved.tensors, saved.path)
    data, T = job.config.data, job.config.model.block_size
    splits = {"validation": job.batches.validation}
    if data.test_fraction:
        splits["test"] = job.batches.test
    strides = {T, T - T // 2} if isinstance(job.batches, TextBatches) else {T}
    with StopSignal() as stop:
        for name, split in splits.items():
            for stride in sorted(strides, reverse=True):
                part = functools.partial(split, stride=stride)
                result = job.evaluate(part, stop, skip=T - stride)
                if result is None:
                    job.processes.stop_requested(stop)
                    return stop.exit_code
                window = f"  sliding window: each from {T - stride + 1} or more" * (stride < T)
                print(f"{name:10} {result.describe(data.unit)}{window}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
