"""However much is asked of sequences, a model scores each of them once."""

from __future__ import annotations

from functools import wraps

import pytest

import seqfield as sf
from seqfield.functions import LEARNED, Learned

from ..support.commands import run
from ..support.estimators import (
    BIO,
    JOINT,
    NEW_BIO,
    NEW_WORDS,
    WORDS,
    every,
    fitted,
    quiet,
    speaking,
)

pytestmark = quiet
N = len(NEW_WORDS)


@pytest.fixture
def scored(monkeypatch):
    """How many sequences were scored, by all functions together."""
    counted = {"sequences": 0, "depth": 0}

    def counting(method):
        @wraps(method)
        def wrapped(self, data, *rest, **named):
            # draws may go by scores: only the outermost call is one more look at the data
            counted["depth"] += 1
            counted["sequences"] += len(data) if counted["depth"] == 1 else 0
            try:
                return method(self, data, *rest, **named)
            finally:
                counted["depth"] -= 1

        return wrapped

    classes = [Learned, *map(LEARNED.named, LEARNED)]
    for cls in classes:
        for name in ("scores", "draws"):
            if name in vars(cls):
                monkeypatch.setattr(cls, name, counting(vars(cls)[name]))
    return counted


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A column file, and the models that were saved."""
    folder = tmp_path_factory.mktemp("scoring")
    sf.write_conll(folder / "new.txt", NEW_WORDS, NEW_BIO)
    models = {}

    def model(name):
        if name not in models:
            models[name] = folder / f"{name}.sf"
            told = fitted(name, "words", scheme="BIO", **speaking(name))
            told.save(models[name])
        return models[name]

    return folder / "new.txt", model


COMMANDS = {
    "tag": ("tag",),
    "tag with confidence": ("tag", "--confidence"),
    "tag the best": ("tag", "--nbest", "2", "--confidence"),
    "tag or abstain": ("tag", "--min-confidence", "0.5", "--confidence"),
    "tag --format jsonl": ("tag", "--format", "jsonl"),
    "tag --format labelstudio": ("tag", "--format", "labelstudio"),
    "eval": ("eval",),
    "eval --json": ("eval", "--json"),
    "report": ("report",),
}


@every
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_score_every_sequence_once(name, command, files, scored, tmp_path):
    source, model = files
    first, *options = COMMANDS[command]
    path = model(name)
    scored["sequences"] = 0
    output = () if first == "eval" else ("-o", tmp_path / "out")
    run(first, path, source, *output, *options)
    assert scored["sequences"] == N


USES = {
    "calibration_gain": lambda m: sf.confidence.calibration_gain(m, NEW_WORDS, NEW_BIO),
    "calibrate": lambda m: sf.calibrate(m, NEW_WORDS, NEW_BIO, method="vector", cv="prefit"),
    "report": lambda m: sf.report.report_content(m, NEW_WORDS, NEW_BIO, n_boot=2),
    "score": lambda m: m.score(NEW_WORDS, NEW_BIO),
    "rank": lambda m: sf.active.rank(m, NEW_WORDS),
    "rank tokens": lambda m: sf.active.rank(m, NEW_WORDS, unit="token"),
    "rank spans": lambda m: sf.active.rank(m, NEW_WORDS, unit="span"),
    "sets": lambda m: sf.conformal.TokenSets(m, 0.5).fit(NEW_WORDS, NEW_BIO),
    "sets of spans": lambda m: sf.conformal.SpanSets(m, 0.4, floor=1e-6).fit(NEW_WORDS, NEW_BIO),
    "thresholds": lambda m: sf.threshold_for_precision(m, NEW_WORDS, NEW_BIO, 0.5, unit="span"),
}


@every
@pytest.mark.parametrize("use", USES)
def test_uses_score_every_sequence_once(name, use, scored):
    model = fitted(name, "words", scheme="BIO", **speaking(name))
    scored["sequences"] = 0
    USES[use](model)
    assert scored["sequences"] == N


@every
def test_a_distribution_is_scored_once_for_all_questions(name, scored):
    model = fitted(name, "words", scheme="BIO", **speaking(name))
    scored["sequences"] = 0
    said = model.distribution(WORDS)
    for ask in (said.best, said.marginals, said.entropy, said.confidence, said.spans):
        ask()
    said.nbest(3)
    said.sample(3)
    said.log_prob(BIO)
    said.given([[None] * len(row) for row in BIO]).best()
    assert scored["sequences"] == len(WORDS)
    assert name in JOINT or model.inference == "chain"
