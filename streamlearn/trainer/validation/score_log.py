"""ScoreLog: scores of closed windows in files of lines, one a score, and how they are read again.

A file is begun by one process and only grows; whoever is killed leaves at most one torn line at its end, which readers
leave out. No process adds to the file of another. It does not know how scores are made.
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

# Each column of a file, the unit last in its name, with its field in a score.
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
}
Columns: TypeAlias = dict[str, npt.NDArray[Any]]
_TEXTS, _INTS = ("label", "segment", "text"), ("begin_ms", "end_ms", "rows", "scored_wall_ms")
_HEAD = ",".join(COLUMNS).encode() + b"\n"
_NAME = re.compile(r"scores-(\d{6,})\.csv")


def scores_folder(folder: Path, settings: ValidationSettings) -> Path:
    """Where the scores of an application are.

    Args:
        folder: The application's.
        settings: `folder` of these may name another place.
    """
    return Path(settings.folder) if settings.folder else folder / ".streamlearn" / "validation"


@dataclass(frozen=True, eq=False)
class ScoreColumns:
    """Scores as columns, in the order in which they were written.

    Attributes:
        columns: By the names of `COLUMNS`: texts as objects, counts and times as int64, `is_complete` as bool, all else
            as float64 with NaN for what cannot be said.
        torn_lines: Lines that somebody was killed in.
    """

    columns: Columns
    torn_lines: int = 0

    def __len__(self) -> int:
        return len(self.columns["label"])

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.columns[name]

    def where(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> ScoreColumns:
        """Some of the scores."""
        return ScoreColumns({name: column[rows] for name, column in self.columns.items()}, self.torn_lines)

    def best(self) -> ScoreColumns:
        """One score for each window and text, by time: a complete one, else that of most rows, else the newest.

        A window that a trainer died in is scored in part by it and in part by the next one.
        """
        best: dict[tuple[Any, ...], int] = {}
        keys = list(
            zip(*(self[name].tolist() for name in ("end_ms", "begin_ms", "label", "segment", "text")), strict=True)
        )
        ranks = list(zip(self["is_complete"].tolist(), self["rows"].tolist(), strict=True))
        for at, key in enumerate(keys):
            if key not in best or ranks[at] >= ranks[best[key]]:
                best[key] = at
        return self.where(np.array([best[key] for key in sorted(best)], np.int64))

    def write_parquet(self, file: Path) -> None:
        """Write them as a Parquet file, NaN as null."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrays = {name: pa.array(column, from_pandas=True) for name, column in self.columns.items()}
        for name in _TEXTS:
            arrays[name] = pa.array(self[name].tolist(), pa.string())
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(arrays), file)


class ScoreLog:
    """Writes scores into a folder. A file that is full is followed by another; beyond `kept_bytes_max` the oldest go.

    Args:
        folder: Where; made when the first score comes.
        settings: Bounds.
        clock: When a score was written.
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
        """Add scores; they survive the death of this process.

        Raises:
            OSError: The folder cannot be written to. What was written of them is in no later file.
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
            self.close()  # its last line may be torn: the next scores begin another file
            raise
        self._bytes += len(data)

    def offer(self, scores: Sequence[WindowScore]) -> None:
        """Add scores, or say that they are lost: a disk that is full stops no training."""
        try:
            self.append(scores)
        except OSError as error:
            _LOG.warning("%d scores of closed windows are lost: %s", len(scores), error)

    def close(self) -> None:
        """End the file; the next score begins another."""
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
            except FileExistsError:  # of another process that begins now
                continue
        self._bytes = 0
        try:
            _write(self._file, _HEAD)
        except OSError:
            self.close()  # nothing may come after half a head
            file.unlink(missing_ok=True)
            raise
        self._bytes = len(_HEAD)
        self._forget(files)

    def _forget(self, files: Sequence[tuple[int, Path]]) -> None:
        """Remove the oldest files, so that the new one has room."""
        sizes = [file.stat().st_size for _, file in files]
        held = sum(sizes) + self._settings.file_bytes_max
        for (_, file), size in zip(files, sizes, strict=True):
            if held <= self._settings.kept_bytes_max:
                return
            file.unlink(missing_ok=True)
            held -= size


