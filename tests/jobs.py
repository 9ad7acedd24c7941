"""Commands and torchrun-like jobs, in processes forked from one that has imported PyTorch."""

import multiprocessing
import os
import runpy
import socket
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

LINUX = sys.platform == "linux"
os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)  # so the server finds `train`
# On macOS, forking a process that has loaded PyTorch can crash.
CONTEXT: Any = multiprocessing.get_context("forkserver" if LINUX else "spawn")
if LINUX:  # DistributedDataParallel imports torch._dynamo
    CONTEXT.set_forkserver_preload(["train", "torch._dynamo"])


def start_command(name: str, words: list[str], **environment: str) -> BaseProcess:
    """Start a script in the current folder; its output goes to NAME-stdout and NAME-stderr,
    which may be links or pipes."""
    arguments = (name, str(Path.cwd()), words, environment)
    process = CONTEXT.Process(target=run_script, args=arguments)
    process.start()
    return process


def run_script(name: str, folder: str, words: list[str], environment: dict[str, str]) -> None:
    """Do what `python WORDS` does, with the output in files."""
    os.chdir(folder)
    os.environ |= environment
    for number, stream in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{name}-{stream}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        setattr(sys, stream, os.fdopen(number, "w", buffering=1, closefd=False))
    sys.argv = words
    runpy.run_path(f"{os.environ['PYTHONPATH']}/{words[0]}", run_name="__main__")


def start_job(size: int, arguments: list[str]) -> list[BaseProcess]:
    """Start `train.py` in `size` processes, in the current folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(size):
        environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes.append(start_command(f"said-{rank}", ["train.py", *arguments], **environment))
    return processes


def run_job(size: int, arguments: list[str]) -> list[int | None]:
    """Run `train.py` in `size` processes to the end; return their exit codes."""
    processes = start_job(size, arguments)
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]
