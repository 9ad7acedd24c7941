"""The page as a file: its data, its security policy, its colors."""

import json
import re
from typing import Any

import numpy as np

from page.html import PARTS, make_html, to_json
from tests.reports import Report

HOSTILE = "</script><img src=x onerror=alert(1)>"


def test_embedded_data_cannot_close_the_script() -> None:
    given = {"<&>": ["\u2028\u2029\ud800", HOSTILE, float("inf"), 1.5, {"{{script}}": None}]}
    text = to_json(given)
    assert text.isascii() and not set("<>&") & set(text)
    assert json.loads(text) == json.loads(json.dumps(given).replace("Infinity", "null"))
    assert make_html(given, [b"\xff"]).count("<script") == 3


def test_security_policy_allows_only_own_script_and_style(report: Report) -> None:
    html = make_html(report.data, report.weights)
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="(.*?)">', html)
    assert re.sub("sha256-[^']+", "sha256", policy) == (
        "default-src 'none'; script-src 'sha256' 'wasm-unsafe-eval'; "
        "worker-src blob:; img-src data:; style-src 'sha256'; base-uri 'none'; form-action 'none'"
    )


def test_colors_meet_contrast_ratios_in_both_schemes() -> None:
    css = (PARTS / "page.css").read_text()
    least = dict.fromkeys(("ink", "quiet", "accent", "mark", "good", "bad"), 4.5) | {"edge": 3}
    for scheme in (1, 2):
        light = {}
        for color in re.findall(r"--([\w-]+): light-dark\(#(\w+), #(\w+)\)", css):
            x = np.frombuffer(bytes.fromhex(color[scheme]), "u1") / 255
            linear = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
            light[color[0]] = linear @ [0.2126, 0.7152, 0.0722] + 0.05
        for name, ratio in least.items():
            for behind in ("page", "panel"):
                dark, bright = sorted((light[name], light[behind]))
                assert bright / dark >= ratio, name


def test_numbers_are_rounded_and_zero_has_no_sign(engine: Any) -> None:
    values = [-0.0004, 0, 0.0004, -0.0006, 12.34, None]
    read = "all => all.map((value) => [number(value ?? NaN), signed(value ?? NaN, 2)])"
    zero = ["0.000", "+0.00"]
    rounded = [zero, zero, zero, ["-0.001", "+0.00"], ["12.340", "+12.34"], ["\u2013"] * 2]
    assert engine.evaluate(read, values) == rounded
