"""Data sets: bundled, made to order, and read from the folder named by ``SEQFIELD_DATA``."""

from __future__ import annotations

import gzip
import os
import zlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from seqfield.errors import FormatError, InputError

Row = tuple[str, ...]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

DATA_VARIABLE = "SEQFIELD_DATA"

# The galaxy: a disc of mixed classes, and from its rim two Archimedean arms r = r0 + pitch * angle,
# half a turn apart, so that neighbouring arms lie pitch * pi = 0.94 from each other.
_CORE_RADIUS, _ARM_WIDTH, _ARM_END, _PITCH = 0.5, 0.24, 2.6, 0.3


def load_ingredients(
    split: Literal["train", "test", "all"] = "train",
) -> tuple[list[list[Row]], list[list[str]]]:
    """Recipe-ingredient lines with BIO labels: 860 of them, written for this library.

    Parameters
    ----------
    split : the first 75 % of the lines ("train"), the others ("test") or "all"

    Returns
    -------
    X : list of sequences, each a list of one-column token rows
    y : list of label lists

    >>> X, y = load_ingredients()
    >>> X[0]
    [('2',), ('tbsp',), ('mild',), ('curry',), ('powder',)]
    >>> y[0]
    ['B-QTY', 'B-UNIT', 'B-NAME', 'I-NAME', 'I-NAME']
    """
    from seqfield.data.conll import read_conll

    _one_of("split", split, ("train", "test", "all"))
    with _bundled("ingredients.conll").open("rb") as file:
        X, labels = read_conll(file)
    y = cast(list[list[str]], labels)
    cut = len(X) * 3 // 4
    part = {"train": slice(cut), "test": slice(cut, None), "all": slice(None)}[split]
    return X[part], y[part]


def ingredients_template() -> str:
    """The text of a CRF++ template for the ingredient lines.

    >>> "U02:%x[0,0]" in ingredients_template().splitlines()
    True
    """
    return str(_bundled("ingredients.template").read_text(encoding="utf-8"))


def make_digits(
    n_sequences: int = 100,
    length: int | tuple[int, int] = 10,
    *,
    p_next: float = 0.7,
    noise: float = 0.3,
    images: Literal["all", "train", "test"] = "all",
    random_state: int | np.random.Generator | None = 0,
) -> tuple[list[FloatArray], list[list[int]]]:
    """Strings of handwritten digits: scikit-learn's real 8 x 8 images in Markov-chain order.

    The first digit is uniform; after digit d comes d + 1 (mod 10) with probability `p_next`,
    otherwise one of the ten digits at random. Each position shows a random image of its digit.

    Parameters
    ----------
    n_sequences : how many strings
    length : of every string, or (lowest, highest), both included
    p_next : 0 makes the positions independent, 1 makes the order certain
    noise : standard deviation of Gaussian noise added to pixels in [0, 1], then clipped to that
        range; the default makes context matter (a per-image logistic regression reaches about 84 %
        on the test images, with the chain 94 %), 0 keeps the images as they are
    images : which images to draw from: all 1797, or the first ("train") or second ("test") half
    random_state : seed or generator

    Returns
    -------
    X : list of (T, 64) arrays with values in [0, 1]
    y : list of lists of ints

    >>> X, y = make_digits(3, length=(4, 6))
    >>> X[0].shape
    (5, 64)
    >>> y[0]
    [8, 9, 0, 1, 6]
    """
    low, high = (length, length) if isinstance(length, int | np.integer) else length
    _at_least("n_sequences", n_sequences, 0)
    _at_least("length", low, 1)
    if high < low:
        raise InputError(f"length must be (lowest, highest), not {length!r}")
    _in_unit("p_next", p_next)
    if not (np.isfinite(noise) and noise >= 0):
        raise InputError(f"noise must be a finite number >= 0, not {noise!r}")
    _one_of("images", images, ("all", "train", "test"))
    rng = np.random.default_rng(random_state)
    pixels, digits = _digit_images()
    half = len(digits) // 2
    part = {"train": slice(half), "test": slice(half, None), "all": slice(None)}[images]
    pixels, digits = pixels[part], digits[part]
    of_digit = [np.flatnonzero(digits == d) for d in range(10)]

    X, y = [], []
    for _ in range(n_sequences):
        labels = [int(rng.integers(10))]
        for _ in range(1, int(rng.integers(low, high + 1))):
            follows = rng.random() < p_next
            labels.append((labels[-1] + 1) % 10 if follows else int(rng.integers(10)))
        x = pixels[[rng.choice(of_digit[d]) for d in labels]]
        if noise > 0:
            x = np.clip(x + rng.normal(scale=noise, size=x.shape), 0.0, 1.0)
        X.append(x)
        y.append(labels)
    return X, y


