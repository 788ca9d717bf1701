"""Data at boundaries: key hashes, events, samples, topics, and the event generator."""

from __future__ import annotations

import io
import statistics
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import numpy as np

from benchmarks.result import Result
from benchmarks.streams.kafka_python import consume, produce
from benchmarks.timer import Timer
from streamlearn.apps import App, AppFolder, app_module
from streamlearn.errors import ServiceError
from streamlearn.events import EventDecoder, EventEncoder, Producer
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Slot
from streamlearn.native import native
from streamlearn.samples import SampleCodec
from streamlearn.schemas import impression_schema
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings import EventSettings, Settings
from streamlearn.settings.events import SampleSettings
from streamlearn.testing import small_batch
from streamlearn.topics import TopicSettings, create_topic, open_topic

__all__ = ["run"]

Note = Callable[[str], None]

RECORD_BYTES = 260
BATCH_RECORDS = 1_000
EVENTS = 20_000


def run(quick: bool, note: Note) -> Result:
    """Measure everything."""
    timer = Timer(seconds=0.5 if quick else 3.0)
    records = 100_000 if quick else 500_000
    result = Result("wire")
    for name, part in (
        ("keys", _keys),
        ("samples", _samples),
        ("events", _events),
    ):
        note(name)
        part(timer, result)
    note("file topic")
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder:
        _topic(f"file://{folder}/topic", "file_topic", records, result)
    note("kafka")
    _kafka(records // 5, result, note)
    note("generator")
    _generator(timer, result)
    return result


def _keys(timer: Timer, result: Result) -> None:
    rng = np.random.default_rng(1)
    count = 1_000_000
    values, salt = rng.integers(-(2**63), 2**63 - 1, count), native.slot_salt("video_id")
    result.figures["int_keys_per_s"] = timer.rate(lambda: native.hash_ints(values, salt), count)
    lengths = rng.integers(8, 25, count)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    data = rng.integers(97, 123, int(offsets[-1]), np.uint8)
    result.figures["string_keys_per_s"] = timer.rate(lambda: native.hash_strings(offsets, data, salt), count)
    block = rng.integers(0, 256, 1 << 20, np.uint8)
    result.figures["crc32c_bytes_per_s"] = timer.rate(lambda: native.crc32c(block), len(block))


def _samples(timer: Timer, result: Result) -> None:
    """Measure samples of 24 keys and 8 floats, 1,000 per message, two per request."""
    rows = 1_000
    app = _wide_app(slots=24, floats=8)
    codec = SampleCodec(app, SampleSettings())
    batch = small_batch(app, requests=rows // 2, rows=rows)
    message = codec.encode(batch)
    result.figures["sample_bytes"] = len(message) / rows
    result.figures["sample_encode_per_s"] = timer.rate(lambda: codec.encode(batch), rows)
    result.figures["sample_decode_per_s"] = timer.rate(lambda: codec.decode(message), rows)


def _events(timer: Timer, result: Result) -> None:
    """Measure impressions of one item and about 260 bytes, 500 per record."""
    app = _wide_app(slots=20, floats=8)
    settings = EventSettings()
    encoder, decoder = EventEncoder(app, settings), EventDecoder(app, settings)
    columns = _impressions(app, EVENTS)
    encoded = encoder.impressions(columns, EVENTS)
    result.figures["event_bytes"] = len(encoded.buffer) / EVENTS
    whole, ends = encoded.buffer.tobytes(), encoded.offsets.tolist()
    alone = [whole[begin:end] for begin, end in pairwise(ends)]
    packs = _packs(app, columns)
    result.figures["event_encode_per_s"] = timer.rate(lambda: encoder.impressions(columns, EVENTS), EVENTS)
    result.figures["event_decode_per_s"] = timer.rate(lambda: decoder.decode(packs), EVENTS)
    result.figures["event_decode_alone_per_s"] = timer.rate(lambda: decoder.decode(alone), EVENTS)
    parsed, few = impression_schema(app).parsed, alone[: EVENTS // 20]

    def read_by_fastavro() -> None:
        for record in few:
            fastavro.schemaless_reader(io.BytesIO(record[PREFIX_BYTES:]), parsed, None)

    few_packs = packs[: max(1, len(packs) // 20)]
    packed_events = len(decoder.decode(few_packs).impressions)
    ratio = timer.ratio(lambda: decoder.decode(few_packs), read_by_fastavro)
    result.ratios["event_decode_to_fastavro"] = ratio * packed_events / len(few)


def _topic(url: str, name: str, records: int, result: Result) -> None:
    """Measure append and read of records of 260 bytes in batches of 1,000, through the public interface."""
    values: list[bytes | None] = [bytes([at % 251]) * RECORD_BYTES for at in range(BATCH_RECORDS)]
    timer = Timer(seconds=0, repeats_min=3)
    with create_topic(url, TopicSettings(retention_ms=-1)) as topic:
        with topic.writer() as writer:

            def append() -> None:
                for _ in range(records // BATCH_RECORDS):
                    writer.append(0, values)

            result.figures[f"{name}_append_per_s"] = timer.rate(append, records)
        with topic.reader([0]) as reader:

            def read() -> None:
                offset = 0
                while offset < records:
                    offset = reader.read(0, offset, max_records=BATCH_RECORDS, wait_ms=100).next_offset

            result.figures[f"{name}_read_per_s"] = timer.rate(read, records)


def _kafka(records: int, result: Result, note: Note) -> None:
    """Measure a topic on a real broker, and the producer and consumer of kafka-python as the peer."""
    from tools.services import Kafka

    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder:
        try:
            kafka = Kafka.start(Path(folder))
        except ServiceError as error:
            note(f"Kafka is not measured: {error.message}")
            return
        with kafka:
            _topic(f"kafka://{kafka.address}/ours", "kafka", records, result)
            create_topic(f"kafka://{kafka.address}/theirs", TopicSettings(retention_ms=-1)).close()
            produced = produce(kafka.address, "theirs", RECORD_BYTES, records)
            consumed = consume(kafka.address, "theirs", records)
    result.figures["kafka_python_produce_per_s"] = produced
    result.figures["kafka_python_consume_per_s"] = consumed
    result.ratios["kafka_append_to_kafka_python"] = result.figures["kafka_append_per_s"] / produced
    result.ratios["kafka_read_to_kafka_python"] = result.figures["kafka_read_per_s"] / consumed


def _generator(timer: Timer, result: Result) -> None:
    """Measure the generation and encoding of events of the synthetic application."""
    speed = app_module(Path(__file__).parent.parent / "examples" / "synthetic", "speed")
    runs = [speed.generator_events_per_s({"events": "200000"}) for _ in range(timer.repeats_min)]
    for name in ("events_per_s", "impression_bytes"):
        result.figures[f"generator_{name}"] = statistics.median(run[name] for run in runs)


def _wide_app(slots: int, floats: int) -> App:
    features = FeatureSpec(
        slots=tuple(Slot(f"slot_{at}", "user" if at < slots // 3 else "item") for at in range(slots)),
        dense=(Dense("of_user", "user", floats // 2), Dense("of_item", "item", floats - floats // 2)),
        item_id=f"slot_{slots - 1}",
    )
    labels = (Label("click", "click", "fast"), Label("long_view", "long_view", "fast"))
    return App("wide", features, (LabelGroup("fast", wait_s=60, window_s=600),), labels)


def _impressions(app: App, rows: int) -> dict[str, Any]:
    """Return columns of impressions with one item each, and ids of realistic size."""
    rng = np.random.default_rng(2)
    digits = 12
    columns: dict[str, Any] = {
        "request_id": rng.integers(97, 123, rows * digits, np.uint8),
        "request_id$": (np.arange(rows + 1) * digits).astype(np.int32),
        "event_time_ms": 1_700_000_000_000 + np.arange(rows),
        "shown_wall_ms": 1_700_000_000_000 + np.arange(rows),
        "items[]": np.arange(rows + 1).astype(np.int32),
    }
    for slot in app.features.slots:
        side = "user" if slot.side == "user" else "items"
        columns[f"{side}.{slot.name}"] = rng.integers(0, 1 << 40, rows)
    for dense in app.features.dense:
        path = f"{'user' if dense.side == 'user' else 'items'}.{dense.name}"
        columns[path] = rng.random(rows * dense.width, np.float32)
        columns[f"{path}[]"] = (np.arange(rows + 1) * dense.width).astype(np.int32)
    return columns


def _packs(app: App, columns: dict[str, Any]) -> list[bytes | None]:
    """Return the records that a Producer makes from the impressions."""
    folder = AppFolder(app, Path(), Settings())
    urls = ("memory://bench.impressions", "memory://bench.actions")
    topics = [create_topic(url, TopicSettings(retention_ms=-1)) for url in urls]
    with Producer(folder, impressions=topics[0], actions=topics[1]) as producer:
        producer.impressions(columns, EVENTS)
    with open_topic(urls[0]).reader([0]) as reader:
        return reader.read(0, 0, max_records=EVENTS, max_bytes=1 << 30).values
