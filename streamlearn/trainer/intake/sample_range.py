"""Reading: one reading of a range of samples as steps, with marks of its own. It learns nothing and scores nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.marks import MarkedRows, Settled
from streamlearn.topics import Topic
from streamlearn.trainer.intake.feed import Feed, Until
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.skips import SkippedRows
from streamlearn.trainer.intake.split import Split
from streamlearn.trainer.intake.step_cutter import Stepping
from streamlearn.trainer.shared_marks import Remembered
from streamlearn.versions.format.manifest import Skip

__all__ = ["Reading"]


class Reading:
    """Gives each label once, and once more where it is corrected, as a stream does. Another reading gives all again.

    Args:
        folder: The application.
        topic: Its samples.
        split: Where they end.
        begin: Where they begin.
        left_out: Rows that are not given.
        keep_aside: Takes messages that cannot be read.
        clock: How long is waited.

    Attributes:
        remembered: Marks of this reading.
        stepping: Makes its steps, and counts rows.
        feed: Gives its steps.
    """

    def __init__(
        self,
        folder: AppFolder,
        topic: Topic,
        split: Split,
        begin: Reached,
        left_out: Sequence[Skip],
        *,
        keep_aside: Callable[[str, bytes], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        settings = folder.settings
        longest_s = max(group.window_s for group in folder.app.groups)
        self._horizon_ms = round((longest_s + settings.trainer.restart_slack_s) * 1e3)
        self.remembered = Remembered(len(folder.app.labels), settings.marks)
        marks, skipped = _Within(self.remembered), SkippedRows(left_out)
        self.stepping = Stepping(marks, settings.trainer.step_rows, skipped, self._horizon_ms)
        self.feed = Feed(
            folder, topic, begin, self.stepping, until=Until(split.ends), keep_aside=keep_aside, clock=clock
        )

    def close(self) -> None:
        """Let go of the topic."""
        self.feed.close()

    def forget(self, reached: Reached) -> None:
        """Let go of marks of rows that would be refused for their age, should they come again."""
        if reached.watermark_ms is not None:
            self.remembered.forget(reached.watermark_ms - self._horizon_ms)


class _Within:
    """Marks that keep nothing of rows that are left out: when they were shown leaves them out again."""

    def __init__(self, remembered: Remembered) -> None:
        self._remembered = remembered

    def settle(self, step: int, rows: MarkedRows) -> Settled:
        return self._remembered.settle(step, rows)

    def refuse(self, step: int, rows: MarkedRows) -> None:
        del step, rows
