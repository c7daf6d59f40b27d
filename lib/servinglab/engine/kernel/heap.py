"""A binary heap in two arrays: keys and values, the smallest key first, then the smallest value."""

from __future__ import annotations

from typing import Any

from servinglab.base.compiled import apart


@apart
def push(key: Any, value: Any, size: int, k: int, v: int) -> int:
    """Push (k, v) onto a binary heap ordered by key, then value; return the new size."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if key[up] < k or (key[up] == k and value[up] <= v):
            break
        key[i], value[i] = key[up], value[up]
        i = up
    key[i], value[i] = k, v
    return size + 1


@apart
def pop(key: Any, value: Any, size: int) -> int:
    """Remove the heap's top, which the caller has read; return the new size."""
    size -= 1
    k, v = key[size], value[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (key[other] < key[child] or (key[other] == key[child] and value[other] < value[child])):
            child = other
        if k < key[child] or (k == key[child] and v <= value[child]):
            break
        key[i], value[i] = key[child], value[child]
        i = child
    key[i], value[i] = k, v
    return size
