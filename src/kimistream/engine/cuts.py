"""The most likely tokens, by number (top_k) and by their share (top_p), without sorting a vocabulary.

Knows: how to find the border between what stays and what goes; of equal values the lower ids stay.
Does not know: what the values mean, or what becomes of those that stay.

Sorting 163,840 numbers takes ten milliseconds on some CPUs. Which way the border is found has no influence on
where it is: only comparisons and sums of whole numbers are made.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kimistream.engine.weights import BLOCK

Floats = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]
Ints64 = npt.NDArray[np.int64]

GROUP = 64
"""Values whose largest speaks for them when the largest of all are looked for."""
SORTED = 4096
"""Weights that are sorted without more ado."""
SAMPLE = 1024


def largest(values: Floats | Floats64, count: int) -> Ints64:
    """Indices of the `count` largest of `[n]`, ascending; of equal values the lower indices are taken."""
    n = len(values)
    if count >= n:
        return np.arange(n)
    # the count-th largest maximum of any groups is a floor: that many values reach it
    groups = n // GROUP
    rest = values
    if count <= groups:
        maxima = values[: groups * GROUP].reshape(GROUP, groups).max(axis=0)
        rest = values[values >= np.partition(maxima, groups - count)[groups - count]]
    # which of equal values a partition puts in front depends on the CPU, the value at the border does not
    border = np.partition(rest, len(rest) - count)[len(rest) - count]
    above = np.flatnonzero(values > border)
    equal = np.flatnonzero(values == border)[: count - len(above)]
    return np.sort(np.concatenate((above, equal)))


def nucleus(weight: Ints64, top_p: float) -> npt.NDArray[np.bool_]:
    """Which of the weights `[n]`, from the largest down, are needed to reach top_p of their sum."""
    total = int(weight.sum())
    above, below = top_p.as_integer_ratio()
    target = -(-total * above // below)
    last = _last_weight(weight, total, target)
    kept: npt.NDArray[np.bool_] = weight > last
    missing = target - _above(weight, last)[1]
    kept[np.flatnonzero(weight == last)[: -(-missing // last)]] = True
    return kept


def _last_weight(weight: Ints64, total: int, target: int) -> int:
    """The weight that brings the sum, taken from the largest down, to the target."""
    # n weights of `low` or less have at most total - target together: those above reach the target
    low, high = (total - target) // len(weight), int(weight.max())
    weight = weight[weight > low]
    count, beyond, mass = len(weight), 0, 0
    # a flat distribution has too many above: narrow them down by halving a sorted sample
    sample = np.sort(weight[:: len(weight) // SAMPLE + 1])
    first, end = 0, len(sample)
    while count - beyond > SORTED and first < end:
        middle = (first + end) // 2
        value = int(sample[middle])
        above, sum_above = _above(weight, value)
        if sum_above >= target:
            low, count, first = value, above, middle + 1
        else:
            high, beyond, mass, end = value, above, sum_above, middle
    group = np.sort(weight[(weight > low) & (weight <= high)])[::-1]
    return int(group[np.searchsorted(np.cumsum(group), target - mass)])


def _above(weight: Ints64, limit: int) -> tuple[int, int]:
    """How many weights are above the limit, and their sum."""
    count = mass = 0
    for start in range(0, len(weight), BLOCK):
        block = weight[start : start + BLOCK]
        above = block > limit
        count += int(np.count_nonzero(above))
        mass += int((block * above).sum())
    return count, mass
