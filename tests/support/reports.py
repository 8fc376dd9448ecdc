"""Reports to test: hostile words, and judgements without a model behind them."""

from __future__ import annotations

import json
import re

import numpy as np

from seqfield.report.comparison import Comparison

HOSTILE = [
    "</script><img src=x onerror=window.hurt=1>",
    "<!--<script>",
    "\"'`\\&amp;{{script}}",
    "\U0001f9d1\u200d\U0001f373",
    "\u0645\u0631\u062d\u0628\u0627",
    "\u2028\u0000\t",
    "x" * 500,
]


def embedded(page: str) -> dict:
    """The content that a page carries."""
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', page, re.S)
    return json.loads(found[1])


def unpacked(column: dict) -> np.ndarray:
    import base64

    ((kind, text),) = column.items()
    codes = {"u8": "u1", "u16": "<u2", "u32": "<u4", "f32": "<f4"}
    return np.frombuffer(base64.b64decode(text), codes[kind])


def by_key(content: dict) -> dict:
    return {metric["key"]: metric for metric in content["metrics"]}


def invented(n: int, length: int, labels: list[str], seed: int = 0) -> Comparison:
    """Labels drawn from invented probabilities; predictions are the most probable ones."""
    random = np.random.default_rng(seed)
    tokens, s = n * length, len(labels)
    logits = random.gumbel(size=(tokens, s)) * random.gamma(2.0, 2.0, (tokens, 1))
    proba = np.exp(logits - logits.max(axis=1, keepdims=True))
    proba /= proba.sum(axis=1, keepdims=True)
    codes = proba.argmax(axis=1)
    gold = (proba.cumsum(axis=1) < random.random((tokens, 1))).sum(axis=1).clip(max=s - 1)
    offsets = np.arange(0, tokens + 1, length)

    def rows(flat):
        names = [labels[k] for k in flat]
        return [names[a : a + length] for a in offsets[:-1]]

    p = np.log(proba[np.arange(tokens), gold])
    return Comparison(
        labels=labels,
        n_classes=s,
        offsets=offsets,
        gold=rows(gold),
        predicted=rows(codes),
        gold_codes=gold,
        codes=codes,
        proba=proba,
        log_gold=np.add.reduceat(p, offsets[:-1]),
        log_shown=np.add.reduceat(np.log(proba.max(axis=1)), offsets[:-1]),
    )
