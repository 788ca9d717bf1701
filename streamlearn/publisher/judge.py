"""Judge: decides by checks, which each look at one aspect, whether a version may be promoted. It writes nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from msgspec import structs

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import PsError, StreamlearnError
from streamlearn.features import Number
from streamlearn.publisher.case import Case, Check, Samples, Scorer
from streamlearn.publisher.checks import Finite, Learned, Norms, Scores
from streamlearn.settings import JudgeSettings
from streamlearn.versions import Finding, Known, Verdict
from streamlearn.versions.format.version_summary import Outcome

__all__ = ["DEFAULT_CHECKS", "Judge"]

DEFAULT_CHECKS: tuple[Check, ...] = (Finite(), Learned(), Norms(), Scores())
_TEXT_CHARS_MAX = 2_000
# The most that one wait may count against `judge_s_max`, even if this process was stopped for longer meanwhile.
_LOOK_S = 1.0
_log = logging.getLogger(__name__)


class Judge:
    """Judges versions by checks, in order.

    The scorer scores samples with a version; `samples` returns the most recent samples whose windows are closed, newest
    last; `numbers` has the labels that are numbers.

    Examples:
        >>> from streamlearn.versions import Known, VersionRef
        >>> ref = VersionRef(version=2, run=1, sha256="0" * 64)
        >>> case = Case(Known(ref=ref, kind="delta", metrics={"dense.w.not_finite": 3.0}))
        >>> Judge().judge(case).outcome
        'rejected'
    """

    def __init__(
        self,
        settings: JudgeSettings | None = None,
        *,
        checks: Sequence[Check] = DEFAULT_CHECKS,
        scorer: Scorer | None = None,
        samples: Samples | None = None,
        numbers: Mapping[str, Number] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.settings = settings or JudgeSettings()
        self._checks, self._scorer, self._samples, self._clock = tuple(checks), scorer, samples, clock
        self._numbers = numbers or {}
        self._judging: tuple[int, threading.Thread] | None = None
        self._ps_error: PsError | None = None

    def case(
        self, version: Known, *, active: Known | None, earlier: Sequence[Known] = (), can_score: bool = True
    ) -> Case:
        """The case of a version.

        `earlier` has the versions that passed before it, up to the active one, oldest first. `can_score` says whether
        its rows are there to score samples with; after a restart they are not.
        """
        scorer = self._scorer if can_score else None
        samples = self._samples if can_score else None
        return Case(version, tuple(earlier), self.settings, active, scorer, samples, self._numbers)

    @property
    def busy_with(self) -> int | None:
        """The version with a check that took too long and still runs; nothing else is judged meanwhile."""
        is_busy = self._judging is not None and self._judging[1].is_alive()
        return self._judging[0] if self._judging is not None and is_busy else None

    def judge(self, case: Case) -> Verdict:
        """Return the verdict: rejected if any check objects, raises, or exceeds `judge_s_max`.

        Time in which this process was stopped does not count. Call it only while `busy_with` is None.

        Raises:
            PsError: The rows to score with cannot be read, so the version cannot be judged now.
        """
        findings: list[Finding] = []
        self._ps_error = None
        assert self.busy_with is None, self.busy_with
        # A check may hang, so it runs in a thread with a bounded wait.
        thread = threading.Thread(target=self._check, args=(case, findings), name="streamlearn-judge", daemon=True)
        self._judging = (case.version.version, thread)
        thread.start()
        left_s, look_s = self.settings.judge_s_max, min(_LOOK_S, self.settings.judge_s_max / 10)
        while thread.is_alive() and left_s > 0:
            thread.join(look_s)
            left_s -= look_s
        done = list(findings)
        if self._ps_error is not None:
            raise self._ps_error
        if len(done) < len(self._checks):
            text = f"not finished after judge_s_max = {self.settings.judge_s_max:g} s"
            done.append(Finding(check=self._checks[len(done)].name, is_ok=False, said=text))
        return self._verdict(case, done)

    def _check(self, case: Case, findings: list[Finding]) -> None:
        for check in self._checks:
            try:
                finding = check.judge(case)
                findings.append(structs.replace(finding, said=finding.said[:_TEXT_CHARS_MAX]))
            # An absent shard says nothing about the version: the trainer gets the error, and the judge tries later.
            except PsError as error:
                self._ps_error = error
                return
            # Checks may be user code: any failure becomes a finding, and the version is not promoted.
            except Exception as error:
                _log.exception("check %s of version %d failed", check.name, case.version.version)
                reason = error.message if isinstance(error, StreamlearnError) else repr(error)
                text = f"it failed: {reason}"[:_TEXT_CHARS_MAX]
                findings.append(Finding(check=check.name, is_ok=False, said=text))

    def _verdict(self, case: Case, findings: Sequence[Finding]) -> Verdict:
        return Verdict(
            version=case.version.ref,
            outcome=_outcome(findings),
            findings=tuple(structs.replace(finding, values=_finite(finding.values)) for finding in findings),
            against=None if case.active is None else case.active.ref,
            wall_ms=max(0, self._clock.wall_ms()),
        )


def _outcome(findings: Sequence[Finding]) -> Outcome:
    if not all(finding.is_ok for finding in findings):
        return "rejected"
    return "passed" if all(finding.is_checked for finding in findings) else "unscored"


def _finite(values: dict[str, float]) -> dict[str, float]:
    """Drop NaN and infinite values, which JSON cannot represent."""
    return {name: value for name, value in values.items() if abs(value) < float("inf")}
