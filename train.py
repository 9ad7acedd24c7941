"""Train a GPT: read this file from top to bottom.

python train.py                                       the default: Python's own manual
python train.py configs/shakespeare_3min.yaml --model.n_layer 6
python train.py --resume runs/my-run                  go on where it stopped
python train.py --init_from runs/my-run --data.source letters.txt
python train.py --dry_run                             how large it would be
python train.py --help                                every field
"""

import signal

if __name__ == "__main__":  # until there is something to save, Ctrl-C ends at once and quietly
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)

import dataclasses
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from common.errors import UserError, command, printable
from configs.load import (
    SECTIONS,
    Config,
    build,
    make_parser,
    read_config,
    read_flags,
    split_positional,
    to_plain,
)
from data.batches import Batches, open_batches
from data.tokenizer import Tokenizer
from model.generate import generate
from model.gpt import GPT, next_token_loss
from run.checkpoint import (
    Header,
    load_training,
    load_weights,
    model_tensors,
    refuse_not_finite,
    save_checkpoint,
    training_tensors,
)
from run.folder import (
    SavedRun,
    describe_run,
    find_run,
    hold,
    make_folder,
    notes_on_resume,
    open_run,
    refuse_changes,
    refuse_existing,
    refuse_other_text,
    save_config,
)
from run.log import Metrics, progress_bar
from run.snapshots import find_snapshots, save_snapshot, snapshot_steps
from training.config import TrainConfig
from training.optim import Optimizer, schedule
from training.processes import (
    ALONE,
    Processes,
    join_processes,
    lost_a_process,
    without_averaging,
    writes_here,
)
from training.runtime import Runtime, StopSignal, start_runtime
from training.size import describe_size, refuse_to_train_too_large

SIGPIPE = 13  # by number, because Windows has no such signal
SAMPLE_WIDTH = 90  # samples are folded there, to stand apart from the rest


@dataclass(frozen=True)
class Options:
    """The run"""

    run: str | None = None
    """Name of the new run, a folder in runs/; without it, the config's name and the time."""

    resume: str | None = None
    """Go on with this run where it stopped."""

    init_from: str | None = None
    """Start a new run from the weights of this one, with its config and its vocabulary."""

    evaluate: str | None = None
    """Measure the best weights of this run on the splits that training does not see."""

    dry_run: bool = False
    """Print parameters, memory and operations by formula, and train nothing."""


def train_step(
    forward: Callable[[Tensor], Tensor],
    model: GPT,
    optimizer: Optimizer,
    learning_share: float,
    windows: Tensor,
    config: TrainConfig,
    processes: Processes = ALONE,
) -> tuple[float, float]:
    """One update of the weights from a batch of windows, (batch_size, block_size + 1).

    Args:
        learning_share: of the peak learning rates; see `schedule`.
        windows: the share of this process, where there are several.

    Returns:
        The mean loss of the batch in nats per token, and the norm of its gradient.

    Raises:
        FloatingPointError: when either is not finite; the weights are as they were.
    """
    loss = torch.zeros((), device=windows.device)
    pieces = windows.chunk(config.grad_accum_steps)
    for number, piece in enumerate(pieces, start=1):
        with without_averaging(forward) if number < len(pieces) else nullcontext():
            logits = forward(piece[:, :-1])
            piece_loss = next_token_loss(logits, piece[:, 1:]) / config.grad_accum_steps
            piece_loss.backward()
        loss += piece_loss.detach()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    grad_norm = torch.nn.utils.get_total_norm(gradients.values())
    mean, norm = torch.stack((loss, grad_norm)).tolist()  # both in one wait for the device
    mean = processes.sum([mean])[0] / processes.size
    if not (math.isfinite(mean) and math.isfinite(norm)):
        bad = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
        model.zero_grad()
        where = f", first in {bad[0]}" if bad else ""
        raise FloatingPointError(
            f"the loss is {mean} and the gradient norm {norm}{where}; nothing was learned from it"
        )
    if config.grad_clip:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), config.grad_clip, grad_norm)
    optimizer.step(learning_share)
    model.zero_grad()
    return mean, norm


