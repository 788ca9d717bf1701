"""Kept files, and keys that are looked at: both depend on what there is, and on no clock."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from streamlearn.settings.tables import TableSettings
from streamlearn.table import Expiry
from streamlearn.trainer.expiry_schedule import ExpirySchedule
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.quarantine import Quarantine


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    kept = Quarantine(tmp_path / "kept", 100)
    assert not (tmp_path / "kept").exists()
    for number in range(5):
        kept.add(f"one-{number}", bytes(30))
        os.utime(tmp_path / "kept" / f"one-{number}", (number, number))
    assert names(tmp_path / "kept") == {"one-2", "one-3", "one-4"}
    kept.add("large", bytes(100))
    assert names(tmp_path / "kept") == {"large"}
    assert (tmp_path / "kept" / "large").read_bytes() == bytes(100)


def test_what_is_too_large_is_not_kept_and_drives_nothing_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = Quarantine(tmp_path, 100)
    kept.add("small", bytes(60))
    with caplog.at_level(logging.WARNING):
        kept.add("large", bytes(101))
    assert "exceeds the quarantine's limit" in caplog.text
    assert names(tmp_path) == {"small"}


def test_what_comes_again_under_its_name_takes_its_place(tmp_path: Path) -> None:
    kept = Quarantine(tmp_path, 100)
    kept.add("other", bytes(30))
    for size in (60, 70):
        kept.add("same", bytes(size))
    assert names(tmp_path) == {"other", "same"}
    assert (tmp_path / "same").stat().st_size == 70


def test_a_folder_that_cannot_be_written_is_said_and_nothing_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        Quarantine(tmp_path / "file", 100).add("one", b"1")
    assert "one could not be put into quarantine" in caplog.text


class Tables:
    """What would be asked of the parameter server."""

    def __init__(self) -> None:
        self.dims = {"ids": 8, "tags": 4}
        self.asked: list[tuple[dict[str, Expiry], int, int]] = []

    def expire(self, expiries: dict[str, Expiry], *, now_ms: int, budget_keys: int) -> dict[str, Any]:
        self.asked.append((expiries, now_ms, budget_keys))
        return {}


def looked(settings: TableSettings, steps: int, **reached: Any) -> list[tuple[dict[str, Expiry], int, int]]:
    tables = Tables()
    expiring = ExpirySchedule(tables, settings)  # type: ignore[arg-type]
    for step in range(1, steps + 1):
        if expiring.is_due(step):
            expiring.look(step, Reached((0,), (None,), **reached))
    return tables.asked


def test_keys_are_looked_at_every_so_many_steps_by_the_time_of_samples() -> None:
    settings = TableSettings(idle_s=2.5, rare_count=3, rare_idle_s=1.0, expire_steps=4, expire_keys=99)
    asked = looked(settings, 13, clock_ms=77)
    expiry = Expiry(idle_ms=2_500, count_min=3, rare_idle_ms=1_000, keys_max=None)
    assert asked == [({"ids": expiry, "tags": expiry}, 77, 99)] * 3


@pytest.mark.parametrize("given", [{"idle_s": 1.0}, {"rare_count": 1}, {"keys_max": 5}], ids=str)
def test_any_one_of_the_settings_has_keys_looked_at(given: dict[str, Any]) -> None:
    assert len(looked(TableSettings(expire_steps=5, **given), 10, clock_ms=1)) == 2


def test_nothing_is_looked_at_where_no_key_is_to_leave_or_no_time_is_known() -> None:
    assert looked(TableSettings(expire_steps=1), 10, clock_ms=1) == []
    assert looked(TableSettings(expire_steps=1, idle_s=1.0), 10) == []
