"""Decompression is bounded, whatever the codec."""

from __future__ import annotations

import gzip
import struct
import sys
import types

import numpy as np
import pytest
import zstandard

from streamlearn.errors import BadRecord, Oversize, ServiceError
from streamlearn.native import native
from streamlearn.topics.kafka_codec import Decompressor

PLAIN = bytes(100_000)


def zstd_stream(data: bytes) -> bytes:
    """A frame that does not say how large it becomes."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


PACKED = {1: gzip.compress(PLAIN), 4: zstd_stream(PLAIN)}


@pytest.mark.parametrize("codec", PACKED)
def test_what_fits_into_the_budget_comes_out_whole(codec: int) -> None:
    unpack = Decompressor(2 * len(PLAIN))
    assert unpack(codec, PACKED[codec]) == PLAIN
    assert unpack(codec, PACKED[codec]) == PLAIN
    with pytest.raises(Oversize, match="expand to more than 200000 bytes") as caught:
        unpack(codec, PACKED[codec])
    assert "smaller batches" in caught.value.help


@pytest.mark.parametrize("codec", PACKED)
def test_a_codec_is_stopped_at_the_budget(codec: int) -> None:
    import tracemalloc

    huge = bytes(64 << 20)
    packed = gzip.compress(huge, 1) if codec == 1 else zstd_stream(huge)
    del huge
    tracemalloc.start()
    try:
        with pytest.raises(Oversize):
            Decompressor(1_000_000)(codec, packed)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


def batch_of(payload: bytes, count: int) -> bytes:
    """A batch compressed with gzip that says how many records it has; its checksum is right."""
    whole = bytearray(native.pack_kafka_batch((-1, -1, -1), np.zeros(1, np.int64), None, [b""]))
    del whole[61:]
    whole += gzip.compress(payload)
    struct.pack_into(">i", whole, 8, len(whole) - 12)
    struct.pack_into(">h", whole, 21, 1)
    struct.pack_into(">i", whole, 23, count - 1)
    struct.pack_into(">i", whole, 57, count)
    struct.pack_into(">I", whole, 17, native.crc32c(bytes(whole[21:])))
    return bytes(whole)


def test_a_batch_that_lies_about_its_count_is_refused_before_memory_is_taken_for_it() -> None:
    batch = batch_of(bytes(64 << 20), (1 << 31) - 1)
    with pytest.raises(ValueError, match="2147483647 records in the 67108864 bytes of the batch at offset 0"):
        native.scan_kafka_batches(batch, 0, [], Decompressor(512 << 20))


def test_the_memory_of_many_small_records_counts_against_the_budget() -> None:
    count = 100_000
    bodies = (bytes([0, 0, *_varint(at), 1, 2, 97, 0]) for at in range(count))
    records = b"".join(bytes([2 * len(body)]) + body for body in bodies)
    batch = batch_of(records, count)
    columns, next_offset, _ = native.scan_kafka_batches(batch, 0, [], Decompressor(len(records) + 72 * count))
    assert (len(columns[0]), next_offset) == (count, count)
    with pytest.raises(Oversize, match="compressed records take 7200000 bytes") as caught:
        native.scan_kafka_batches(batch, 0, [], Decompressor(len(records) + 72 * count - 1))
    assert "smaller batches" in caught.value.help


def _varint(value: int) -> list[int]:
    raw, out = 2 * value, []
    while raw > 127:
        out.append(raw & 127 | 128)
        raw >>= 7
    return [*out, raw]


@pytest.mark.parametrize("codec", PACKED)
def test_garbage_is_named(codec: int) -> None:
    with pytest.raises(BadRecord, match="cannot be decompressed"):
        Decompressor(1_000)(codec, b"garbage" * 10)


def test_a_cut_gzip_is_named() -> None:
    with pytest.raises(BadRecord, match="incomplete"):
        Decompressor(len(PLAIN) * 2)(1, PACKED[1][:-20])


@pytest.mark.parametrize(("codec", "name"), [(2, "snappy"), (3, "lz4"), (9, "9")])
def test_a_codec_that_is_not_installed_is_named(codec: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("snappy", "lz4", "lz4.frame"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ServiceError, match=f"compressed with {name}, which is not installed"):
        Decompressor(1_000)(codec, b"x")


def test_snappy_is_refused_by_the_length_it_states(monkeypatch: pytest.MonkeyPatch) -> None:
    snappy = types.ModuleType("snappy")
    snappy.decompress = lambda block: block[1:]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "snappy", snappy)
    xerial = b"\x82SNAPPY\x00" + bytes(8)
    blocks = b"".join(len(block).to_bytes(4, "big") + block for block in (b"\x03abc", b"\x02de"))
    assert Decompressor(5)(2, b"\x03abc") == b"abc"
    assert Decompressor(5)(2, xerial + blocks) == b"abcde"
    for data in (b"\x83\x80\x01" + b"abc", xerial + blocks + (6).to_bytes(4, "big") + b"\x01z"):
        with pytest.raises(Oversize):
            Decompressor(5)(2, data)
