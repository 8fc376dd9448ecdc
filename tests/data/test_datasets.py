import gzip
import os
import random
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, kneighbors_graph

from seqfield.data import datasets
from seqfield.errors import FormatError, InputError

TYPES = {"QTY", "UNIT", "NAME", "PREP", "SIZE", "NOTE"}


# ------------------------------------------------------------------------------ ingredients


def test_ingredients_counts_and_split():
    X, y = datasets.load_ingredients("all")
    assert len(X) == len(y) == 860
    assert sum(map(len, X)) == 5003
    train, test = datasets.load_ingredients(), datasets.load_ingredients("test")
    assert len(train[0]) == 645
    assert train[0] + test[0] == X
    assert train[1] + test[1] == y


def test_ingredients_rows_have_one_column_each():
    X, y = datasets.load_ingredients("all")
    assert [len(x) for x in X] == [len(labels) for labels in y]
    assert all(len(x) > 0 for x in X)
    assert all(isinstance(row, tuple) and len(row) == 1 and row[0] for x in X for row in x)


@pytest.mark.parametrize("split", ["train", "test"])
def test_ingredients_label_set_in_both_splits(split):
    _, y = datasets.load_ingredients(split)
    seen = {label for labels in y for label in labels}
    assert seen == {"O"} | {f"{p}-{t}" for p in "BI" for t in TYPES}


def test_ingredients_are_valid_bio():
    for labels in datasets.load_ingredients("all")[1]:
        for before, label in zip(["O", *labels], labels, strict=False):
            if label.startswith("I-"):
                assert before[2:] == label[2:], labels


def test_ingredients_are_varied():
    X, _ = datasets.load_ingredients("all")
    lines = [" ".join(row[0] for row in x) for x in X]
    assert max(Counter(lines).values()) == 1
    assert sum("½" in line or "¼" in line or "¾" in line for line in lines) >= 10
    assert sum(line.isupper() for line in lines) >= 5
    assert any(line.startswith("Juice of") for line in lines)


def test_ingredients_ambiguous_words():
    X, y = datasets.load_ingredients("all")
    kinds = Counter(
        (row[0].lower(), label[2:])
        for x, labels in zip(X, y, strict=True)
        for row, label in zip(x, labels, strict=True)
    )
    for word, one, other in [
        ("cloves", "UNIT", "NAME"),
        ("ground", "NAME", "PREP"),
        ("chopped", "NAME", "PREP"),
        ("oz", "UNIT", "SIZE"),
        ("head", "UNIT", "NAME"),
        ("stick", "UNIT", "NAME"),
    ]:
        assert kinds[word, one] > 0
        assert kinds[word, other] > 0


def test_ingredients_template_is_for_one_column():
    lines = datasets.ingredients_template().splitlines()
    assert "B" in lines
    macros = [line for line in lines if line.startswith("U")]
    assert len(macros) == len({line.split(":")[0] for line in macros}) >= 8
    cells = [cell for line in macros for cell in re.findall(r"%x\[(.*?)\]", line)]
    assert {cell.split(",")[1] for cell in cells} == {"0"}


# ----------------------------------------------------------------------------------- digits


def test_digits_shapes_range_and_types():
    X, y = datasets.make_digits(20, length=(3, 7))
    assert len(X) == len(y) == 20
    assert {len(labels) for labels in y} == {3, 4, 5, 6, 7}
    for x, labels in zip(X, y, strict=True):
        assert x.shape == (len(labels), 64)
        assert x.dtype == np.float64
        assert 0 <= x.min() <= x.max() <= 1
        assert all(type(label) is int and 0 <= label <= 9 for label in labels)


def test_digits_follow_the_chain():
    _, y = datasets.make_digits(200, length=20, p_next=0.7)
    steps = [(b - a) % 10 for labels in y for a, b in pairwise(labels)]
    assert np.mean(np.array(steps) == 1) == pytest.approx(0.7 + 0.3 / 10, abs=0.02)
    _, y = datasets.make_digits(5, p_next=1.0)
    assert all((b - a) % 10 == 1 for labels in y for a, b in pairwise(labels))


def test_digits_halves_are_disjoint():
    halves = []
    for images in ("train", "test"):
        X, _ = datasets.make_digits(400, noise=0.0, images=images)
        halves.append({row.tobytes() for x in X for row in x})
    assert halves[0].isdisjoint(halves[1])


