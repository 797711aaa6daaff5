"""Stop strings: the same text whatever pieces it comes in, and never more held back than must be."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kimistream.engine.stop import StopStrings

LETTERS = st.text("ab\n€", max_size=24)
STOPS = st.lists(st.text("ab\n€", min_size=1, max_size=5), max_size=4)


def definition(text, strings, include):
    """Character by character: the text ends where a stop string is complete first, at the longest there."""
    for end in range(1, len(text) + 1):
        done = [s for s in strings if text[:end].endswith(s)]
        if done:
            longest = max(done, key=len)
            return (text[:end] if include else text[: end - len(longest)]), longest
    return text, None


def pieces_of(text, cuts):
    borders = sorted({0, len(text), *(c for c in cuts if c <= len(text))})
    return [text[a:b] for a, b in pairwise(borders)]


@settings(max_examples=600, deadline=None)
@given(LETTERS, STOPS, st.booleans(), st.lists(st.integers(0, 24)))
def test_any_split_of_any_text_gives_the_same_output(text, strings, include, cuts):
    expected, match = definition(text, strings, include)
    for pieces in (pieces_of(text, cuts), list(text), [text], [*text[:3], "", text[3:]]):
        stop = StopStrings(strings, include=include)
        out = "".join(stop.feed(piece) for piece in pieces) + stop.finish()
        assert out == expected
        assert stop.matched == match


@settings(max_examples=300, deadline=None)
@given(LETTERS, STOPS)
def test_text_is_held_back_only_while_it_may_begin_a_stop_string(text, strings):
    stop, out = StopStrings(strings), ""
    for n, letter in enumerate(text):
        out += stop.feed(letter)
        if stop.matched:
            assert stop.held == ""
            return
        assert out + stop.held == text[: n + 1]
        beginnings = [k for k in range(1, n + 2) if any(s.startswith(text[: n + 1][-k:]) for s in strings)]
        assert len(stop.held) == max(beginnings, default=0)


def test_a_stop_string_over_three_tokens_never_shows():
    stop = StopStrings(["\n\nHuman:"])
    assert [stop.feed(p) for p in ("Hi.", "\n", "\nHu", "man: more")] == ["Hi.", "", "", ""]
    assert stop.matched == "\n\nHuman:"
    assert stop.feed("and more") == ""
    assert stop.finish() == ""


def test_a_false_start_is_let_go_as_soon_as_it_is_one():
    stop = StopStrings(["###"])
    assert [stop.feed(p) for p in ("a#", "#", "b", "##")] == ["a", "", "##b", ""]
    assert stop.finish() == "##"
    assert stop.matched is None


def test_a_repeating_beginning_is_followed_to_its_end():
    stop = StopStrings(["aab"])
    assert "".join(stop.feed(c) for c in "aaaab") == "aa"
    assert stop.matched == "aab"


def test_the_first_to_be_complete_ends_the_text_and_of_those_the_longest():
    for strings in (["abcd", "bc"], ["bc", "abcd"]):
        stop = StopStrings(strings)
        assert stop.feed("xabcd") == "xa"
        assert stop.matched == "bc"
    for strings in (["cd", "abcd", "d"], ["d", "cd", "abcd"]):
        stop = StopStrings(strings)
        assert stop.feed("xabcd") == "x"
        assert stop.matched == "abcd"


def test_the_stop_string_is_kept_if_asked_for_and_what_follows_is_not():
    stop = StopStrings(["END"], include=True)
    assert stop.feed("the EN") + stop.feed("D is near") == "the END"


def test_without_stop_strings_everything_passes_at_once():
    stop = StopStrings([])
    assert [stop.feed(c) for c in "a\n€"] == ["a", "\n", "€"]
    assert stop.held == ""


def test_a_piece_let_through_unseen_takes_part_in_no_match():
    stop = StopStrings(["ab"])
    assert stop.feed("xaba", watch=False) == "xaba"
    assert stop.feed("b") == "b"
    assert stop.feed("a") == ""
    assert stop.feed("b", watch=False) == "ab"
    assert stop.feed("b") + stop.feed("yab") == "by"
    assert stop.matched == "ab"
