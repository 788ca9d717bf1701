"""SampleRange: reads a range of samples as steps, with marks of its own. It learns nothing and scores nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.topics import Topic
from streamlearn.trainer.intake.feed import Feed, Until
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.skips import SkippedRows
from streamlearn.trainer.intake.split import Split
from streamlearn.trainer.intake.step_cutter import StepCutter
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.versions.format.manifest import Skip

__all__ = ["SampleRange"]


class SampleRange:
    """Yields each label once, and again when it is corrected; every instance starts over.

    `begin` and `split` bound the range, and rows in `left_out` are skipped. `keep_aside` takes messages that cannot
    be read.
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
        self.marks = SharedMarks(len(folder.app.labels), settings.marks)
        self.cutter = StepCutter(self.marks, settings.trainer.step_rows, SkippedRows(left_out), self._horizon_ms)
        self.feed = Feed(folder, topic, begin, self.cutter, until=Until(split.ends), keep_aside=keep_aside, clock=clock)

    def close(self) -> None:
        """Close the feed."""
        self.feed.close()

    def forget(self, reached: Reached) -> None:
        """Forget marks of rows so old that they would be refused if they came again."""
        if reached.watermark_ms is not None:
            self.marks.forget(reached.watermark_ms - self._horizon_ms)
