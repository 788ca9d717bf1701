"""The schemas an application's settings name: what older producers and registries wrote is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from streamlearn.apps import App, AppFolder
from streamlearn.errors import ConfigError
from streamlearn.events import EventDecoder, EventEncoder
from streamlearn.features import Slot
from streamlearn.schemas import impression_schema
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings import EventSettings, Settings
from streamlearn.settings.topics import TopicsSettings
from streamlearn.testing import small_app, small_impression


def _folder(path: Path, app: App, **topics: object) -> AppFolder:
    return AppFolder(app, path, Settings(topics=TopicsSettings(**topics)))  # type: ignore[arg-type]


def _grown(app: App) -> App:
    slots = (*app.features.slots, Slot("added", "user", default=7))
    return replace(app, features=replace(app.features, slots=slots))


def _impression(app: App) -> bytes:
    given = {"shown_wall_ms": 5, **small_impression(3)}
    return EventEncoder(app, EventSettings()).impression(given)


def test_an_older_schema_named_in_the_settings_is_read(tmp_path: Path) -> None:
    app = small_app()
    (tmp_path / "before.avsc").write_text(impression_schema(app).text)
    record = _impression(app)
    unnamed = EventDecoder.of(_folder(tmp_path, _grown(app))).decode([record])
    assert [failure.reason for failure in unnamed.failures] == ["unknown_schema"]
    named = EventDecoder.of(_folder(tmp_path, _grown(app), old_schemas=["before.avsc"])).decode([record])
    assert named.impressions.texts("request_id") == ["q3"]
    assert named.impressions.columns["user.added"].tolist() == [7]


def test_a_registry_id_named_in_the_settings_is_read(tmp_path: Path) -> None:
    app = small_app()
    (tmp_path / "registered.avsc").write_text(impression_schema(app).text)
    confluent = b"\x00" + (17).to_bytes(4, "big") + _impression(app)[PREFIX_BYTES:]
    decoder = EventDecoder.of(_folder(tmp_path, app, schema_ids={"17": "registered.avsc"}))
    assert decoder.decode([confluent]).impressions.texts("request_id") == ["q3"]


@pytest.mark.parametrize(
    ("topics", "said"),
    [
        ({"old_schemas": ["missing.avsc"]}, "missing.avsc cannot be read"),
        ({"old_schemas": ["text.avsc"]}, "not an Avro schema"),
        ({"old_schemas": ["enum.avsc"]}, "the schema is a 'enum'"),
        ({"schema_ids": {"x": "text.avsc"}}, "invalid schema id 'x'"),
    ],
)
def test_a_named_schema_at_fault_is_refused_by_setting_and_file(
    tmp_path: Path, topics: dict[str, object], said: str
) -> None:
    (tmp_path / "text.avsc").write_text("hello")
    (tmp_path / "enum.avsc").write_text(json.dumps({"type": "enum", "name": "A", "symbols": ["B"]}))
    with pytest.raises(ConfigError) as caught:
        EventDecoder.of(_folder(tmp_path, small_app(), **topics))
    assert said in caught.value.message
    assert caught.value.message.startswith(f"topics.{next(iter(topics))}")
