"""Case: the evidence that a check judges a version by, and the protocol of a check. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from streamlearn.samples import SampleBatch
from streamlearn.settings import JudgeSettings
from streamlearn.versions import Finding, Known
from streamlearn.versions.format.scorer import Scorer

__all__ = ["Case", "Check", "Samples"]

# Returns the most recent samples whose windows are closed, newest last.
Samples = Callable[[], Iterable[SampleBatch]]


@dataclass(frozen=True, eq=False)
class Case:
    """A version to judge.

    `earlier` has the versions that passed before it up to the active one, newest last. `active` is None before the
    first version, `scorer` if scoring is impossible, `samples` if there are none.
    """

    version: Known
    earlier: tuple[Known, ...] = ()
    settings: JudgeSettings = field(default_factory=JudgeSettings)
    active: Known | None = None
    scorer: Scorer | None = None
    samples: Samples | None = None

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the version."""
        return self.version.metrics

    def before(self, metric: str) -> tuple[int, float] | None:
        """The number and the metric of the active version, or of the newest earlier one that has the metric."""
        values = ((known.version, known.metrics[metric]) for known in reversed(self.earlier) if metric in known.metrics)
        return next(values, None)


class Check(Protocol):
    """One reason why a version might not be promoted.

    Guaranteed: calls come from a thread of the judge, one version at a time. Required: a check reports the figures it
    saw, also when it passes a version. If it cannot assess a version, `is_ok` is true and `is_checked` false. A check
    that raises or takes too long rejects the version.
    """

    @property
    def name(self) -> str:
        """Its name in verdicts."""

    def judge(self, case: Case) -> Finding:
        """Return its finding."""
