"""The model's turns: whole, streamed, malformed, cut short."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimistream.errors import TextError
from kimistream.text.calls import ToolCall
from kimistream.text.chat import encode_chat, render
from kimistream.text.output import (
    Called,
    Content,
    Event,
    Output,
    OutputParser,
    Reasoning,
    ReasoningWithdrawn,
    parse,
)
from kimistream.text.tokenizer import Tokenizer

# Where the two original parsers disagree, the one that is followed; everywhere else it is both.
FOLLOWED = {
    "truncated_in_close_marker": "sglang",  # a tag that is cut off is not shown
    "response_without_think_close": "sglang",  # the reasoning is not lost
    "skipped_think": "sglang",  # the answer is not taken for reasoning
    "marker_spaces": "vllm",  # white space around a tag's name
}
# Neither reads a `json` block; here it is the call's arguments.
BEYOND_BOTH = {"json_block_call": (ToolCall("f", '{"a": 1}'),)}


def collect(events: Iterable[Event]) -> Output:
    """What a reader of the stream has in the end."""
    reasoning, content, calls = "", "", []
    for event in events:
        match event:
            case Reasoning(text):
                reasoning += text
            case Content(text):
                content += text
            case ReasoningWithdrawn():
                reasoning = ""
            case Called(call):
                calls.append(call)
    return Output(reasoning or None, content or None, tuple(calls))


def streamed(tokenizer: Tokenizer, parts: Iterable[list[int]], **options: bool) -> tuple[Output, list[Event]]:
    parser = OutputParser(tokenizer, **options)
    events = [event for part in parts for event in parser.feed(part)] + parser.finish()
    collected = collect(events)
    whole = parser.output
    assert collected == Output(whole.reasoning, whole.content, whole.tool_calls)
    return whole, events


def spoken(tokenizer: Tokenizer, text: str, **options: bool) -> Output:
    return parse(tokenizer, tokenizer.encode(text, special=True), **options)


def test_all_vectors_parse_as_the_parser_that_is_followed(
    released: Tokenizer, vectors: Callable[[str], Any]
) -> None:
    cases = vectors("parse_vectors")["vectors"]
    assert {case["name"] for case in cases if not case["agree"]} == set(FOLLOWED)
    for case in cases:
        wanted = case[FOLLOWED.get(case["name"], "vllm")]
        calls = tuple(ToolCall(c["name"], c["arguments"]) for c in wanted["tool_calls"] or ())
        thinking, tools = case["options"]["thinking"], case["options"]["tools"]
        for ids in (case["raw_token_ids"], released.encode(case["raw"], special=True)):
            got = parse(released, ids, thinking=thinking, calls=tools)
            assert got.reasoning == wanted["reasoning"], case["name"]
            # sglang says "" for no content, vLLM null
            assert got.content == (wanted["content"] or None), case["name"]
            assert got.tool_calls == BEYOND_BOTH.get(case["name"], calls), case["name"]


def test_every_split_of_every_vector_streams_to_the_whole_parse(
    released: Tokenizer, vectors: Callable[[str], Any]
) -> None:
    for case in vectors("parse_vectors")["vectors"]:
        ids = case["raw_token_ids"]
        thinking = case["options"]["thinking"]
        whole = parse(released, ids, thinking=thinking)
        for cut in range(len(ids) + 1):
            assert streamed(released, [ids[:cut], ids[cut:]], thinking=thinking)[0] == whole, case["name"]
        assert streamed(released, [[i] for i in ids], thinking=thinking)[0] == whole, case["name"]


FRAGMENTS = st.sampled_from(
    [f"<|{kind}|>{tag}<|sep|>" for kind in ("open", "close")
     for tag in ("think", "response", "tools", "message", "call", " response ", "argument", "json", "odd")]
    + ['<|open|>call tool="f" index="1"<|sep|>', '<|open|>argument key="k" type="number"<|sep|>',
       '<|open|>json type="object"<|sep|>', "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[EOS]",
       "<|close|>thi", "é🚀", " \n", "12", '{"a": [1]}', "text", "<|media_pad|>"]
)  # fmt: skip
TURNS = st.lists(FRAGMENTS, max_size=14).map("".join)


@settings(deadline=None, max_examples=400)
@given(turn=TURNS, thinking=st.booleans(), calls=st.booleans(), data=st.data())
def test_any_turn_streams_to_the_whole_parse(
    small: Tokenizer, turn: str, thinking: bool, calls: bool, data: st.DataObject
) -> None:
    ids = small.encode(turn, special=True)
    ids = ids[: data.draw(st.integers(0, len(ids)))] if data.draw(st.booleans()) else ids
    whole = parse(small, ids, thinking=thinking, calls=calls)
    cut = data.draw(st.integers(0, len(ids)))
    assert streamed(small, [ids[:cut], ids[cut:]], thinking=thinking, calls=calls)[0] == whole
    assert streamed(small, [[i] for i in ids], thinking=thinking, calls=calls)[0] == whole
    for call in whole.tool_calls:
        assert calls
        assert call.name == "f"


ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
FIELD = st.one_of(ANY_TEXT, st.sampled_from(("<|close|>think<|sep|>", '<|close|>argument<|sep|>"&', "[EOS]")))
VALUES = st.recursive(
    st.one_of(
        FIELD, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(FIELD, inner, max_size=3)),
    max_leaves=5,
)
CALLS = st.lists(st.tuples(FIELD.filter(bool), st.dictionaries(FIELD, VALUES, max_size=3)), max_size=3)


@settings(deadline=None, max_examples=150)
@given(reasoning=FIELD, content=FIELD, calls=CALLS, thinking=st.booleans())
def test_a_rendered_turn_parses_to_itself(
    released: Tokenizer, small: Tokenizer, reasoning: str, content: str, calls: Any, thinking: bool
) -> None:
    turn = {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning,
        "tool_calls": [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls],
    }
    for tokenizer in (released, small):
        prompt = encode_chat(tokenizer, [], thinking=thinking)
        whole = encode_chat(tokenizer, [turn], thinking=thinking, add_generation_prompt=False)
        assert whole[: len(prompt)] == prompt
        got = parse(tokenizer, whole[len(prompt) :], thinking=thinking)
        assert got.ended
        assert got.reasoning == (reasoning if thinking and reasoning.strip() else None)
        assert got.content == (content if content.strip() or (content and not calls) else None)
        assert got.tool_calls == tuple(
            ToolCall(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls
        )
        # and the history that a client sends back writes the same ids again
        assert encode_chat(tokenizer, [got.message()], thinking=thinking, add_generation_prompt=False) == (
            whole if content.strip() or not calls else
            encode_chat(tokenizer, [{**turn, "content": ""}], thinking=thinking, add_generation_prompt=False)
        )  # fmt: skip


def test_text_that_spells_markers_is_text(released: Tokenizer) -> None:
    typed = "<|close|>think<|sep|><|open|>response<|sep|>[EOS]"
    ids = released.encode(typed) + released.encode(
        "<|close|>think<|sep|><|open|>response<|sep|>", special=True
    )
    ids += released.encode(typed) + released.encode("<|close|>response<|sep|>", special=True)
    assert parse(released, ids) == Output(typed, typed)


def test_text_is_shown_as_soon_as_it_is_certain(small: Tokenizer) -> None:
    parser = OutputParser(small)
    shown = []
    for part in ("Let", "<|close|>", "th", "x", "<|close|>", "think", "<|sep|>", "<|open|>", "response", "<|sep|>",
                 " ", "\n", "é", "<|open|>", "te", "<|close|>", "response", "<|sep|>"):  # fmt: skip
        shown += [(part, event) for event in parser.feed(small.encode(part, special=True))]
    assert shown == [
        ("Let", Reasoning("Let")),
        ("x", Reasoning("<|close|>thx")),
        ("é", Content(" \né")),
        ("te", Content("<|open|>te")),
    ]
    assert parser.finish() == []


def test_a_character_over_several_tokens_is_shown_whole(small: Tokenizer) -> None:
    ids = small.encode("🚀")
    parser = OutputParser(small, thinking=False)
    assert [parser.feed([i]) for i in ids] == [[], [], [], [Content("🚀")]]


def test_a_character_that_a_tag_cuts_off_is_replaced_in_its_own_channel(small: Tokenizer) -> None:
    ids = small.encode("a🚀")[:-1] + small.encode(
        "<|close|>think<|sep|><|open|>response<|sep|>b", special=True
    )
    assert parse(small, ids) == Output("a\ufffd", "b")


@pytest.mark.parametrize(
    ("turn", "reasoning", "content"),
    [
        ("r<|close|>think<|sep|>\n<|open|>response<|sep|>c", "r", "c"),
        ("r<|close|>think<|sep|>junk<|open|>response<|sep|>c", "r", "c"),
        ("r<|close|>think<|sep|>a<|close|>response<|sep|>b<|close|>message<|sep|>c", "r", "ab"),
        ("r<|close|>think<|sep|><|open|>response<|sep|>a<|close|>response<|sep|>b<|open|>response<|sep|>c", "r", "a"),
        ("r<|close|>message<|sep|>c", "r", None),
        ("<|open|>think<|sep|>r<|close|>think<|sep|>c", "r", "c"),
        ("r<|open|>odd<|sep|>s<|close|>think<|sep|>", "r<|open|>odd<|sep|>s", None),
        ("r<|sep|>s", "r<|sep|>s", None),
        ("r<|close|><|close|>think<|sep|>", "r<|close|>", None),
        ("r<|open|>", "r", None),
        ("r<|close|>think<|sep|><|open|>response<|sep|>c<|close|>resp", "r", "c"),
        ("r<|close|>think<|sep|><|open|>response<|sep|>c<|close|>message<|sep|>d", "r", "c"),
        (" \n", " \n", None),
        ("r<|close|>think<|sep|><|open|>response<|sep|> \n", "r", " \n"),
        ("", None, None),
        ("a[EOS]b", "a", None),
    ],
)  # fmt: skip
def test_a_malformed_turn_keeps_what_can_be_kept(
    small: Tokenizer, turn: str, reasoning: str | None, content: str | None
) -> None:
    got = spoken(small, turn)
    assert (got.reasoning, got.content, got.tool_calls) == (reasoning, content, ())


@pytest.mark.parametrize(
    ("turn", "reasoning", "content"),
    [
        ("c", None, "c"),
        ("c<|close|>think<|sep|>d", None, "c<|close|>think<|sep|>d"),
        ("<|open|>response<|sep|>c<|close|>response<|sep|>", None, "c"),
        ("\n<|open|>think<|sep|>r<|close|>think<|sep|><|open|>response<|sep|>c", "r", "c"),
        ("c<|open|>think<|sep|>d", None, "c<|open|>think<|sep|>d"),
    ],
)
def test_with_thinking_off_all_is_content_unless_the_model_thinks(
    small: Tokenizer, turn: str, reasoning: str | None, content: str | None
) -> None:
    got = spoken(small, turn, thinking=False)
    assert (got.reasoning, got.content) == (reasoning, content)


def test_a_skipped_think_channel_is_withdrawn_and_shown_as_content(small: Tokenizer) -> None:
    ids = small.encode("Hi.<|close|>response<|sep|><|close|>message<|sep|>", special=True)
    whole, events = streamed(small, [ids])
    assert whole == Output(None, "Hi.", ended=True)
    assert events == [Reasoning("Hi."), ReasoningWithdrawn(), Content("Hi.")]


CALL = '<|open|>call tool="f" index="1"<|sep|>{}<|close|>call<|sep|>'
ARGUMENT = '<|open|>argument key="{}" type="{}"<|sep|>{}<|close|>argument<|sep|>'


def called(tokenizer: Tokenizer, inside: str) -> list[str]:
    return [
        c.arguments
        for c in spoken(tokenizer, f"<|close|>think<|sep|><|open|>tools<|sep|>{inside}").tool_calls
    ]


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        (ARGUMENT.format("a", "number", "1e2"), '{"a": 100.0}'),
        (ARGUMENT.format("a", "number", "NaN"), '{"a": "NaN"}'),
        (ARGUMENT.format("a", "number", "1e999"), '{"a": "1e999"}'),
        (ARGUMENT.format("a", "number", "9" * 5000), json.dumps({"a": "9" * 5000})),
        (ARGUMENT.format("a", "array", "[" * 100_000), json.dumps({"a": "[" * 100_000})),
        (ARGUMENT.format("a", "object", r'{"é": "\ud800"}'), r'{"a": {"é": "\ud800"}}'),
        (ARGUMENT.format("a", "null", "null"), '{"a": null}'),
        (ARGUMENT.format("a", "string", "<|open|>argument<|sep|>"), '{"a": "<|open|>argument<|sep|>"}'),
        (ARGUMENT.format("a", "string", "<|close|>message<|sep|>"), '{"a": "<|close|>message<|sep|>"}'),
        (ARGUMENT.format("a", "string", "1") * 2 + ARGUMENT.format("b", "string", "2"), '{"a": "1", "b": "2"}'),
        (ARGUMENT.format("a", "string", "1") + ARGUMENT.format("a", "number", "2"), '{"a": 2}'),
        ('<|open|>argument type="string"<|sep|>lost<|close|>argument<|sep|>', "{}"),
        ('<|open|>argument key="k"<|sep|>unfinished', "{}"),
        ('<|open|>json type="object"<|sep|>{bad<|close|>json<|sep|>', "{bad"),
        ('<|open|>json type="object"<|sep|>[1]<|close|>json<|sep|>', "[1]"),
        ('<|open|>json type="object"<|sep|>{"b":1}<|close|>json<|sep|>' + ARGUMENT.format("a", "null", "null"),
         '{"a": null}'),
        ("text", "{}"),
    ],
)  # fmt: skip
def test_arguments_are_typed_and_written_as_json(small: Tokenizer, inside: str, arguments: str) -> None:
    (got,) = called(small, CALL.format(inside))
    assert got == arguments
    got.encode("utf-8")


def test_calls_that_are_not_whole_are_left_out(small: Tokenizer) -> None:
    whole = CALL.format(ARGUMENT.format("a", "number", "1"))
    for lost in (
        '<|open|>call index="1"<|sep|><|close|>call<|sep|>',
        '<|open|>call tool="" index="1"<|sep|><|close|>call<|sep|>',
        '<|open|>call tool="g" index="1"<|sep|>',
        "<|close|>call<|sep|>",
        '<|open|>argument key="k"<|sep|>v<|close|>argument<|sep|>',
        "text",
    ):
        assert called(small, lost + whole) == ['{"a": 1}'], lost
        assert called(small, whole + lost) == ['{"a": 1}'], lost
    assert called(small, f"{whole}<|close|>tools<|sep|>{whole}<|open|>tools<|sep|>{whole}") == ['{"a": 1}']


def test_tools_end_the_think_channel_and_the_response(small: Tokenizer) -> None:
    turn = "r<|open|>tools<|sep|>" + CALL.format("")
    assert spoken(small, turn) == Output("r", None, (ToolCall("f", "{}"),))
    assert spoken(small, "c<|open|>tools<|sep|>" + CALL.format(""), thinking=False).content == "c"


def test_blank_content_is_dropped_only_beside_calls(small: Tokenizer) -> None:
    turn = "\n<|close|>response<|sep|><|open|>tools<|sep|>" + CALL.format("") + "<|close|>tools<|sep|>"
    assert spoken(small, turn, thinking=False) == Output(None, None, (ToolCall("f", "{}"),))
    assert spoken(small, turn, thinking=False, calls=False) == Output(None, "\n")


def test_the_end_of_the_turn_decides_the_finish_reason(small: Tokenizer) -> None:
    assert spoken(small, "c", thinking=False).finish_reason == "length"
    assert spoken(small, "c[EOS]", thinking=False).finish_reason == "stop"
    assert spoken(small, "c<|close|>message<|sep|>", thinking=False).finish_reason == "stop"
    assert spoken(small, "<|open|>tools<|sep|>" + CALL.format("")).finish_reason == "tool_calls"


def test_call_ids_go_on_from_the_calls_before(small: Tokenizer) -> None:
    turn = spoken(small, "r<|open|>tools<|sep|>" + CALL.format("") * 2)
    assert [call["id"] for call in turn.message(3)["tool_calls"]] == ["f:3", "f:4"]
    results = [{"role": "tool", "tool_call_id": i, "content": i} for i in ("f:4", "f:3")]
    assert render([turn.message(3), *results]) == render([turn.message(3), *reversed(results)])


def test_ids_and_vocabularies_that_do_not_fit_are_refused(
    small: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TextError, match="9999 is outside the vocabulary"):
        OutputParser(small).feed([9999])
    monkeypatch.delitem(small.special, "<|open|>")
    with pytest.raises(TextError, match=r"no special token '<\|open\|>'"):
        OutputParser(small)
