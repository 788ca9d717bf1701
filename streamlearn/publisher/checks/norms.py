"""Norms: rows and dense weights have not jumped away from those of the active version."""

from __future__ import annotations

from streamlearn.publisher.case import Case
from streamlearn.publisher.figures import RMS
from streamlearn.versions import Finding

__all__ = ["Norms"]

# Below this numbers count as this: what began at zero grows by any factor, and is none the worse for it.
_FLOOR = 0.1
_NAMED_MAX = 10


class Norms:
    """Refuses rows of a table, or a dense tensor, whose norm is another order of magnitude.

    The norm is the root of the mean square of all numbers that the version changed, so that one row of absurd numbers
    shows; norms under 0.1 count as 0.1.
    """

    name = "norms"

    def judge(self, case: Case) -> Finding:
        """See `Check`."""
        most = case.settings.norm_ratio_max
        if not most:
            return Finding(check=self.name, is_ok=True, said="norm_ratio_max is 0: this check is off")
        jumps: dict[str, float] = {}
        said: list[str] = []
        looked = 0
        for name, now in case.metrics.items():
            before = case.before(name) if name.startswith(("rows.", "dense.")) and name.endswith(RMS) else None
            if before is None:
                continue
            looked += 1
            ratio = max(now, _FLOOR) / max(before[1], _FLOOR)
            if not 1 / most <= ratio <= most:
                jumps[name] = ratio
                said.append(f"{name} is {now:.4g}, but {before[1]:.4g} in version {before[0]}")
        if jumps:
            values = dict(sorted(jumps.items())[:_NAMED_MAX])
            return Finding(check=self.name, is_ok=False, said="; ".join(said[:_NAMED_MAX])[:2_000], values=values)
        return Finding(check=self.name, is_ok=True, said=f"{looked} norms are within a factor of {most:g}")
