"""Tokens, the chat format and the model's output: everything that is text, and no weights.

    vocabulary -> tokenizer -> decoder         files to ids and back
    xtml -> prompts, messages -> chat          a conversation to segments to ids
    markers -> calls, output                   ids to reasoning, content and tool calls

Nothing outside this package is imported but the errors.
"""