@pytest.mark.parametrize(("noise", "low", "high"), [(0.0, 0.90, 0.96), (0.3, 0.79, 0.89)])
def test_digits_by_logistic_regression(noise, low, high):
    X, y = datasets.make_digits(200, noise=noise, images="train", random_state=1)
    Z, z = datasets.make_digits(200, noise=noise, images="test", random_state=2)
    model = LogisticRegression(C=0.3, tol=1e-3, max_iter=500).fit(np.vstack(X), np.concatenate(y))
    assert low < model.score(np.vstack(Z), np.concatenate(z)) < high


# ----------------------------------------------------------------------------------- galaxy


def test_galaxy_shapes_and_types():
    X, y = datasets.make_galaxy()
    assert len(X) == len(y) == 100
    assert all(x.shape == (20, 2) and x.dtype == np.float64 for x in X)
    assert all(type(label) is int for labels in y for label in labels)
    assert {label for labels in y for label in labels} == {0, 1}


def test_galaxy_chain_stays():
    _, y = datasets.make_galaxy(1000)
    labels = np.array(y)
    assert np.mean(labels[:, 1:] == labels[:, :-1]) == pytest.approx(0.9, abs=0.01)
    assert labels[:, 0].mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("core", [0.4, 0.2])
def test_galaxy_bayes_error_without_context(core):
    train, test = (datasets.make_galaxy(1000, random_state=seed, core=core) for seed in (1, 2))
    model = KNeighborsClassifier(101).fit(np.vstack(train[0]), np.concatenate(train[1]))
    error = 1 - model.score(np.vstack(test[0]), np.concatenate(test[1]))
    assert error == pytest.approx(core / 2, abs=0.03)


def test_galaxy_context_tells_the_core_apart():
    wrong = []
    for x, y in zip(*datasets.make_galaxy(500), strict=True):
        labels, arm = np.array(y), np.flatnonzero(np.hypot(*x.T) > 0.5)
        nearest = np.abs(np.arange(len(y))[:, None] - arm).argmin(axis=1)
        wrong.append(labels[arm[nearest]] != labels)
    assert np.mean(wrong) < 0.08


def test_galaxy_neighbour_graph_keeps_the_arms_apart():
    X, y = datasets.make_galaxy()
    points, labels = np.vstack(X), np.concatenate(y)
    assert 4 < np.ptp(points, axis=0).max() < 6
    arm = np.hypot(*points.T) > 0.5
    graph = kneighbors_graph(points, 10)
    graph = graph.maximum(graph.T).tocoo()
    on_arms = arm[graph.row] & arm[graph.col]
    same = labels[graph.row] == labels[graph.col]
    assert same[on_arms].mean() > 0.98
    assert sparse.csgraph.connected_components(graph)[0] == 1


# -------------------------------------------------------------------------- both made sets


@pytest.mark.parametrize("make", [datasets.make_digits, datasets.make_galaxy])
def test_made_sets_are_fixed_by_the_seed(make):
    X, y = make(5, random_state=3)
    np.random.seed(0)  # noqa: NPY002  (the global state must not matter)
    random.seed(0)
    Z, z = make(5, random_state=3)
    assert y == z
    assert all(np.array_equal(a, b) for a, b in zip(X, Z, strict=True))
    assert make(5, random_state=np.random.default_rng(3))[1] == y
    assert make(5, random_state=4)[1] != y


@pytest.mark.parametrize("make", [datasets.make_digits, datasets.make_galaxy])
def test_no_sequences(make):
    assert make(0) == ([], [])


@pytest.mark.parametrize(
    "call",
    [
        lambda: datasets.load_ingredients("dev"),
        lambda: datasets.make_digits(-1),
        lambda: datasets.make_digits(length=0),
        lambda: datasets.make_digits(length=(5, 4)),
        lambda: datasets.make_digits(p_next=1.5),
        lambda: datasets.make_digits(noise=float("nan")),
        lambda: datasets.make_digits(images="half"),
        lambda: datasets.make_galaxy(length=0),
        lambda: datasets.make_galaxy(stay=-0.1),
        lambda: datasets.make_galaxy(core=float("nan")),
        lambda: datasets.load_fold_task("parsing"),
    ],
)
def test_bad_arguments(call):
    with pytest.raises(InputError, match="must"):
        call()


# ------------------------------------------------------------------------------ fold tasks


def test_corpus_folder_names_the_variable(monkeypatch, tmp_path):
    monkeypatch.delenv("SEQFIELD_DATA", raising=False)
    with pytest.raises(InputError, match="SEQFIELD_DATA is not set"):
        datasets.corpus_folder()
    monkeypatch.setenv("SEQFIELD_DATA", str(tmp_path / "missing"))
    with pytest.raises(InputError, match=r"SEQFIELD_DATA is .*missing.*not a folder"):
        datasets.corpus_folder()
    monkeypatch.setenv("SEQFIELD_DATA", str(tmp_path))
    assert datasets.corpus_folder() == tmp_path


