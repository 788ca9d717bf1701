"""Learned: a version has learned from as many rows as are asked for."""

from __future__ import annotations

from streamlearn.publisher.case import Case
from streamlearn.versions import Finding

__all__ = ["Learned"]


class Learned:
    """Refuses a version that learned from too little.

    The first version, a revert, and one that was published although nothing was learned say so and pass.
    """

    name = "learned"

    def judge(self, case: Case) -> Finding:
        """See `Check`."""
        least, one = case.settings.samples_rows_min, case.version
        rows = case.metrics.get("learned_rows")
        if one.parent is None or one.content_of is not None or rows is None:
            return Finding(check=self.name, is_ok=True, said="the version was not written by training")
        values = {"learned_rows": rows}
        if not rows:
            return Finding(check=self.name, is_ok=True, said="nothing was learned since its parent", values=values)
        said = f"it learned from {rows:g} rows since its parent; at least {least} are required"
        return Finding(check=self.name, is_ok=rows >= least, said=said, values=values)
