"""Compressed batches: memory is bounded for all partitions together, and no record is lost to the bound."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.native import native
from streamlearn.topics import AccessSettings
from streamlearn.topics.kafka_batches import BatchDecoder
from streamlearn.topics.kafka_link import Fetched
from streamlearn.topics.kafka_reader import KafkaReader
from tests.topics.test_kafka_scripted import ACCESS, Answer, ScriptedLink, session_of

MIB = 1 << 20
SMALL = replace(ACCESS, record_bytes_max=MIB, unreachable_after_ms=60_000)
TRANSACTIONAL = 16
CODECS = {1: lambda data: gzip.compress(data, 1), 4: zstandard.compress}

Pair = tuple[bytes | None, bytes | None]


def batch_of(pairs: Sequence[Pair], base: int = 0, codec: int = 1, attributes: int = 0, producer_id: int = -1) -> bytes:
    """A batch of keys and values as a broker keeps it."""
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    plain = native.pack_kafka_batch((producer_id, 0, 0), np.arange(len(pairs)), keys, values)
    tail = plain[21:22] + bytes([codec | attributes]) + plain[23:61] + CODECS[codec](plain[61:])
    checksum = struct.pack(">I", native.crc32c(tail))
    return struct.pack(">qi", base, len(tail) + 9) + plain[12:17] + checksum + tail


class LoggingLink(ScriptedLink):
    """A broker that has logs of batches, and answers with at most `batches_max` of each from an offset on."""

    def __init__(self, logs: dict[int, list[bytes]], batches_max: int = 1) -> None:
        super().__init__((0,) * len(logs))
        self.logs, self.batches_max = logs, batches_max
        self.aborted: list[tuple[int, int]] = []

    def begin_fetch(self, leader: int, topic_id: uuid.UUID, positions: Mapping[int, int], **_: Any) -> Answer:
        answers = {}
        for partition, offset in positions.items():
            batches = [batch for batch in self.logs[partition] if _last_of(batch) >= offset]
            answers[partition] = Fetched(0, b"".join(batches[: self.batches_max]), self.aborted, 1_000_000)
        return self._answer(answers)


def _last_of(batch: bytes) -> int:
    base, delta = struct.unpack_from(">q", batch)[0], struct.unpack_from(">i", batch, 23)[0]
    return int(base + delta)


def reader_of(link: ScriptedLink, monkeypatch: pytest.MonkeyPatch, access: AccessSettings = SMALL) -> KafkaReader:
    return KafkaReader(session_of(link, monkeypatch, access), tuple(range(len(link.leaders))))


def read_all(reader: KafkaReader, ends: dict[int, int], reads_max: int = 200, **limits: int) -> dict[int, list[Any]]:
    """Read partitions up to their ends: (offset, key, value) of each."""
    found: dict[int, list[Any]] = {partition: [] for partition in ends}
    positions = dict.fromkeys(ends, 0)
    for _ in range(reads_max):
        for records in reader.read_many(positions, wait_ms=20, **limits):
            found[records.partition] += zip(records.offsets.tolist(), records.keys, records.values, strict=True)
            positions[records.partition] = records.next_offset
        positions = {partition: at for partition, at in positions.items() if at < ends[partition]}
        if not positions:
            return found
    message = f"still at {positions}"
    raise AssertionError(message)


def numbered(pairs: Sequence[Pair]) -> list[Any]:
    return [(offset, *pair) for offset, pair in enumerate(pairs)]


@pytest.mark.parametrize("codec", CODECS)
def test_small_batches_of_huge_records_take_bounded_memory_over_all_partitions(
    codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of([(b"k", bytes(40 * MIB)), (b"l", b"next")], codec=codec)
    reader = reader_of(LoggingLink({partition: [batch] for partition in range(8)}), monkeypatch)
    tracemalloc.start()
    try:
        positions = dict.fromkeys(range(8), 0)
        sizes: dict[int, list[int]] = {partition: [] for partition in positions}
        for _ in range(100):
            for records in reader.read_many(positions, wait_ms=20):
                sizes[records.partition] += [len(value or b"") for value in records.values]
                positions[records.partition] = records.next_offset
            positions = {partition: at for partition, at in positions.items() if at < 2}
            if not positions:
                break
        assert sizes == {partition: [MIB + 1, 4] for partition in range(8)}
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_is_too_large_to_hold_comes_whole_in_parts(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[Pair] = [(b"%d" % at if at % 3 else None, bytes([at % 251]) * 997) for at in range(9_000)]
    after: list[Pair] = [(None, b"after")]
    link = LoggingLink({0: [batch_of(pairs, codec=codec), batch_of(after, 9_000, codec)]}, batches_max=2)
    reader = reader_of(link, monkeypatch)
    assert read_all(reader, {0: 9_001}) == {0: numbered([*pairs, *after])}
    again = reader_of(link, monkeypatch)
    records = again.read(0, 8_000, wait_ms=20)
    assert records.offsets.tolist() == list(range(8_000, 8_000 + len(records)))
    assert records.values[0] == pairs[8_000][1]


def test_a_batch_of_twenty_times_its_size_comes_at_once_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[Pair] = [(None, b'{"request":"%d","items":[1,2,3]}' % at * 30) for at in range(20_000)]
    link = LoggingLink({0: [batch_of(pairs, codec=4)]})
    reader = reader_of(link, monkeypatch, ACCESS)
    assert len(reader.read(0, 0, max_records=30_000, max_bytes=64 * MIB, wait_ms=20)) == 20_000


def test_batches_that_fit_come_before_the_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[Pair] = [(None, bytes([at]) * 300_000) for at in range(15)]
    batches = [batch_of(pairs[at : at + 3], at) for at in range(0, 15, 3)]
    plain = native.pack_kafka_batch((-1, -1, -1), np.zeros(1, np.int64), None, [b"plain"])
    reader = reader_of(LoggingLink({0: [*batches, struct.pack(">q", 15) + plain[8:]]}, batches_max=9), monkeypatch)
    limits = {"max_records": 100, "max_bytes": 100 * MIB}
    assert [len(reader.read(0, at, wait_ms=20, **limits)) for at in (0, 6, 12)] == [6, 6, 4]
    assert read_all(reader, {0: 16}) == {0: numbered([*pairs, (None, b"plain")])}


def test_partitions_without_room_have_their_turn_while_others_have_more(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[Pair] = [(None, bytes([at]) * 250_000) for at in range(24)]
    logs = {partition: [batch_of(pairs[at : at + 6], at) for at in range(0, 24, 6)] for partition in range(5)}
    logs[4] = [batch_of(pairs)]
    reader = reader_of(LoggingLink(logs), monkeypatch)
    assert read_all(reader, dict.fromkeys(logs, 24), max_records=2) == dict.fromkeys(logs, numbered(pairs))


def test_records_that_nobody_reads_now_make_room_and_are_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[Pair] = [(None, bytes([at]) * 250_000) for at in range(7)]
    reader = reader_of(LoggingLink({partition: [batch_of(pairs)] for partition in range(3)}), monkeypatch)
    for partition in range(3):
        assert len(reader.read(partition, 0, max_records=1, wait_ms=20)) == 1
    for partition in range(3):
        assert read_all(reader, {partition: 7}) == {partition: numbered(pairs)}


def test_what_expands_beyond_the_limit_of_a_batch_is_named_and_the_next_batch_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pairs: list[Pair] = [(None, bytes([at]) * 500_000) for at in range(40)]
    link = LoggingLink({0: [batch_of(pairs), batch_of([(None, b"after")], 40)]})
    reader = reader_of(link, monkeypatch, replace(SMALL, decompressed_bytes_max=10 * MIB))
    found = read_all(reader, {0: 41})[0]
    assert found == [*numbered(pairs[:20]), (39, None, b""), (40, None, b"after")]
    assert "partition 0: offsets 20 to 39 are skipped: their batch expands to more than 10485760 bytes" in caplog.text


def test_a_large_batch_of_an_aborted_transaction_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[Pair] = [(None, bytes(500_000))] * 20
    kept: list[Pair] = [(None, b"kept")]
    large = batch_of(pairs, attributes=TRANSACTIONAL, producer_id=5)
    link = LoggingLink({0: [large, batch_of(kept, 20, attributes=TRANSACTIONAL, producer_id=6)]})
    link.aborted = [(5, 0)]
    assert read_all(reader_of(link, monkeypatch), {0: 21}) == {0: [(20, None, b"kept")]}


def test_a_huge_key_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    link = LoggingLink({0: [batch_of([(bytes(5 * MIB), b"v"), (None, bytes(3 * MIB)), (b"k", None)])]})
    found = read_all(reader_of(link, monkeypatch), {0: 3})[0]
    sizes = [(len(key or b""), len(value or b"")) for _, key, value in found]
    assert sizes == [(4_096, 0), (0, MIB + 1), (1, 0)]
    assert found[2] == (2, b"k", None)


def test_a_batch_that_ends_within_a_record_is_refused_though_it_is_large() -> None:
    whole = batch_of([(None, bytes(500_000))] * 9)
    tail = whole[21:61] + gzip.compress(gzip.decompress(whole[61:])[:-300_000])
    cut = struct.pack(">qi", 0, len(tail) + 9) + whole[12:17] + struct.pack(">I", native.crc32c(tail)) + tail
    decoder, offset = BatchDecoder(SMALL), 0
    with pytest.raises(ValueError, match="ends within a record"):  # noqa: PT012
        while decoded := decoder.decode(0, offset, Fetched(0, cut, []), 0):
            offset = decoded.next_offset
    assert offset == 8


parts = st.none() | st.binary(max_size=300)


@given(st.lists(st.tuples(parts, parts), min_size=1, max_size=30), st.sampled_from(list(CODECS)), st.integers(0, 40))
def test_parts_of_a_batch_are_its_records(pairs: list[Pair], codec: int, first: int) -> None:
    access = AccessSettings(record_bytes_max=700)
    decoder = BatchDecoder(access)
    decoder._bytes_max = -(1 << 30)  # nothing fits
    batch, offset = batch_of(pairs, 0, codec), min(first, len(pairs) - 1)
    found: list[Any] = []
    begin = offset
    while offset < len(pairs):
        decoded = decoder.decode(0, offset, Fetched(0, batch, []), 0)
        assert decoded is not None
        assert decoded.next_offset > offset
        found += zip(decoded.columns[0].tolist(), *decoded.columns[2:], strict=True)
        offset = decoded.next_offset
    assert found == numbered(pairs)[begin:]
