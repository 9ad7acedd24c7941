"""Train a GPT. The loop is `train`, the command is `main`.

python train.py                                       train for a minute on Python's manual
python train.py configs/shakespeare_3min.yaml --model.n_layer 6
python train.py --resume runs/my-run                  continue where the run stopped
python train.py --init_from runs/my-run --data.source letters.txt
python train.py --dry_run                             print parameters, memory and FLOPs
python train.py --help                                explain every field
"""

import signal

if __name__ == "__main__":  # until there is something to save, Ctrl-C ends at once and quietly
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as in the background of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)

import common.start  # loads PyTorch

# isort: split
import dataclasses
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from common.errors import UserError, command, printable
from common.fields import STRICT
from configs.load import SECTIONS, Config, build, read_command_line, read_config
from data.batches import Batches, open_batches
from model.gpt import GPT
from run.checkpoint import (
    Header,
    SavedRun,
    check_finite,
    copy_into,
    half_precision,
    load_weights,
    model_tensors,
    open_run,
    optimizer_tensors,
    save_checkpoint,
    snapshot_steps,
)
from run.folder import check_changes, find_run, lock_run, make_folder, save_config
from run.log import Logger
from sampling.generate import Sampling, generate
from training.optim import get_lr_scale, get_multi_token_weight, gradient, make_optimizer
from training.processes import Processes, join_processes
from training.runtime import Machine, start_machine
from training.step import Evaluation, TrainState, describe_size, evaluate, train_step

# Counted in `minutes`. `main` may be called long after the import, as in the tests.
IMPORT_SECONDS = time.perf_counter() - common.start.BEGAN


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

    dry_run: bool = False
    """Print parameters, memory and FLOPs without training."""


# --- the loop ------------------------------------------------------------------------------------


def train(job: "Job") -> bool:
    """Train until `max_steps`, the target loss, or a stop signal.

    Returns:
        Whether training is over; if not, the run can be resumed.

    Raises:
        FloatingPointError: if the loss, its gradient or the weights are not finite; the previous
            checkpoint is unchanged.
    """
    state, settings, processes = job.state, job.config.train, job.processes
    silent = not processes.is_main
    ddp_model = processes.wrap_ddp(job.model)
    snapshots = snapshot_steps(settings, job.model.num_parameters())
    began = time.perf_counter() - state.seconds
    with Logger(job.run, job.config, state, job.batches.baselines(), processes.stop, silent) as log:
        while not processes.stopping:
            if state.evaluation_due(settings):
                result = job.evaluate(job.batches.validation_batches, settings.eval_tokens)
                sample = "" if silent else job.sample()
                if processes.stopping:
                    break  # evaluated again when the run is resumed
                state.seconds = time.perf_counter() - began
                if state.record(result.loss):
                    job.save("best", model_tensors(job.model))
                log.evaluation(result, sample)
            ended = state.ended(settings)
            if ended or state.step % settings.save_every == 0:  # at step 0 too: any stop is resumed
                job.save_last()
            if state.step in snapshots:
                job.save(f"snapshots/{state.step:08d}", half_precision(job.model))
            if ended:
                return True

            lr_scale = get_lr_scale(state.step, settings)
            multi_token_weight = get_multi_token_weight(state.step, settings)
            step_began = time.perf_counter()
            batch = job.batch(state.step)
            # Dropout follows from (seed, step), as the batches do.
            torch.manual_seed(hash((settings.seed, state.step, processes.rank)))
            state.step += 1  # before the weights change, so that an error names this step
            train_step(
                ddp_model,
                job.optimizer,
                batch,
                settings,
                lr_scale,
                multi_token_weight,
                job.teachers,
                job.check,
            )
            state.seconds = time.perf_counter() - began
            log.step(lr_scale, job.grad_norm, time.perf_counter() - step_began)
        job.save_last()
    return False


