"""The folder `schemas/`: its schemas are what the code generates, its golden records what the code writes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from streamlearn.events import EventDecoder
from streamlearn.samples import SampleCodec
from streamlearn.schemas import DEAD_LETTER, EVENT_PACK, PROGRESS
from streamlearn.schemas.app import app_schemas
from streamlearn.schemas.fixed_schemas import CONTROL_KINDS
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings import EventSettings
from streamlearn.settings.events import SampleSettings
from streamlearn.testing import small_app
from tools.golden_records import PROGRESS_VALUES, golden_sample
from tools.write_schemas import FOLDER, schema_files, write_schemas

MEANT = (
    "is not what the code makes. Not meant: undo it, for topics hold records of the old format. Meant: keep "
    "to schemas/README.md, run `python -m tools.write_schemas`, and say it in CHANGELOG.md"
)
FILES = schema_files()


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_what_the_code_makes(name: str) -> None:
    assert (FOLDER / name).read_bytes() == FILES[name], f"schemas/{name} {MEANT}"


def test_there_are_no_other_files() -> None:
    found = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
    assert found == {*FILES, "README.md"}


def test_every_schema_of_an_application_has_its_file_and_its_golden_record() -> None:
    names = set(app_schemas(small_app()))
    assert names == {Path(name).stem for name in FILES if name.endswith(".avsc")}
    assert names == {Path(name).stem for name in FILES if name.endswith(".bin")}


def test_writing_them_anywhere_writes_all_of_them(tmp_path: Path) -> None:
    write_schemas(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(FILES)


def golden(name: str) -> bytes:
    return (FOLDER / "golden" / f"{name}.bin").read_bytes()


def test_golden_events_are_read_as_the_values_they_were_written_from() -> None:
    records = [golden(name) for name in ("impression", "action", "control", "event_pack")]
    events = EventDecoder(small_app(), EventSettings()).decode(records)
    assert events.failures == ()
    shown = events.impressions.columns
    assert events.impressions.texts("request_id") == ["request-1"] * 2
    assert shown["event_time_ms"].tolist() == [1_700_000_000_000] * 2
    assert shown["shown_wall_ms"].tolist() == [1_700_000_000_005] * 2
    assert (shown["served_version?"].tolist(), shown["served_version"].tolist()) == ([1, 1], [7, 7])
    assert events.impressions.texts("segments.page") == ["home", "home"]
    assert shown["user.user_id"].tolist() == [-3, -3]
    assert shown["user.history"].tolist() == [1, 2, 300] * 2
    assert events.impressions.texts("user.country") == ["NO", "NO"]
    assert shown["user.age"].tolist() == [0.5, 0.5]
    assert shown["items[]"].tolist() == [0, 2, 4]
    assert shown["items.video_id"].tolist() == [11, 2**40] * 2
    assert events.impressions.texts("items.tags") == ["été", ""] * 2
    assert shown["items.tags[]"].tolist() == [0, 2, 2, 4, 4]
    assert shown["items.topics"].tolist() == [5, 6] * 2
    assert shown["items.topics_weights"].tolist() == [0.25, 1.5] * 2
    assert shown["items.vector"].tolist() == [1.0, -2.0, 0.0, 0.0, 0.0, 0.5] * 2
    assert events.impressions.texts("items.segment_fresh") == ["new", ""] * 2
    assert shown["items.served_score_click?"].tolist() == [1, 0] * 2
    assert shown["items.served_score_click"][::2].tolist() == [0.125] * 2
    assert shown["items.served_score_bought?"].tolist() == [0] * 4
    done = events.actions.columns
    assert events.actions.texts("action") == ["click", "click"]
    assert (done["item_id"].tolist(), done["weight"].tolist()) == ([11, 11], [2.0, 2.0])
    assert events.controls.columns["kind"].tolist() == [CONTROL_KINDS.index("END")]
    assert events.controls.texts("source") == ["producer"]


def test_a_golden_pack_holds_the_golden_events() -> None:
    pack = EVENT_PACK.read(golden("event_pack")[PREFIX_BYTES:])
    assert pack == {"events": [golden("impression"), golden("action")], "items": [2, 0]}


def test_golden_progress_and_dead_letter_are_read_as_they_were_written() -> None:
    assert PROGRESS.read(golden("progress")[PREFIX_BYTES:]) == PROGRESS_VALUES
    letter = DEAD_LETTER.read(golden("dead_letter")[PREFIX_BYTES:])
    assert (letter["topic_id"], letter["partition"], letter["offset"]) == ("topic-1", 2, 1 << 33)
    assert (letter["event_index"], letter["reason"], letter["length"]) == (4, "malformed", 5)
    assert (letter["head"], letter["key"]) == (b"\xc3\x01abc", b"request-1")


def test_a_golden_sample_is_read_as_the_batch_it_was_written_from() -> None:
    found, expected = (
        SampleCodec(small_app(), SampleSettings()).decode(golden("sample")),
        golden_sample(),
    )
    assert found.header == expected.header
    for name, column in vars(expected.requests).items():
        assert getattr(found.requests, name).tolist() == column.tolist(), name
    for side in ("user", "item"):
        for name, slot in getattr(expected, side).slots.items():
            read = getattr(found, side).slots[name]
            assert read.keys.tolist() == slot.keys.tolist(), name
            assert (read.offsets is None) == (slot.offsets is None), name
        for name, numbers in getattr(expected, side).dense.items():
            assert getattr(found, side).dense[name].tolist() == numbers.tolist(), name
    assert found.item.slots["topics"].weights is not None
    assert found.item.slots["topics"].weights.tolist() == [0.25, 1.5]
    for label, written in zip(found.labels, expected.labels, strict=True):
        assert (label.value.tolist(), label.settles.tolist()) == (
            written.value.tolist(),
            written.settles.tolist(),
        )
        assert np.array_equal(label.served_score, written.served_score, equal_nan=True)
        assert math.isnan(label.served_score[1])
    assert [(one.name, one.texts, one.codes.tolist()) for one in found.segments] == [
        ("page", ("home",), [0, 0, 0]),
        ("fresh", ("", "new"), [1, 0, 0]),
    ]
