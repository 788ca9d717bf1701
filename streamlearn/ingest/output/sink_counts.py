"""Written: samples and dead letters of a job, as its runner counted them."""

from __future__ import annotations

import logging
import shlex
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apache_beam.metrics.metric import Metrics

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import PartlyDone
from streamlearn.ingest.beam.runners import counters_of
from streamlearn.telemetry import gauge

__all__ = ["RECENT", "RecentLetters", "Written", "count_interactions", "count_letters", "count_read", "count_samples"]

_LOG = logging.getLogger(__name__)
_METRICS = "streamlearn.written"
_LETTERS = "letters_"
# Reasons of the join: these events could be read.
_OF_JOIN = ("late", "excess", "orphan")


@dataclass(frozen=True)
class Written:
    """Outcomes of events.

    Attributes:
        events: Events that could be read, including those that no sample needs.
        samples: Rows in the written messages.
        letters: Written dead letters by reason.
    """

    events: int
    samples: int
    letters: Mapping[str, int]

    @classmethod
    def of(cls, result: Any) -> Written:
        """Return the counts of a job's result."""
        counts = counters_of(result, _METRICS)
        names = sorted(name for name, count in counts.items() if name.startswith(_LETTERS) and count)
        letters = {name.removeprefix(_LETTERS): counts[name] for name in names}
        return cls(counts.get("events", 0), counts.get("samples", 0), letters)

    @classmethod
    def sum(cls, parts: Sequence[Written]) -> Written:
        """Return the sum of several jobs."""
        letters = sum((Counter(part.letters) for part in parts), Counter[str]())
        return cls(sum(part.events for part in parts), sum(part.samples for part in parts), dict(letters))

    def warning(self, app: str) -> str:
        """Return a warning about dead letters, with help; empty if there are none. Commands in it name `app`.

        Examples:
            >>> print(Written(5, 4, {"garbage": 1}).warning("shop"))
            1 dead letter: 1 garbage
            help: `streamlearn peek shop dead_letters` shows each with its origin and reason
            >>> Written(5, 4, {}).warning("shop")
            ''
        """
        return f"{self._letters_text()}\nhelp: {self._help(app)}" if self.letters else ""

    @property
    def dead_share(self) -> float:
        """The share of all events that became dead letters."""
        dead, of_join = sum(self.letters.values()), sum(self.letters.get(reason, 0) for reason in _OF_JOIN)
        return dead / max(1, self.events + dead - of_join)

    def check(self, app: str, share_max: float) -> None:
        """Raise `PartlyDone` if the dead share is above `share_max`; or above half without any sample."""
        if not self.samples and self.dead_share > 0.5:
            message = f"no event became a sample: {self._letters_text()}"
            raise PartlyDone(message, help=self._help(app))
        if self.dead_share > share_max:
            message = f"{self.dead_share:.1%} of the events became dead letters: {self._letters_text()}"
            help = f"{self._help(app)}; raise ingest.dead_share_max, now {share_max:g}, if this share is expected"
            raise PartlyDone(message, help=help)

    def _letters_text(self) -> str:
        count = sum(self.letters.values())
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in self.letters.items())
        return f"{count:,} dead letter{'' if count == 1 else 's'}: {reasons}"

    def _help(self, app: str) -> str:
        help = f"`streamlearn peek {shlex.quote(app)} dead_letters` shows each with its origin and reason"
        if "unknown_schema" in self.letters:
            help += (
                "; unknown_schema: list the schemas of those events in topics.old_schemas, then have the events read "
                'again: see "Ingest" in the documentation'
            )
        if "late" in self.letters:
            help += "; late: if these are actions, lengthen window_s of their label group"
        return help


class RecentLetters:
    """The dead letters among this process's recent events: a ten-minute-old event counts half."""

    _HALF_S, _EVENTS_MIN = 600.0, 100

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._events, self._letters, self._at_s = 0.0, 0.0, clock.monotonic_s()
        self._is_over = False

    def add(self, events: int, letters: int) -> None:
        """Count events, and how many of them became dead letters."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            decay = 0.5 ** ((now_s - self._at_s) / self._HALF_S)
            self._events, self._letters = decay * self._events + events, decay * self._letters + letters
            self._at_s = now_s

    def share(self, share_max: float) -> float:
        """Return the share of dead letters, 0 while there are few events; beyond `share_max`, log it once."""
        self.add(0, 0)
        with self._lock:
            share = self._letters / self._events if self._events >= self._EVENTS_MIN else 0.0
            help = "Share of this process's recent events that became dead letters; a ten-minute-old event counts half."
            gauge("ingest", "dead_letters", "ratio", help).set(share)
            if share > share_max and not self._is_over:
                _LOG.error("%.1f %% of the events of the last minutes became dead letters", 100 * share)
            self._is_over = share > share_max
            return share


RECENT = RecentLetters()
"""The letters of the run of ingest in this process."""


def count_read(events: int) -> None:
    """Count readable events, in a step of a job."""
    RECENT.add(events, 0)
    Metrics.counter(_METRICS, "events").inc(events)  # type: ignore[no-untyped-call]


def count_samples(rows: int) -> None:
    """Count rows of samples, in a step of a job."""
    Metrics.counter(_METRICS, "samples").inc(rows)  # type: ignore[no-untyped-call]


def count_interactions(rows: int) -> None:
    """Count interactions, in a step of a job."""
    Metrics.counter(_METRICS, "interactions").inc(rows)  # type: ignore[no-untyped-call]


def count_letters(reason: str, count: int) -> None:
    """Count dead letters, in a step of a job."""
    RECENT.add(0 if reason in _OF_JOIN else count, count)
    Metrics.counter(_METRICS, f"{_LETTERS}{reason}").inc(count)  # type: ignore[no-untyped-call]
