"""Assemble a page: one file that opens from disk and fetches nothing."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from page.bundle import bundle

PARTS = Path(__file__).parent
SUPPORTED = {  # by page/engine/engine.js, kernels.js and tokenizer.js
    "norm": ["layer"],
    "positions": ["learned", "rotary", "none"],
    "activation": ["gelu", "gelu_tanh", "relu", "relu2"],
    "tokenizer": ["char", "byte", "bpe", "word"],
}
WORD = "uncopyrightable"  # no letter twice: what a repeated string could be


def make_html(data: dict[str, Any], weights: Sequence[bytes]) -> str:
    """Return the HTML that shows `data` and computes with the packed weights of each snapshot:
    those that the page opens with, then the others in order.

    Style and script are inline, and the policy lets the browser run only content with their hashes:
    text from a run cannot become a program, even through a bug.
    """
    return fill_page("report/main.js", to_json(data), weights)


def fill_page(door: str, data: str, weights: Sequence[bytes]) -> str:
    """Return the HTML of a page whose script is the module `door`."""
    style = (PARTS / "page.css").read_text(encoding="utf-8")
    script = bundle(PARTS / door)
    inert = '<script type="application/octet-stream" class="weights">{}</script>'
    parts = {
        "style": style,
        "style_hash": content_hash(style),
        "script": script,
        "script_hash": content_hash(script),
        "data": data,
        # The first stand before the script, which need not wait for the browser to have read the
        # others.
        "first_weights": "".join(inert.format(in_base64(each)) for each in weights[:1]),
        "weights": "\n".join(inert.format(in_base64(each)) for each in weights[1:]),
    }
    template = (PARTS / "page.html").read_text(encoding="utf-8")
    # In one pass, so that no text inside the data is treated as a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def pack(x: Tensor) -> str:
    """Encode a tensor as float32, little-endian, in base64, without its shape."""
    return in_base64(x.numpy().astype("<f4").tobytes())


def in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def to_json(data: Any) -> str:
    """Return JSON in ASCII without < > &, so that no text can end the <script> around it. A number
    that is not finite becomes null."""
    finite = json.loads(json.dumps(data), parse_constant=lambda _: None)
    text = json.dumps(finite, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def content_hash(text: str) -> str:
    """Return the name of an inline style or script in a Content-Security-Policy."""
    return "sha256-" + in_base64(hashlib.sha256(text.encode("utf-8")).digest())