def make_galaxy(
    n_sequences: int = 100,
    length: int = 20,
    stay: float = 0.9,
    random_state: int | np.random.Generator | None = 0,
    *,
    core: float = 0.4,
) -> tuple[list[FloatArray], list[list[int]]]:
    """Points of two interlocking spirals with a mixed dense core, in hidden-Markov order.

    The state (the label) starts uniform and stays with probability `stay`; each state emits
    points of its own class. A point lies with probability `core` in a disc of radius 0.5 common
    to both classes, else on its class's arm, a band 0.24 wide that runs outwards to radius 2.6
    with 0.7 of free space to the other arm. Points are uniform over each of these areas.
    Without context the core cannot be told apart, so the Bayes error is exactly ``core / 2``.

    After Lafferty, Liu and Zhu, "Kernel conditional random fields" (2004), section 5.

    Parameters
    ----------
    n_sequences, length : how many sequences, and of how many points each
    stay : probability of keeping the state from one point to the next
    random_state : seed or generator
    core : share of each class's points that lies in the core

    Returns
    -------
    X : list of (length, 2) arrays
    y : list of lists of 0 and 1

    >>> X, y = make_galaxy(2, length=8)
    >>> X[0].shape
    (8, 2)
    >>> y
    [[0, 0, 0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1]]
    """
    _at_least("n_sequences", n_sequences, 0)
    _at_least("length", length, 1)
    _in_unit("stay", stay)
    _in_unit("core", core)
    rng = np.random.default_rng(random_state)
    shape = (n_sequences, length)
    # A state is the first one plus the number of changes so far, mod 2.
    changes = rng.random(shape) >= stay
    changes[:, 0] = rng.random(n_sequences) < 0.5
    labels = np.cumsum(changes, axis=1) % 2

    in_core = rng.random(shape) < core
    first = _CORE_RADIUS + _ARM_WIDTH / 2
    # Uniform area means uniform squared radius, in a disc as along an Archimedean band.
    middle = np.sqrt(rng.uniform(first**2, (_ARM_END - _ARM_WIDTH / 2) ** 2, shape))
    radius = np.where(
        in_core,
        _CORE_RADIUS * np.sqrt(rng.random(shape)),
        middle + rng.uniform(-_ARM_WIDTH / 2, _ARM_WIDTH / 2, shape),
    )
    angle = np.where(
        in_core,
        rng.uniform(0, 2 * np.pi, shape),
        (middle - first) / _PITCH + np.pi * labels,
    )
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return list(points), labels.tolist()


def corpus_folder() -> Path:
    """The folder of corpora that cannot be bundled, named by the variable ``SEQFIELD_DATA``.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"SEQFIELD_DATA": "nowhere/at/all"}):
    ...     corpus_folder()
    Traceback (most recent call last):
        ...
    seqfield.errors.InputError: SEQFIELD_DATA is 'nowhere/at/all', which is not a folder
    """
    value = os.environ.get(DATA_VARIABLE, "")
    if not value:
        raise InputError(f"{DATA_VARIABLE} is not set: it must name the folder of corpora")
    if not Path(value).is_dir():
        raise InputError(f"{DATA_VARIABLE} is {value!r}, which is not a folder")
    return Path(value)


@dataclass(frozen=True)
class FoldTask:
    """One of the four NLP tasks with five fixed folds.

    Attributes
    ----------
    name : of the task
    X : list of (T_i, D) CSR matrices of binary features
    y : list of lists of label ids
    labels : the label names; id k is ``labels[k]``
    folds : five pairs of 0-based sentence indices (train, test)
    """

    name: str
    X: list[Any]
    y: list[list[int]]
    labels: tuple[str, ...]
    folds: list[tuple[IntArray, IntArray]]

    @property
    def n_features(self) -> int:
        """The number of columns D, those without an active feature in `X` included."""
        return int(self.X[0].shape[1])


@dataclass(frozen=True)
class _TaskFacts:
    n_used: int
    n_train: int
    n_features: int
    labels: tuple[str, ...]


_TASKS = {
    "basenp": _TaskFacts(300, 150, 2143, ("B", "O", "I")),
    "chunking": _TaskFacts(
        100,
        50,
        2112,
        (
            *("B-NP", "B-PP", "I-NP", "B-VP", "I-VP", "B-SBAR", "O", "B-ADJP", "B-ADVP"),
            *("I-ADVP", "I-ADJP", "I-SBAR", "I-PP", "B-PRT"),
        ),
    ),
    "segmentation": _TaskFacts(36, 20, 691, ("B", "I")),
    "japanesene": _TaskFacts(
        100,
        50,
        6030,
        (
            *("O", "B-LOCATION", "B-MONEY", "I-MONEY", "B-DATE", "I-DATE", "B-PERCENT"),
            *("I-PERCENT", "B-ARTIFACT", "I-ARTIFACT", "B-PERSON", "I-PERSON", "I-LOCATION"),
            *("B-ORGANIZATION", "I-ORGANIZATION", "B-OPTIONAL", "I-OPTIONAL"),
        ),
    ),
}


