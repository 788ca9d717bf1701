"""Finite: no row, dense weight or metric is NaN or infinite."""

from __future__ import annotations

from streamlearn.publisher.case import Case
from streamlearn.publisher.figures import KEY, NAN, NOT_FINITE
from streamlearn.versions import Finding

__all__ = ["Finite"]

_NAMED_MAX = 10


class Finite:
    """Refuses what is no number."""

    name = "finite"

    def judge(self, case: Case) -> Finding:
        """See `Check`."""
        bad = {name: count for name, count in case.metrics.items() if name.endswith(NOT_FINITE) and count}
        if not bad:
            looked = sum(name.endswith(NOT_FINITE) for name in case.metrics)
            return Finding(check=self.name, is_ok=True, said=f"all numbers of {looked} tables and tensors are finite")
        named = dict(sorted(bad.items())[:_NAMED_MAX])
        said = "; ".join(_said(case, name.removesuffix(NOT_FINITE), count) for name, count in named.items())
        return Finding(check=self.name, is_ok=False, said=f"not finite: {said}", values=named)


def _said(case: Case, name: str, count: float) -> str:
    """What is wrong with a table, a tensor or a metric, as the metrics of the version have it."""
    nan = case.metrics.get(f"{name}{NAN}", 0.0)
    kinds = [f"{number:g} {kind}" for number, kind in ((nan, "NaN"), (count - nan, "infinite")) if number]
    begin = f"{name}{NOT_FINITE}{KEY}"
    keys = [one.removeprefix(begin) for one in case.metrics if one.startswith(begin)]
    return f"{name} ({', '.join(kinds)}{'; first keys ' if keys else ''}{', '.join(keys)})"
