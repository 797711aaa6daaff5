from __future__ import annotations

import numpy as np

from kimistream.stream.cache_policy import FadingMarks


def ids(*experts: int) -> np.ndarray:
    return np.array(experts, np.int32)


def scores(policy: FadingMarks, *keys: int) -> list[float]:
    return [float(score) for score in policy.scores(np.array(keys, np.int64))]


def test_what_was_asked_for_lately_is_worth_more_than_what_was_long_ago() -> None:
    policy = FadingMarks(1, 10)
    for expert in (1, 2, 3):
        policy.use(0, ids(expert))
    one, two, three, never = scores(policy, 1, 2, 3, 4)
    assert three > two > one > never


def test_among_equally_late_the_more_frequent_is_worth_more() -> None:
    policy = FadingMarks(1, 10)
    for _ in range(5):
        policy.use(0, ids(1))
    policy.use(0, ids(1, 2))
    often, once = scores(policy, 1, 2)
    assert often > once


def test_age_is_counted_in_passes_of_the_experts_own_layer() -> None:
    policy = FadingMarks(3, 10)
    policy.use(0, ids(1))
    before = scores(policy, 1)
    for _ in range(50):  # another layer passing alone makes nothing older
        policy.use(1, ids(2))
        policy.use(1, ids(3))
    after = scores(policy, 1)
    assert abs(before[0] - after[0]) <= 0.1  # only the place in the circle may differ


def test_among_equals_the_layer_just_passed_goes_first() -> None:
    policy = FadingMarks(4, 10)
    for layer in range(4):
        policy.use(layer, ids(5))
    policy.use(0, ids(5))
    policy.use(1, ids(5))
    # layer 1 was just passed: it is needed last; layer 0 before it. 2 and 3 have fewer marks but come soon.
    zero, one = scores(policy, 5, 15)
    assert one < zero
    fresh = FadingMarks(4, 10)
    for layer in range(4):
        fresh.use(layer, ids(5))
    worth = scores(fresh, 5, 15, 25, 35)
    assert worth == sorted(worth, reverse=True)  # 0 comes next, 3 was just passed


def test_marks_of_any_age_stay_finite() -> None:
    policy = FadingMarks(1, 4)
    policy.use(0, ids(0))
    for _ in range(3000):
        policy.use(0, ids(1))
    old, always, never = scores(policy, 0, 1, 2)
    assert never <= old < always < 100
