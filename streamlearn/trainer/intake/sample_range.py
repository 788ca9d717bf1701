"""SampleRange: reads a range of samples as steps of what is still to be learned. It learns and scores nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.topics import Topic
from streamlearn.trainer.intake.feed import Feed, Until
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.step_cutter import Refused, StepCutter
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.versions.format.manifest import Skip

__all__ = ["SampleRange", "horizon_ms_of"]


def horizon_ms_of(folder: AppFolder) -> int:
    """Return how long before the watermark an impression may be for its rows to be learned."""
    longest_s = max(group.window_s for group in folder.app.groups)
    return round((longest_s + folder.settings.trainer.restart_slack_s) * 1e3)


class SampleRange:
    """Yields each label once, and again when it is corrected, from `begin` until `until`.

    `marks` are of rows that were learned before; None: there are none. Rows in `skips` are left out, and `on_refused`
    is called for rows that are too old. `keep_aside` takes messages that cannot be read.
    """

    def __init__(
        self,
        folder: AppFolder,
        topic: Topic,
        begin: Reached,
        skips: Sequence[Skip],
        *,
        until: Until,
        keep_aside: Callable[[str, bytes], None],
        marks: SharedMarks | None = None,
        on_refused: Refused = lambda event_time_ms, labels: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._horizon_ms = horizon_ms_of(folder)
        self.marks = SharedMarks.of(folder.app, folder.settings.marks) if marks is None else marks
        step_rows = folder.settings.trainer.step_rows
        self.cutter = StepCutter(self.marks, step_rows, skips, self._horizon_ms, on_refused=on_refused)
        self.feed = Feed(folder, topic, begin, self.cutter, until=until, keep_aside=keep_aside, clock=clock)

    @property
    def counts(self) -> dict[str, int]:
        """Row totals by outcome, and the messages that could not be read."""
        return vars(self.cutter.counts) | {"bad": self.feed.bad}

    def forget(self, reached: Reached) -> None:
        """Forget marks of rows so old that they would be refused if they came again."""
        if reached.watermark_ms is not None:
            self.marks.forget(reached.watermark_ms - self._horizon_ms)