@torch.no_grad()
def evaluate(
    forward: Callable[[Tensor], Tensor],
    model: GPT,
    split: Iterator[Tensor],
    tokenizer: Tokenizer,
    runtime: Runtime,
    stop: StopSignal,
    processes: Processes = ALONE,
) -> dict[str, float] | None:
    """The loss over a whole split of the text, in one deterministic pass; None if stopped.

    Every token but the first is predicted once, from what stands before it in its window. Several
    processes take batches in turn and sum up what they found.

    Raises:
        FloatingPointError: when the loss is not finite.
    """
    model.eval()
    nats = tokens = characters = 0.0
    for turn, windows in enumerate(split):
        if stop:
            break
        if turn % processes.size != processes.rank:
            continue
        targets = windows[:, 1:]
        logits = forward(windows[:, :-1].to(runtime.device))
        nats += next_token_loss(logits, targets.to(runtime.device), reduction="sum").item()
        tokens += targets.numel()
        characters += tokenizer.count_characters(targets.numpy().ravel())
    model.train()
    found = (nats, tokens, characters, float(bool(stop)))
    nats, tokens, characters, stopped = processes.sum(found)
    if stopped:
        return None
    if not math.isfinite(nats):
        raise FloatingPointError(f"the loss measured is {nats}")
    bits = nats / math.log(2) / max(1, characters)  # a text of bytes may have no character
    return {"val_loss": nats / tokens, "bits_per_char": bits}


def describe_loss(measured: dict[str, float], unit: str) -> str:
    """What `evaluate` found; of bytes also in bits a byte, which is what others call theirs."""
    nats = measured["val_loss"]
    per_byte = f"{nats / math.log(2):.3f} bits/byte  " if unit == "byte" else ""
    return f"{nats:.4f} nats/{unit}  {per_byte}{measured['bits_per_char']:.3f} bits/char"


def write_sample(model: GPT, batches: Batches, config: TrainConfig, stop: StopSignal) -> str:
    """What the model writes now, or began to write when it was stopped. It draws from a generator
    of its own, the same at each call."""
    prompt = torch.tensor([[batches.info["start_token"]]], device=next(model.parameters()).device)
    generator = torch.Generator().manual_seed(config.seed)
    stream = generate(model, prompt, config.sample_tokens, temperature=0.8, generator=generator)
    return batches.tokenizer.decode(
        [int(token) for token in itertools.takewhile(lambda _: not stop, stream)]
    )


def standing(loss: float, ladder: dict[str, float]) -> str:
    """The best of the simple models that the loss is below."""
    beaten = [(nats, rung) for rung, nats in ladder.items() if loss < nats]
    return "beats {1} {0:.4f}".format(*min(beaten)) if beaten else "beats nothing yet"


@dataclass
class Position:
    """Where a run stands."""

    step: int = 0
    seconds: float = 0.0
    train_loss: float | None = None
    evaluated: int = 0
    val_loss: float | None = None
    best_val_loss: float | None = None
    evals_since_best: int = 0


