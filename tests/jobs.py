"""Commands in processes of their own, and jobs of several as torchrun starts them, without
importing PyTorch for each anew."""

import multiprocessing
import os
import runpy
import socket
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

LINUX = sys.platform == "linux"
os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)  # where the server looks for `train`
# On macOS, a fork of a process that has loaded PyTorch can crash.
CONTEXT: Any = multiprocessing.get_context("forkserver" if LINUX else "spawn")
if LINUX:  # DistributedDataParallel imports torch._dynamo
    CONTEXT.set_forkserver_preload(["train", "torch._dynamo"])


def start_command(name: str, words: list[str], **environment: str) -> BaseProcess:
    """Start one of our scripts in this folder; what it says goes to NAME-stdout and NAME-stderr."""
    names = (f"{name}-stdout", f"{name}-stderr")
    arguments = (str(Path.cwd()), words, environment, names)
    process = CONTEXT.Process(target=be_command, args=arguments)
    process.start()
    return process


def be_command(
    folder: str, words: list[str], environment: dict[str, str], names: tuple[str, str]
) -> None:
    """What `python WORDS` does, with its output in files."""
    os.chdir(folder)
    os.environ |= environment
    for number, name in enumerate(names, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = words
    runpy.run_path(f"{os.environ['PYTHONPATH']}/{words[0]}", run_name="__main__")


def start_job(size: int, arguments: list[str]) -> list[BaseProcess]:
    """Start `train.py` on `size` processes, in this folder."""
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
    """The same, to its end; the exit codes."""
    processes = start_job(size, arguments)
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]
