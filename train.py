"""Train a GPT. The loop is `train`, the life of a run is `main`.

python train.py                                       train for a minute on Python's manual
python train.py configs/shakespeare_3min.yaml --model.n_layer 6
python train.py --resume runs/my-run                  continue where the run stopped
python train.py --init_from runs/my-run --data.source letters.txt
python train.py --help                                explain every field
"""

import common.start

import dataclasses
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from common.errors import UserError, command, printable, shell_word
from configs.config import STRICT, Config
from configs.load import SECTIONS, Values, build, read_command_line, read_config, read_yaml
from data.batches import Batches, check_named_text, open_batches
from data.sources import check_column
from model.generate import Sampling, choose_decoder, generate
from model.gpt import GPT
from training.budget import fit_steps
from training.checkpoint import (
    Header,
    SavedRun,
    half_precision,
    model_tensors,
    open_run,
    optimizer_tensors,
    save_in_run,
    snapshot_steps,
)
from training.folder import check_changes, find_run, lock_run, make_folder, save_config
from training.log import Log
from training.machine import (
    Machine,
    Processes,
    StopSignal,
    join_processes,
    prepare_machine,
    read_processes,
)
from training.optim import Optimizer
from training.step import (
    Evaluation,
    TrainState,
    check_results,
    compute_gradients,
    evaluate,
    make_model,
    update_weights,
)

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
    config: Config,
    state: TrainState,
    batches: Batches,
    model: GPT,
    optimizer: Optimizer,
    machine: Machine,
    processes: Processes,
) -> int:
    """Train until `max_steps` or a signal to stop; return the signal, or 0.

    All that changes is in `model`, `optimizer` and `state`.

    Args:
        folder: of the run; None in a process that neither writes nor prints.

    Raises:
        FloatingPointError: naming the step whose loss or gradient is not finite.
    """
    plan, ddp_model = config.train, processes.wrap_ddp(model)
    header = Header(config, batches.tokenizer.to_dict(), batches.corpus, machine, state)
    snapshots = snapshot_steps(plan, model.num_parameters())
    read_every = 1 if machine.device == "cpu" else plan.log_every  # reading waits for a GPU
    pending: list[tuple[Tensor, Tensor]] = []  # losses and gradient norms, on the device
    busy, stopped = 0.0, 0  # seconds of the steps in this session; the signal to stop
    began, first = time.perf_counter() - state.seconds, state.step
    unit = batches.tokenizer.unit
    with StopSignal() as stop, Log(folder, config, state, batches.baselines, unit) as log:
        while True:
            # 1. Evaluate and save what is due. Return if training is over or told to stop.
            ended = state.step >= plan.max_steps
            evaluating = ended or state.step % plan.eval_every == 0
            if evaluating and state.step > state.last_eval_step and not stopped:
                evaluations = evaluate_splits(model, batches, config, processes, stop)
                if evaluations is None:
                    stopped = processes.max(stop.number)
                else:
                    if state.record(evaluations["validation"].loss):
                        save_in_run(folder, "best", model_tensors(model), header)
                    log.evaluation(evaluations)
                    if folder:
                        log.sample(sample(model, batches, config))
                state.seconds = time.perf_counter() - began
            # The first is saved at once, so that a run that is killed early can be resumed.
            if ended or stopped or state.step == first or state.step % plan.save_every == 0:
                tensors = model_tensors(model) | optimizer_tensors(optimizer)
                save_in_run(folder, "last", tensors, header)
            if state.step in snapshots:
                save_in_run(folder, f"snapshots/{state.step:08d}", half_precision(model), header)
            if ended or stopped:
                return stopped

            # 2. Compute a step's gradients. Its batch and its dropout follow from the seed and its
            # index.
            started = time.perf_counter()
            index, state.step = state.step, state.step + 1
            batch = batches.train_batch(index, plan.batch_size)
            shard = batch.chunk(processes.world_size)[processes.rank]
            rng = np.random.default_rng([plan.seed, index, processes.rank])
            torch.manual_seed(int(rng.integers(2**63)))
            loss, norm = compute_gradients(ddp_model, optimizer.weights, shard, plan)
            pending.append((loss, norm))

            # 3. Read the results, if something needs them, before the weights are updated.
            reading = (
                state.step % read_every == 0
                or state.step % plan.eval_every == 0
                or state.step % plan.save_every == 0
                or state.step in snapshots
                or state.step >= plan.max_steps
            )
            if reading:
                losses, norms = (
                    processes.mean(*torch.stack(each).tolist())
                    for each in zip(*pending, strict=True)
                )
                check_results(losses, norms, state.step, optimizer.weights)
            update_weights(optimizer, norm, plan, index)
            busy += time.perf_counter() - started
            if reading:
                state.train_loss, state.seconds = losses[-1], time.perf_counter() - began
                log.training(busy, norms[-1])
                pending = []
                stopped = processes.max(stop.number or (0 if log.is_open else SIGPIPE))


