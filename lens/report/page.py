"""Assemble the report page: one file that opens from disk and fetches nothing."""

import base64
import gzip
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PARTS = Path(__file__).parent
MARK = "<!doctype html>\n<!-- a report of glassgpt -->\n"  # how every report begins


def page(data: dict[str, Any]) -> str:
    """The page that shows `data`, as HTML.

    The style and the script stand in the page itself, and the browser is told to run what has
    their hashes and nothing else: text from a run cannot become a program, even by a bug of ours.
    """
    style = (PARTS / "page.css").read_text(encoding="utf-8")
    script = (PARTS / "page.js").read_text(encoding="utf-8")
    parts = {
        "style": style,
        "style_hash": content_hash(style),
        "script": script,
        "script_hash": content_hash(script),
        "data": to_json(data),
    }
    template = (PARTS / "page.html").read_text(encoding="utf-8")
    # In one pass, so that nothing inside the data is taken for a place to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def pack(array: npt.NDArray[Any]) -> str:
    """The bytes of an array, little-endian in C order, gzipped and in base64; the same each time.

    Its shape and type are for the reader to know.
    """
    little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return base64.b64encode(gzip.compress(little_endian.tobytes(), 6, mtime=0)).decode("ascii")


def to_json(data: Any) -> str:
    """JSON in which no text can end the <script> around it: other than in escapes, the result is
    ASCII without < > &. A number that is not finite becomes null."""
    text = json.dumps(without_nan(data), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def content_hash(text: str) -> str:
    """What a Content-Security-Policy calls an inline style or script by."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")
