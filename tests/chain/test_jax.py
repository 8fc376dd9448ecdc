"""engine="jax" against the compiled loops and against enumeration.

Every shape is compiled anew, which takes longer than all else here: batches share their shapes.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import seqfield
from seqfield import chain
from seqfield.chain import _jax
from seqfield.chain.reference import enumerate_labellings
from seqfield.errors import InputError, NoPathError

LENGTHS = [1, 4, 2, 70, 1, 3, 17, 5, 33, 2, 8, 1, 40, 6]
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
N = int(OFFSETS[-1])
#: sequences whose score range asks for the log form
WILD = {2: 900.0, 6: 1e4, 8: 300.0}


def random_scores(seed: int, s: int, *, own: bool = False, wild: bool = True, bans: bool = True):
    """Scores with forbidden labels and transitions that leave every sequence a labelling."""
    rng = np.random.default_rng(seed)
    node = rng.normal(size=(N, s)) * 2
    edge = rng.normal(size=(N, s, s) if own else (s, s))
    start, end = rng.normal(size=(2, s))
    if bans and s > 1:
        node[rng.random(node.shape) < 0.2] = -np.inf
        node[:, 0] = rng.normal(size=N)
        edge[rng.random(edge.shape) < 0.2] = -np.inf
        edge[..., 0, 0] = 0.3
        start[1] = -np.inf
    for i, scale in WILD.items() if wild else ():
        node[OFFSETS[i] : OFFSETS[i + 1]] *= scale
    return chain.ChainScores(node, edge, OFFSETS, start, end)


def same(found, wanted) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pairs", ["sum", "each"])
def test_marginals_agree_with_the_loops(pairs):
    weights = np.random.default_rng(0).random(len(LENGTHS))
    for seed in range(3):
        scores = random_scores(seed, 3)
        wanted = chain.marginals(scores, pairs=pairs, weights=weights)
        found = chain.marginals(scores, pairs=pairs, weights=weights, engine="jax")
        for one, other in zip(found, wanted, strict=True):
            assert one.dtype == np.float64
            same(one, other)


def test_pair_sums_by_sequence():
    scores = random_scores(3, 3, wild=False)
    weights = np.random.default_rng(0).random(len(LENGTHS))
    wanted = chain.marginals(scores, pairs="sequence", weights=weights)
    found = chain.marginals(scores, pairs="sequence", weights=weights, engine="jax")
    same(found.pairs, wanted.pairs)


def test_edges_of_each_token():
    scores = random_scores(4, 3, own=True)
    found, wanted = (chain.marginals(scores, pairs="sequence", engine=e) for e in ("jax", "numba"))
    for one, other in zip(found, wanted, strict=True):
        same(one, other)


@pytest.mark.parametrize("s", [1, 8])
def test_other_numbers_of_labels(s):
    scores = random_scores(5, s, wild=False)
    found, wanted = (chain.marginals(scores, pairs="sum", engine=e) for e in ("jax", "numba"))
    for one, other in zip(found, wanted, strict=True):
        same(one, other)


@pytest.mark.parametrize("own", [False, True])
def test_many_labels(own):
    """Sums over labels are products of matrices then."""
    scores = random_scores(5, _jax.WRITTEN_OUT + 1, own=own, wild=False)
    found, wanted = (chain.marginals(scores, pairs="sum", engine=e) for e in ("jax", "numba"))
    for one, other in zip(found, wanted, strict=True):
        same(one, other)


def test_log_partition_and_log_prob():
    for seed in range(3):
        scores = random_scores(seed, 3)
        same(chain.log_partition(scores, engine="jax"), chain.log_partition(scores))
        y = chain.viterbi(scores).labels
        same(chain.log_prob(scores, y, engine="jax"), chain.log_prob(scores, y))
        y = np.random.default_rng(seed).integers(0, 3, N)  # most of these are forbidden
        same(chain.log_prob(scores, y, engine="jax"), chain.log_prob(scores, y))


@pytest.mark.parametrize("own", [False, True])
def test_viterbi_takes_the_same_of_equal_paths(own):
    for seed in range(3):
        scores = random_scores(seed, 3, own=own)
        if seed:  # whole numbers: many ties
            scores = chain.ChainScores(
                np.round(scores.node / 2), np.round(scores.edge), OFFSETS, scores.start, scores.end
            )
        found, wanted = chain.viterbi(scores, engine="jax"), chain.viterbi(scores)
        np.testing.assert_array_equal(found.labels, wanted.labels)
        np.testing.assert_array_equal(found.score, wanted.score)
        assert found.labels.dtype == np.int32


def test_enumeration_with_allowed_sets():
    scores = random_scores(6, 3)
    allowed = np.random.default_rng(6).random((N, 3)) < 0.7
    allowed[:, 0] = True
    found = chain.marginals(scores, allowed=allowed, pairs="each", engine="jax")
    same(chain.log_partition(scores, allowed=allowed, engine="jax"), found.log_z)
    best = chain.viterbi(scores, allowed=allowed, engine="jax")
    for i, l in enumerate(LENGTHS):
        if l > 8:
            continue
        tokens = slice(OFFSETS[i], OFFSETS[i + 1])
        wanted = enumerate_labellings(scores, i, allowed)
        same(found.log_z[i], wanted.log_z)
        same(found.node[tokens], wanted.node(3))
        same(found.pairs[tokens], wanted.pairs(3))
        k = np.flatnonzero((wanted.labels == best.labels[tokens]).all(axis=1))[0]
        same(wanted.scores[k], wanted.scores.max())


def test_scores_of_float32():
    node = random_scores(7, 3).node.astype(np.float32)
    scores = chain.ChainScores(node, np.eye(3, dtype=np.float32), OFFSETS)
    found, wanted = (chain.marginals(scores, pairs="sum", engine=e) for e in ("jax", "numba"))
    same(found.node, wanted.node)
    same(found.pairs, wanted.pairs)


def test_memory_is_bounded_by_cutting(monkeypatch):
    from seqfield.chain import _padded

    most = 3 * 128 * 2
    for name in ("PIECE_CPU", "PIECE_GPU"):
        monkeypatch.setattr(_padded, name, most)
    monkeypatch.setattr(_padded, "ROOM", 100)
    batch = _padded.Batch(None, None, OFFSETS)
    pieces = list(batch.pieces(np.arange(len(LENGTHS)), 3))
    done = np.concatenate([piece.sequences for piece in pieces])
    assert sorted(done) == list(range(len(LENGTHS)))
    for piece in pieces:
        assert len(piece.first) * piece.places * 3 <= most
        real = np.asarray(piece.lengths)[: len(piece.sequences)]
        np.testing.assert_array_equal(real, np.array(LENGTHS)[piece.sequences])
        assert not np.asarray(piece.lengths)[len(piece.sequences) :].any()


@pytest.mark.parametrize("strength", [6.0, 60.0])
def test_two_halves_that_contradict_each_other(strength):
    """Messages from both sides agree on labels that each finds all but impossible."""
    scores = random_scores(10, 3, wild=False, bans=False)
    node, edge = scores.node.copy(), np.full((3, 3), -120.0)
    np.fill_diagonal(edge, 0.0)
    a, b = OFFSETS[12], OFFSETS[13]
    node[a : (a + b) // 2, 0] += strength
    node[(a + b) // 2 : b, 1] += strength
    scores = chain.ChainScores(node, edge, OFFSETS)
    found, wanted = (chain.marginals(scores, pairs="each", engine=e) for e in ("jax", "numba"))
    for one, other in zip(found, wanted, strict=True):
        same(one, other)


def test_no_labelling_left():
    scores = random_scores(9, 3, wild=False)
    allowed = np.ones((N, 3), bool)
    allowed[OFFSETS[7]] = False
    for call in (chain.log_partition, chain.viterbi):
        with pytest.raises(NoPathError, match="sequence 7 has no allowed labelling"):
            call(scores, allowed=allowed, engine="jax")
    assert chain.log_partition(scores, allowed=allowed, engine="jax", strict=False)[7] == -np.inf
    with pytest.raises(NoPathError, match="sequence 7"):
        chain.marginals(scores, allowed=allowed, pairs="sum", engine="jax")


def test_wrong_arguments():
    scores = random_scores(0, 3)
    calls = [
        lambda **k: chain.log_partition(scores, **k),
        lambda **k: chain.log_prob(scores, np.zeros(N, int), **k),
        lambda **k: chain.marginals(scores, **k),
        lambda **k: chain.viterbi(scores, **k),
    ]
    for call in calls:
        with pytest.raises(InputError, match="engine must be one of 'numba', 'jax', got 'torch'"):
            call(engine="torch")
    with pytest.raises(InputError, match="allowed must have shape"):
        chain.viterbi(scores, allowed=np.ones((2, 2), bool), engine="jax")
    with pytest.raises(InputError, match="pairs must be one of"):
        chain.marginals(scores, pairs="all", engine="jax")


def test_the_users_precision_stays():
    import jax.numpy as jnp

    chain.log_partition(random_scores(0, 3), engine="jax")
    assert jnp.zeros(1).dtype == np.float32


def test_without_jax():
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "import numpy as np, seqfield as sf\n"
        "scores = sf.ChainScores(np.zeros((2, 2)), np.zeros((2, 2)))\n"
        "for call in (lambda: sf.chain.log_partition(scores, engine='jax'),\n"
        "             lambda: sf.GPSC('rbf', engine='jax').fit([np.eye(2)], [[0, 1]])):\n"
        "    try: call()\n"
        "    except sf.errors.CapabilityError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    wanted = "engine='jax' needs JAX, which is not installed: pip install 'seqfield[jax]'"
    assert run.stdout.splitlines() == [wanted] * 2


@pytest.mark.parametrize("platform", ["tpu", "nonsense"])
def test_a_device_that_does_not_start(platform):
    code = (
        "import numpy as np, seqfield as sf\n"
        "scores = sf.ChainScores(np.zeros((2, 2)), np.zeros((2, 2)))\n"
        "data = [np.eye(2)] * 3, [[0, 1]] * 3\n"
        "for call in (lambda: sf.chain.log_partition(scores, engine='jax'),\n"
        "             lambda: sf.GPSC('rbf', engine='jax').fit(*data),\n"
        "             lambda: sf.GPStruct('rbf', 8, sampler='ess', engine='jax').fit(*data)):\n"
        "    try: call()\n"
        "    except sf.errors.CapabilityError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"JAX_PLATFORMS": platform},
    )
    wanted = f"engine='jax': JAX finds no device (JAX_PLATFORMS={platform})"
    assert [line.split(": use ")[0] for line in run.stdout.splitlines()] == [wanted] * 3


def test_jax_is_imported_behind_one_door():
    """Only in files named _jax.py, and never by importing seqfield."""
    root = Path(seqfield.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] != "jax" or path.name == "_jax.py", path
    code = "import sys, seqfield as sf; sf.GPSC, sf.chain; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
