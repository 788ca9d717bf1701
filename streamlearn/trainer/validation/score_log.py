"""ScoreLog: scores of closed windows in CSV files, one line a score, and their reader.

One process writes a file, and only appends; no other process adds to it. A killed process leaves at most one torn line
at the end, which readers skip. This module does not know how scores are computed.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import BadRecord, ScoresMissing
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.validation.score import WindowScore

__all__ = ["COLUMNS", "ScoreColumns", "ScoreLog", "read_scores", "scores_folder"]

_LOG = logging.getLogger(__name__)

# The columns of a file, the unit last in the name, with the field of a score.
COLUMNS = {
    "label": "label",
    "begin_ms": "begin_ms",
    "end_ms": "end_ms",
    "segment": "segment",
    "text": "text",
    "rows": "rows",
    "positives_weight": "positives",
    "all_weight": "weight",
    "auc_ratio": "auc",
    "log_loss_nats": "log_loss",
    "calibration_ratio": "calibration",
    "base_entropy_nats": "base_entropy",
    "kept_ratio": "kept",
    "is_complete": "is_complete",
    "scored_wall_ms": "",
    "mae": "mae",
    "rmse": "rmse",
    "served_rows": "served_rows",
    "served_auc_ratio": "served_auc",
    "served_log_loss_nats": "served_log_loss",
    "served_mae": "served_mae",
    "standard_error": "standard_error",
    "user_sums": "user_sums",
}
Columns: TypeAlias = dict[str, npt.NDArray[Any]]
_TEXTS = ("label", "segment", "text", "user_sums")
_INTS = ("begin_ms", "end_ms", "rows", "scored_wall_ms", "served_rows")
_HEAD = ",".join(COLUMNS).encode() + b"\n"
# Files of earlier releases lack the last columns.
_OLDER = {1: b",\n", 6: b",0,,,,,\n", 8: b",,,0,,,,,\n"}
_NAME = re.compile(r"scores-(\d{6,})\.csv")


def scores_folder(folder: Path, settings: ValidationSettings) -> Path:
    """Return the folder of an application's scores; `settings.folder` replaces the default in `folder`."""
    return Path(settings.folder) if settings.folder else folder / ".streamlearn" / "validation"


