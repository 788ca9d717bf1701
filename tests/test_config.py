"""Reading settings: what a file and `--set` may say, and how a fault is told."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from streamlearn.config import FILE_BYTES_MAX, apply_overrides, fields_of, read_settings
from streamlearn.errors import ConfigError
from streamlearn.settings import Settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "app.toml"


def read(file: Path | None, text: str = "", *overrides: str) -> Settings:
    if file is not None:
        file.write_text(text)
    return read_settings(Settings, file, overrides)


def test_without_a_file_there_are_the_defaults(tmp_path: Path) -> None:
    assert read_settings(Settings, None) == Settings()
    assert read_settings(Settings, tmp_path / "no.toml") == Settings()


def test_a_file_says_some_and_leaves_the_rest(file: Path) -> None:
    settings = read(file, '[events]\nlinger_ms = 7\n[topics]\nschema_ids = {7 = "a.avsc"}\nreach_s = 5\n')
    assert settings.events.linger_ms == 7
    assert settings.events.items_max == Settings().events.items_max
    assert settings.topics.schema_ids == {"7": "a.avsc"}
    assert settings.topics.reach_s == 5.0


# (the file, what the message says, what the help says)
FAULTS = [
    pytest.param("[events]\nlinger_ms = '7'", "events.linger_ms: expected `int`, got `str`", "50", id="type"),
    pytest.param("[events]\nlinger_ms = 1.5", "events.linger_ms: expected `int`", "at most 60000", id="float"),
    pytest.param("[events]\nlinger_ms = -1", "events.linger_ms: expected `int` >= 0", "at least 0", id="low"),
    pytest.param("[events]\nlinger_ms = 60001", "events.linger_ms: expected `int` <= 60000", "60000", id="high"),
    pytest.param("[topics]\nreach_s = 0", "topics.reach_s: expected `float` > 0", "above 0", id="not above"),
    pytest.param("[topics]\nreach_s = nan", "topics.reach_s: expected `float`", "above 0", id="nan"),
    pytest.param("[topics]\ntime = 'sun'", "topics.time: invalid enum value 'sun'", '"event" | "wall"', id="word"),
    pytest.param(
        "[topics]\nold_schemas = [1]",
        "topics.old_schemas[0]: expected `str`",
        'Settings" in the documentation',
        id="list",
    ),
    pytest.param(
        "topics = 3", "topics: expected `object`, got `int`", 'Settings" in the documentation', id="no section"
    ),
    pytest.param("[event]\nlinger_ms = 7", "unknown setting 'event'", "did you mean 'events'?", id="section"),
    pytest.param("reach_s = 7", "unknown setting 'reach_s'", "the known ones are", id="a key without its section"),
    pytest.param(
        "[zzz]\na = 1",
        "unknown setting 'zzz'",
        "the known ones are access, allowance, console, events, features, front, impressions, ingest, join",
        id="far section",
    ),
    pytest.param(
        "[events]\nlinger = 7", "unknown setting 'events.linger'", "did you mean 'events.linger_ms'?", id="key"
    ),
    pytest.param("[events\n", "is not TOML", 'Settings" in the documentation', id="no TOML"),
    pytest.param("[events]\nlinger_ms = 1\nlinger_ms = 2", "is not TOML", 'Settings" in the documentation', id="twice"),
]


@pytest.mark.parametrize(("text", "said", "advice"), FAULTS)
def test_a_fault_names_the_file_and_the_setting_and_helps(file: Path, text: str, said: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(file, text)
    assert caught.value.message.startswith(str(file))
    assert said in caught.value.message
    assert advice in caught.value.help


def test_a_file_that_is_no_text_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_settings(Settings, file)


def test_a_folder_in_the_files_place_is_refused(file: Path) -> None:
    file.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(Settings, file)


def test_a_file_beyond_its_bound_is_refused(file: Path) -> None:
    file.write_text("#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match=f"has more than {FILE_BYTES_MAX} bytes"):
        read_settings(Settings, file)
    file.write_text("#" * FILE_BYTES_MAX)
    assert read_settings(Settings, file) == Settings()


def test_overrides_win_over_the_file_and_the_last_wins_over_the_first(file: Path) -> None:
    settings = read(file, "[events]\nlinger_ms = 7", "events.linger_ms=8", "events.linger_ms=9")
    assert settings.events.linger_ms == 9


def test_an_override_is_a_toml_value_or_a_bare_word() -> None:
    settings = read(
        None,
        "",
        "events.linger_ms=1_000",
        "topics.reach_s = 2.5",
        "topics.time=event",
        'topics.root="kafka://127.0.0.1:9092"',
        "topics.samples=memory://a=b",
        'topics.schema_ids={7 = "a.avsc"}',
        'topics.old_schemas=["a.avsc"]',
        "kafka.ssl_cafile=",
    )
    assert (settings.events.linger_ms, settings.topics.reach_s, settings.topics.time) == (1000, 2.5, "event")
    assert settings.topics.root == "kafka://127.0.0.1:9092"
    assert settings.topics.samples == "memory://a=b"
    assert settings.topics.schema_ids == {"7": "a.avsc"}
    assert settings.topics.old_schemas == ["a.avsc"]
    assert settings.kafka.ssl_cafile == ""


@pytest.mark.parametrize(
    ("override", "said", "advice"),
    [
        pytest.param("events.linger_ms", "is not SECTION.NAME=VALUE", "for example", id="no equals sign"),
        pytest.param("=5", "'=5' is not SECTION.NAME=VALUE", "for example", id="no path"),
        pytest.param("events.linger=5", "'events.linger'", "'events.linger_ms'", id="an unknown path"),
        pytest.param("events=5", "unknown setting 'events'", "", id="a section"),
        pytest.param("events.linger_ms=soon", "--set: events.linger_ms: expected `int`", "50", id="a type"),
        pytest.param("events.linger_ms=-1", "--set: events.linger_ms: expected `int` >= 0", "50", id="a bound"),
    ],
)
def test_a_fault_of_an_override_is_told_as_the_overrides(override: str, said: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(None, "", override)
    assert said in caught.value.message
    assert advice in caught.value.help


def test_a_fault_of_the_file_is_told_as_the_files_even_when_an_override_would_hide_it(file: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{file}: events.linger_ms")):
        read(file, "[events]\nlinger_ms = -1", "events.linger_ms=5")


def test_nothing_given_is_changed() -> None:
    given = {"events": {"linger_ms": 7}, "topics": {"old_schemas": ["a"]}}
    before = copy.deepcopy(given)
    overrides = ["events.linger_ms=8", "topics.old_schemas=['b']", "replay.partitions=2"]
    result = apply_overrides(Settings, given, overrides)
    assert result == {
        "events": {"linger_ms": 8},
        "topics": {"old_schemas": ["b"]},
        "replay": {"partitions": 2},
    }
    assert given == before


FIELDS = fields_of(Settings)


def test_every_setting_is_listed_with_its_type_and_default() -> None:
    by_path = {field.path: field for field in FIELDS}
    assert by_path["events.linger_ms"].type == "int, at least 0, at most 60000"
    assert by_path["topics.reach_s"].type == "float, above 0, at most 3600"
    assert by_path["topics.time"].type == '"event" | "wall"'
    assert by_path["topics.schema_ids"].type == "table of str to str"
    assert by_path["topics.old_schemas"].type == "list of str"
    assert by_path["topics.root"].default == ""
    assert len(by_path) == len(FIELDS)


def test_booleans_are_named_too() -> None:
    class Switch(msgspec.Struct):
        on: bool = False
        """On."""
        name: str = ""
        """A name."""

    assert [(field.type, field.description) for field in fields_of(Switch)] == [
        ("bool", "On."),
        ("str", "A name."),
    ]


@pytest.mark.parametrize(
    ("path", "help"),
    [
        ("ps.calls_max", "its value is always 64"),
        ("topics.check_s", "the value is fixed"),
        ("impressions.share", "set join.logged_share"),
    ],
)
def test_a_setting_of_before_is_refused_with_what_replaces_it(tmp_path: Path, path: str, help: str) -> None:
    section, _, name = path.partition(".")
    file = tmp_path / "app.toml"
    file.write_text(f"[{section}]\n{name} = 5\n")
    for overrides, source in (([], file), ([f"{path}=5"], None)):
        with pytest.raises(ConfigError) as caught:
            read_settings(Settings, source, overrides)
        assert path in caught.value.message
        assert help in f"{caught.value.message} {caught.value.help}"


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.path)
def test_every_setting_says_what_it_is_for(field: object) -> None:
    description = field.description  # type: ignore[attr-defined]
    assert len(description) > 10
    assert description.endswith(".")


# What a number counts, where it is neither a duration nor a size: the noun is the unit.
COUNTS = {
    "allowance.shown", "ingest.lots", "ingest.parallelism",
    "join.logged_share", "replay.partitions", "serving.golden_difference_max",
    "retrieval.cache_versions", "retrieval.k_max", "retrieval.lanes", "retrieval.negatives", "retrieval.probes",
    "retrieval.rate", "serving.lanes",
    "tables.rate", "tables.weight_decay", "trainer.clip_norm", "trainer.l2", "trainer.rate",
    "trainer.seed", "up.nodes", "up.workers", "workers.members",
}  # fmt: skip
UNITS = (
    "_s",
    "_s_max",
    "_ms",
    "_ms_max",
    "_bytes",
    "_bytes_max",
    "_events_max",
    "_rows_max",
    "_rows_min",
    "_items_max",
)
NOUNS = (
    "_threads", "_counters", "_keys", "_calls_max", "_connections_max", "_clients_max", "_blocks_max", "_acks_max",
    "_notes_max", "_rows_min", "_versions_kept", "_versions_min", "_versions_max", "_deltas_max", "_failures_max",
    "_ratio_max", "_moves_min", "_moves_max", "_pushes_max", "_orders_max", "_exports_left_max", "_blobs_max",
    "_slices", "_rows", "_steps", "_steps_max", "_candidates_min", "_messages_max", "_count", "_keys_max",
    "_impressions_max", "_actions_max", "_texts_max", "_compiles_max", "_queue_max", "_calls_min", "_runs",
    "_candidates_max", "_values_max", "_requests_max", "_percent", "_candidates", "_slabs_max", "_restarts_max",
    "_files_max", "_nice", "_attempts_max", "_entries_max", "_share_max", "_pieces_max",
)  # fmt: skip


@pytest.mark.parametrize("path", [field.path for field in FIELDS if field.type.startswith(("int", "float"))], ids=str)
def test_every_number_says_its_unit(path: str) -> None:
    name = f"_{path.partition('.')[2]}"
    assert path in COUNTS or name.endswith((*UNITS, *NOUNS))


PACKAGE = Path(__file__).parents[1] / "streamlearn"
MODULES = [file for file in sorted(PACKAGE.rglob("*.py")) if not file.is_relative_to(PACKAGE / "settings")]


@cache
def _named(file: Path) -> set[str]:
    """Every name, attribute, import and short text of a module."""
    named = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute):
            named.add(node.attr)
        elif isinstance(node, ast.Name):
            named.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            named.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named.add(node.value)
    return named


def _calls(*names: str) -> Iterator[tuple[Path, ast.Call]]:
    """Every call of these functions."""
    for file in MODULES:
        if any(name in _named(file) for name in names):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
                    yield file, node


@pytest.mark.parametrize("path", [field.path for field in FIELDS], ids=str)
def test_every_setting_is_read_where_its_section_is_used(path: str) -> None:
    section, _, name = path.partition(".")
    kind = type(getattr(Settings(), section)).__name__
    rooms = [file.parent for file in MODULES if kind in _named(file)]
    read = [file for file in MODULES if name in _named(file)]
    by_section = [file for file in read if re.search(rf"settings\.{section}\b", file.read_text())]
    assert by_section or [file for file in read if any(file.is_relative_to(room) for room in rooms)], (
        f"nothing that has {kind} reads {name}: the setting has no effect"
    )


def test_every_store_and_registry_of_the_product_is_opened_with_its_settings() -> None:
    calls = _calls("open_store", "open_registry")
    opened = [(file.name, call.lineno, ast.unparse(call)) for file, call in calls]
    assert len(opened) >= 8
    without = [
        call for call in opened if not re.search(r"settings\.versions|settings\.registry|VersionSettings", call[2])
    ]
    assert not without, "the application's settings would have no effect on it"


def test_limits_of_files_and_of_loading_come_from_the_store_that_is_used() -> None:
    by_hand = [
        (file.name, call.lineno)
        for file, call in _calls("FileSettings", "LoadSettings")
        if file != PACKAGE / "versions" / "store" / "interface.py"
    ]
    assert not by_hand, "use Store.files and Store.loading"
