"""Decompression is bounded, whatever the codec."""

from __future__ import annotations

import gzip
import sys
import types

import pytest
import zstandard

from streamlearn.errors import BadRecord, Oversize, ServiceError
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
    with pytest.raises(Oversize, match="become more than 200000 bytes") as caught:
        unpack(codec, PACKED[codec])
    assert "decompressed_bytes_max" in caught.value.help


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