def train(
    run: Path,
    config: Config,
    model: GPT,
    optimizer: Optimizer,
    batches: Batches,
    runtime: Runtime,
    at: Position,
    stop: StopSignal,
    processes: Processes,
) -> bool:
    """Train from `at` until `max_steps`, the target, the end of patience, or a stop signal.

    Returns:
        Whether it came to its end, rather than to a signal.

    Raises:
        UserError: when the loss, its gradient or the weights are not finite; the checkpoint before
            stays.
    """
    settings, unit = config.train, config.data.tokenizer
    forward = runtime.forward_of(model, settings.compile)
    learner = processes.average_gradients(model, forward)
    began = time.perf_counter() - at.seconds
    tokens, busy, pace = 0, 0.0, ""  # since the last line of metrics

    def save(which: str, tensors: dict[str, Tensor]) -> None:
        refuse_not_finite(tensors)
        if not processes.writes:
            return
        metrics.flush()  # so that no checkpoint is ahead of them
        at.seconds = time.perf_counter() - began
        header = Header(
            config=to_plain(config),
            tokenizer=batches.tokenizer.to_dict(),
            corpus=batches.info,
            device=runtime.device.type,
            processor=runtime.processor,
            threads=runtime.threads,
            processes=processes.size,
            precision=runtime.precision_name,
            torch=torch.__version__,
            **dataclasses.asdict(at),
        )
        save_checkpoint(run / f"{which}.safetensors", tensors, header)

    def windows_of(step: int) -> Tensor:
        windows = processes.share(batches.train(step, settings.batch_size))
        if runtime.device.type == "cuda":  # copied while the GPU computes
            return windows.pin_memory().to(runtime.device, non_blocking=True)
        return windows.to(runtime.device)

    def say(text: str) -> None:
        try:
            bar.write(text)
        except OSError:  # the reader of a pipe has left, or the terminal is gone: save and stop
            stop.number = SIGPIPE

    def stopped() -> bool:
        """Whether this or another process was told to stop; all say the same. A signal that comes
        while they agree is kept for the next time."""
        told = processes.most(stop.number)
        if told:
            stop.number = told
        return bool(told)

    def look() -> bool:
        """Evaluate, unless a stop comes first: then the run goes on with this when resumed."""
        bar.set_description_str("evaluating, ")
        split = batches.validation(settings.piece_size)
        measured = evaluate(forward, model, split, batches.tokenizer, runtime, stop, processes)
        bar.set_description_str(pace, refresh=False)
        sampling = measured is not None and settings.sample_tokens > 0 and processes.writes
        sample = write_sample(model, batches, settings, stop) if sampling else ""
        if stopped() or measured is None:
            return False
        at.evaluated, at.val_loss = at.step, measured["val_loss"]
        best = at.best_val_loss is None or at.val_loss < at.best_val_loss
        at.evals_since_best = 0 if best else at.evals_since_best + 1
        if best:
            at.best_val_loss = at.val_loss
            save("best", model_tensors(model))
        if not processes.writes:
            return True
        metrics.write(at.step, measured | {"seconds": time.perf_counter() - began}, sample)
        say(
            f"step {at.step:>{len(str(settings.max_steps))}}"
            f"  validation {describe_loss(measured, unit)}  training {at.train_loss:.4f}"
            f"  {standing(at.val_loss, ladder)}"
            + ("" if best else f"  (best {at.best_val_loss:.4f})")
        )
        for line in sample.splitlines():
            shown = "".join(c if c.isprintable() else "\ufffd" for c in line.expandtabs())
            for start in range(0, len(shown) or 1, SAMPLE_WIDTH):
                say(f"    | {shown[start : start + SAMPLE_WIDTH]}")
        return True

    def enough() -> bool:
        """Whether the evaluation that was just made ends the run."""
        if at.val_loss is not None and at.val_loss <= settings.target_loss > 0:
            say(f"stopping: the validation loss is at or below {settings.target_loss}")
            return True
        if 0 < settings.patience <= at.evals_since_best:
            say(f"stopping early: {at.evals_since_best} evaluations without a new best")
            return True
        return False

    with (
        Metrics(
            run, at.step, at.evaluated, settings.tensorboard, silent=not processes.writes
        ) as metrics,
        progress_bar(at.step, settings.max_steps, silent=not processes.writes) as bar,
    ):
        ladder = batches.ladder()
        rungs = ", ".join(f"{rung} {nats:.4f}" for rung, nats in ladder.items())
        say(f"to beat: {rungs} nats/{unit}")
        # From here on the run can be resumed.
        save("last", training_tensors(model, optimizer, processes))
        first = at.step
        saved = at.step, at.evaluated
        taken = list(find_snapshots(run))
        kept = snapshot_steps(settings, model.num_parameters(), at.step, taken)
        if at.step in kept and processes.writes:
            save_snapshot(run, at.step, model)
        upcoming = windows_of(at.step)
        share = schedule(at.step, settings)
        step = at.step  # the one under way, or the last
        ends = False
        model.train()
        try:
            while not stopped():
                ends = at.step == settings.max_steps
                due = at.step > at.evaluated and (ends or at.step % settings.eval_every == 0)
                if due and not look():
                    break
                ends = ends or (at.step == at.evaluated > 0 and enough())
                if at.step % settings.save_every == 0 and saved != (at.step, at.evaluated):
                    save("last", training_tensors(model, optimizer, processes))
                    saved = at.step, at.evaluated
                if ends:
                    break

                step_began = time.perf_counter()
                step = at.step + 1
                share = schedule(at.step, settings)
                windows, upcoming = upcoming, windows_of(step)
                try:
                    loss, grad_norm = train_step(
                        learner, model, optimizer, share, windows, settings, processes
                    )
                except Exception as error:
                    compiling = settings.compile and at.step == first
                    if isinstance(error, FloatingPointError) or not compiling:
                        raise
                    raise UserError(
                        f"torch.compile failed ({type(error).__name__}: "
                        f"{str(error).splitlines()[0]}); --train.compile false does without it"
                    ) from error
                at.step, at.train_loss = step, loss
                tokens += processes.size * (windows.numel() - len(windows))
                busy += time.perf_counter() - step_began

                if step % settings.log_every == 0 or step == settings.max_steps:
                    speed = tokens / busy
                    numbers = {
                        "train_loss": loss,
                        "learning_rate": share * settings.learning_rate,
                        "grad_norm": grad_norm,
                    }
                    times = {"tokens_per_second": speed, "seconds": time.perf_counter() - began}
                    metrics.write(step, numbers | times)
                    pace = f"loss {loss:.3f}, {speed:,.0f} tokens/s, "
                    bar.set_description_str(pace, refresh=False)
                    tokens, busy = 0, 0.0
                bar.update()
                if step in kept and processes.writes:
                    save_snapshot(run, step, model)
            stopped()  # also where an evaluation was given up
            if saved != (at.step, at.evaluated):
                save("last", training_tensors(model, optimizer, processes))
            return ends and at.evaluated == at.step
        except FloatingPointError as error:
            rate, also = f"{share * settings.learning_rate:.3g}", ""
            if settings.optimizer == "muon":
                rate += f" (Muon's {share * settings.muon_learning_rate:.3g})"
                also = " and --train.muon_learning_rate"
            raise UserError(
                f"at step {step}, learning rate {rate}: {error}; "
                f"{run} stays as it was saved at step {saved[0]}. "
                f"Start again with a lower --train.learning_rate{also}, from the beginning or with "
                f"--init_from {run}"
            ) from None


