"""A member's log: bounded files, the last lines at hand, and a full disk that stops nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlearn.errors import ServiceError
from streamlearn.settings.up import UpSettings
from streamlearn.supervision import claimed
from streamlearn.supervision.log import MemberLog

SETTINGS = UpSettings(log_bytes_max=1 << 17, log_files_max=2)


def test_files_are_bounded_and_so_is_their_number(tmp_path: Path) -> None:
    log = MemberLog(tmp_path, "node-1", SETTINGS)
    for number in range(20_000):
        log.take(f"{number:06} {'x' * 43}\n".encode())
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [one.name for one in files] == ["node-1.log", "node-1.log.1", "node-1.log.2"]
    assert all(0 < one.stat().st_size <= SETTINGS.log_bytes_max for one in files)
    assert log.path.read_text().splitlines()[-1].startswith("019999")


def test_it_goes_on_where_it_was_and_keeps_the_last_lines_of_the_newest_process(tmp_path: Path) -> None:
    for life in ("first", "second"):
        log = MemberLog(tmp_path, "trainer", SETTINGS)
        log.begin(f"{life} starts")
        for number in range(30):
            log.take(f"{life} {number}\n".encode())
        log.take(b"\n")
        log.close()
    assert log.path.read_text().count("starts") == 2
    assert log.tail == [f"second {number}" for number in range(10, 30)]
    log = MemberLog(tmp_path, "trainer", SETTINGS)
    log.take(b"old")
    log.begin("third starts")
    assert log.tail == []
    log.close()


def test_bytes_that_are_no_text_are_kept_as_they_can_be_said(tmp_path: Path) -> None:
    log = MemberLog(tmp_path, "a", SETTINGS)
    assert log.take(b"\xffok\n") == "\\xffok"
    log.close()


def test_a_line_that_cannot_be_written_is_counted_and_stops_nobody(tmp_path: Path) -> None:
    full = tmp_path / "full.log"
    full.symlink_to("/dev/full")
    log = MemberLog(tmp_path, "full", SETTINGS)
    assert log.take(b"words\n") == "words"
    assert log.lost_lines == 1
    assert log.tail == ["words"]
    log.close()


def test_a_folder_is_of_one_up_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "logs"
    with claimed(folder):
        with pytest.raises(ServiceError, match=r"another .* \(pid \d+\) uses") as caught, claimed(folder):
            pass
        assert "--logs" in caught.value.help
    with claimed(folder):
        pass
