"""Finite: no row, dense weight or metric is NaN or infinite."""

from __future__ import annotations

from streamlearn.publisher.case import Case
from streamlearn.publisher.figures import NOT_FINITE
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
            return Finding(check=self.name, is_ok=True, said=f"{looked} tables and tensors have finite numbers alone")
        named = dict(sorted(bad.items())[:_NAMED_MAX])
        said = ", ".join(f"{name.removesuffix(NOT_FINITE)} ({count:g})" for name, count in named.items())
        return Finding(check=self.name, is_ok=False, said=f"NaN or infinite: {said}", values=named)