@command
def main(argv: list[str]) -> int:
    """Read the command line, open what it names, train, and say what to do next."""
    usage = "python train.py [CONFIG.yaml] [--section.field VALUE ...]"
    parser = make_parser({"": Options} | SECTIONS, usage, "Train a GPT on a text.")
    words, flags = split_positional(argv)
    file = words[0] if words else None
    options = build(Options, read_flags(parser, flags))
    resuming, measuring = options.resume is not None, options.evaluate is not None
    others = [options.run, options.init_from, *([options.evaluate] if resuming else [])]
    if (resuming or measuring) and others.count(None) < len(others):
        flag, also = ("resume", "evaluate") if resuming else ("evaluate", "resume")
        raise UserError(f"--{flag} takes a run as it is: no --run, --init_from or --{also} with it")
    given = [options.resume, options.evaluate, options.init_from]
    source = next((run for run in given if run is not None), None)
    with ExitStack() as held:  # until the end: the lock of the run
        saved = None
        if source is not None:
            folder = find_run(source)
            if resuming and writes_here():
                held.enter_context(hold(folder))
            saved = open_run(folder, "last" if resuming else "best")
        config = read_config(parser, flags, file, saved.config if saved else None)
        if saved is not None:
            saved.refuse_misfit()
            flag = "resume" if resuming else "evaluate" if measuring else "init_from"
            refuse_changes(saved.config, config, f"--{flag}")

        runtime = start_runtime(config.train, saved.header.threads if saved and resuming else 0)
        processes = join_processes(config.train, runtime.device, held)
        print(f"{runtime}{processes}")
        torch.manual_seed(config.train.seed)
        vocabulary = saved.tokenizer if saved else None
        batches = open_batches(config.data, config.model.block_size, config.train.seed, vocabulary)
        V = batches.tokenizer.vocab_size
        if options.dry_run or measuring:
            print(f"text: {batches.describe()}")
        if options.dry_run:
            print(describe_size(config.model, config.train, V))
            return 0
        if measuring and saved is not None:
            saved = dataclasses.replace(saved, config=config)
            return measure(saved, batches, runtime, processes)
        refuse_to_train_too_large(config.model, config.train, V, runtime.device)
        model = GPT(config.model, V).to(runtime.device)
        optimizer = Optimizer(model, config.train, runtime.precision)
        if processes.rank:  # the same weights, but another dropout
            torch.manual_seed((config.train.seed + (processes.rank << 32)) % 2**63)
        print(
            f"model: {config.model.n_layer} layers x {config.model.n_embd} wide, "
            f"{config.model.n_head} heads, context {config.model.block_size}, "
            f"{model.num_parameters():,} parameters"
        )
        print(f"text: {batches.describe()}")

        at = Position()
        if saved is not None and resuming:
            run, header = saved.path.parent, saved.header
            refuse_other_text(saved, batches.info)
            at = Position(*(getattr(header, f.name) for f in dataclasses.fields(Position)))
            ahead = config.train.max_steps - at.step
            if ahead < 0 or (ahead == 0 and at.evaluated == at.step):
                print(f"{run} is complete at step {at.step}; go on with a larger --train.max_steps")
                return 0
            load_training(model, optimizer, saved.tensors, saved.path, processes.rank)
            print(f"going on with {run} at step {at.step}")
            for note in notes_on_resume(saved, config, runtime, processes):
                print(f"note: {printable(note)}")
            if processes.writes:
                save_config(run, config)
        else:
            if saved is not None:
                load_weights(model, saved.tensors, saved.path)
            run = Path("the run")  # only one process writes there
            if processes.writes:
                run = make_folder(options.run, file, saved)
                held.enter_context(hold(run))
                refuse_existing(run)  # once more: another process may have come first
                facts = {"corpus": batches.info, "init_from": options.init_from}
                describe_run(run, config, facts | {"runtime": f"{runtime}{processes}"})
        del saved  # its tensors are copies of what is in the model now
        return train_until_stopped(run, config, model, optimizer, batches, runtime, at, processes)