@dataclass(frozen=True, eq=False)
class ScoreColumns:
    """Scores as columns, in the order in which they were written.

    Attributes:
        columns: By the names of `COLUMNS`: texts as objects, counts and times as int64, `is_complete` as bool, all
            others as float64 with NaN for undefined values.
    """

    columns: Columns
    torn_lines: int = 0  # incomplete last lines that were skipped

    def __len__(self) -> int:
        return len(self.columns["label"])

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.columns[name]

    def where(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> ScoreColumns:
        """Select some of the scores."""
        return ScoreColumns({name: column[rows] for name, column in self.columns.items()}, self.torn_lines)

    def best(self) -> ScoreColumns:
        """Return one score for each window and text, by time: a complete one, else that of most rows, else the newest.

        A window during which a trainer died is scored in parts, by it and by the next one.
        """
        best: dict[tuple[Any, ...], int] = {}
        names = ("end_ms", "begin_ms", "label", "segment", "text")
        keys = list(zip(*(self[name].tolist() for name in names), strict=True))
        ranks = list(zip(self["is_complete"].tolist(), self["rows"].tolist(), strict=True))
        for at, key in enumerate(keys):
            if key not in best or ranks[at] >= ranks[best[key]]:
                best[key] = at
        return self.where(np.array([best[key] for key in sorted(best)], np.int64))

    def write_parquet(self, file: Path) -> None:
        """Write the scores as a Parquet file, NaN as null."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrays = {name: pa.array(column, from_pandas=True) for name, column in self.columns.items()}
        for name in _TEXTS:
            arrays[name] = pa.array(self[name].tolist(), pa.string())
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(arrays), file)


class ScoreLog:
    """Writes scores into a folder, which the first score creates. A full file is followed by another one.

    Beyond `kept_bytes_max` the oldest files are deleted.
    """

    def __init__(
        self, folder: Path, settings: ValidationSettings | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._folder, self._settings, self._clock = folder, settings or ValidationSettings(), clock
        self._file: io.FileIO | None = None
        self._bytes = 0

    def __enter__(self) -> ScoreLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, scores: Sequence[WindowScore]) -> None:
        """Append scores; they survive a crash of this process.

        Raises:
            OSError: The folder cannot be written to. These scores are not written again.
        """
        if not scores:
            return
        data = _lines(scores, max(0, self._clock.wall_ms()))
        if self._file is None or (self._bytes > len(_HEAD) and self._bytes + len(data) > self._settings.file_bytes_max):
            self._begin()
        assert self._file is not None
        try:
            _write(self._file, data)
        except OSError:
            self.close()  # its last line may be torn: the next scores start another file
            raise
        self._bytes += len(data)

    def offer(self, scores: Sequence[WindowScore]) -> None:
        """Append scores, or log that they are lost: a full disk does not stop training."""
        try:
            self.append(scores)
        except OSError as error:
            _LOG.warning("%d scores of closed windows are lost: %s", len(scores), error)

    def close(self) -> None:
        """Close the file; the next score starts another."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        files = _files(self._folder)
        number = files[-1][0] if files else 0
        while self._file is None:
            number += 1
            file = self._folder / f"scores-{number:06d}.csv"
            try:
                self._file = file.open("xb", buffering=0)
            except FileExistsError:  # another process starts now
                continue
        self._bytes = 0
        try:
            _write(self._file, _HEAD)
        except OSError:
            self.close()  # nothing may follow half a header
            file.unlink(missing_ok=True)
            raise
        self._bytes = len(_HEAD)
        self._forget(files)

    def _forget(self, files: Sequence[tuple[int, Path]]) -> None:
        """Delete the oldest files, to make room for a new one."""
        sizes = [file.stat().st_size for _, file in files]
        used_bytes = sum(sizes) + self._settings.file_bytes_max
        for (_, file), size in zip(files, sizes, strict=True):
            if used_bytes <= self._settings.kept_bytes_max:
                return
            file.unlink(missing_ok=True)
            used_bytes -= size


def read_scores(folder: Path) -> ScoreColumns:
    """Return all scores of a folder, oldest first.

    Raises:
        ScoresMissing: There are none.
        BadRecord: A line, other than a torn last one, is not a score.
    """
    read = [_read(file) for _, file in _files(folder)]
    if not any(len(columns["label"]) for columns, _ in read):
        message = f"{folder} has no scores"
        help = (
            "a trainer writes them when the first windows of its labels have closed; validation.folder names the folder"
        )
        raise ScoresMissing(message, help=help)
    columns = {name: np.concatenate([columns[name] for columns, _ in read]) for name in COLUMNS}
    return ScoreColumns(columns, sum(is_torn for _, is_torn in read))


def _files(folder: Path) -> list[tuple[int, Path]]:
    matched = ((_NAME.fullmatch(file.name), file) for file in folder.glob("scores-*.csv"))
    return sorted((int(match[1]), file) for match, file in matched if match)


def _write(file: io.FileIO, data: bytes) -> None:
    """Write all of it; a full disk may accept a part first and refuse the rest."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[file.write(remaining) or 0 :]


def _lines(scores: Iterable[WindowScore], wall_ms: int) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for score in scores:
        values = [getattr(score, field) if field else wall_ms for field in COLUMNS.values()]
        writer.writerow([_encoded(value) for value in values])
    return out.getvalue().encode()


def _encoded(value: Any) -> str:
    """Encode a value for a line; texts are escaped, so that none ends the line."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=not value.isprintable())[1:-1]
    return "" if value is None else repr(int(value) if isinstance(value, bool) else value)


def _read(file: Path) -> tuple[Columns, bool]:
    """Return the columns of a file, and whether its last line is torn."""
    data = file.read_bytes()
    for lacking, end in _OLDER.items():
        head = ",".join([*COLUMNS][:-lacking]).encode() + b"\n"
        if data.startswith(head):
            data = _HEAD + data[len(head) :].replace(b"\n", end)
    whole, newline, torn = data.rpartition(b"\n")
    if not newline or not data.startswith(_HEAD):
        if _HEAD.startswith(data):  # the writer was killed before the first line
            return _columns([]), bool(data)
        raise _bad(file, 1, "is not the head of a file of scores")
    columns = _parsed(whole + newline)
    return _by_line(file, (whole + newline)[len(_HEAD) :]) if columns is None else columns, bool(torn)


def _parsed(data: bytes) -> Columns | None:
    """Parse whole lines with their header at once; None if a line is wrong."""
    import pyarrow as pa
    from pyarrow import csv as fast

    types = {name: pa.from_numpy_dtype(_kind(name)) if name not in _TEXTS else pa.string() for name in COLUMNS}
    convert = fast.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=False)
    try:
        table = fast.read_csv(pa.BufferReader(data), convert_options=convert)
        columns: Columns = {}
        for name in COLUMNS:
            column = table[name]
            if column.null_count and types[name] != pa.float64():
                return None
            values = column.to_pylist() if name in _TEXTS else column.to_numpy()
            columns[name] = np.array([_value(name, text) for text in values], object) if name in _TEXTS else values
    except (pa.ArrowInvalid, ValueError):
        return None
    return columns


def _by_line(file: Path, data: bytes) -> Columns:
    """Parse line by line, to name the wrong line."""
    rows = []
    for number, line in enumerate(data.splitlines(keepends=True), 2):
        row = _row(line)
        if row is None:
            raise _bad(file, number, "is not a score")
        rows.append(row)
    return _columns(rows)


def _row(line: bytes) -> list[str] | None:
    """Return the values of a line; None if it is not a score."""
    try:
        (row,) = csv.reader([line.decode()])
        for name, value in zip(COLUMNS, row, strict=True):
            _value(name, value)
    except (ValueError, OverflowError, csv.Error):
        return None
    return row


def _value(name: str, text: str) -> Any:
    if name in _TEXTS:
        return json.loads(f'"{text}"') if "\\" in text or '"' in text else text
    if name in _INTS:
        return np.int64(int(text))
    if name == "is_complete":
        return bool(int(text))
    return float(text) if text else float("nan")


def _kind(name: str) -> np.dtype[Any]:
    kinds = dict.fromkeys(_TEXTS, object) | dict.fromkeys(_INTS, np.int64) | {"is_complete": np.bool_}
    return np.dtype(kinds.get(name, float))


def _columns(rows: Sequence[Sequence[str]]) -> Columns:
    return {name: np.array([_value(name, row[at]) for row in rows], _kind(name)) for at, name in enumerate(COLUMNS)}


def _bad(file: Path, line: int, what: str) -> BadRecord:
    return BadRecord(f"{file}, line {line} {what}", help="restore the file from a copy, or remove the line")
