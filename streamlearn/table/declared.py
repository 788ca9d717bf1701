"""Declared: the tables of an application, from its features and settings. It makes none."""

from __future__ import annotations

from collections.abc import Callable

from streamlearn.features import FeatureSpec
from streamlearn.settings import TableSettings
from streamlearn.table.options import (
    Adagrad,
    Adam,
    Admission,
    Ftrl,
    Optimizer,
    RowwiseAdagrad,
    Sgd,
    TableOptions,
)

__all__ = ["declared_tables"]

_OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": Sgd,
    "adagrad": Adagrad,
    "rowwise_adagrad": RowwiseAdagrad,
    "adam": Adam,
    "ftrl": Ftrl,
}


def declared_tables(features: FeatureSpec, settings: TableSettings) -> tuple[TableOptions, ...]:
    """What the tables of an application are made of, in the order they are declared in.

    Args:
        features: The application's.
        settings: The section `tables` of its settings.
    """
    window_ms, width = settings.admission_window_ms, settings.admission_width_counters
    admission = Admission(window_ms=window_ms, width_counters=width) if window_ms else None
    optimizer = _OPTIMIZERS[settings.optimizer](rate=settings.rate)
    return tuple(
        TableOptions(
            spec,
            rows_max=settings.rows_max,
            optimizer=optimizer,
            seed=settings.seed,
            tick_ms=settings.tick_ms,
            admission=admission,
        )
        for spec in features.tables
    )
