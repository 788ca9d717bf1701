"""The judge: what it refuses and what it lets pass, alone and within a publisher."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streamlearn.publisher import DEFAULT_CHECKS, Case, Judge
from streamlearn.settings import JudgeSettings, PublisherSettings
from streamlearn.testing import wait_until
from streamlearn.versions import (
    Chain,
    Finding,
    History,
    Known,
    PointerLog,
    Request,
    Requests,
    Store,
    Verdict,
    VersionRef,
    open_store,
)
from streamlearn.versions.format.verdict import read_verdict
from streamlearn.versions.pointer.moves import promote, release, rollback
from tests.publisher.samples import RowScorer, samples_of
from tests.publisher.training import INTERVAL_S, KEYS, MODEL, Training, check_learned

FAST = JudgeSettings(scored_rows_min=100)


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return open_store(str(tmp_path_factory.mktemp("store")))


def known(version: int, **metrics: float) -> Known:
    ref = VersionRef(version=version, run=1, sha256="0" * 64)
    return Known(ref=ref, kind="delta", parent=ref, metrics=metrics, outcome="passed")


def found(verdict: Verdict | None, name: str) -> Finding:
    assert verdict is not None
    return next(one for one in verdict.findings if one.check == name)


def verdict_of(store: Store, version: int) -> Verdict:
    history = History(store, MODEL)
    ref = next(one.ref for one in history.read() if one.version == version)
    verdict = read_verdict(store, history.folder(ref))
    assert verdict is not None
    return verdict


def served(store: Store) -> int:
    active = PointerLog(store, MODEL).newest().active
    return 0 if active is None else active.version


def move(store: Store, decide: Callable[..., Any], *arguments: Any) -> None:
    known = History(store, MODEL).read()
    PointerLog(store, MODEL).move(lambda now: decide(now, known, *arguments), by="an operator")


# -- checks alone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rows.main.not_finite", "dense.w.not_finite", "metric.loss.not_finite"])
def test_what_is_no_number_is_refused_and_named(name: str) -> None:
    verdict = Judge().judge(Case(known(2, **{name: 3.0})))
    assert verdict.outcome == "rejected"
    assert name.removesuffix(".not_finite") in found(verdict, "finite").said


@pytest.mark.parametrize(
    ("now", "outcome"), [(3.9, "unscored"), (4.1, "rejected"), (0.26, "unscored"), (0.24, "rejected")]
)
@pytest.mark.parametrize("name", ["rows.main.rms", "dense.w.rms"])
def test_a_norm_may_grow_or_shrink_by_a_factor(name: str, now: float, outcome: str) -> None:
    active = known(1, **{name: 1.0})
    assert Judge().judge(Case(known(2, **{name: now}), (active,), active=active)).outcome == outcome


def test_a_norm_is_compared_with_the_newest_version_that_has_it() -> None:
    earlier = (known(1, **{"rows.main.rms": 100.0}), known(2, **{"rows.main.rms": 1.0}), known(3))
    verdict = Judge().judge(Case(known(4, **{"rows.main.rms": 9.0}), earlier, active=earlier[-1]))
    assert found(verdict, "norms").said == "rows.main.rms is 9, but 1 in version 2"


def test_what_begins_at_zero_may_grow() -> None:
    active = known(1, **{"dense.bias.rms": 0.0})
    assert Judge().judge(Case(known(2, **{"dense.bias.rms": 0.3}), (active,), active=active)).outcome == "unscored"
    assert Judge().judge(Case(known(2, **{"dense.bias.rms": 3.0}), (active,), active=active)).outcome == "rejected"


def test_a_check_that_is_turned_off_lets_everything_pass() -> None:
    active = known(1, **{"dense.w.rms": 1.0})
    case = Case(known(2, **{"dense.w.rms": 1e6}), (active,), JudgeSettings(norm_ratio_max=0), active)
    assert Judge().judge(case).outcome == "unscored"


def test_a_version_that_learned_from_too_few_rows_is_refused() -> None:
    settings = JudgeSettings(samples_rows_min=100)
    assert Judge().judge(Case(known(2, learned_rows=99.0), settings=settings)).outcome == "rejected"
    assert Judge().judge(Case(known(2, learned_rows=100.0), settings=settings)).outcome == "unscored"


def test_every_check_says_what_it_saw_also_when_it_is_content() -> None:
    verdict = Judge().judge(Case(known(2, learned_rows=5.0)))
    assert [one.check for one in verdict.findings] == [one.name for one in DEFAULT_CHECKS]
    assert all(one.said for one in verdict.findings)


class Raising:
    """A check that fails."""

    name = "raising"

    def judge(self, case: Case) -> Finding:
        """Fail."""
        raise ZeroDivisionError("never this")  # noqa: EM101


class Hanging:
    """A check that is not done before it is let go."""

    name = "hanging"

    def __init__(self) -> None:
        self.go = threading.Event()

    def judge(self, case: Case) -> Finding:
        """Hang."""
        assert self.go.wait(300)
        return Finding(check=self.name, is_ok=True)


def test_a_check_that_raises_rejects_and_says_so_and_the_others_are_asked_too() -> None:
    verdict = Judge(checks=[Raising(), *DEFAULT_CHECKS]).judge(Case(known(2)))
    assert verdict.outcome == "rejected"
    assert found(verdict, "raising").said == "it failed: ZeroDivisionError('never this')"
    assert len(verdict.findings) == 1 + len(DEFAULT_CHECKS)


def test_a_judge_that_takes_too_long_rejects_that_version_alone_and_the_next_wait_for_it(store: Store) -> None:
    hanging, patient = Hanging(), JudgeSettings(judge_s_max=120.0)
    hanging.go.set()
    judge = Judge(patient, checks=[hanging])
    with Training(store, judge=judge).begin() as training:
        hanging.go.clear()
        judge.settings = JudgeSettings(judge_s_max=1.0)
        training.publish()
        training.publish()
        assert [one.outcome for one in History(store, MODEL).read()] == ["passed", "rejected", None]
        assert found(verdict_of(store, 2), "hanging").said == "not finished after judge_s_max = 1 s"
        assert judge.busy_with == 2
        hanging.go.set()
        wait_until(lambda: judge.busy_with is None, "the check to be done")
        judge.settings = patient
        training.publish()
    assert [one.outcome for one in History(store, MODEL).read()] == ["passed", "rejected", "passed", "passed"]


def test_time_in_which_the_process_was_stopped_is_no_verdict() -> None:
    program = """
