"""From disk to memory: bytes that know no layers."""
