"""Kimi K3's mathematics, one file per idea, written on kernels and on streams.

Knows: the formulas of docs/ARCHITECTURE.md and the order in which a pass uses the weights.
Does not know: where bytes come from (stream), how numbers are multiplied (kernels), or what the rows
are for (engine).
"""
