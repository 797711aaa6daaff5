"""Kimi K3 from disk on one ordinary machine, exact and within a memory budget."""