import os, signal, threading
from streamlearn.publisher import Case, Judge
from streamlearn.settings import JudgeSettings
from streamlearn.versions import Finding, Known, VersionRef

class Slow:
    name = "slow"
    def judge(self, case):
        os.kill(os.getpid(), signal.SIGSTOP)
        threading.Event().wait(0.8)  # done after it was looked at once more
        return Finding(check=self.name, is_ok=True)

known = Known(ref=VersionRef(version=2, run=1, sha256="0" * 64), kind="delta")
print(Judge(JudgeSettings(judge_s_max=5.0), checks=[Slow()]).judge(Case(known)).outcome, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as judging:
        assert judging.stdout is not None
        try:
            stat = Path(f"/proc/{judging.pid}/stat")
            wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the process to be stopped")
            begin_s = time.monotonic()
            wait_until(lambda: time.monotonic() - begin_s > 5.5, "the process to have been stopped for long enough")
            judging.send_signal(signal.SIGCONT)
            assert judging.stdout.readline() == "passed\n"
        finally:
            judging.kill()


# -- within a publisher ---------------------------------------------------------------------------------------------


def scored(store: Store, settings: PublisherSettings | None = None, limits: JudgeSettings = FAST) -> Training:
    """A trainer whose versions are scored on samples."""
    training = Training(store, settings, judge=Judge(limits, samples=lambda: [samples_of(2_000), samples_of(500, 2)]))
    scorer = RowScorer(training.client)
    training.publisher._promoter._judge._scorer = scorer
    training.scorer = scorer  # type: ignore[attr-defined]
    return training


def learn(training: Training, times: int = 1, **how: Any) -> None:
    for _ in range(times):
        training.scorer.learn(samples_of(2_000, 7), **how)  # type: ignore[attr-defined]
    training.learned += 2_000
    assert training.tick()


def test_rows_that_are_nan_are_refused_and_the_last_good_version_stays(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish()
        training.step(poison=float("nan"))
        assert training.tick()
        training.publish()
    said = re.fullmatch(
        r"not finite: rows\.main \([0-9]+ NaN; first keys ([0-9, ]+)\)",
        found(verdict_of(store, 3), "finite").said,
    )
    assert said is not None
    keys = [int(key) for key in said[1].split(", ")]
    assert len(keys) == 5
    assert keys == sorted(keys)
    assert {*keys} <= {*KEYS.tolist()}
    assert served(store) == 2
    # What follows a rejected version is tainted with it, until a revert or someone who accepts it.
    assert [one.outcome for one in History(store, MODEL).read()][:3] == ["unscored", "unscored", "rejected"]


def test_dense_weights_and_metrics_that_are_nan_are_refused(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish()
        training.metrics["loss"] = float("nan")
        training.publish()
        training.metrics.clear()
        training.dense_of = lambda steps: np.full(8, np.inf, np.float32)
        training.publish()
    assert "metric.loss (1 NaN)" in found(verdict_of(store, 3), "finite").said
    assert "dense.w (8 infinite)" in found(verdict_of(store, 4), "finite").said
    assert served(store) == 2


def test_flipped_labels_are_refused_for_their_scores(store: Store) -> None:
    with scored(store).begin() as training:
        for _ in range(3):
            learn(training)
        assert served(store) == 4
        first = verdict_of(store, 3)
        learn(training, 10, is_flipped=True)
    verdict = verdict_of(store, 5)
    assert verdict.outcome == "rejected"
    assert verdict.against is not None
    assert verdict.against.version == 4
    said = found(verdict, "scores")
    assert said.said.startswith("click: AUC fell by")
    assert said.values["auc.click"] < 0.9 * said.values["active.auc.click"]
    assert served(store) == 4
    better = found(first, "scores").values
    assert better["auc.click"] > 0.8
    # Negatives weigh one over their keep rate, or predictions of all impressions would seem too low.
    assert 0.8 < better["calibration.click"] < 1.25


def test_the_active_versions_rows_stay_to_be_compared_with_while_it_is_held(store: Store) -> None:
    with scored(store).begin() as training:
        learn(training)
        learn(training)
        move(store, rollback, 2)
        for _ in range(3):
            learn(training)
    for version in (4, 5, 6):
        assert found(verdict_of(store, version), "scores").said.startswith("click: AUC")
        assert verdict_of(store, version).against == History(store, MODEL).read()[1].ref


def test_a_version_whose_rows_were_given_up_is_not_scored_and_that_is_said(store: Store) -> None:
    with scored(store).begin() as training:
        learn(training)
        learn(training)
        move(store, rollback, 1)
        learn(training)
    scores = found(verdict_of(store, 4), "scores")
    assert "the samples cannot be scored" in scores.said
    assert scores.is_ok
    assert not scores.is_checked
    assert verdict_of(store, 4).outcome == "unscored"


def test_few_samples_are_said_and_not_checked(store: Store) -> None:
    with scored(store, limits=JudgeSettings(scored_rows_min=10_000)).begin() as training:
        learn(training)
    said = found(verdict_of(store, 2), "scores")
    assert (said.is_ok, said.is_checked) == (True, False)
    assert "samples are in closed windows; at least 10000 are required" in said.said


def test_an_unscored_version_waits_for_one_that_is_compared_where_the_setting_says_so(store: Store) -> None:
    """The first version is served in any case, or none ever was."""
    limits = JudgeSettings(unscored="hold", scored_rows_min=10_000)
    with scored(store, limits=limits).begin() as training:
        assert served(store) == 1
        learn(training)
        assert served(store) == 1
        assert training.publisher.step is not None
        assert training.publisher.step.said == "version 2 is unscored, and judge.unscored is hold"
        training.publisher._promoter._judge.settings = JudgeSettings(unscored="hold", scored_rows_min=100)
        learn(training)
        assert served(store) == 3
    assert [one.outcome for one in History(store, MODEL).read()] == ["unscored", "unscored", "passed"]


def test_an_unscored_version_that_an_operator_promoted_stays_served(store: Store) -> None:
    limits = JudgeSettings(unscored="hold", scored_rows_min=10_000)
    with scored(store, limits=limits).begin() as training:
        learn(training)
        move(store, promote, 2)
        learn(training)
        assert served(store) == 2


def test_samples_of_one_class_compare_nothing(store: Store) -> None:
    with scored(store).begin() as training:
        rows = samples_of(2_000)
        labels = tuple(replace(label, value=np.zeros_like(label.value)) for label in rows.labels)
        training.publisher._promoter._judge._samples = lambda: [replace(rows, labels=labels)]
        learn(training)
    scores = found(verdict_of(store, 2), "scores")
    assert (scores.is_ok, scores.is_checked) == (True, False)
    assert "rows are of one class" in scores.said


def test_an_unscored_revert_to_what_is_served_is_not_held(store: Store) -> None:
    limits = JudgeSettings(unscored="hold", scored_rows_min=10_000)
    with scored(store, limits=limits).begin() as training:
        learn(training)
        Requests(store, MODEL).ask(
            Request(to=History(store, MODEL).read()[0].ref, by="test"), History(store, MODEL).read()
        )
        learn(training)
        training.publisher.obey(training.publisher.requests[0])
        training.recover()
        assert served(store) == 4


def test_only_the_newest_samples_are_scored(store: Store) -> None:
    with scored(store, limits=JudgeSettings(scored_rows_min=100, scored_rows_max=700)).begin() as training:
        learn(training)
        rows = [len(one) for one in training.publisher._promoter._judge._samples()]  # type: ignore[misc]
        assert rows[1] < 700 < sum(rows)
        assert training.scorer.asked == [2, 1]  # type: ignore[attr-defined]


def test_a_version_that_comes_during_a_hold_is_judged_and_served_at_the_release(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish()
        training.publish()
        move(store, rollback, 3)
        training.publish()
        assert served(store) == 3
        assert training.publisher.step is not None
        assert "the pointer is held at 3" in training.publisher.step.said
        move(store, release)
        assert served(store) == 4
        training.publish()
    assert served(store) == 5
    assert {one.outcome for one in History(store, MODEL).read()} == {"unscored"}


def test_a_rejection_asks_training_to_go_back_once_where_the_setting_says_so(store: Store) -> None:
    settings = PublisherSettings(publish_interval_s=INTERVAL_S, on_reject="rewind")
    with Training(store, settings).begin() as training:
        training.publish()
        training.metrics["loss"] = float("nan")
        training.publish()
        training.publish()
        assert [(one.seq, one.to.version) for one in training.publisher.requests] == [(1, 2)]
    with Training(store, settings).begin() as again:
        assert [(one.seq, one.to.version) for one in again.publisher.requests] == [(1, 2)]
    assert [one.reason for one in Requests(store, MODEL).after(0)] == ["version 3 was rejected"]


def test_versions_are_left_to_people_where_the_setting_says_so(store: Store) -> None:
    with Training(store, PublisherSettings(publish_interval_s=INTERVAL_S, promote=False)).begin() as training:
        training.publish()
    assert [one.outcome for one in History(store, MODEL).read()] == ["unscored", "unscored"]
    assert served(store) == 0


def test_what_was_committed_and_not_judged_is_judged_by_the_next_run_by_what_files_say(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish()
        follow = training.publisher._promoter.follow

        def dead(*given: Any, **named: Any) -> Any:
            raise SystemExit  # as if the process ended here

        training.publisher._promoter.follow = dead  # type: ignore[method-assign]
        training.step()
        training.clock.sleep(INTERVAL_S)
        training.publisher.boundary(training.note)
        with pytest.raises(SystemExit):
            training.publisher.settle(60)
        assert [one.outcome for one in History(store, MODEL).read()] == ["unscored", "unscored", None]
        assert served(store) == 2
        del follow
    with scored(store).begin():
        assert served(store) == 3
    assert found(verdict_of(store, 3), "scores").said == "samples are no longer scored by this version"


def test_a_verdict_that_could_not_be_written_is_given_with_the_next_version(store: Store) -> None:
    from streamlearn.errors import StoreUnreachable

    with Training(store).begin() as training:
        following = training.publisher._promoter
        judged = following._judge_all

        def failing(*given: Any, **named: Any) -> Any:
            raise StoreUnreachable("no space")  # noqa: EM101

        following._judge_all = failing  # type: ignore[method-assign]
        training.publish()
        assert served(store) == 1
        following._judge_all = judged  # type: ignore[method-assign]
        training.publish()
    assert served(store) == 3
    assert [one.outcome for one in History(store, MODEL).read()] == ["unscored"] * 3
    check_learned(store, 2)


def test_a_verdict_is_in_the_store_as_it_was_given(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish()
    verdict = verdict_of(store, 2)
    assert verdict.version == Chain.find(store, MODEL).ref
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict
