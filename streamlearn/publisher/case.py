"""Case: what a check is given to judge a version by, and what a check is. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from streamlearn.samples import SampleBatch
from streamlearn.settings import JudgeSettings
from streamlearn.versions import Finding, Known
from streamlearn.versions.format.scorer import Scorer

__all__ = ["Case", "Check", "Samples"]

# The most recent samples whose windows are closed, newest last.
Samples = Callable[[], Iterable[SampleBatch]]


@dataclass(frozen=True, eq=False)
class Case:
    """A version that is judged.

    Attributes:
        version: The version, with the metrics of its manifest.
        earlier: The versions that passed before it up to the active one, newest last; what it is compared with.
        settings: Limits.
        active: The version that is served; None before the first.
        scorer: Who scores samples by a version; None when nobody can.
        samples: Gives recent samples; None when there are none.
    """

    version: Known
    earlier: tuple[Known, ...] = ()
    settings: JudgeSettings = field(default_factory=JudgeSettings)
    active: Known | None = None
    scorer: Scorer | None = None
    samples: Samples | None = None

    @property
    def metrics(self) -> Mapping[str, float]:
        """Those of the version."""
        return self.version.metrics

    def before(self, metric: str) -> tuple[int, float] | None:
        """A metric of the active version, or of the newest that passed before it and has it; and which that is."""
        found = ((one.version, one.metrics[metric]) for one in reversed(self.earlier) if metric in one.metrics)
        return next(found, None)


class Check(Protocol):
    """One reason why a version might not be promoted.

    Guaranteed to a check: it is asked in a thread of its own, one version at a time. Asked of it: it says what it saw
    in figures, also when it is content, and lets a version pass that it can say nothing of. One that raises, or takes
    too long, rejects the version.
    """

    @property
    def name(self) -> str:
        """What it is called in verdicts."""
        ...

    def judge(self, case: Case) -> Finding:
        """What it finds."""
        ...
