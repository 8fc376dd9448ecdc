"""Headers of model files with one value changed."""

from __future__ import annotations

import copy


def places(tree, path=()):
    """Paths of all values of a JSON tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def replaced(tree, path, value):
    tree = copy.deepcopy(tree)
    _holder(tree, path)[path[-1]] = copy.deepcopy(value)
    return tree


def removed(tree, path):
    tree = copy.deepcopy(tree)
    del _holder(tree, path)[path[-1]]
    return tree


def _holder(tree, path):
    for key in path[:-1]:
        tree = tree[key]
    return tree
