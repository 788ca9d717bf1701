"""What a version is, as serving and training see it: what is compared before and after."""

from __future__ import annotations

from typing import Any

from streamlearn.table import RowType, TableSet
from streamlearn.versions import Chain, Store, load, load_tensors
from streamlearn.versions.format.loading import load_bytes
from streamlearn.versions.format.manifest import FileKind
from tests.versions.history import OPTIONS, everything, rows_of, serving

__all__ = ["beside", "known", "served"]


def known(chain: Chain, table: str = "main") -> tuple[Any, ...]:
    """All that training goes on from: rows, state, use; pages of counts; where expiry is."""
    tables = TableSet(OPTIONS)
    load(chain, tables, training=True)
    upkeep = tables[table].upkeep()
    return everything(tables, chain.version), upkeep.pages, upkeep.next_part, upkeep.hands.tolist()


def served(chain: Chain, row_type: RowType = "float32") -> dict[tuple[str, int], bytes]:
    """The rows of a node."""
    node = serving(row_type)
    load(chain, node)
    return rows_of(node, chain.version)


def beside(store: Store, chain: Chain) -> dict[str, Any]:
    """What is of the whole model."""
    manifest = chain.manifest
    names = ("positions", "watermark_ms", "graph", "metrics")
    named: dict[str, Any] = {name: getattr(manifest, name) for name in names}
    kinds: tuple[FileKind, ...] = ("dense", "dense_optimizer")
    for kind in kinds:
        found = load_tensors(store, chain.head, kind)
        named[kind] = {name: (one.dtype, one.shape, one.tobytes()) for name, one in found.items()}
    kinds = ("marks", "golden")
    for kind in kinds:
        named[kind] = {name: bytes(one) for name, one in load_bytes(store, chain.head, kind).items()}
    return named
