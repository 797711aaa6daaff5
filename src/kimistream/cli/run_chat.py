"""`kimistream run --chat`: one message in, one answer out.

Knows: what a script needs: content on stdout or one JSON object, everything else on stderr.
Does not know: how a conversation is set up (talk), or how an answer looks (chat_view).
"""

from __future__ import annotations

import json as jsonlib
from contextlib import closing
from pathlib import Path

from kimistream.budget import format_size
from kimistream.cli.chat_view import AnswerView, ending
from kimistream.cli.opening import opened_talk
from kimistream.cli.sampling import Sampling
from kimistream.cli.talk import Room, TalkOptions


def run_chat(
    path: Path,
    text: str,
    talk: TalkOptions,
    sampling: Sampling,
    room: Room,
    *,
    session: Path | None,
    max_tokens: int | None,
    quiet: bool,
    json: bool,
) -> None:
    """Say `text`, show the answer, and save the session if one is named."""
    with opened_talk(
        path, talk, sampling, room, session=session, more=text, max_tokens=max_tokens, quiet=quiet
    ) as (opened, opening):
        conversation = opened.conversation
        conversation.say(text)
        view = AnswerView(opened.model, quiet=quiet, content=not json)
        try:
            with (
                view,
                closing(
                    conversation.answer(opened.sampling, max_tokens=max_tokens, progress=view.progress)
                ) as steps,
            ):
                for step in steps:
                    view.show(step)
        finally:
            if session is not None and conversation.finished is not None:
                target, nbytes = opened.save()
                opening.note(f"session {target}: {format_size(nbytes)}")
        finished = conversation.finished
        if finished is None:
            return
        if json:
            usage = finished.usage
            fields = {
                "message": finished.message,
                "finish_reason": finished.reason,
                "stop_string": finished.stop_string,
                "seed": None if opened.sampling.greedy else finished.seed,
                "usage": {
                    "prompt_tokens": usage.prompt_tokens,
                    "reused_tokens": usage.reused_tokens,
                    "completion_tokens": usage.completion_tokens,
                },
            }
            print(jsonlib.dumps(fields, ensure_ascii=False))
        for line in (ending(finished), view.figures()):
            if line:
                opening.note(line)
