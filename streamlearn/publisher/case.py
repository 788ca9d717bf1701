"""Case: the evidence that a check judges a version by, and the protocols of checks and scorers. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamlearn.features import Number
from streamlearn.samples import SampleBatch
from streamlearn.settings import JudgeSettings
from streamlearn.versions import Finding, Known

__all__ = ["Case", "Check", "Samples", "Scorer"]

# Returns the most recent samples whose windows are closed, newest last.
Samples = Callable[[], Iterable[SampleBatch]]


class Scorer(Protocol):
    """Scores samples as a version would, although the version is not served.

    Guaranteed to a scorer: calls come from one thread at a time, never the training thread. Required: the same version
    and samples give the same scores, whatever is learned meanwhile. The classic mistake is to read the newest rows
    instead of the version's.
    """

    def score(self, version: int, batch: SampleBatch) -> npt.NDArray[np.float32]:
        """Return the predictions of a sealed or committed version.

        Returns:
            float32[N, labels] for N samples, labels in the order of the application: logits, whose sigmoid is the
            probability that serving returns, or the numbers that it returns.

        Raises:
            VersionRefused: The version's rows or weights are no longer available.
        """


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
    numbers: Mapping[str, Number] = field(default_factory=dict)  # the labels that are numbers

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
