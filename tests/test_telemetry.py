"""Logs and metrics: the lines, the names."""

from __future__ import annotations

import io
import itertools
import json
import logging
import re
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from streamlearn import telemetry
from streamlearn.settings.telemetry import TelemetrySettings
from streamlearn.telemetry import counter, gauge, histogram, set_up_logging

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger("streamlearn")
    before = (list(root.handlers), root.level, root.propagate)
    yield
    root.handlers[:], root.level, root.propagate = before[0], before[1], before[2]
    root.setLevel(before[1])


@pytest.fixture
def noun() -> Iterator[str]:
    """A noun no other test has; its metrics are taken away afterwards."""
    noun = f"test{next(_numbers)}"
    yield noun
    for collector in {one for name, one in REGISTRY._names_to_collectors.items() if noun in name}:
        REGISTRY.unregister(collector)


def logged(log_format: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    settings = TelemetrySettings(log_format=log_format, log_level=level)  # type: ignore[arg-type]
    set_up_logging(settings, stream)
    return stream


LOG = logging.getLogger("streamlearn.ingest.join")


def fail() -> None:
    message = "no room"
    try:
        raise OSError(message)
    except OSError:
        LOG.exception("a lot stopped", extra={"lot": 3})


def test_a_line_for_people_has_time_level_place_message_and_extras() -> None:
    stream = logged("human")
    LOG.info("lot %d is %s", 3, "open", extra={"rows": 12, "age_s": 1.5})
    assert re.fullmatch(r"\d\d:\d\d:\d\d info    ingest\.join: lot 3 is open rows=12 age_s=1\.5\n", stream.getvalue())


def test_a_line_for_people_is_followed_by_its_exception() -> None:
    stream = logged("human")
    fail()
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("error   ingest.join: a lot stopped lot=3")
    assert lines[1].startswith("Traceback")
    assert lines[-1] == "OSError: no room"


def test_a_text_from_elsewhere_begins_no_line_and_moves_no_cursor() -> None:
    stream = logged("human")
    LOG.info("moved by %s", "a\r\x1b[2K\n02:54:00 info    console.api: all is well", extra={"who": "a\nb\u0085"})
    first, second, third = stream.getvalue().splitlines()
    assert first.endswith(r"moved by a\x0d\x1b[2K")
    assert second == "  02:54:00 info    console.api: all is well who=a"
    assert third == r"  b\x85"


def test_a_json_line_is_one_object_with_the_extras_beside_the_message() -> None:
    stream = logged("json")
    LOG.warning("lot %d\nis ü", 3, extra={"rows": 12, "where": io.StringIO})
    assert stream.getvalue().count("\n") == 1
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("time"))
    assert line == {
        "level": "warning",
        "logger": "streamlearn.ingest.join",
        "message": "lot 3\nis ü",
        "rows": 12,
        "where": "<class '_io.StringIO'>",
    }


def test_a_json_line_holds_its_exception() -> None:
    stream = logged("json")
    fail()
    line = json.loads(stream.getvalue())
    assert line["lot"] == 3
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("OSError: no room")


def test_setting_up_again_replaces_what_was_set_up() -> None:
    first = logged("human")
    second = logged("json")
    LOG.info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_only_the_level_asked_for_and_above_is_written() -> None:
    stream = logged("human", "warning")
    LOG.info("quiet")
    LOG.warning("loud")
    assert len(stream.getvalue().splitlines()) == 1


def test_lines_are_not_repeated_by_the_programs_own_logging() -> None:
    logged("human")
    other = io.StringIO()
    handler = logging.StreamHandler(other)
    logging.getLogger().addHandler(handler)
    try:
        LOG.error("ours")
    finally:
        logging.getLogger().removeHandler(handler)
    assert other.getvalue() == ""


def test_metrics_are_named_after_component_noun_and_unit(noun: str) -> None:
    counter("ingest", noun, "Events read.").inc(2)
    gauge("ps", f"{noun}_held", "bytes", "Bytes held.").set(7)
    histogram("serving", f"{noun}_wait", "seconds", "Waits.", (0.1, 1.0)).observe(0.5)
    assert REGISTRY.get_sample_value(f"streamlearn_ingest_{noun}_total") == 2
    assert REGISTRY.get_sample_value(f"streamlearn_ps_{noun}_held_bytes") == 7
    found = REGISTRY.get_sample_value(f"streamlearn_serving_{noun}_wait_seconds_bucket", {"le": "1.0"})
    assert found == 1


def test_asking_twice_gives_the_same_metric(noun: str) -> None:
    assert counter("ingest", noun, "A.") is counter("ingest", noun, "A.")
    first = gauge("ingest", noun, "rows", "A.", ("lot",))
    assert gauge("ingest", noun, "rows", "A.", ("lot",)) is first
    waits = histogram("ingest", noun, "seconds", "A.", (1.0,))
    assert histogram("ingest", noun, "seconds", "A.", (1.0,)) is waits


@pytest.mark.parametrize(
    ("component", "noun", "unit"), [("cook", "a", "rows"), ("ps", "A", "rows"), ("ps", "a", "miles")]
)
def test_a_name_outside_the_pattern_is_a_bug(component: str, noun: str, unit: str) -> None:
    with pytest.raises(AssertionError):
        gauge(component, noun, unit, "Never.")


def test_public_names_are_listed() -> None:
    assert set(telemetry.__all__) == {
        "AGES_S",
        "counter",
        "counter_family",
        "gauge",
        "gauge_family",
        "histogram",
        "histogram_family",
        "metrics_text",
        "set_up_logging",
    }


def test_libraries_are_heard_from_a_level_on_and_our_own_words_come_once() -> None:
    stream, root = io.StringIO(), logging.getLogger()
    before = list(root.handlers)
    try:
        for _ in range(2):
            set_up_logging(TelemetrySettings(), stream, libraries="error")
        logging.getLogger("somebody").warning("chatter")
        logging.getLogger("somebody").error("it broke")
        logging.getLogger("streamlearn.ingest").warning("ours")
    finally:
        root.handlers[:] = before
    lines = stream.getvalue().splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines] == ["error   somebody: it broke", "warning ingest: ours"]
