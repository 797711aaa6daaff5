"""Sequences and tokens: decides what rows the next pass carries.

Knows: prompts, chunks, decode steps, stopping, and what each token cost.
Does not know: the model's mathematics (model), or what a person typed (text, cli).
"""
