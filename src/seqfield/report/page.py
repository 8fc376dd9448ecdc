"""The report as one HTML file that needs no other file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
import re
from importlib.resources import files
from typing import Any

from seqfield.persist import write_atomically

STYLES = ("report.css", "tokens.css")
SCRIPTS = ("base.js", "charts.js", "tables.js", "sequences.js", "main.js")


def render(content: dict[str, Any]) -> str:
    """The HTML of the report.

    Text from the user is in the title (escaped) or in JSON without angle brackets, and scripts put
    it on the page as text. The page can run only its own scripts and can load nothing.

    >>> page = render({"title": "</title><b>", "labels": ["</script>"]})
    >>> "&lt;/title&gt;&lt;b&gt;" in page, page.count("</script>")
    (True, 2)
    """
    style, script = ("\n".join(map(_asset, names)) for names in (STYLES, SCRIPTS))
    parts = {
        "title": html.escape(str(content["title"])),
        "style": style,
        "script": script,
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "content": _json(content),
    }
    # one pass, so that marks inside inserted text are not replaced
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], _asset("report.html"))


def write_page(content: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the HTML of the report to a file, atomically."""
    # half of a surrogate pair is not valid UTF-8, but this is its JSON escape
    write_atomically(path, render(content).encode("utf-8", "backslashreplace"))


def _asset(name: str) -> str:
    return (files("seqfield.report") / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    """How a content security policy names an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(content: Any) -> str:
    """JSON for a script element; NaN becomes null, and infinity becomes a string.

    >>> _json({"a": [float("nan"), float("inf")], "b": "<!--"})
    '{"a":[null,"Infinity"],"b":"\\\\u003c!--"}'
    """
    text = json.dumps(_finite(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        # long lists hold words and counts, and no floats
        if all(type(part) in (str, int) for part in value):
            return value
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value).replace("inf", "Infinity")
    return value
