"""What is asked of training: it is obeyed once, by a version that says so itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from streamlearn.errors import RunOver, UsageError, VersionDefect
from streamlearn.settings import PublisherSettings
from streamlearn.versions import (
    Chain,
    Fence,
    History,
    PointerLog,
    Request,
    Requests,
    Store,
    TimeSkip,
    open_store,
    write_revert,
)
from tests.publisher.training import INTERVAL_S, MODEL, Training, check_learned


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def served(store: Store) -> int:
    found = PointerLog(store, MODEL).newest().active
    return 0 if found is None else found.version


def test_the_trainer_is_given_requests_until_a_version_says_they_were_obeyed(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish()
        ref = History(store, MODEL).read()[0].ref
        Requests(store, MODEL).ask(Request(to=ref, reason="by hand"))
        training.tick()  # also while nothing is learned
        assert [one.seq for one in training.publisher.requests] == [1]
        training.metrics["requests_obeyed"] = 1.0
        training.publish()
        assert training.publisher.requests == ()
        # Who says nothing goes on saying so.
        training.metrics.clear()
        training.publish()
        assert Chain.find(store, MODEL).manifest.metrics["requests_obeyed"] == 1.0
        assert training.publisher.requests == ()


def test_requests_are_obeyed_in_their_order_and_skips_stay(store: Store) -> None:
    skips = [TimeSkip(begin_ms=at, end_ms=at + 5) for at in (0, 10)]
    with Training(store).begin() as training:
        training.publish(2)
        training.publish()
        first, second = (one.ref for one in History(store, MODEL).read()[1:])
        for to, skip in zip((first, second), skips, strict=True):
            Requests(store, MODEL).ask(Request(to=to, skips=(skip,), reason="by hand"))
        training.tick()
        publisher = training.publisher
        with pytest.raises(UsageError, match=r"request 2 is to be obeyed, those to obey are \[1, 2\]"):
            publisher.obey(publisher.requests[1])
        publisher.obey(publisher.requests[0])
        training.recover()  # it dies between two, and goes on with the second
        assert training.steps == 2
        (request,) = publisher.requests
        publisher.obey(request)
        training.recover()
        assert (training.steps, publisher.requests) == (3, ())
        manifest = Chain.find(store, MODEL).manifest
        assert (manifest.content_of, manifest.skips) == (second, tuple(skips))
        training.publish()
    check_learned(store, 4)


def test_a_run_that_is_over_obeys_nothing(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish()
        Requests(store, MODEL).ask(Request(to=History(store, MODEL).read()[0].ref))
        training.tick()
        Fence(store, MODEL).take("another trainer")
        with pytest.raises(RunOver):
            training.publisher.obey(training.publisher.requests[0])
    assert [one.kind for one in History(store, MODEL).read()] == ["base", "delta"]


def test_training_goes_back_to_the_last_clean_version_and_on_from_there(store: Store) -> None:
    settings = PublisherSettings(publish_interval_s=INTERVAL_S, on_reject="rewind")
    with Training(store, settings).begin() as training:
        training.publish(2)
        training.step(poison=float("nan"))
        assert training.tick()
        training.publish()
        assert served(store) == 2
        (request,) = training.publisher.requests
        publisher = training.publisher
        with pytest.raises(UsageError, match=r"request 9 is to be obeyed, those to obey are \[1\]"):
            publisher.obey(structs.replace(request, seq=9))
        with pytest.raises(VersionDefect, match="request 1 is for"):
            publisher.obey(structs.replace(request, to=structs.replace(request.to, sha256="0" * 64)))
        revert = publisher.obey(request)
        assert Chain.find(store, MODEL).ref == revert
        training.recover()
        assert publisher.requests == ()  # the revert itself says so
        assert training.steps == 2
        assert served(store) == 5  # the revert is clean, and served
        training.publish(3)
        assert publisher.requests == ()
        # Going back behind the revert asks for nothing again.
        write_revert(store, MODEL, to=2, run=publisher.run, version=publisher.take_number(), clock=training.clock)
        training.recover()
        assert publisher.requests == ()
        training.publish(3)
    kinds = [one.kind for one in History(store, MODEL).read()]
    assert kinds == ["base", *(["delta"] * 3), *(["revert", "delta"] * 2)]
    assert served(store) == 8
    check_learned(store, 5)