def measure(saved: SavedRun, batches: Batches, runtime: Runtime, processes: Processes) -> int:
    """Print the loss over each split that is not trained on; the exit code."""
    print(f"measuring {printable(str(saved.path))}, step {saved.header.step}")
    if not saved.trained_on(batches.info):
        print("note: this is not the text that it was trained on")
    model, settings = saved.model(runtime.device), saved.config.train
    forward = runtime.forward_of(model, settings.compile)
    splits = {"validation": batches.validation(settings.piece_size)}
    if saved.config.data.test_fraction:
        splits["test"] = batches.test(settings.piece_size)
    with StopSignal() as stop:
        try:
            for name, split in splits.items():
                measured = evaluate(
                    forward, model, split, batches.tokenizer, runtime, stop, processes
                )
                if measured is None:
                    stop.number = processes.most(stop.number)
                    return stop.exit_code
                print(f"{name:10} {describe_loss(measured, saved.config.data.tokenizer)}")
        except RuntimeError as error:
            return leave_if_lost(error, processes)
    return 0


def leave_if_lost(error: RuntimeError, processes: Processes, hint: str = "") -> int:
    """End where another process of the job is gone; the exit code. Other errors go on."""
    if not lost_a_process(error):
        raise error
    print(f"error: another process of this job is gone, and this one stops{hint}", file=sys.stderr)
    return processes.leave(2)


def train_until_stopped(
    run: Path,
    config: Config,
    model: GPT,
    optimizer: Optimizer,
    batches: Batches,
    runtime: Runtime,
    at: Position,
    processes: Processes,
) -> int:
    """Train, and say how it ended and what to do next; the exit code says it too."""
    with StopSignal() as stop:
        try:
            complete = train(run, config, model, optimizer, batches, runtime, at, stop, processes)
        except KeyboardInterrupt:
            print(
                f"\nstopped at once; from the last checkpoint: python train.py --resume {run}",
                file=sys.stderr,
            )
            return processes.leave(130)
        except RuntimeError as error:
            hint = f"; go on from the last checkpoint with: --resume {run}"
            return leave_if_lost(error, processes, hint)
    if stop and not complete:
        print(f"stopped at step {at.step}; go on with: python train.py --resume {run}")
        return stop.exit_code
    print(
        f"done: {run}, {at.step} steps in {at.seconds:.0f} s, "
        f"best validation loss {at.best_val_loss:.4f}"
    )
    print("next:")
    print(f"  python sample.py {run}")
    print("  tensorboard --logdir runs")
    return stop.exit_code if stop else 0


if __name__ == "__main__":
    sys.exit(main())
