"""What is asked of training: it is obeyed once, by a version that says so itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from streamlearn.errors import RunOver, UsageError, VersionDefect
from streamlearn.ps import Epoch
from streamlearn.settings import PublisherSettings
from streamlearn.versions import (
    Chain,
    History,
    PointerLog,
    Request,
    Requests,
    Store,
    TimeSkip,
    open_store,
    write_revert,
)
from streamlearn.versions.pointer.fence import Fence
from tests.publisher.training import INTERVAL_S, KEYS, MODEL, Training, check_learned


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
        with pytest.raises(UsageError, match=r"cannot obey request 2; the pending requests are \[1, 2\]"):
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


def test_a_request_is_obeyed_though_a_run_that_is_over_committed_the_next_number(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish()
        first = History(store, MODEL).read()[0].ref
    Requests(store, MODEL).ask(Request(to=first))
    with Training(store) as training:
        resumed = training.publisher.start()
        training.client.restore(Epoch(resumed.run), resumed.ref)
        write_revert(store, MODEL, to=2, run=1, version=3)  # it was late, and not told in time
        revert = training.publisher.obey(training.publisher.requests[0])
        assert (revert.version, revert.run) == (4, 2)
        assert training.publisher.resume().ref == revert


def test_a_run_that_is_over_by_the_time_a_request_is_obeyed_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Training(store).begin() as training:
        training.publish()
        Requests(store, MODEL).ask(Request(to=History(store, MODEL).read()[0].ref))
        training.tick()

        def overtaken(*given: Any, **named: Any) -> Any:
            newer = Fence(store, MODEL).take("another trainer")
            write_revert(store, MODEL, to=2, run=newer, version=3)
            return write_revert(*given, **named)

        monkeypatch.setattr("streamlearn.publisher.publisher.write_revert", overtaken)
        with pytest.raises(RunOver, match="run 2"):
            training.publisher.obey(training.publisher.requests[0])


def test_shards_are_restored_to_the_version_they_are_told_where_two_runs_gave_one_number(
    store: Store, tmp_path: Path
) -> None:
    with Training(store).begin() as training:
        training.publish()
    folder = tmp_path / "store" / MODEL / "deltas" / f"{3:012d}-{1:08d}"
    write_revert(store, MODEL, to=2, run=1, version=3)
    with Training(store) as training:
        resumed = training.publisher.start()
        # Between that look and the restore, run 2 is found to have gone on from version 2, with the same number.
        folder.rename(tmp_path / "late")
        theirs = write_revert(store, MODEL, to=1, run=2, version=3)
        (tmp_path / "late").rename(folder)
        assert resumed.ref is not None
        assert Chain.find(store, MODEL, 3).ref == theirs.ref != resumed.ref
        training.client.restore(Epoch(resumed.run), resumed.ref)
        assert training.client.pull("main", KEYS).any()


def test_training_starts_though_the_newest_move_of_the_pointer_is_damaged(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Training(store).begin() as training:
        training.publish()
        first = History(store, MODEL).read()[0].ref
    Requests(store, MODEL).ask(Request(to=first))
    record = tmp_path / "store" / MODEL / "pointer" / f"{2:012d}.json"
    whole = record.read_bytes()
    record.chmod(0o644)
    record.write_bytes(whole.replace(b'"active"', b'"activf"'))
    with Training(store).begin() as training:
        assert "is not served yet" in caplog.text
        assert [one.seq for one in training.publisher.requests] == [1]
        training.publish()
        assert training.publisher.committed is not None
        assert training.publisher.committed.version == 3
        record.write_bytes(whole)
        training.publish()
        assert served(store) == 4


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
        with pytest.raises(UsageError, match=r"cannot obey request 9; the pending requests are \[1\]"):
            publisher.obey(structs.replace(request, seq=9))
        with pytest.raises(VersionDefect, match="request 1 asks for"):
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


def test_a_request_that_cannot_be_obeyed_is_refused_with_its_reason_and_the_next_one_is_obeyed(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish(3)
        refs = [one.ref for one in History(store, MODEL).read()]
        requests = Requests(store, MODEL, clock=training.clock)
        for ref in refs:
            requests.ask(Request(to=ref, by="ops"))
        training.tick()
        publisher = training.publisher
        publisher.refuse(publisher.requests[0], "its rows are damaged")
        assert [one.seq for one in publisher.requests] == [2]
        training.tick()
        assert [one.seq for one in publisher.requests] == [2]
        # Also one that dies before any version says so does not try it again, and the first reason stays.
        requests.refuse(requests.after(0)[0], "another reason")
        training.recover()
        (second,) = publisher.requests
        publisher.obey(second)
        training.recover()
        assert publisher.requests == ()
        assert Chain.find(store, MODEL).manifest.metrics["requests_obeyed"] == 2
    (refusal,) = requests.refusals()
    assert (refusal.seq, refusal.to, refusal.by, refusal.reason) == (1, refs[0], "ops", "its rows are damaged")
    assert requests.refused_last() is None  # one that was asked for later was obeyed


def test_the_next_version_says_that_a_refused_request_is_done_with(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish()
        requests = Requests(store, MODEL, clock=training.clock)
        requests.ask(Request(to=History(store, MODEL).read()[0].ref))
        training.tick()
        training.publisher.refuse(training.publisher.requests[0], "why not")
        training.publish()
        assert Chain.find(store, MODEL).manifest.metrics["requests_obeyed"] == 1
        refused = requests.refused_last()
        assert refused is not None
        assert refused.wall_ms == training.clock.wall_ms() - 1_000 * INTERVAL_S


def test_a_version_that_training_could_not_go_back_to_is_not_asked_for_again(store: Store) -> None:
    settings = PublisherSettings(publish_interval_s=INTERVAL_S, on_reject="rewind")
    with Training(store, settings).begin() as training:
        training.publish()
        training.step(poison=float("nan"))
        assert training.tick()
        targets = []
        while training.publisher.requests:
            (request,) = training.publisher.requests
            targets.append(request.to.version)
            training.publisher.refuse(request, "damaged")
            training.tick()
        assert targets == [2, 1]
