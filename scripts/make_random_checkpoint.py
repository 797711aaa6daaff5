"""Makes a checkpoint with random weights for tests: Kimi K3's layout and every mechanism, in about 4 MB.

    python scripts/make_random_checkpoint.py DIRECTORY

The same bytes on every machine. The weights are random: the text it writes means nothing.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from kimistream.checkpoint.config import parse_config
from kimistream.checkpoint.contents import content
from kimistream.checkpoint.released import (
    Sizes,
    config_tree,
    index_pieces,
    place,
    shard,
    shard_count,
    shard_name,
)

SEED = 3
SIZES = Sizes(
    layers=13,
    experts=16,
    vocab=512,
    hidden=128,
    kda_heads=4,
    kda_head_dim=32,
    a_log_entries=8,
    mla_heads=4,
    q_lora_rank=48,
    kv_lora_rank=64,
    nope_head_dim=32,
    rope_head_dim=16,
    v_head_dim=32,
    dense_intermediate=256,
    top_k=4,
    shared_experts=2,
    expert_intermediate=32,
    latent=64,
    block_size=4,
    context=4096,
)
"""Thirteen layers: residual blocks begin at 0, 4, 8 and 12; the last two layers are MLA, as in K3."""

SPECIALS = {
    0: ("[BOS]", True),
    1: ("[EOS]", True),
    2: ("<|end_of_msg|>", True),
    3: ("<|open|>", False),
    4: ("<|close|>", False),
    5: ("<|sep|>", False),
    6: ("[start_header_id]", True),
    7: ("[end_header_id]", True),
    9: ("[EOT]", True),
    18: ("<|media_begin|>", True),
    19: ("<|media_content|>", True),
    20: ("<|media_end|>", True),
    21: ("<|media_pad|>", True),
    65: ("<osagent_mode>", True),
    254: ("[UNK]", True),
    255: ("[PAD]", True),
}
"""Place behind the base tokens -> the special token's text, and whether it is skipped when decoding."""


def vocabulary() -> bytes:
    """tiktoken.model: the 256 single bytes, each its own id."""
    return b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))


def tokenizer_config(base: int) -> dict[str, object]:
    """tokenizer_config.json with the special ids behind `base` ordinary ones."""
    added = {
        str(base + place): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": special,
        }
        for place, (text, special) in SPECIALS.items()
    }
    return {
        "added_tokens_decoder": added,
        "additional_special_tokens": [
            text
            for text, special in SPECIALS.values()
            if special and text not in ("[BOS]", "[EOS]", "[UNK]", "[PAD]")
        ],
        "bos_token": "[BOS]",
        "clean_up_tokenization_spaces": False,
        "eos_token": "[EOS]",
        "extra_special_tokens": {},
        "pad_token": "[PAD]",
        "tokenizer_class": "TikTokenTokenizer",
        "unk_token": "[UNK]",
    }


def make(directory: Path) -> None:
    """Write all files of the checkpoint into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    tree = config_tree(SIZES)
    config = parse_config(json.dumps(tree).encode())
    count = shard_count(config, SIZES)
    for number in range(1, count + 1):
        head, placed = place(shard(config, SIZES, number))
        data = b"".join(content(SEED, item.tensor, config.kda.num_heads).tobytes() for item in placed)
        (directory / shard_name(number, count)).write_bytes(head + data)
    (directory / "config.json").write_text(json.dumps(tree, indent=2) + "\n")
    (directory / "model.safetensors.index.json").write_bytes(b"".join(index_pieces(config, SIZES)))
    (directory / "tiktoken.model").write_bytes(vocabulary())
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(256), indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_random_checkpoint.py DIRECTORY")
    make(Path(sys.argv[1]))
