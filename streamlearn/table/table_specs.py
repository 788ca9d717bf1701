"""Declared tables: the table options of an application, from its declaration and settings. It makes no table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import get_args

from streamlearn.errors import ConfigError
from streamlearn.features import TableSpec
from streamlearn.settings.tables import TableSettings
from streamlearn.table.options import Admission, Optimizer, TableOptions

__all__ = ["declared_tables"]

_OPTIMIZERS = {kind.__struct_config__.tag: kind for kind in get_args(Optimizer)}


def declared_tables(specs: Sequence[TableSpec], settings: TableSettings) -> tuple[TableOptions, ...]:
    """Return the options of an application's tables (`App.tables`), in their order.

    Raises:
        ConfigError: The optimizer does not support the weight decay, or a rate names a table that no slot uses.
    """
    if settings.weight_decay and settings.optimizer == "ftrl":
        message = f"tables.weight_decay is {settings.weight_decay}, which tables.optimizer ftrl does not support"
        raise ConfigError(message, help="choose another optimizer for rows, or remove tables.weight_decay")
    names = [spec.name for spec in specs]
    for name in settings.rates:
        if name not in names:
            message = f"tables.rates names table {name!r}, which is not used by any slot"
            raise ConfigError(message, help=f"the tables of the application are {', '.join(names)}")
    window_ms, width = settings.admission_window_ms, settings.admission_width_counters
    admission = Admission(window_ms=window_ms, width_counters=width) if window_ms else None
    optimizer = partial(_OPTIMIZERS[settings.optimizer], weight_decay=settings.weight_decay)
    return tuple(
        TableOptions(
            spec,
            rows_max=settings.rows_max,
            optimizer=optimizer(rate=settings.rates.get(spec.name, settings.rate)),
            seed=settings.seed,
            tick_ms=settings.tick_ms,
            admission=admission,
        )
        for spec in specs
    )