@pytest.fixture
def small_corpus(monkeypatch, tmp_path):
    """A made-up segmentation task: 36 sentences of two tokens, the second without a feature."""
    folder = tmp_path / "gpstruct_folds"
    folder.mkdir()
    row = " ".join(map(str, range(1, 37)))
    (folder / "datasplit.n_data=36.txt").write_text(f"{row}\n" * 5)

    def write(text=None):
        lines = "".join(f"{i}\t0\t4 {2 * i + 4}\n{i}\t1\t\n" for i in range(1, 38))
        data = gzip.compress((lines if text is None else text).encode())
        (folder / "segmentation.features.tsv.gz").write_bytes(data)
        return folder

    write()
    monkeypatch.setenv("SEQFIELD_DATA", str(tmp_path))
    return write


def test_fold_task_of_a_small_corpus(small_corpus):
    task = datasets.load_fold_task("segmentation")
    assert len(task.X) == len(task.y) == 36
    assert task.n_features == 691
    assert task.X[2].toarray().nonzero()[1].tolist() == [0, 3]
    assert task.y[2] == [0, 1]
    assert [task.labels[label] for label in task.y[0]] == ["B", "I"]
    assert task.folds[0][0].tolist() == list(range(20))
    assert task.folds[4][1].tolist() == list(range(20, 36))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\t0\n", ":1: not a sentence number"),
        ("1\tB\t4\n", ":1: not a sentence number"),
        ("1\t0\t4\n1\t2\t4\n", ":2: .*label id 2"),
        ("2\t0\t4\n", ":1: sentence 2 out of order"),
        ("1\t0\t4\n", "fewer than 36 sentences"),
        ("".join(f"{i}\t0\t5\n" for i in range(1, 37)), "feature ids are not those"),
        ("".join(f"{i}\t0\tx\n" for i in range(1, 37)), "whole numbers"),
        ("".join(f"{i}\t0\t{4 + 2 * 691}\n" for i in range(1, 37)), "of 691 columns"),
    ],
)
def test_malformed_features(small_corpus, text, message):
    small_corpus(text)
    with pytest.raises(FormatError, match=message):
        datasets.load_fold_task("segmentation")


def test_unreadable_fold_files(small_corpus):
    folder = small_corpus()
    (folder / "datasplit.n_data=36.txt").write_text("1 2 3\n")
    with pytest.raises(FormatError, match="five permutations"):
        datasets.load_fold_task("segmentation")
    (folder / "datasplit.n_data=36.txt").write_text("1 2\n3\n")
    with pytest.raises(FormatError, match="cannot be read"):
        datasets.load_fold_task("segmentation")
    (folder / "segmentation.features.tsv.gz").write_bytes(b"no gzip")
    with pytest.raises(FormatError, match="cannot be read"):
        datasets.load_fold_task("segmentation")
    with pytest.raises(FormatError, match="cannot be read"):
        datasets.load_fold_task("basenp")


FOLD_FACTS = {
    "basenp": (300, 2143, 3, "3723/3499 3759/3463 3690/3532 3827/3395 3700/3522"),
    "chunking": (100, 2112, 12, "1178/1101 1146/1133 1108/1171 1212/1067 1135/1144"),
    "segmentation": (36, 691, 2, "959/664 1040/583 913/710 834/789 964/659"),
    "japanesene": (100, 6030, 15, "1324/1400 1268/1456 1362/1362 1279/1445 1344/1380"),
}


@pytest.mark.corpus
@pytest.mark.skipif(not os.environ.get("SEQFIELD_DATA"), reason="SEQFIELD_DATA is not set")
@pytest.mark.parametrize("name", FOLD_FACTS)
def test_fold_task_against_the_published_counts(name):
    n_sentences, n_features, n_labels, tokens = FOLD_FACTS[name]
    task = datasets.load_fold_task(name)
    assert len(task.X) == len(task.y) == n_sentences
    assert task.n_features == n_features
    assert len({label for labels in task.y for label in labels}) == n_labels
    for x, labels in zip(task.X, task.y, strict=True):
        assert sparse.issparse(x)
        assert x.format == "csr"
        assert x.shape == (len(labels), n_features)
        assert x.indices.dtype == np.int32
        assert x.has_canonical_format
        assert (x.data == 1).all()
    sizes = np.array([len(labels) for labels in task.y])
    found = " ".join(f"{sizes[train].sum()}/{sizes[test].sum()}" for train, test in task.folds)
    assert found == tokens
