"""The Producer over topics that fail, wait or are full: what callers feel, and what they are told."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import REGISTRY

from streamlearn.errors import BadRecord, NotDelivered
from streamlearn.events import EventDecoder, EventEncoder, Producer
from streamlearn.events.pack import Pack
from streamlearn.settings import EventSettings, Settings
from streamlearn.settings.topics import TopicsSettings
from streamlearn.testing import ManualClock, small_app, small_folder, small_impression, wait_until
from streamlearn.topics import TopicSettings, create_topic, open_topic
from tests.events.failing import FailingTopic
from tests.events.place import Place, values

DECODER = EventDecoder(small_app(), EventSettings())


def give(producer: Producer, requests: Iterable[int]) -> None:
    for request in requests:
        producer.impression(**small_impression(request))
        producer.action(f"q{request}", 1_700_000_000_000 + request, 7, "click")


def _acts(begin: int, end: int) -> list[dict[str, Any]]:
    return [
        {"request_id": "q", "event_time_ms": number, "item_id": number, "action": "click", "weight": 1.0}
        for number in range(begin, end)
    ]


def test_flush_says_what_was_not_delivered_and_the_next_is_sent(place: Place) -> None:
    failing = FailingTopic(place.impressions)
    with Producer(place.folder(), impressions=failing, actions=place.actions) as producer:
        give(producer, [1])
        with pytest.raises(NotDelivered, match=r"partition \d: 1 \(the broker is away\)") as caught:
            producer.flush()
        assert "send them again" in caught.value.help
        # The other topic is flushed all the same.
        assert len(DECODER.decode(values(place.actions)).actions) == 1
        failing.fails.clear()
        give(producer, [2])
        producer.flush()
    assert DECODER.decode(values(place.impressions)).impressions.texts("request_id") == ["q2"]


def test_both_topics_failures_are_told_together(place: Place) -> None:
    shown, done = FailingTopic(place.impressions), FailingTopic(place.actions)
    with Producer(place.folder(), impressions=shown, actions=done) as producer:
        give(producer, [1])
        with pytest.raises(NotDelivered) as caught:
            producer.flush()
    assert place.impressions.url in caught.value.message
    assert place.actions.url in caught.value.message


def test_what_was_lost_is_told_by_the_next_flush_and_later_events_are_sent(place: Place) -> None:
    failing = FailingTopic(place.actions)
    lost = {"topic": failing.url.rpartition("/")[2]}
    with Producer(place.folder(linger_ms=1), impressions=place.impressions, actions=failing) as producer:
        producer.action("q", 1, 7, "click")
        wait_until(lambda: REGISTRY.get_sample_value("streamlearn_events_lost_total", lost), "the loss to be counted")
        failing.fails.clear()
        producer.action("q", 2, 7, "click")
        with pytest.raises(NotDelivered, match=r"up to 1 events in 1 records of .* were not acknowledged.*is away"):
            producer.flush()
        producer.flush()
    assert DECODER.decode(values(place.actions)).actions.columns["event_time_ms"].tolist() == [2]


def test_an_error_nobody_foresaw_is_told_and_ends_nothing(place: Place) -> None:
    failing = FailingTopic(place.actions)
    failing.error = OSError("the socket said so")
    with Producer(place.folder(linger_ms=1), impressions=place.impressions, actions=failing) as producer:
        producer.action("q", 1, 7, "click")
        with pytest.raises(NotDelivered, match="OSError: the socket said so"):
            producer.flush()
        failing.fails.clear()
        producer.action("q", 2, 7, "click")
        producer.flush()
    assert DECODER.decode(values(place.actions)).actions.columns["event_time_ms"].tolist() == [2]


def test_a_topic_that_takes_its_time_holds_up_no_caller(place: Place) -> None:
    slow = FailingTopic(place.actions)
    slow.fails.clear()
    slow.gate.clear()
    with Producer(place.folder(linger_ms=1), impressions=place.impressions, actions=slow) as producer:
        producer.action("q", 1, 7, "click")
        wait_until(slow.waiting.is_set, "the writer to wait for the topic")
        give(producer, range(5))  # returns, though the actions topic has not answered
        wait_until(lambda: values(place.impressions), "the other topic to go on")
        slow.gate.set()
    assert len(DECODER.decode(values(place.actions)).actions) == 6


def _unsent_bytes(topic: str) -> float:
    """The gauge of a topic; whoever asks the whole registry takes the time of those it waits for."""
    found = REGISTRY.restricted_registry(["streamlearn_events_unsent_bytes"]).collect()
    return next((one.value for metric in found for one in metric.samples if one.labels["topic"] == topic), 0.0)


def test_a_caller_waits_at_the_bound_until_the_topic_has_taken_some(place: Place) -> None:
    slow = FailingTopic(place.impressions)
    slow.fails.clear()
    slow.gate.clear()
    events: dict[str, Any] = {"linger_ms": 1, "unsent_bytes_max": 1 << 20}
    with Producer(place.folder(**events), impressions=slow, actions=place.actions) as producer:
        given: list[int] = []
        shown = small_impression(1, items=8)

        def give_all() -> None:
            for request in range(3_000):  # about 1.5 MiB
                producer.impression(**shown | {"request_id": f"q{request}"})
                given.append(request)

        caller = threading.Thread(target=give_all)
        caller.start()
        name = slow.url.rpartition("/")[2]
        wait_until(lambda: _unsent_bytes(name) > (1 << 20) - 1_000, "the bound to be reached")
        assert len(given) < 3_000
        slow.gate.set()
        caller.join()
    assert len(DECODER.decode(values(place.impressions)).impressions) == 3_000


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_an_event_far_ahead_of_the_wall_is_refused_alone(place: Place, by: str) -> None:
    clock, far = ManualClock(wall_ms=1_000_000), _acts(0, 1)[0] | {"event_time_ms": 1_000_000 + 601_000}
    columns = DECODER.decode([EventEncoder(small_app(), EventSettings()).action(far)]).actions.columns
    with place.producer(clock, time="wall") as producer:
        producer.action("q1", 1_000_000 + 599_000, 7, "click")
        with pytest.raises(BadRecord, match="601 s ahead of this machine") as caught:
            _give(producer, by, far, columns)
        assert "correct the clock" in caught.value.help
    assert DECODER.decode(values(place.actions)).actions.texts("request_id") == ["q1"]


def test_closing_tells_a_failure_and_lets_go_all_the_same(place: Place) -> None:
    failing = FailingTopic(place.actions)
    producer = Producer(place.folder(linger_ms=1), impressions=place.impressions, actions=failing)
    producer.impression(**small_impression(1))
    producer.action("q", 1, 7, "click")
    with pytest.raises(NotDelivered, match="the broker is away"):
        producer.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("producer-")]
    assert len(DECODER.decode(values(place.impressions)).impressions) == 1


def test_what_waits_in_packs_counts_against_the_bound_of_unsent_bytes(tmp_path: Path) -> None:
    settings = Settings(
        events=EventSettings(linger_ms=60_000, unsent_bytes_max=1 << 18), topics=TopicsSettings(time="event")
    )
    folder, name, wide = small_folder(tmp_path, settings=settings), uuid.uuid4().hex, TopicSettings(partitions=64)
    with (
        create_topic(f"memory://{name}.i", wide) as impressions,
        create_topic(f"memory://{name}.a", wide) as actions,
        Producer(folder, impressions=impressions, actions=actions) as producer,
        impressions.reader() as reader,
    ):
        most, given = 0.0, small_impression(1, items=8)
        for request in range(1_000):  # about 512 KiB; no pack of 64 is full by then
            producer.impression(**given | {"request_id": f"q{request}"})
            most = max(most, _unsent_bytes(f"{name}.i"))
        assert 1 << 17 < most <= 1 << 18
        assert sum(reader.end(partition) for partition in range(64)) > 0


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_an_event_its_topic_would_delete_at_once_is_refused(place: Place, by: str) -> None:
    clock, old = ManualClock(), _acts(0, 1)[0] | {"event_time_ms": ManualClock().wall_ms() - 8 * 86_400_000}
    columns = DECODER.decode([EventEncoder(small_app(), EventSettings()).action(old)]).actions.columns
    with place.producer(clock, time="wall") as producer:
        with pytest.raises(BadRecord, match="older than the 604800000 ms its topic keeps"):
            _give(producer, by, old, columns)
        _give(producer, by, old | {"event_time_ms": clock.wall_ms()}, {**columns, "event_time_ms": _now(clock)})
    assert len(DECODER.decode(values(place.actions)).actions) == 1


def _now(clock: ManualClock) -> NDArray[np.int64]:
    return np.array([clock.wall_ms()], np.int64)


def _give(producer: Producer, by: str, act: dict[str, Any], columns: Any) -> None:
    if by == "rows":
        producer.action(**act)
    else:
        producer.actions(columns, 1)


def test_events_never_flushed_are_sent_at_the_end_of_the_process_with_a_warning(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from streamlearn.events import Producer\n"
        "from streamlearn.settings import EventSettings, Settings\n"
        "from streamlearn.settings.topics import TopicsSettings\n"
        "from streamlearn.testing import *\n"
        "from streamlearn.topics import *\n"
        "root = sys.argv[1]\n"
        "topics = TopicsSettings(root=f'file://{root}', time='event')\n"
        "folder = small_folder(Path(root), settings=Settings(topics=topics, events=EventSettings(linger_ms=60_000)))\n"
        "for name in ('impressions', 'actions'): create_topic(folder.topic_url(name))\n"
        "producer = Producer(folder)\n"
        "for request in range(100): producer.impression(**small_impression(request))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert "small.impressions were never flushed; use the Producer in a with statement" in done.stderr
    with open_topic(f"file://{tmp_path}/small.impressions") as topic:
        assert len(DECODER.decode(values(topic)).impressions) == 100


def test_an_action_that_makes_no_label_is_told_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with place.producer() as producer:
        for request in range(3):
            producer.action(f"q{request}", 1, 7, "clik")
            producer.action(f"q{request}", 1, 7, "click")
    told = [record.getMessage() for record in caplog.records]
    assert told == ["action 'clik' gives no label of app 'small'; the actions of its labels are click, purchase"]


def test_every_thread_that_flushes_is_told_what_was_lost(place: Place) -> None:
    failing, told = FailingTopic(place.actions), []
    with Producer(place.folder(linger_ms=1), impressions=place.impressions, actions=failing) as producer:

        def lose(request: int) -> None:
            producer.action(f"q{request}", 1, 7, "click")
            with pytest.raises(NotDelivered):
                producer.flush()
            told.append(request)

        threads = [threading.Thread(target=lose, args=(request,)) for request in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with pytest.raises(NotDelivered):
            producer.flush()
    assert sorted(told) == [0, 1, 2, 3]


def test_a_flush_that_is_interrupted_has_forgotten_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = FailingTopic(place.impressions)
    with Producer(place.folder(), impressions=failing, actions=place.actions) as producer:
        give(producer, [1])
        outlet = producer._actions
        with monkeypatch.context() as patched:
            patched.setattr(outlet, "settle", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                producer.flush()
        with pytest.raises(NotDelivered, match="is away"):
            producer.flush()


def _interrupt(wanted: int) -> None:
    raise KeyboardInterrupt


def test_a_record_that_is_refused_takes_no_other_with_it(place: Place) -> None:
    failing = FailingTopic(place.actions)
    failing.fails.clear()
    failing.refused = b"q3"
    with Producer(place.folder(record_events_max=1), impressions=place.impressions, actions=failing) as producer:
        for request in range(6):
            producer.action(f"q{request}", 1, 7, "click")
        with pytest.raises(NotDelivered, match="up to 1 events in 1 records"):
            producer.flush()
    found = DECODER.decode(values(place.actions)).actions.texts("request_id")
    assert sorted(found) == ["q0", "q1", "q2", "q4", "q5"]


def test_what_waited_as_long_as_a_delivery_may_take_is_given_up_with_what_failed(place: Place) -> None:
    failing, clock = FailingTopic(place.actions), ManualClock()
    failing.gate.clear()
    with Producer(place.folder(), impressions=place.impressions, actions=failing, clock=clock) as producer:
        producer.action("q0", 1, 7, "click")
        flushing = threading.Thread(target=_flush_losing, args=(producer,))
        flushing.start()
        wait_until(failing.waiting.is_set, "the first to be tried")
        for request in range(5_000):  # more than one sending takes
            producer.action(f"q{request}", 1, 7, "click")
        producer._actions.press()
        clock.sleep(121)
        failing.gate.set()
        flushing.join()
        with pytest.raises(NotDelivered):
            producer.flush()
    assert failing.tries == 1


def _flush_losing(producer: Producer) -> None:
    with pytest.raises(NotDelivered):
        producer.flush()


def test_a_negative_heartbeat_is_refused_before_it_is_taken(place: Place) -> None:
    with place.producer() as producer, pytest.raises(BadRecord, match="before 1970"):
        producer.heartbeat(-5)


def test_ctrl_c_in_a_caller_loses_nothing_that_was_given(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.producer(record_events_max=2) as producer:
        give(producer, range(3))
        with monkeypatch.context() as patched:
            patched.setattr(Pack, "fits", _interrupt_fits)
            with pytest.raises(KeyboardInterrupt):
                give(producer, [3])
        give(producer, range(4, 40))
    found = DECODER.decode(values(place.impressions)).impressions.texts("request_id")
    assert sorted(found) == sorted(f"q{request}" for request in range(40) if request != 3)


def _interrupt_fits(pack: Pack, event_bytes: int, items: int, events_max: int, bytes_max: int) -> bool:
    raise KeyboardInterrupt


def test_a_fork_of_a_producers_process_is_told_and_sends_nothing_of_its_parents(tmp_path: Path) -> None:
    script = (
        "import os, sys, threading; from pathlib import Path\n"
        "from streamlearn.errors import UsageError\n"
        "from streamlearn.events import Producer\n"
        "from streamlearn.settings import EventSettings, Settings\n"
        "from streamlearn.settings.topics import TopicsSettings\n"
        "from streamlearn.testing import *\n"
        "from streamlearn.topics import *\n"
        "root = sys.argv[1]\n"
        "topics = TopicsSettings(root=f'file://{root}', time='event')\n"
        "folder = small_folder(Path(root), settings=Settings(topics=topics, events=EventSettings(linger_ms=60_000)))\n"
        "for name in ('impressions', 'actions'): create_topic(folder.topic_url(name))\n"
        "producer = Producer(folder)\n"
        "producer.impression(**small_impression(1))\n"
        "held, forked = threading.Event(), threading.Event()\n"
        "def hold():\n"
        "    with producer._impressions._changed:\n"  # as the sending thread may do at the moment of the fork
        "        held.set(); forked.wait()\n"
        "threading.Thread(target=hold).start(); held.wait()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    for ask in (producer.flush, lambda: producer.impression(**small_impression(2)), producer.close):\n"
        "        try: ask()\n"
        "        except UsageError as error: print(error.message)\n"
        "    sys.exit(0)\n"
        "forked.set()\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "producer.close()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.count("the thread that sends to") == 3
    with open_topic(f"file://{tmp_path}/small.impressions") as topic:
        assert len(DECODER.decode(values(topic)).impressions) == 1