def read_scores(folder: Path) -> ScoreColumns:
    """All scores of a folder, oldest first.

    Raises:
        ScoresMissing: There are none.
        BadRecord: A line, other than a torn last one, is none of a score.
    """
    read = [_read(file) for _, file in _files(folder)]
    if not any(len(columns["label"]) for columns, _ in read):
        message = f"{folder} has no scores"
        hint = (
            "a trainer writes them when the first windows of its labels have closed; validation.folder names the folder"
        )
        raise ScoresMissing(message, help=hint)
    columns = {name: np.concatenate([columns[name] for columns, _ in read]) for name in COLUMNS}
    return ScoreColumns(columns, sum(is_torn for _, is_torn in read))


def _files(folder: Path) -> list[tuple[int, Path]]:
    matched = ((_NAME.fullmatch(file.name), file) for file in folder.glob("scores-*.csv"))
    return sorted((int(match[1]), file) for match, file in matched if match)


def _write(file: io.FileIO, data: bytes) -> None:
    """All of it; a disk that is full may take a part first, and refuses the rest."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) or 0 :]


def _lines(scores: Iterable[WindowScore], wall_ms: int) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for score in scores:
        values = [getattr(score, field) if field else wall_ms for field in COLUMNS.values()]
        writer.writerow([_said(value) for value in values])
    return out.getvalue().encode()


def _said(value: Any) -> str:
    """A value in a line; a text without characters that would end one."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=not value.isprintable())[1:-1]
    return "" if value is None else repr(int(value) if isinstance(value, bool) else value)


def _read(file: Path) -> tuple[Columns, bool]:
    """The columns of a file, and whether its last line is torn."""
    data = file.read_bytes()
    whole, newline, torn = data.rpartition(b"\n")
    if not newline or not data.startswith(_HEAD):
        if _HEAD.startswith(data):  # killed before anything was written
            return _columns([]), bool(data)
        raise _bad(file, 1, "is not the head of a file of scores")
    found = _parsed(whole + newline)
    return _by_line(file, (whole + newline)[len(_HEAD) :]) if found is None else found, bool(torn)


def _parsed(data: bytes) -> Columns | None:
    """The columns of whole lines with their head, many at a time; None where a line is at fault."""
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
            columns[name] = np.array([_value(name, one) for one in values], object) if name in _TEXTS else values
    except (pa.ArrowInvalid, ValueError):
        return None
    return columns


def _by_line(file: Path, data: bytes) -> Columns:
    """The same, one line after the other, so that the line at fault is named."""
    rows = []
    for number, line in enumerate(data.splitlines(keepends=True), 2):
        row = _row(line)
        if row is None:
            raise _bad(file, number, "is not a score")
        rows.append(row)
    return _columns(rows)


def _row(line: bytes) -> list[str] | None:
    """The values of a line; None when it is none of a score."""
    try:
        (row,) = csv.reader([line.decode()])
        for name, value in zip(COLUMNS, row, strict=True):
            _value(name, value)
    except (ValueError, OverflowError, csv.Error):
        return None
    return row


def _value(name: str, said: str) -> Any:
    if name in _TEXTS:
        return json.loads(f'"{said}"') if "\\" in said or '"' in said else said
    if name in _INTS:
        return np.int64(int(said))
    if name == "is_complete":
        return bool(int(said))
    return float(said) if said else float("nan")


def _kind(name: str) -> np.dtype[Any]:
    return np.dtype(
        object if name in _TEXTS else np.int64 if name in _INTS else np.bool_ if name == "is_complete" else float
    )


def _columns(rows: Sequence[Sequence[str]]) -> Columns:
    found: Columns = {}
    for at, name in enumerate(COLUMNS):
        found[name] = np.array([_value(name, row[at]) for row in rows], _kind(name))
    return found


def _bad(file: Path, line: int, what: str) -> BadRecord:
    return BadRecord(f"{file}, line {line} {what}", help="restore the file from a copy, or remove the line")
