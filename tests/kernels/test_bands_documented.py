"""The bytes of a packed band are those that docs/PACK.md tells: read here by plain Python that knows nothing else."""

from __future__ import annotations

import numpy as np
from test_bands import Bands
from test_bands_adversarial import matrices, packed


def checksum(band: bytes, place: int) -> int:
    lanes = [[k + 1] * 16 for k in range(4)]
    lines = np.frombuffer(band, "<u4")[16:].reshape(-1, 16).tolist()
    for k, line in enumerate(lines):
        to = lanes[k % 4 if k < len(lines) // 4 * 4 else 0]
        for i, word in enumerate(line):
            h = (to[i] ^ word) * 0x9E3779B1 % 2**32
            to[i] = h ^ h >> 15
    words = [place, *np.frombuffer(band[8:64], "<u8").tolist()]
    for i in range(16):
        words += [lanes[0][i] | lanes[1][i] << 32, lanes[2][i] | lanes[3][i] << 32]
    h = len(band)
    for word in words:
        h = (h ^ word) * 0x9E3779B97F4A7C15 % 2**64
        h ^= h >> 32
    return h


def place_of(c: int) -> int:
    return 64 * (c // 64) + 16 * (c % 32 // 8) + 8 * (c // 32 % 2) + c % 8


def decoded(band: bytes, cols: int) -> np.ndarray:
    units = -(-cols // 128)
    table = band[24:40]
    words = np.zeros((16, cols), np.uint16)
    for r in range(16):
        for c in range(cols):
            at = 64 + (r // 4 * units + c // 128) * 768 + r % 4 * 192
            p = place_of(c % 128)
            code = band[at + 128 + p % 64] >> (4 * (p // 64)) & 15
            words[r, c] = band[at + p] | table[code] << 8
    ends = np.frombuffer(band[8:24], "<u4")
    escapes = np.frombuffer(band[64 + 4 * units * 768 :], "<u4")
    column = {place_of(c): c for c in range(128)}
    for quad in range(4):
        listed = escapes[ends[quad - 1] if quad else 0 : ends[quad]].tolist()
        assert [(e >> 9 & 0x7FFF, e >> 7 & 3, e & 127) for e in listed] == sorted(
            (e >> 9 & 0x7FFF, e >> 7 & 3, e & 127) for e in listed
        )
        for e in listed:
            r, c = 4 * quad + (e >> 7 & 3), 128 * (e >> 9 & 0x7FFF) + column[e & 127]
            words[r, c] = words[r, c] & 255 | e >> 24 << 8
    assert not escapes[ends[3] :].any()
    return words


def test_a_band_is_read_by_its_description():
    made = matrices(333)
    for name in ("an escape in most units", "nearly all escapes", "zeros", "infinities and NaN"):
        bands = packed(made[name])
        for k in range(bands.count):
            band = bands.bytes[k * bands.form.nbytes : (k + 1) * bands.form.nbytes].tobytes()
            rows = min(16, bands.rows - 16 * k)
            assert (decoded(band, 333)[:rows] == bands.stored[16 * k : 16 * k + rows]).all(), name
            assert not decoded(band, 333)[rows:].any()


def test_the_checksum_is_the_one_described():
    stored = matrices(333)["single huge outliers"]
    for bands in (Bands(stored, place=2**61 + 5), Bands(stored[:16, :160].copy(), place=2**61 + 5)):
        for k in range(bands.count):
            band = bands.bytes[k * bands.form.nbytes : (k + 1) * bands.form.nbytes].tobytes()
            assert int.from_bytes(band[:8], "little") == checksum(band, 2**61 + 5 + k)
