"""The loop on this machine, from the producer to answers: freshness, sustained rate, recovery and served AUC."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.loops.loop_fresh import LoadPeriod, freshness
from benchmarks.loops.loop_rates import RateMeasurement, Search, hold, sustained
from benchmarks.loops.loop_recovery import recoveries, rollbacks
from benchmarks.loops.loop_served import served
from benchmarks.loops.loop_whole import Shape, Whole
from benchmarks.result import Result
from benchmarks.streams.ingest_events import ACTIONS_SHARE, ITEMS
from streamlearn.errors import ServiceError, StreamlearnError
from tools.services.real_services import start_services

__all__ = ["LEAST", "TARGETS", "missed", "run"]

Note = Callable[[str], None]

TARGETS = {
    "event_to_served_p50_s": 4.0,
    "event_to_served_p99_s": 8.0,
    "at_60s.event_to_served_p99_s": 75.0,
    "rows_never_served": 0.0,
    "at_60s.rows_never_served": 0.0,
    "services.rows_never_served": 0.0,
    "recovery_shard_s": 5.0,
    "recovery_trainer_s": 15.0,
    "recovery_node_s": 15.0,
    "recovery_ingest_s": 10.0,
}
"""Upper bounds of figures."""
LEAST = {
    "deepfm.samples_per_s_sustained": 5_000.0,
    "logistic.samples_per_s_sustained": 15_000.0,
    "services.samples_per_s_sustained": 3_000.0,
}
"""Lower bounds of figures."""
_RATE = 1_000.0
_SEARCH = {"deepfm": Search(2_000.0), "logistic": Search(4_000.0)}
_SERVICES_SEARCH = Search(1_000.0)
_KILLS, _ROLLBACKS = 3, 11
_SECOND = LoadPeriod(_RATE, warm_s=15.0, seconds=60.0, interval_s=1.0)
_MINUTE = LoadPeriod(_RATE, warm_s=30.0, seconds=120.0, interval_s=60.0, late_s_max=150.0)
_QUICK_SECOND = LoadPeriod(500.0, warm_s=4.0, seconds=8.0, interval_s=1.0)


def run(quick: bool, note: Note) -> Result:
    """Measure the loop part by part. After a failed part the others run, and the command fails at the end."""
    result = Result("loop")
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as name:
        loop = _Loop(Path(name), result, note)
        if quick:
            loop.quickly()
        else:
            loop.second()
            loop.sustained()
            loop.recovery()
            loop.served()
            loop.services()
            loop.minute()
    for target in missed(result.figures):
        note(f"target missed: {target}")
    return result


def missed(figures: dict[str, float]) -> list[str]:
    """Return the missed targets, as texts."""
    over = [
        f"{name} is {figures[name]:.4g}, at most {most:g}"
        for name, most in TARGETS.items()
        if name in figures and figures[name] > most
    ]
    under = [
        f"{name} is {figures[name]:.4g}, at least {least:g}"
        for name, least in LEAST.items()
        if name in figures and figures[name] < least
    ]
    return over + under


def _events_of(samples: float) -> float:
    """Return the number of events for a number of samples: 1.4 items per impression, 5 actions per 100 impressions."""
    return samples / ITEMS * (1 + ACTIONS_SHARE)


class _Loop:
    """A run of the benchmark."""

    def __init__(self, place: Path, result: Result, note: Note) -> None:
        self._place, self._result, self._note = place, result, note
        self._wholes = 0

    def quickly(self) -> None:
        """Measure freshness, a kill of each part and a rollback, in one loop with shards."""
        with self._part("a short run"), self._whole(Shape(shards=2)) as whole:
            self._figures(freshness(whole, _QUICK_SECOND, _events_of, self._note))
            self._recovered(whole, _QUICK_SECOND.rate, 1, 1)

    def second(self) -> None:
        """Measure freshness with a version per second, on files and Prism."""
        with self._part("freshness"), self._whole(Shape()) as whole:
            self._figures(freshness(whole, _SECOND, _events_of, self._note))

    def sustained(self) -> None:
        """Measure the sustained rate of learned samples, on files and Prism."""
        for model, search in _SEARCH.items():
            with self._part(f"{model}: sustained"), self._whole(Shape(model)) as whole:
                self._sustained(whole, search, model)

    def recovery(self) -> None:
        """Measure recovery from kills and rollbacks under load."""
        with self._part("recovery"), self._whole(Shape(shards=2)) as whole:
            self._recovered(whole, _RATE, _KILLS, _ROLLBACKS)

    def served(self) -> None:
        """Measure the AUC of the served versions and of older versions."""
        place = self._place / "served"
        place.mkdir()
        with self._part("served AUC"):
            self._figures(served(place, self._note))

    def services(self) -> None:
        """Measure freshness and rate on Kafka, Redis and Flink, with two shards and two nodes."""
        with ExitStack() as stack, self._part("services"):
            try:
                _, changes = start_services(self._place, stack)
            except ServiceError as error:
                self._result.unmeasured["services"] = str(error).splitlines()[0]
                return
            with self._whole(Shape(shards=2, nodes=2, changes=changes)) as whole:
                self._figures(freshness(whole, _SECOND, _events_of, self._note), "services.")
                self._sustained(whole, _SERVICES_SEARCH, "services")

    def minute(self) -> None:
        """Measure freshness with a version per minute, on files and Prism."""
        with self._part("a version a minute"), self._whole(Shape(interval_s=_MINUTE.interval_s)) as whole:
            self._figures(freshness(whole, _MINUTE, _events_of, self._note), "at_60s.")

    def _recovered(self, whole: Whole, rate: float, kills: int, times: int) -> None:
        self._figures(recoveries(whole, rate, _events_of, self._note, kills))
        self._figures(rollbacks(whole, rate, _events_of, times))

    def _sustained(self, whole: Whole, search: Search, name: str) -> None:
        best = sustained(search, partial(self._hold, whole, search))
        figure = f"{name}.samples_per_s_sustained"
        if best is None:
            self._result.failures.append(figure)
            self._note(f"{name}: {search.begin:,.0f} samples/s, the lowest rate, was not sustained")
        else:
            self._figures({figure: best.learned_per_s})

    def _figures(self, figures: Mapping[str, float], prefix: str = "") -> None:
        """Record figures and print them at once, because a long run may be stopped early."""
        self._result.figures |= {f"{prefix}{name}": value for name, value in figures.items()}
        self._note(", ".join(f"{prefix}{name} {value:.4g}" for name, value in figures.items()))

    def _hold(self, whole: Whole, search: Search, rate: float) -> RateMeasurement:
        return hold(whole, search, rate, _events_of, self._note)

    @contextmanager
    def _whole(self, shape: Shape) -> Iterator[Whole]:
        self._wholes += 1
        place = self._place / f"loop-{self._wholes}"
        place.mkdir()
        with Whole(shape, place, self._note) as whole:
            yield whole

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        self._note(name)
        try:
            yield
        except StreamlearnError as error:
            self._result.failures.append(name)
            self._note(f"{name}: {error}")
