"""The versioned embedding table: maps keys to rows by version, in training and serving."""

from streamlearn.table.changes import Changes
from streamlearn.table.feature_packer import Packing, Scatter
from streamlearn.table.options import Adagrad, Admission, Expiry, RowType, TableOptions
from streamlearn.table.set import TableSet
from streamlearn.table.table import Pushed, Upkeep
from streamlearn.table.table_specs import declared_tables

__all__ = [
    "Adagrad",
    "Admission",
    "Changes",
    "Expiry",
    "Packing",
    "Pushed",
    "RowType",
    "Scatter",
    "TableOptions",
    "TableSet",
    "Upkeep",
    "declared_tables",
]
