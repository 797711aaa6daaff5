"""How a checkpoint's dense weights are cut for a pack: which vectors, which runs of rows, in what order.

Knows: the order of the file, the groups in which it is read and written, how large all of it will become.
Does not know: reading, writing, or what a band holds.

The cut depends on the checkpoint alone, never on memory, threads or an earlier run: so does every byte of a pack.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass

import numpy as np

from kimistream.checkpoint.names import head_name, layer_tensor
from kimistream.checkpoint.pack_format import (
    BAND_ROWS,
    HEADER_BYTES,
    Directory,
    PackedMatrix,
    PackedRun,
    PackedVector,
    Source,
    padded,
    salt_of,
    sample_digest,
    sample_range,
)
from kimistream.checkpoint.table import Checkpoint, TensorRef
from kimistream.engine.pack_state import Made
from kimistream.kernels.bands import BandForm, choose_form
from kimistream.model.order import granule_of, layer_roles
from kimistream.model.vectors import vector_names
from kimistream.stream.blocks import Blocks, TapeItem

GROUP_BYTES = 32 << 20
"""Bytes of the checkpoint that are read, packed and written together; also the most of one run."""
_SAMPLED_BYTES = 1 << 20
_SAMPLED_LAYERS = 3


@dataclass(frozen=True, slots=True)
class Stretch:
    """What becomes one run of bands, or one vector (`rows` 0): rows of `ref`, `offset` in the group's memory."""

    ref: TensorRef
    row0: int
    rows: int
    offset: int

    @property
    def cols(self) -> int:
        return self.ref.shape[1]

    @property
    def bands(self) -> int:
        return -(-self.rows // BAND_ROWS)

    @property
    def bound(self) -> int:
        """The most bytes it can take in the pack."""
        if not self.rows:
            return padded(self.ref.nbytes)
        return self.bands * BandForm(self.ref.format, self.cols).nbytes


class Cut:
    """The groups of a checkpoint's pack in the order of the file."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        config = checkpoint.config
        self.checkpoint = checkpoint
        self.vectors = [checkpoint.dense(name) for name in vector_names(config)]
        self.matrices: list[TensorRef] = []
        items = [TapeItem(ref.name, ref.file, ref.offset, 1, ref.nbytes) for ref in self.vectors]

        def add(name: str, granule: int) -> None:
            ref = checkpoint.dense(name)
            self.matrices.append(ref)
            rows, together = ref.shape[0], math.lcm(granule, BAND_ROWS)
            items.append(TapeItem(name, ref.file, ref.offset, rows, ref.nbytes // rows, together))

        for layer in range(config.num_layers):
            for role in layer_roles(config, layer):
                add(layer_tensor(config, layer, role), granule_of(config, role))
        add(head_name(config), 1)
        self.blocks = Blocks(items, GROUP_BYTES)
        self.nbytes = self.blocks.total_bytes
        digest = hashlib.sha256(self.blocks.parts.tobytes())
        for array in (self.blocks.part_start, self.blocks.extents, self.blocks.extent_start):
            digest.update(array.tobytes())
        self.digest = digest.digest()
        self.salt = salt_of(bytes.fromhex(checkpoint.identity), self.digest)

    def __len__(self) -> int:
        return len(self.blocks)

    def group(self, number: int) -> list[Stretch]:
        """The stretches of one group."""
        blocks, found = self.blocks, []
        first, end = blocks.part_start[number : number + 2].tolist()
        for item, row0, row1, offset in blocks.parts[first:end].tolist():
            vector = item < len(self.vectors)
            ref = self.vectors[item] if vector else self.matrices[item - len(self.vectors)]
            found.append(Stretch(ref, 0, 0, offset) if vector else Stretch(ref, row0, row1 - row0, offset))
        return found

    @property
    def out_bytes(self) -> int:
        """The most bytes a group can take in the pack."""
        return max(sum(stretch.bound for stretch in self.group(n)) for n in range(len(self)))

    def bands_before(self, number: int) -> int:
        """How many bands the groups before this one have."""
        return sum(stretch.bands for n in range(number) for stretch in self.group(n))

    def directory(self, made: list[list[Made]]) -> Directory:
        """The directory of a pack whose groups became `made`. Raises ReadError."""
        checkpoint = self.checkpoint
        vectors: list[PackedVector] = []
        runs: dict[str, list[PackedRun]] = {ref.name: [] for ref in self.matrices}
        at = HEADER_BYTES
        for number, parts in enumerate(made):
            for stretch, part in zip(self.group(number), parts, strict=True):
                ref = stretch.ref
                if stretch.rows:
                    band = part.nbytes // stretch.bands
                    run = PackedRun(stretch.row0, stretch.rows, part.form, part.room, band, at)
                    runs[ref.name].append(run)
                else:
                    vectors.append(PackedVector(ref.name, ref.dtype, ref.shape, at, ref.nbytes, part.digest))
                at += part.nbytes
        matrices = []
        for ref in self.matrices:
            sample = sample_digest(checkpoint.read_bytes(ref.name, *sample_range(ref.nbytes)))
            rows, cols = ref.shape
            matrices.append(PackedMatrix(ref.name, ref.dtype, rows, cols, sample, tuple(runs[ref.name])))
        shards = tuple(Source(name, size, header.hex()) for name, size, header in checkpoint.shard_digests())
        return Directory(checkpoint.config_digest.hex(), shards, tuple(vectors), tuple(matrices))

    def expected_bytes(self) -> int:
        """About how large the pack will be, from a few rows of some matrices of each kind. Raises ReadError."""
        kinds: dict[str, list[TensorRef]] = {}
        for ref in self.matrices:
            kinds.setdefault(re.sub(r"\d+", "N", ref.name), []).append(ref)
        total = HEADER_BYTES + sum(padded(ref.nbytes) for ref in self.vectors)
        for refs in kinds.values():
            picked = {
                round(i * (len(refs) - 1) / max(1, _SAMPLED_LAYERS - 1)) for i in range(_SAMPLED_LAYERS)
            }
            shares = [self._share(refs[i]) for i in sorted(picked)]
            total += round(sum(ref.nbytes for ref in refs) * sum(shares) / len(shares))
        # runs have some more escapes than samples of them; and the directory
        return total + total // 50 + 400 * len(self.blocks.parts)

    def _share(self, ref: TensorRef) -> float:
        """Bytes in the pack for each byte of a matrix, from rows in its middle."""
        rows, cols = ref.shape
        row = ref.nbytes // rows
        count = min(rows, max(BAND_ROWS, _SAMPLED_BYTES // row // BAND_ROWS * BAND_ROWS))
        data = self.checkpoint.read_bytes(ref.name, (rows - count) // 2 * row, count * row)
        stored = np.frombuffer(data, np.uint8)
        form = choose_form(ref.format, stored.ctypes.data, count, cols)
        return form.bands(count) * form.nbytes / (count * row)
