"""A year on a fast clock: what a trainer writes for months stays within its disk, with bases and removals by itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamlearn.publisher import Publisher
from streamlearn.settings import PublisherSettings, RetentionSettings, Settings
from streamlearn.testing import ManualClock
from streamlearn.versions import History, Store, compact, open_store
from streamlearn.versions.pointer.model import Model
from streamlearn.versions.upkeep.cleanup import clean_up, plan_cleanup
from tests.publisher.training import MODEL, Training, check_learned

# `make chaos-parts` has a year of versions every 6 hours, and a week of one a minute.
_DAYS = int(os.environ.get("YEAR_DAYS", "11"))
_MINUTES = int(os.environ.get("WEEK_MINUTES", "125"))


class Life:
    """A trainer for months, with a registry, a store and settings as the product's."""

    def __init__(self, folder: Path, interval_s: float, deltas_max: int, retention: RetentionSettings) -> None:
        self.folder = folder
        self.store: Store = open_store(f"file://{folder}/store")
        publishing = PublisherSettings(publish_interval_s=interval_s, base_deltas_max=deltas_max)
        self.model = Model(
            MODEL, self.store.url, "", Settings(publisher=publishing, retention=retention), is_alone=True
        )
        self.clock = ManualClock()
        self.training = Training(
            self.store,
            publishing,
            clock=self.clock,
            compact=lambda version: compact(self.store, MODEL, version, clock=self.clock),
            clean=self.clean,
        )
        self.training.begin()
        self.interval_s = interval_s

    @property
    def publisher(self) -> Publisher:
        return self.training.publisher

    def clean(self) -> tuple[int, int]:
        plan = plan_cleanup(self.model, clock=self.clock)
        swept = clean_up(self.model, plan, wait=lambda: None, clock=self.clock)
        return swept.files, swept.bytes

    def publish(self) -> None:
        self.clock.sleep(self.interval_s)
        self.training.step()
        assert self.publisher.settle(60)
        # On a fast clock an hour is shorter than they take.
        self.publisher._bases.join()
        self.publisher._cleaner.join()


@pytest.mark.parametrize(
    ("interval_s", "versions", "kept", "deltas_max"),
    [(6 * 3_600.0, _DAYS * 4, 12, 8), (60.0, _MINUTES, 10, 20)],
    ids=["year", "week"],
)
def test_months_of_versions_stay_within_their_disk(
    interval_s: float, versions: int, kept: int, deltas_max: int, tmp_path: Path
) -> None:
    life = Life(tmp_path, interval_s, deltas_max, RetentionSettings(keep_versions_min=10, keep_s=kept * interval_s))
    # Those that are kept, as many up to the base before, those of an hour between removals, and of a new base.
    most = 2 * kept + max(1, round(3_600 / interval_s)) + deltas_max + 2
    for _ in range(versions):
        life.publish()
        assert sum(1 for _ in (tmp_path / "store" / MODEL / "deltas").iterdir()) <= most
    life.publisher.close()
    assert versions > most + deltas_max
    assert 1 < sum(1 for _ in (tmp_path / "store" / MODEL / "bases").iterdir()) <= 4
    known = [known.version for known in History(life.store, MODEL).read()]
    assert known[-1] == versions + 1
    assert kept <= len(known) <= most
    check_learned(life.store, life.training.steps)
