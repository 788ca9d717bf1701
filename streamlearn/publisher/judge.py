"""Judge: whether a version may be promoted, by checks that each see one thing. It moves and writes nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from msgspec import structs

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import PsError, StreamlearnError
from streamlearn.publisher.case import Case, Check, Samples
from streamlearn.publisher.checks import Finite, Learned, Norms, Scores
from streamlearn.settings import JudgeSettings
from streamlearn.versions import Finding, Known, Verdict
from streamlearn.versions.format.scorer import Scorer

__all__ = ["DEFAULT_CHECKS", "Judge"]

DEFAULT_CHECKS: tuple[Check, ...] = (Finite(), Learned(), Norms(), Scores())
_SAID_CHARS_MAX = 2_000
# What one look at a check may count of `judge_s_max`, however long this process was stopped meanwhile.
_LOOK_S = 1.0
_log = logging.getLogger(__name__)


class Judge:
    """Judges versions.

    Args:
        settings: Limits.
        checks: What is looked at, in order.
        scorer: Who scores samples by a version.
        samples: Gives the most recent samples whose windows are closed, newest last.
        clock: When a verdict is given.

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
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.settings = settings or JudgeSettings()
        self._checks, self._scorer, self._samples, self._clock = tuple(checks), scorer, samples, clock
        self._judging: tuple[int, threading.Thread] | None = None
        self._lost: PsError | None = None

    def case(
        self, version: Known, *, active: Known | None, earlier: Sequence[Known] = (), can_score: bool = True
    ) -> Case:
        """What a version is judged by.

        Args:
            version: The version.
            active: What is served.
            earlier: What passed before it up to the active version, oldest first.
            can_score: Whether its rows are there to score samples with; after a restart they are not.
        """
        scorer = self._scorer if can_score else None
        return Case(version, tuple(earlier), self.settings, active, scorer, self._samples if can_score else None)

    @property
    def busy_with(self) -> int | None:
        """A version with a check that took too long and is still not done; nothing else is judged meanwhile."""
        is_busy = self._judging is not None and self._judging[1].is_alive()
        return self._judging[0] if self._judging is not None and is_busy else None

    def judge(self, case: Case) -> Verdict:
        """The verdict on a version: rejected when any check objects, raises, or is not done within `judge_s_max`.

        Time in which this process was stopped does not count. Call it only while `busy_with` is None.

        Raises:
            PsError: Rows to score with could not be read, so that nothing can be said of the version.
        """
        findings: list[Finding] = []
        self._lost = None
        version = case.version.version
        assert self.busy_with is None, self.busy_with
        # It may hang in whatever it asks: nobody waits for it longer than is said.
        thread = threading.Thread(target=self._check, args=(case, findings), name="streamlearn-judge", daemon=True)
        self._judging = (version, thread)
        thread.start()
        left_s, look_s = self.settings.judge_s_max, min(_LOOK_S, self.settings.judge_s_max / 10)
        while thread.is_alive() and left_s > 0:
            thread.join(look_s)
            left_s -= look_s
        done = list(findings)
        if self._lost is not None:
            raise self._lost
        if len(done) < len(self._checks):
            name = self._checks[len(done)].name
            said = f"not finished after judge_s_max = {self.settings.judge_s_max:g} s"
            done.append(Finding(check=name, is_ok=False, said=said))
        return self._verdict(case, done)

    def _check(self, case: Case, findings: list[Finding]) -> None:
        for check in self._checks:
            try:
                found = check.judge(case)
                findings.append(structs.replace(found, said=found.said[:_SAID_CHARS_MAX]))
            # A shard that is away says nothing of a version; who keeps the shards is told, and it is judged later.
            except PsError as error:
                self._lost = error
                return
            # Checks are anybody's: whatever goes wrong in one is said, and the version is not promoted.
            except Exception as error:
                _log.exception("check %s of version %d failed", check.name, case.version.version)
                said = error.message if isinstance(error, StreamlearnError) else repr(error)
                findings.append(Finding(check=check.name, is_ok=False, said=f"it failed: {said}"[:_SAID_CHARS_MAX]))

    def _verdict(self, case: Case, findings: Sequence[Finding]) -> Verdict:
        return Verdict(
            version=case.version.ref,
            outcome="passed" if all(one.is_ok for one in findings) else "rejected",
            findings=tuple(structs.replace(one, values=_finite(one.values)) for one in findings),
            against=None if case.active is None else case.active.ref,
            wall_ms=max(0, self._clock.wall_ms()),
        )


def _finite(values: dict[str, float]) -> dict[str, float]:
    """JSON knows no infinite numbers."""
    return {name: value for name, value in values.items() if abs(value) < float("inf")}
