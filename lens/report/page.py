"""Assemble the report page: one file that opens from disk and fetches nothing."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PARTS = Path(__file__).parent
# Each uses those before it.
SCRIPTS = ("engine.js", "live.js", "draw.js", "words.js", "panels.js", "page.js")
MARK = "<!doctype html>\n<!-- a report of glassgpt -->\n"  # how every report begins


def page(data: dict[str, Any], weights: Sequence[bytes]) -> str:
    """The page that shows `data` and computes with `weights`, those of each snapshot, as HTML.

    The style and the script stand in the page itself, and the browser is told to run what has
    their hashes and nothing else: text from a run cannot become a program, even by a bug of ours.
    """
    style = (PARTS / "page.css").read_text(encoding="utf-8")
    script = "\n".join((PARTS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    inert = '<script type="application/octet-stream" class="weights">{}</script>'
    parts = {
        "style": style,
        "style_hash": content_hash(style),
        "script": script,
        "script_hash": content_hash(script),
        "data": to_json(data),
        "weights": "\n".join(inert.format(in_base64(each)) for each in weights),
    }
    template = (PARTS / "page.html").read_text(encoding="utf-8")
    # In one pass, so that nothing inside the data is taken for a place to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def pack(array: npt.NDArray[Any]) -> str:
    """An array's numbers as float32, little-endian in C order, in base64; its shape is for the
    reader to know."""
    return in_base64(np.ascontiguousarray(array, dtype="<f4").tobytes())


def in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


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
    return "sha256-" + in_base64(hashlib.sha256(text.encode("utf-8")).digest())
