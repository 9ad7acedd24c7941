"""Files that are whole or absent."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the place, sync, rename: what was there stays until all of it is on the disk.

    Raises:
        OSError: when it cannot be written; what was there is as it was.
    """
    scratch = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        with open(scratch, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        error.filename = str(path)  # the name that means something to whoever reads the message
        raise
    finally:
        scratch.unlink(missing_ok=True)
    if os.name == "posix":  # the rename itself is on the disk once its folder is
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
