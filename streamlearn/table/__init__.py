"""The versioned embedding table: keys to rows by version, for training and serving alike."""

from streamlearn.table.changes import Changes, encode_rows
from streamlearn.table.declared import declared_tables
from streamlearn.table.options import (
    Adagrad,
    Adam,
    Admission,
    Expiry,
    Ftrl,
    Optimizer,
    RowType,
    RowwiseAdagrad,
    Sgd,
    TableOptions,
)
from streamlearn.table.packing import Packing, Scatter
from streamlearn.table.pin import At, Pin
from streamlearn.table.set import TableSet
from streamlearn.table.source import RowSource
from streamlearn.table.table import Expired, Pushed, Table, TableStats, Upkeep

__all__ = [
    "Adagrad",
    "Adam",
    "Admission",
    "At",
    "Changes",
    "Expired",
    "Expiry",
    "Ftrl",
    "Optimizer",
    "Packing",
    "Pin",
    "Pushed",
    "RowSource",
    "RowType",
    "RowwiseAdagrad",
    "Scatter",
    "Sgd",
    "Table",
    "TableOptions",
    "TableSet",
    "TableStats",
    "Upkeep",
    "declared_tables",
    "encode_rows",
]
