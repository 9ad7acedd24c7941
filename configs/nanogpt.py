"""The flags of nanoGPT (github.com/karpathy/nanoGPT), and what they are here."""

import re
from collections.abc import Collection

OURS = {
    "out_dir": "a run is a folder in runs/: --run NAME makes it, --resume RUN resumes it",
    "init_from": "--resume RUN resumes",
    "eval_interval": "--train.eval_every",
    "log_interval": "--train.log_every",
    "eval_iters": "an evaluation reads the whole validation split once",
    "eval_only": "--evaluate RUN",
    "always_save_checkpoint": "best and last are both kept; --train.save_every says how often",
    "wandb_log": "--train.tensorboard, and metrics.jsonl in the run's folder",
    "wandb_project": "--train.tensorboard, and metrics.jsonl in the run's folder",
    "wandb_run_name": "--run",
    "dataset": "--data.source takes a text file, a glob, or hub:OWNER/NAME",
    "gradient_accumulation_steps": "--train.gradient_accumulation_steps; it divides the batch here",
    "batch_size": "--train.batch_size counts all sequences of an update, nanoGPT's those of a "
    "micro-batch: theirs times gradient_accumulation_steps is ours",
    "block_size": "--model.block_size",
    "n_layer": "--model.n_layer",
    "n_head": "--model.n_head",
    "n_embd": "--model.n_embd",
    "dropout": "--model.dropout drops embeddings and outputs of sublayers, --model.attn_dropout "
    "attention weights; nanoGPT's is both",
    "bias": "--model.bias",
    "learning_rate": "--train.learning_rate is AdamW's; the matrices inside the blocks learn at "
    "--train.muon_learning_rate, unless --train.optimizer adamw",
    "max_iters": "--train.max_steps",
    "weight_decay": "--train.weight_decay",
    "beta1": "--train.beta1",
    "beta2": "--train.beta2",
    "grad_clip": "--train.grad_clip",
    "decay_lr": "--train.schedule constant keeps the learning rate",
    "warmup_iters": "--train.warmup_steps",
    "lr_decay_iters": "the learning rate falls until --train.max_steps, over the last "
    "--train.decay_fraction of the run",
    "min_lr": "--train.final_lr_fraction, a fraction of the peak learning rate",
    "backend": "nccl on GPUs, gloo on CPUs",
    "device": "--train.device",
    "dtype": "--train.precision is auto, float32 or bfloat16",
    "compile": "--train.compile",
    "start": "--prompt",
}
# Where nanoGPT's sample.py means something else than its train.py.
SAMPLING = {
    "out_dir": "python sample.py runs/NAME; without a name, the newest run",
    "init_from": "python sample.py runs/NAME; without a name, the newest run",
    "dtype": "it computes in float32",
    "compile": "on a CPU model/decode.c is compiled where there is a C compiler",
}
# What nanoGPT's init_from takes; here it takes a run.
INIT_FROM = {
    "scratch": "a new run is the default",
    "resume": "--resume RUN",
    "gpt2": "python convert.py import hub:openai-community/gpt2 --run gpt2, then --init_from gpt2",
}


def ours_for(word: str, known: Collection[str]) -> str | None:
    """The line for whoever types one of nanoGPT's flags; None for any other word, and for a command
    that has none of the flags that the line names.

    Args:
        known: the flags of the command.
    """
    table = OURS | SAMPLING if "--num_samples" in known else OURS
    ours = table.get(word.removeprefix("--").split("=")[0])
    named = re.findall(r"--[\w.]+", ours or "")
    if ours is None or (named and not set(named) & set(known)):
        return None
    return f"{word} is a flag of nanoGPT; here: {ours}"