def load_fold_task(name: str) -> FoldTask:
    """Read one of the tasks in ``gpstruct_folds`` of `corpus_folder`.

    Parameters
    ----------
    name : "basenp", "chunking", "segmentation" or "japanesene"

    Returns
    -------
    FoldTask with the 300, 100, 36 or 100 sentences that the folds use. Its columns are all the
    features counted in the task's training file, in that order (2143, 2112, 691 or 6030);
    some are never active in these sentences.

    >>> load_fold_task("parsing")
    Traceback (most recent call last):
        ...
    seqfield.errors.InputError: name must be one of
    'basenp', 'chunking', 'segmentation', 'japanesene', not 'parsing'
    """
    _one_of("name", name, tuple(_TASKS))
    facts = _TASKS[name]
    folder = corpus_folder() / "gpstruct_folds"
    matrix, y = _read_features(folder / f"{name}.features.tsv.gz", facts)
    ends = np.cumsum([len(labels) for labels in y])
    X = [matrix[end - len(labels) : end] for labels, end in zip(y, ends, strict=True)]
    folds = _read_folds(folder / f"datasplit.n_data={facts.n_used}.txt", facts)
    return FoldTask(name, X, y, facts.labels, folds)


def _read_features(path: Path, facts: _TaskFacts) -> tuple[Any, list[list[int]]]:
    """All tokens of the used sentences as one CSR matrix, and the label ids by sentence."""
    try:
        text = gzip.decompress(path.read_bytes()).decode("ascii")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise FormatError(f"cannot be read: {error}", path=str(path)) from error
    n_labels = len(facts.labels)
    y: list[list[int]] = []
    cells: list[str] = []
    row_ends = [0]
    for number, line in enumerate(text.splitlines(), 1):
        try:
            first, second, active = line.split("\t")
            sentence, label = int(first), int(second)
        except ValueError as error:
            raise FormatError(
                "not a sentence number, a label id and feature ids, parted by tabs",
                path=str(path),
                line=number,
            ) from error
        if sentence > facts.n_used:
            break
        if sentence == len(y) + 1:
            y.append([])
        if sentence != len(y) or not 0 <= label < n_labels:
            raise FormatError(
                f"sentence {sentence} out of order, or label id {label} not below {n_labels}",
                path=str(path),
                line=number,
            )
        y[-1].append(label)
        cells += active.split()
        row_ends.append(len(cells))
    if len(y) < facts.n_used:
        raise FormatError(f"fewer than {facts.n_used} sentences", path=str(path))

    # CRF++ numbers feature k as the offset of its weights: L * L transitions, then L per feature.
    try:
        column, rest = np.divmod(np.array(cells, dtype=np.int32) - n_labels**2, n_labels)
    except (ValueError, OverflowError) as error:
        raise FormatError(f"feature ids must be whole numbers: {error}", path=str(path)) from error
    if rest.any() or (column < 0).any() or (column >= facts.n_features).any():
        raise FormatError(
            f"feature ids are not those of {facts.n_features} columns", path=str(path)
        )
    matrix = sparse.csr_matrix(
        (np.ones(len(column)), column, np.array(row_ends, dtype=np.int32)),
        shape=(len(row_ends) - 1, facts.n_features),
    )
    return matrix, y


def _read_folds(path: Path, facts: _TaskFacts) -> list[tuple[IntArray, IntArray]]:
    try:
        table = np.loadtxt(path, dtype=np.intp, ndmin=2) - 1
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot be read: {error}", path=str(path)) from error
    if not np.array_equal(np.sort(table, axis=1), np.tile(np.arange(facts.n_used), (5, 1))):
        raise FormatError(f"not five permutations of 1..{facts.n_used}", path=str(path))
    return [(row[: facts.n_train], row[facts.n_train :]) for row in table]


@cache
def _digit_images() -> tuple[FloatArray, IntArray]:
    from sklearn.datasets import load_digits

    data = load_digits()
    return data.data / 16.0, data.target


def _bundled(name: str) -> Any:
    return resources.files("seqfield.data").joinpath("bundled", name)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise InputError(f"{name} must be at least {low}, not {value!r}")


def _in_unit(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"{name} must lie between 0 and 1, not {value!r}")