@dataclasses.dataclass
class Job:
    """A training run: config, data, model, optimizer, state."""

    config: Config
    batches: Batches
    machine: Machine
    processes: Processes

    def __post_init__(self) -> None:
        """Make the model, with weights drawn from the seed, and its optimizer."""
        self.run = Path("the run")  # the run's folder, known only to the first process
        self.state = TrainState()
        self.grad_norm = 0.0  # of the last step that was waited for
        self.unread: list[Tensor] = []  # the results of steps that were not waited for
        settings = self.config.train
        torch.manual_seed(settings.seed)
        vocab_size = self.batches.tokenizer.vocab_size
        self.model = GPT(self.config.model, vocab_size).to(self.machine.device)
        self.model.compute_dtype = precision = getattr(torch, self.machine.precision)
        if settings.compile:
            self.model.compile()
        if self.machine.device == "cuda":
            self.copying = torch.cuda.Stream()
        self.optimizer = make_optimizer(self.model, settings, precision)
        self.teachers = [self.open_teacher(name) for name in settings.teachers.split(",") if name]

    def open_teacher(self, name: str) -> GPT:
        """Return the model of a run, whose predictions can be targets of this one.

        Raises:
            UserError: if it cannot be opened, or its vocabulary or context do not fit.
        """
        saved = open_run(find_run(name))
        context = saved.config.model.block_size
        if saved.tokenizer != self.batches.tokenizer or context < self.config.model.block_size:
            raise UserError(f"teacher {name} needs the same vocabulary, and as long a context")
        teacher = saved.model(self.machine.device)
        teacher.compute_dtype = self.model.compute_dtype
        return teacher

    def batch(self, step: int) -> Tensor:
        """Return this process's shard of the batch for `step`, (b, block_size + 1)."""
        batch = self.batches.train_batch(step, self.config.train.batch_size)
        shard = batch.chunk(self.processes.world_size)[self.processes.rank]
        if self.machine.device != "cuda":
            return shard.to(self.machine.device)
        with torch.cuda.stream(self.copying):  # while the GPU computes earlier steps
            shard = shard.pin_memory().to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(self.copying)
        shard.record_stream(torch.cuda.current_stream())  # keep it until it is used
        return shard

    def check(self, loss: Tensor, grad_norm: Tensor) -> Tensor | None:
        """Check the result of a step; see `train_step`. Wait for a GPU only when metrics, an
        evaluation or a checkpoint follow. Until then, a result that is not finite masks all
        updates."""
        settings = self.config.train
        intervals = settings.log_every, settings.eval_every, settings.save_every
        self.unread.append(torch.stack((loss, grad_norm)))
        if self.machine.device == "cpu" or any(self.state.step % n == 0 for n in intervals):
            self.wait()
            return None
        return torch.stack(self.unread).isfinite().all()

    def wait(self) -> None:
        """Wait for the results of the last steps, and update the state.

        Raises:
            FloatingPointError: if one of them is not finite, with the state at its step.
        """
        if self.unread:
            numbers = torch.cat(self.unread).cpu().double() / self.processes.world_size
            sums = self.processes.all_reduce(*numbers.tolist())
            self.state.step -= len(self.unread)
            self.unread = []
            for loss, norm in zip(sums[::2], sums[1::2], strict=True):
                self.state.step += 1
                if not math.isfinite(loss + norm):
                    bad = [
                        f", first in {name}"
                        for name, weight in self.optimizer.weights.items()
                        # A GPU's gradients are those of a later step.
                        if self.machine.device == "cpu"
                        and not gradient(name, weight).isfinite().all()
                    ]
                    raise FloatingPointError(f"loss {loss}, gradient norm {norm}{''.join(bad[:1])}")
                self.state.train_loss, self.grad_norm = loss, norm

    def evaluate(
        self, split: Callable[..., Iterator[Tensor]], limit: int = sys.maxsize
    ) -> Evaluation:
        """Return the loss over a split, or over its beginning if stopped, with the micro-batch size
        of training.

        Args:
            limit: maximum number of tokens; see `data.batches.one_pass`.
        """
        self.wait()
        rows = self.config.train.micro_batch_size // self.processes.world_size
        return evaluate(
            self.model,
            itertools.takewhile(lambda _: not self.processes.stop.number, split(rows, limit)),
            self.batches.tokenizer,
            self.machine.device,
            self.processes,
        )

    def sample(self) -> str:
        """Generate `sample_tokens` with a separate RNG, so that training is unaffected."""
        prompt = torch.tensor([[self.batches.info["start_token"]]], device=self.machine.device)
        generator = torch.Generator().manual_seed(self.config.train.seed)
        length = self.config.train.sample_tokens
        tokens = generate(self.model, prompt, length, Sampling(), generator)
        return self.batches.tokenizer.decode(map(int, tokens))

    def save_last(self) -> None:
        """Save everything that `--resume` needs. All processes call it at the same steps."""
        self.save("last", model_tensors(self.model) | optimizer_tensors(self.optimizer))

    def save(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Save a checkpoint: each process checks its tensors, and the first process writes.

        Raises:
            FloatingPointError: if a number is not finite; nothing is saved.
        """
        self.wait()
        check_finite(tensors)
        if self.processes.is_main:
            header = Header(
                config=self.config,
                tokenizer=self.batches.tokenizer.to_dict(),
                corpus=self.batches.info,
                machine=self.machine,
                state=self.state,
            )
            save_checkpoint(self.run / f"{name}.safetensors", tensors, header)


# --- the number of steps that fit into the minutes -----------------------------------------------


def fit_steps(job: Job, began: float) -> Job:
    """Return a job with the `max_steps` that fit into its `minutes`, counted from `began`.

    The timed steps train the given job, which is then discarded. The run is bitwise identical to
    one with `--train.max_steps` set to this value.
    """
    settings, processes = job.config.train, job.processes
    model, batch = processes.wrap_ddp(job.model), job.batch(0)

    def seconds_since(start: float) -> float:  # the mean, so that all processes agree
        return processes.all_reduce(time.perf_counter() - start)[0] / processes.world_size

    for steps in itertools.count(-1):
        # A learning rate of 0 cannot diverge. Half of the steps of a run have the second loss.
        second = settings.multi_token * (steps % 2)
        loss, _ = train_step(model, job.optimizer, batch, settings, 0.0, second, job.teachers)
        loss.item()  # waits for a GPU
        if steps < 1:  # steps -1 and 0 are warmup
            start = time.perf_counter()
        elif seconds_since(start) > min(5.0, 1.8 * settings.minutes):  # 3%, at most 5 s
            break
    step = seconds_since(start) / steps
    start = time.perf_counter()
    job.sample()
    # A forward pass costs a third of a training step.
    tokens = min(job.batches.validation_tokens, settings.eval_tokens)
    per_step = settings.batch_size * job.config.model.block_size
    evaluation = seconds_since(start) + step * tokens / (3 * per_step)
    left = 60 * settings.minutes - seconds_since(began) - 1.0  # 1 s for checkpoints and exit
    fitting = max(1, int((left - evaluation) / (step + evaluation / settings.eval_every)))
    print(
        f"{fitting:,} steps, {1000 * step:,.1f} ms each, fit into {settings.minutes:g} min here; "
        f"to repeat this run: --train.max_steps {fitting}"
    )
    config = dataclasses.replace(
        job.config, train=dataclasses.replace(settings, max_steps=fitting, minutes=0.0)
    )
    return Job(config, job.batches, job.machine, processes)


# --- the command ---------------------------------------------------------------------------------


@command
def main(argv: list[str]) -> int:
    """Read the command line, open the data and the run, train, and print the next commands."""
    began = time.perf_counter() - IMPORT_SECONDS
    usage = "python train.py [CONFIG.yaml] [--section.field VALUE ...]"
    sections = {"": Options} | SECTIONS
    file, values = read_command_line(sections, argv, usage, "Train a GPT on a text.")
    options = build(Options, values[""])
    with ExitStack() as stack:  # the run's lock, and the group of processes
        saved, flag = open_saved(options, stack)
        base = saved.config if saved else Config()
        if not options.resume:  # the teachers of a run are not those of the next
            base = dataclasses.replace(base, train=dataclasses.replace(base.train, teachers=""))
        config = read_config(values, file, base)
        if saved:
            check_changes(saved.config, config, flag)
        machine = start_machine(
            config.train, saved.header.machine.threads if saved and options.resume else 0
        )
        batches = open_batches(
            config.data,
            config.model.block_size,
            config.train.seed,
            saved.tokenizer if saved else None,
            # An untrusted checkpoint must not choose the file that is read.
            named="source" in values["data"] or config.data.source != base.data.source,
        )
        processes = stack.enter_context(join_processes(config.train, machine.device))
        about = f"{machine}\ntext: {batches}"
        if saved:
            about += f"\nweights: {saved}"
        print(about)
        if options.dry_run:
            print(describe_size(config.model, config.train, batches.tokenizer.vocab_size))
            return 0
        job = Job(config, batches, machine, processes)
        c = config.model
        print(
            f"model: {c.n_layer} layers x {c.n_embd} wide, {c.n_head} heads, context "
            f"{c.block_size}, {job.model.num_parameters():,} parameters"
        )
        if saved and options.evaluate:
            return measure(job, saved)
        if saved and options.resume:
            restore(job, saved)
        else:
            run = job.run
            if processes.is_main:
                origin = f"from-{saved.path.parent.name}" if saved else "default"
                run = make_folder(options.run, Path(file).stem if file else origin)
                stack.enter_context(lock_run(run))
            if config.train.minutes:
                job = fit_steps(job, began)
            job.run = run
            if saved:
                load_weights(job.model, saved.tensors, saved.path)
        if processes.is_main:
            save_config(job.run, job.config, about)
        del saved  # the model now has its own copies of these tensors
        return run_training(job)


def open_saved(options: Options, stack: ExitStack) -> tuple[SavedRun | None, str]:
    """Open the run to resume, evaluate or start from; return it with the flag that names it.

    Raises:
        UserError: for flags that exclude each other, or a run that cannot be opened.
    """
    names = ("resume", "evaluate", "init_from")
    given = [name for name in names if getattr(options, name) is not None]
    if len(given) > 1 or (options.run is not None and given not in ([], ["init_from"])):
        raise UserError(
            "give one of --resume, --evaluate, --init_from; only --init_from takes --run"
        )
    if not given:
        return None, ""
    run = find_run(getattr(options, given[0]))
    if options.resume and os.environ.get("RANK", "0") == "0":
        stack.enter_context(lock_run(run))
    return open_run(run, "last" if options.resume else "best"), f"--{given[0]}"


def restore(job: Job, saved: SavedRun) -> None:
    """Restore a job from a checkpoint.

    Raises:
        UserError: if the run was trained on another text.
    """
    run = job.run = saved.path.parent
    if saved.header.corpus.get("sha256") != job.batches.info.get("sha256"):
        raise UserError(
            f"{run} was trained on another text, {saved.header.corpus.get('source')}; for this, "
            f"use --init_from {run}"
        )
    job.state = saved.header.state
    if job.config.train.max_steps < job.state.step:
        raise UserError(f"{run} has {job.state.step} steps; raise --train.max_steps")
    load_weights(job.model, saved.tensors, saved.path)
    copy_into(optimizer_tensors(job.optimizer), "optimizer.", saved.tensors, saved.path)
    if (before := saved.header.machine) != job.machine:
        print(printable(f"note: rounding may differ from the previous session: {before}"))


def run_training(job: Job) -> int:
    """Train, print the result and the next commands, and return the exit code."""
    state, run = job.state, printable(str(job.run))
    with job.processes.stop as stop:
        try:
            ended = train(job)
        except FloatingPointError as error:
            raise UserError(
                f"at step {state.step}: {error}; {run} keeps its last checkpoint. Start again "
                f"with a lower --train.learning_rate and --train.muon_learning_rate"
            ) from None
        except OSError as error:
            raise UserError(f"could not write to {run}: {error.strerror}") from error
    if ended:
        print(
            f"done: {run}, {state.step} steps in {state.seconds:.0f} s, "
            f"best validation loss {state.best_val_loss:.4f}\n"
            f"next:\n  python sample.py {run}\n  python study.py report {run}"
        )
    else:
        print(f"stopped at step {state.step}; resume with: python train.py --resume {run}")
    return 128 + stop.number if stop.number else 0  # as a shell reports it: 130 for Ctrl-C


def measure(job: Job, saved: SavedRun) -> int:
    """Print the loss over the validation and test splits; return the exit code."""
    load_weights(job.model, saved.tensors, saved.path)
    unit = job.config.data.unit
    print(f"validation {job.evaluate(job.batches.validation_batches).in_units(unit)}")
    if job.config.data.test_fraction:
        print(f"test       {job.evaluate(job.batches.test_batches).in_units(unit)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
