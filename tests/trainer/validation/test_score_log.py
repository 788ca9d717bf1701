"""The log of scores: what comes back, what a killed writer leaves, and how large it becomes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.errors import BadRecord, ScoresMissing
from streamlearn.settings import ValidationSettings
from streamlearn.testing import ManualClock
from streamlearn.trainer.validation import WindowScore, score_log
from streamlearn.trainer.validation.score_log import COLUMNS, ScoreLog, read_scores
from tests.campaign import examples

ROOT = Path(__file__).parent.parent.parent.parent


def score(
    number: int = 0, text: str = "", rows: int = 10, *, is_complete: bool = True, auc: float | None = 0.7
) -> WindowScore:
    segment = "page" if text else ""
    begin = 60_000 * number
    numbers = (rows, 2.5, 8.0, auc, 0.6, None, 0.1 + 0.2, 1.0)
    return WindowScore("click", begin, begin + 60_000, segment, text, *numbers, is_complete)


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(st.text(), st.one_of(st.none(), st.floats(0, 1)), st.booleans()), min_size=1))
def test_what_was_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, said: list[tuple[str, float | None, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("scores")
    scores = [score(at, text, auc=auc, is_complete=whole) for at, (text, auc, whole) in enumerate(said)]
    with ScoreLog(folder, clock=ManualClock(wall_ms=77)) as log:
        log.append(scores)
    found = read_scores(folder)
    for name, field in COLUMNS.items():
        expected = [getattr(one, field) if field else 77 for one in scores]
        assert [None if value != value else value for value in found[name].tolist()] == expected
    assert found.torn_lines == 0
    # Many lines at a time, and one after the other, are read alike.
    (file,) = folder.iterdir()
    head, newline, lines = file.read_bytes().partition(b"\n")
    fast, slow = score_log._parsed(head + newline + lines), score_log._by_line(file, lines)
    assert fast is not None
    assert all(repr(fast[name].tolist()) == repr(slow[name].tolist()) for name in COLUMNS)


@pytest.mark.parametrize("lacking", [1, 6, 8])
@pytest.mark.parametrize("torn", [b"", b"click,60000,12"])
def test_a_file_of_an_earlier_release_is_read(tmp_path: Path, torn: bytes, lacking: int) -> None:
    with ScoreLog(tmp_path, clock=ManualClock(wall_ms=77)) as log:
        log.append([score(1, "a,b"), score(2, auc=None)])
    (file,) = tmp_path.iterdir()
    old = [line.rsplit(b",", lacking)[0] for line in file.read_bytes().splitlines()]
    before = read_scores(tmp_path)
    file.write_bytes(b"\n".join(old) + b"\n" + torn)
    found = read_scores(tmp_path)
    assert all(repr(found[name].tolist()) == repr(before[name].tolist()) for name in COLUMNS)
    assert found.torn_lines == bool(torn)


def test_a_killed_writer_leaves_whole_lines_and_the_next_one_goes_on_beside_it(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.trainer.validation.test_score_log import score\n"
        "from streamlearn.trainer.validation.score_log import ScoreLog\n"
        "log = ScoreLog(Path(sys.argv[1]))\n"
        "for number in range(10**9):\n"
        "    log.append([score(number)] * 3)\n"
        "    print(number, flush=True)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(200):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        told = len(process.stdout.read().splitlines()) + 200
    assert len(read_scores(tmp_path)) >= 3 * (told - 1)
    with ScoreLog(tmp_path) as log:
        log.append([score(5)])
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["scores-000001.csv", "scores-000002.csv"]
    assert read_scores(tmp_path)["begin_ms"][-1] == 300_000


def test_a_file_that_ends_anywhere_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    with ScoreLog(tmp_path) as log:
        log.append([score(0), score(1, 'é, \n"x"')])
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    assert data.count(b"\n") == 3
    for end in range(len(data)):
        file.write_bytes(data[:end])
        lines = data[:end].count(b"\n")
        if lines < 2:
            with pytest.raises(ScoresMissing, match="has no scores"):
                read_scores(tmp_path)
        else:
            found = read_scores(tmp_path)
            assert (len(found), found.torn_lines) == (lines - 1, int(not data[:end].endswith(b"\n")))


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    with ScoreLog(tmp_path) as log:
        log.append([score(0), score(1), score(2)])
    (file,) = tmp_path.iterdir()
    lines = file.read_text().splitlines(keepends=True)
    larger = lines[2].replace("60000", "7" * 30)  # than any column holds
    for damaged in ("garbage\n", lines[2].replace("60000", "6x"), larger, lines[2].replace("click", '"cl\\x"')):
        file.write_text("".join([*lines[:2], damaged, *lines[3:]]))
        with pytest.raises(BadRecord, match=r"scores-000001.csv, line 3 is not a score") as error:
            read_scores(tmp_path)
        assert error.value.help
    file.write_text("other,columns\n1,2\n")
    with pytest.raises(BadRecord, match="line 1 is not the head"):
        read_scores(tmp_path)


def test_full_files_are_followed_by_others_and_the_oldest_go(tmp_path: Path) -> None:
    bounds = ValidationSettings(file_bytes_max=4_096, kept_bytes_max=16_384)
    with ScoreLog(tmp_path, bounds) as log:
        for number in range(1_000):
            log.append([score(number)])
            assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 16_384
    assert all(file.stat().st_size <= 4_096 for file in tmp_path.iterdir())
    found = read_scores(tmp_path)
    assert found["begin_ms"].tolist() == [60_000 * number for number in range(1_000 - len(found), 1_000)]
    assert len(found) > 80


def test_a_line_that_a_full_disk_tore_harms_nothing_that_comes_later(tmp_path: Path) -> None:
    class Full:
        """A disk that takes 20 bytes, and then refuses."""

        def __init__(self, file: object) -> None:
            self.file, self.room = file, 20

        def write(self, data: memoryview) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            part, self.room = bytes(data[: self.room]), 0
            return int(self.file.write(part))  # type: ignore[attr-defined]

        def close(self) -> None:
            self.file.close()  # type: ignore[attr-defined]

    with ScoreLog(tmp_path) as log:
        log.append([score(0)])
        log._file = Full(log._file)  # type: ignore[assignment]
        with pytest.raises(OSError, match="No space left"):
            log.append([score(1)])
        log.append([score(2)])
    found = read_scores(tmp_path)
    assert found["begin_ms"].tolist() == [0, 120_000]
    assert found.torn_lines == 1


def test_scores_that_a_full_disk_refuses_are_said_to_be_lost_and_stop_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with ScoreLog(tmp_path) as log:
        log.offer([score(0)])
        with monkeypatch.context() as full:
            full.setattr(score_log, "_write", refuse)
            log.offer([score(1), score(1)])
            log.offer([score(1)])  # no file can be begun either
        log.offer([score(2)])
    assert read_scores(tmp_path)["begin_ms"].tolist() == [0, 120_000]
    assert "2 scores of closed windows are lost: [Errno 28]" in caplog.text


def test_of_a_window_that_was_scored_twice_the_complete_score_counts(tmp_path: Path) -> None:
    with ScoreLog(tmp_path) as log:
        log.append([score(1, rows=10), score(2, rows=30, is_complete=False), score(2, "home")])
    with ScoreLog(tmp_path) as log:
        log.append([score(1, rows=20, is_complete=False), score(2, rows=5, is_complete=False), score(0)])
    best = read_scores(tmp_path).best()
    found = list(zip(best["begin_ms"].tolist(), best["text"].tolist(), best["rows"].tolist(), strict=True))
    assert found == [(0, "", 10), (60_000, "", 10), (120_000, "", 30), (120_000, "home", 10)]


def test_scores_can_be_written_as_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    with ScoreLog(tmp_path / "scores") as log:
        log.append([score(0, "home"), score(1, auc=None)])
    found = read_scores(tmp_path / "scores")
    found.write_parquet(tmp_path / "out" / "scores.parquet")
    table = pq.read_table(tmp_path / "out" / "scores.parquet")
    assert table.column_names == list(COLUMNS)
    assert table["auc_ratio"].to_pylist() == [0.7, None]
    assert table["text"].to_pylist() == ["home", ""]
    assert table["begin_ms"].to_pylist() == [0, 60_000]
    assert table["is_complete"].to_pylist() == [True, True]
    assert np.isnan(found["auc_ratio"][1])
