"""Written: what became of a job's events, as its runner counted it: samples, and dead letters by reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from apache_beam.metrics.metric import Metrics

from streamlearn.errors import StreamlearnError
from streamlearn.ingest.runners import counters_of

__all__ = ["Written", "count_letters", "count_read", "count_samples"]

_METRICS = "streamlearn.written"
_LETTERS = "letters_"
# Events that could be read, and that the join could not use.
_OF_JOIN = ("late", "excess", "orphan")


@dataclass(frozen=True)
class Written:
    """What became of events.

    Attributes:
        events: Events that could be read, those included that no sample needs.
        samples: Rows in the messages that were written.
        letters: Dead letters that were written, by reason.
    """

    events: int
    samples: int
    letters: Mapping[str, int]

    @classmethod
    def of(cls, result: Any) -> Written:
        """What a job has counted.

        Args:
            result: Of the job.
        """
        found = counters_of(result, _METRICS)
        letters = {
            name.removeprefix(_LETTERS): count
            for name, count in sorted(found.items())
            if name.startswith(_LETTERS) and count
        }
        return cls(found.get("events", 0), found.get("samples", 0), letters)

    @classmethod
    def sum(cls, parts: Iterable[Written]) -> Written:
        """What became of the events of several jobs."""
        events, samples, letters = 0, 0, dict[str, int]()
        for one in parts:
            events, samples = events + one.events, samples + one.samples
            for reason, count in one.letters.items():
                letters[reason] = letters.get(reason, 0) + count
        return cls(events, samples, letters)

    def warning(self, app: str) -> str:
        """What people have to know of the dead letters, and what to do; empty where there are none.

        Args:
            app: The application, as commands name it.

        Examples:
            >>> print(Written(5, 4, {"late": 1}).warning("shop"))
            1 dead letter: 1 late
            help: `streamlearn peek shop dead_letters` shows what each was, where it came from and why
            >>> Written(5, 4, {}).warning("shop")
            ''
        """
        return f"{self._said()}\nhelp: {self._help(app)}" if self.letters else ""

    def check(self, app: str) -> None:
        """That not all there was became dead letters.

        Args:
            app: The application, as commands name it.

        Raises:
            StreamlearnError: All of it did.
        """
        usable = self.events - sum(self.letters.get(reason, 0) for reason in _OF_JOIN)
        if self.letters and not self.samples and usable <= 0:
            message = f"nothing became a sample: {self._said()}"
            raise StreamlearnError(message, help=self._help(app))

    def _said(self) -> str:
        count = sum(self.letters.values())
        reasons = ", ".join(f"{one:,} {reason}" for reason, one in self.letters.items())
        return f"{count:,} dead letter{'' if count == 1 else 's'}: {reasons}"

    def _help(self, app: str) -> str:
        help = f"`streamlearn peek {app} dead_letters` shows what each was, where it came from and why"
        if "unknown_schema" in self.letters:
            help += (
                "; unknown_schema: name the schemas that those events were written by in topics.old_schemas, as "
                "schemas/README.md says, then have them read again: docs/operating/ingest.md#dead-letters"
            )
        return help


def count_read(events: int) -> None:
    """Count events that could be read; by a step of a job."""
    Metrics.counter(_METRICS, "events").inc(events)  # type: ignore[no-untyped-call]


def count_samples(rows: int) -> None:
    """Count rows of samples; by a step of a job."""
    Metrics.counter(_METRICS, "samples").inc(rows)  # type: ignore[no-untyped-call]


def count_letters(reason: str, count: int) -> None:
    """Count dead letters; by a step of a job."""
    Metrics.counter(_METRICS, f"{_LETTERS}{reason}").inc(count)  # type: ignore[no-untyped-call]
