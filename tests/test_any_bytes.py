"""Every decoder of Python and any bytes: each gives a value or its own error, and nothing else."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from streamlearn.errors import (
    BadRecord,
    ConfigError,
    DataError,
    MarksFull,
    Oversize,
    RegistryDefect,
    ScoresMissing,
    UsageError,
    VersionDefect,
)
from streamlearn.events import EventDecoder, EventEncoder
from streamlearn.ingest.join.lot_events import decode_lot
from streamlearn.ingest.join.lot_log import LotHead, decode_head, encode_head
from streamlearn.ingest.output.progress import Lineage, LotProgress, Standing, encode_progress, fold
from streamlearn.ingest.reading.blob import Blob, Section, decode_blob, encode_blob
from streamlearn.ingest.reading.mark import PairMark, decode_marks, encode_marks
from streamlearn.models.description import DESCRIPTION_FILE, read_description
from streamlearn.native import native
from streamlearn.ps import Epoch
from streamlearn.ps.orders import (
    Answer,
    Done,
    Expire,
    Failed,
    Order,
    Remove,
    Restore,
    Restored,
    Seal,
    Stats,
    decode_answer,
    decode_order,
)
from streamlearn.ps.specification import difference, specification_of
from streamlearn.samples import SampleCodec
from streamlearn.samples.golden import golden_bytes, read_golden
from streamlearn.schemas import CONTROL, schema_of
from streamlearn.schemas.record_prefix import read_framing
from streamlearn.serving.infer import InferAnswer
from streamlearn.serving.sizes import read_sizes
from streamlearn.settings import EventSettings
from streamlearn.settings.events import SampleSettings
from streamlearn.settings.join import MarksSettings
from streamlearn.table import Changes, Expiry
from streamlearn.testing import small_app, small_batch, small_impression
from streamlearn.topics import Position, Records, TopicSettings
from streamlearn.topics.file_folder import create_file_topic, open_folder
from streamlearn.topics.kafka_codec import Decompressor
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.trainer.validation.score_log import COLUMNS, read_scores
from streamlearn.versions import Known, Node, Pointer, open_store
from streamlearn.versions.format.graphs import get_graph, put_graph
from streamlearn.versions.format.manifest import decode_manifest
from streamlearn.versions.format.record import VersionRef, decode_record, encode_record
from streamlearn.versions.format.verdict import Verdict
from streamlearn.versions.pointer.registry import Ack, Note, decode, decode_pointer
from streamlearn.versions.pointer.registry import encode as encode_kept
from streamlearn.versions.pointer.request import Request
from streamlearn.versions.upkeep.exchange import import_version
from tests.campaign import examples
from tests.ps.model import OPTIONS
from tests.versions.history import Trainer


@dataclass(frozen=True)
class Decoder:
    """One of them.

    Attributes:
        name: For people.
        decode: Gives a value or raises one of `errors`.
        good: Bytes that it takes.
        errors: What it may raise.
    """

    name: str
    decode: Callable[[bytes], Any]
    good: Sequence[bytes]
    errors: tuple[type[Exception], ...]


APP = small_app()
CODEC = SampleCodec(APP, SampleSettings())
REF = VersionRef(version=7, run=1, sha256="0" * 64)
LINEAGE = Lineage(16, "windows", "features", "events", "actions")
MODEL = "ctr"


def _resealed(kind: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """The same of a record whose check is made right, so that what lies behind it is reached too."""

    def decode_both(data: bytes) -> None:
        body = data[: data.rfind(b',"check":"')] if b',"check":"' in data else data.removesuffix(b"}")
        for each in (data, body + b',"check":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'):
            try:
                kind(each)
            except VersionDefect:
                continue

    return decode_both


def _recorded(kind: type[msgspec.Struct], data: bytes) -> Any:
    return decode_record(data, kind, "x.json")


def _registered(kind: type[msgspec.Struct], data: bytes) -> Any:
    return decode(data, kind, "redis")


def _records(_: Path) -> Iterator[Decoder]:
    pointers = [Pointer(), Pointer(seq=3, active=REF, reason="é", held=True)]
    kept: list[tuple[type[msgspec.Struct], list[Any]]] = [
        (Pointer, pointers),
        (Request, [Request(to=REF, by="ada")]),
        (Verdict, [Verdict(version=REF, outcome="passed")]),
    ]
    for kind, values in kept:
        yield Decoder(kind.__name__, _resealed(partial(_recorded, kind)), [encode_record(one) for one in values], ())
    manifest = Trainer(open_store("memory://any-bytes")).story([1])[0].manifest
    yield Decoder("manifest", _resealed(lambda data: decode_manifest(data, "x")), [encode_record(manifest)], ())
    nodes = Node(boot_id="a", name="n", staged=(1, 2)), Ack(boot_id="a", name="n", seq=1, version=2, took_ms=0.5)
    known = Known(ref=REF, kind="base", graph=None, rows=1)
    for one in (*nodes, Note(wall_ms=1, by="ada", what="rollback"), known):
        kind = type(one)
        yield Decoder(kind.__name__, partial(_registered, kind), [encode_kept(one)], (RegistryDefect,))
    encoded = [encode_kept(one) for one in pointers]
    yield Decoder("the copy of the pointer", lambda data: decode_pointer(data, "redis"), encoded, (RegistryDefect,))


def _of_shards(_: Path) -> Iterator[Decoder]:
    orders: list[Order] = [
        Restore(Epoch(1), 3, "0" * 64, 9),
        Seal(Epoch(1), 4),
        Expire(Epoch(1), 1, {"main": Expiry(idle_ms=5)}, 77, 100),
        Remove(Epoch(1), {"main": ["00000000000000ff"]}),
        Stats(),
    ]
    yield Decoder("order", decode_order, [msgspec.json.encode(one) for one in orders], (BadRecord,))
    answers: list[Answer] = [Done(), Failed("VersionDefect", "m", "h", "corrupted", "p"), Restored(1, 2, 0.5)]

    def answered(data: bytes) -> None:
        answer = decode_answer(data)
        if isinstance(answer, Failed):
            assert isinstance(answer.error(), Exception)

    yield Decoder("answer", answered, [msgspec.json.encode(one) for one in answers], (BadRecord,))
    yield Decoder("specification", lambda data: difference(OPTIONS, data), [specification_of(OPTIONS)], ())


def _of_ingest(_: Path) -> Iterator[Decoder]:
    def section(values: list[bytes | None]) -> Section:
        numbers = np.arange(len(values))
        return Section(numbers, numbers, numbers, values, values)

    blob = encode_blob(Blob(0, False, True, 5, section([b"a", None]), section([b""]), 6))
    yield Decoder("blob", decode_blob, [blob], (BadRecord,))
    position = Position("t", 0, 5)
    yield Decoder("marks of a reader", decode_marks, [encode_marks((PairMark(position, position),))], (BadRecord,))
    yield Decoder("head of a lot", decode_head, [encode_head(LotHead())], (BadRecord,))
    lot = msgspec.msgpack.encode([0, 0, False, 1, [b""] * 9, [b""] * 9, 2])
    yield Decoder("events of a lot", decode_lot, [lot], (BadRecord,))
    progress = encode_progress(LotProgress(3, 5, 10, 10, LINEAGE, 1))[1]

    def folded(data: bytes) -> None:
        fold(Standing(), Records(0, np.zeros(1, np.int64), np.zeros(1, np.int64), [None], [data], 1))

    yield Decoder("progress", folded, [progress], (BadRecord,))
    events = EventDecoder(APP, EventSettings())
    encoder = EventEncoder(APP, EventSettings())
    control = encoder.control("HEARTBEAT", 5, 6, "s")
    shown = encoder.impression(small_impression(1) | {"shown_wall_ms": 5})
    yield Decoder("events", lambda data: events.decode([data, None]), [shown, control], ())
    yield Decoder("framing", read_framing, [shown, b"\0\0\0\0\7"], (BadRecord,))
    yield Decoder("schema", lambda data: schema_of(data.decode("latin-1")), [CONTROL.text.encode()], (ConfigError,))


def _of_training(folder: Path) -> Iterator[Decoder]:
    batch = small_batch(APP, 3, 7, seed=4)
    yield Decoder("samples", CODEC.decode, [CODEC.encode(batch)], (DataError,))
    golden = golden_bytes(CODEC, batch, np.zeros((7, len(batch.labels)), np.float32))
    logits = [golden["logits"], b"PK\3\4", _npz(logits=np.zeros(3))]
    yield Decoder("logits", lambda data: read_golden(CODEC, {**golden, "logits": data}), logits, (BadRecord,))
    entries = SharedMarks(2, MarksSettings()).save(Reached((1, 2), (None, 3), 4))

    def remembered(name: str) -> Callable[[bytes], Any]:
        return lambda data: SharedMarks(2, MarksSettings()).load({**entries, name: data})

    for name, data in entries.items():
        yield Decoder(f"entry {name} of marks", remembered(name), [bytes(data)], (BadRecord, MarksFull))
    columns = {name: np.zeros(1, kind) for name, kind in _MARKED.items()}
    others: Sequence[dict[str, Any]] = (
        {},
        {"offset": np.zeros(1)},
        {"settles": np.zeros(2, np.uint32)},
    )  # two do not fit
    refused = [_npz(topic_id=np.array("t"), **columns | other) for other in others]
    yield Decoder("refused rows of marks", remembered("refused-0"), refused, (BadRecord, MarksFull))
    changes = _npz(keys=np.zeros(1, np.uint64), rows=np.zeros((1, 2), np.float32))
    yield Decoder("changes", _from_file(folder / "changes.npz", Changes.load), [changes], (BadRecord,))
    scores = _from_file(folder / "scores-000001.csv", lambda file: read_scores(file.parent))
    row = ",".join(COLUMNS).encode() + b"\nclick,1,2,,,3,1.5,2.5,,0.5,,0.25,1.0,1,9\n"
    yield Decoder("scores", scores, [row], (BadRecord, ScoresMissing))


def _of_files(folder: Path) -> Iterator[Decoder]:
    store, graph = open_store("memory://any-graphs"), folder / "graph"
    graph.mkdir()
    (graph / "saved_model.pb").write_bytes(b"graph")
    graph_id = put_graph(store, MODEL, graph)
    index = f"{MODEL}/graphs/{graph_id}/graph.json"
    whole = bytes(store.read(index, bytes_max=1 << 20))

    def with_index(data: bytes) -> None:
        store.remove(index)
        store.create(index, data)
        try:
            get_graph(store, MODEL, graph_id, folder / f"copy-{next(_NUMBERS)}")
        finally:
            store.remove(index)
            store.create(index, whole)

    yield Decoder("index of a graph", with_index, [whole], (VersionDefect,))
    description = b'{"format":1,"inputs":[]}'
    described = _from_file(folder / DESCRIPTION_FILE, lambda file: read_description(file.parent))
    yield Decoder("description of graphs", described, [description], (BadRecord,))
    exchanged = _from_file(folder / "version.json", lambda file: import_version(store, "other", file.parent))
    said = b'{"format":1,"model":"ctr","version":1,"run":1,"fingerprint":"f","windows":"w","tables":[],"rows":{},'
    said += b'"watermark_ms":null,"metrics":{},"graph":null,"files":[]}'
    yield Decoder("exported version", exchanged, [said], (BadRecord, UsageError))
    topic = folder / "topic"
    create_file_topic(topic, TopicSettings(partitions=1))
    identity = (topic / "topic.json").read_bytes()
    opened = _from_file(topic / "topic.json", lambda file: open_folder(file.parent))
    yield Decoder("topic", opened, [identity], (BadRecord,))
    for codec, good in ((1, gzip.compress(b"records")), (4, zstandard.compress(b"records"))):
        yield Decoder(f"codec {codec}", partial(_unpacked, codec), [good], (BadRecord, Oversize))
    batch = native.pack_kafka_batch((-1, -1, -1), np.zeros(2, np.int64), None, [b"a", None])
    kept = Decompressor(10_000)
    errors = (ValueError, BadRecord, Oversize)
    yield Decoder("batches", lambda data: native.scan_kafka_batches(data, 0, [], kept), [batch], errors)
    answer = b"\x0a\x03ctr\x12\x017\x2a\x0f\x0a\x05click\x12\x04FP32\x1a\x01\x01\x32\x04\0\0\x80\x3f"
    yield Decoder("answer of a node", _values_of, [answer], (BadRecord,))
    sizes = b'{"users_buckets":[1],"candidates_buckets":[8],"lengths":[0],"user_us":[[1.0]],"score_us":[]}'
    yield Decoder("sizes", _from_file(folder / "sizes.json", read_sizes), [sizes], (BadRecord, UsageError))


def _unpacked(codec: int, data: bytes) -> Any:
    return Decompressor(10_000)(codec, data)


def _values_of(data: bytes) -> None:
    for tensor in InferAnswer.decode(data).outputs.values():
        assert isinstance(tensor.values, list)


_NUMBERS = itertools.count()
_MARKED = {
    "partition": np.int32,
    "offset": np.int64,
    "event_time_ms": np.int64,
    "request_index": np.int32,
    "item_index": np.int32,
    "settles": np.uint32,
    "labels": np.uint32,
}


def _npz(**arrays: Any) -> bytes:
    written = io.BytesIO()
    np.savez(written, **arrays)
    return written.getvalue()


def _from_file(file: Path, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        file.write_bytes(data)
        return read(file)

    return decode


# What is put into good bytes: what JSON, MessagePack, Avro and zip files stumble over.
_TOKENS = (
    b"[" * 3_000, b'{"x":' * 3_000, b"\x91" * 3_000, b"\xff", b"\x80", b"\0", b"null", b"1e999", b"-1", b"NaN",
    b"9" * 30, b"9" * 5_000, b'"\\ud800"', b"[]", b"{}", b'""', b"true", b"\xff" * 8 + b"\x7f", b"\xfe\xff\xff\xff\x0f",
    b"../../x", b"\n", b"\r", b'"',
)  # fmt: skip


@st.composite
def changed(draw: st.DrawFn, good: Sequence[bytes]) -> bytes:
    """Good bytes with some changes, or any bytes."""
    data = draw(st.sampled_from(good) if good else st.just(b"")) if draw(st.integers(0, 15)) else draw(st.binary())
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        until = min(len(data), at + draw(st.integers(0, 12)))
        other = draw(st.sampled_from(_TOKENS) | st.binary(max_size=9) | st.just(data[at:until] * 2))
        data = draw(st.sampled_from((data[:at] + other + data[until:], data[:at], data[:at] + other)))
    return data


def _drive(decoder: Decoder) -> None:
    @settings(max_examples=examples(60), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=changed(decoder.good))
    def run(data: bytes) -> None:
        note(f"the decoder: {decoder.name}")
        with suppress(*decoder.errors):
            decoder.decode(data)

    run()


GROUPS = (_records, _of_shards, _of_ingest, _of_training, _of_files)
CORPUS = Path(__file__).parent / "corpus"


def decoders(folder: Path) -> list[Decoder]:
    """All of them, sorted by name; a folder for the files of some."""
    return sorted((decoder for group in GROUPS for decoder in group(folder)), key=lambda decoder: decoder.name)


@pytest.mark.parametrize("group", GROUPS)
def test_any_bytes_give_a_value_or_the_decoders_own_error(
    group: Callable[[Path], Iterator[Decoder]], tmp_path: Path
) -> None:
    for decoder in group(tmp_path):
        _drive(decoder)


def test_what_a_campaign_found_gives_a_value_or_the_decoders_own_error(tmp_path: Path) -> None:
    """The first byte of a file selects the decoder, as in `fuzz_python`."""
    known = decoders(tmp_path)
    files = sorted(CORPUS.iterdir())
    assert files
    for file in files:
        data = file.read_bytes()
        decoder = known[data[0] % len(known)]
        with suppress(*decoder.errors):
            decoder.decode(data[1:])
