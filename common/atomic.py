"""Files that are whole or absent."""

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a scratch file in the same folder, sync it, and rename it to `path`.

    Raises:
        OSError: if it cannot be written; the previous file is untouched.
    """
    # A name that nobody can guess, opened exclusively: no link planted there is followed.
    scratch = path.with_name(f".writing-{secrets.token_hex(8)}-{path.name}")
    try:
        with open(scratch, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        error.filename = str(path)  # the name that the user knows
        raise
    finally:
        scratch.unlink(missing_ok=True)
    if os.name == "posix":  # the rename is on the disk once its folder is
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