def evaluate_splits(
    model: GPT, batches: Batches, config: Config, processes: Processes, stop: StopSignal
) -> dict[str, Evaluation] | None:
    """Evaluate the model on each split that is evaluated in training; return None if training is
    told to stop meanwhile, so that the resumed run evaluates again."""
    evaluations = {}
    for name, split in batches.evaluated.items():
        sequences = split(
            config.train.micro_batch_size // processes.world_size, config.train.eval_tokens
        )
        evaluation = evaluate(model, sequences, batches, processes, stop)
        if evaluation is None:
            return None
        evaluations[name] = evaluation
    return evaluations


def sample(model: GPT, batches: Batches, config: Config) -> str:
    """Return a text of `sample_tokens` tokens with the default rule, from an RNG of its own."""
    if config.train.sample_tokens == 0:
        return ""
    device = model.token_embedding.weight.device
    prompt_BT = torch.tensor([[batches.corpus.start_token]], device=device)
    generator = torch.Generator().manual_seed(config.train.seed)
    model.eval()
    decoder = choose_decoder(model)
    tokens = generate(decoder, prompt_BT, config.train.sample_tokens, Sampling(), generator)
    text = batches.tokenizer.decode([*batches.start, *(int(token) for token in tokens)])
    model.train()
    return text


@command
def main(argv: list[str]) -> int:
    """The life of a run: command line, text, number of steps, model, training."""
    usage = "python train.py [CONFIG.yaml] [--section.field VALUE ...]"
    sections = {"": Options} | SECTIONS
    words, values = read_command_line(sections, argv, usage, "Train a GPT on a text.")
    options, file = build(Options, values[""]), words[0] if words else None
    processes, folder = read_processes(), None
    with ExitStack() as stack:  # the run's lock, and the group of processes
        # What the run starts from: a new run, --resume and --init_from differ here.
        if options.resume is not None and processes.is_main:
            folder = stack.enter_context(lock_run(find_run(options.resume)))
        config, saved = read_start(options, file, values)
        if "column" in values["data"]:
            check_column(config.data)
        resumed = saved.header if saved and options.resume is not None else None
        state = resumed.state if resumed else TrainState()
        if config.train.tensorboard and find_spec("tensorboard") is None:
            raise UserError(
                "tensorboard is not installed; install it, or --train.tensorboard false"
            )

        # The machine and the text
        machine = prepare_machine(config.train, processes, resumed.machine if resumed else None)
        batches = open_batches(
            config.data,
            config.model.block_size,
            config.train.seed,
            saved.tokenizer if saved else None,
            extend=options.init_from is not None,
            saved=saved.header.corpus if saved else None,
        )
        stack.enter_context(join_processes(processes, config.train, machine.device))
        about = f"{machine}\ntext: {batches}"
        if config.train.eval_tokens < batches.validation_tokens:
            about += f"; evaluations use {config.train.eval_tokens:,} of the validation tokens"
        if saved:
            about += f"\nweights: {saved}, trained on {printable(saved.header.corpus.source)}"
            about += saved.new_characters(batches.tokenizer)
        print(about)
        if saved and resumed:
            saved.check_resume(batches.corpus, config.train, machine)
        start = time.perf_counter()
        _ = batches.baselines  # counts n-grams, before the clock of --train.minutes starts
        began = common.start.BEGAN + time.perf_counter() - start

        # The folder and the number of steps
        if folder is None and processes.is_main:
            origin = f"from-{saved.path.parent.name}" if saved else "default"
            made = make_folder(options.run, Path(file).stem if file else origin)
            folder = stack.enter_context(lock_run(made))
        if config.train.minutes:  # 0 in a saved run, unless they are given again
            steps, every = fit_steps(config, batches, machine, processes, began, state.step)
            fitted = dataclasses.replace(
                config.train, max_steps=steps, eval_every=every, minutes=0.0
            )
            config = dataclasses.replace(config, train=fitted)

        # The model and its optimizer
        model, optimizer = make_model(config, batches.tokenizer.vocab_size, machine)
        print(f"model: {model.describe()}")
        if saved:
            saved.restore(model, optimizer if resumed else None)
            del saved  # the model and the optimizer have copies of its tensors
        if folder:
            save_config(folder, config, about)

        # Training, and what to do next
        run = shell_word(folder) if folder else "the run"
        try:
            stopped = train(folder, config, state, batches, model, optimizer, machine, processes)
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
        f"best validation loss {state.best_val_loss:.4f}\n"
        f"next:\n  python sample.py {run}\n  python study.py {study} {run}"
    )
    return 0


def read_start(
    options: Options, file: str | None, values: Values
) -> tuple[Config, SavedRun | None]:
    """Return the config of the run, and the checkpoint that it starts from, if there is one."""
    if options.resume is not None:
        flag, saved = "--resume", open_run(options.resume, "last")
    elif options.init_from is not None:
        flag, saved = "--init_from", open_run(options.init_from, "best")
    else:
        return read_config(values, file), None
    config = read_config(values, file, saved.config)
    check_changes(saved.config, config, flag)
    given = read_yaml(file).get("data", {}) | values["data"]
    if "source" not in given:  # only the saved run names the text
        check_named_text(config.data, saved.tokenizer, saved.header.corpus)
    return config, saved


if __name__ == "__main__":
    sys.exit(main())
