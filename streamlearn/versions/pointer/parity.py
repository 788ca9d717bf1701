"""Parity: whether an application that learned its samples again is as good as the one that it replaces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from streamlearn.versions.format.history import History
from streamlearn.versions.format.manifest import Origin
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.store.interface import Store

__all__ = ["AUC_BELOW_MAX", "parity", "why_not_par"]

AUC_BELOW_MAX = 0.002
MAE_RATIO_MAX = 1.01
_WINDOW_MS = 3_600_000


def why_not_par(store: Store, current: str, to: str) -> str:
    """Return why an application is not as good as the current one; empty if it is, or has relearned nothing."""
    from streamlearn.versions.format.chain import Chain

    manifest = Chain.find(store, to).manifest
    origin = manifest.origin
    if not isinstance(origin, Origin) or not origin.is_relearned or origin.model != current:
        return ""
    sides = [_figures(History(store, name).read()) for name in (current, to)]
    return parity(sides[0], sides[1], origin.clock_ms or 0, manifest.labels)


def parity(
    current: Mapping[tuple[str, float], float],
    new: Mapping[tuple[str, float], float],
    from_ms: int,
    new_labels: Collection[str] | None = None,
) -> str:
    """Compare the AUC of the newest hour that both know, by label; an hour that begins before `from_ms` is left out.

    Both map a label and the end of an hour, in seconds, to the AUC. Labels that the new application does not have are
    not compared; None stands for those of the current one.

    Examples:
        >>> parity({("click", 7200.0): 0.75}, {("click", 7200.0): 0.7485}, 3_600_000)
        ''
        >>> parity({("click", 7200.0): 0.75}, {("click", 7200.0): 0.74}, 3_600_000)
        'AUC of click is 0.7400 and was 0.7500 in the same hour'
        >>> parity({("click", 7200.0): 0.75}, {("click", 3600.0): 0.76}, 3_600_000)
        'both have not yet scored an hour of click that the new one had not learned'
        >>> parity({("click", 7200.0): 0.75, ("buy", 7200.0): 0.8}, {("click", 7200.0): 0.75}, 0, ["click"])
        ''
        >>> parity({("buy", 7200.0): 0.8}, {}, 0, ["click"])
        'the new application has no label of the current one'
    """
    labels = sorted({label for label, _ in current if new_labels is None or label in new_labels})
    if not current:
        return "the current application has no scores yet"
    if not labels:
        return "the new application has no label of the current one"
    for label in labels:
        ends = [
            until_s
            for known, until_s in current.keys() & new.keys()
            if known == label and until_s * 1e3 - _WINDOW_MS >= from_ms
        ]
        if not ends:
            return f"both have not yet scored an hour of {label} that the new one had not learned"
        key = (label, max(ends))
        kind, least = (
            ("AUC", current[key] - AUC_BELOW_MAX) if current[key] >= 0 else ("MAE", current[key] * MAE_RATIO_MAX)
        )
        if new[key] < least:
            return f"{kind} of {label} is {abs(new[key]):.4f} and was {abs(current[key]):.4f} in the same hour"
    return ""


def _figures(known: Iterable[Known]) -> dict[tuple[str, float], float]:
    """Return the AUC of each label by the end of its hour; of a number its mean absolute error, as negative."""
    figures: dict[tuple[str, float], float] = {}
    for version in known:
        for name, value in version.metrics.items():
            label, _, kind = name.removeprefix("validation.").rpartition(".")
            until_s = version.metrics.get(f"validation.{label}.until_s")
            if name.startswith("validation.") and kind in ("auc", "mae") and until_s is not None:
                figures[label, until_s] = value if kind == "auc" else -value
    return figures
