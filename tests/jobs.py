"""Jobs of several processes as torchrun starts them, without importing PyTorch for each anew."""

import multiprocessing
import os
import socket
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)  # where the server looks for `train`
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["train", "torch._dynamo"])  # which DistributedDataParallel imports


def work(folder: str, arguments: list[str], environment: dict[str, str]) -> None:
    """One process of a job; what it says goes to a file called after its rank."""
    import train

    os.chdir(folder)
    os.environ |= environment
    sys.stdout = sys.stderr = open(f"said-{environment['RANK']}", "w")  # noqa: SIM115
    sys.exit(train.main(arguments))


def start_job(size: int, arguments: list[str]) -> list[BaseProcess]:
    """Start `train.py` on so many processes, in this folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes: list[BaseProcess] = []
    for rank in range(size):
        environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        process = CONTEXT.Process(target=work, args=(str(Path.cwd()), arguments, environment))
        process.start()
        processes.append(process)
    return processes


def run_job(size: int, arguments: list[str]) -> list[int | None]:
    """The same, to its end; the exit codes."""
    processes = start_job(size, arguments)
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]
