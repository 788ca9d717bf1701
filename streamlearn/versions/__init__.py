"""Versions: the published states of a model, as files in a store; how to load them, and which one is served."""

from typing import TYPE_CHECKING

from streamlearn.lazy import lazy_names

if TYPE_CHECKING:
    from streamlearn.versions.format.chain import Chain
    from streamlearn.versions.format.history import History
    from streamlearn.versions.format.loading import load, load_tensors, record_of, table_record
    from streamlearn.versions.format.manifest import Cut, Head, TimeSkip
    from streamlearn.versions.format.record import VersionRef
    from streamlearn.versions.format.verdict import Finding, Verdict, write_verdict
    from streamlearn.versions.format.version_summary import Known
    from streamlearn.versions.format.writer import Committed, VersionWriter
    from streamlearn.versions.pointer.mover import Mover
    from streamlearn.versions.pointer.moves import Pointer
    from streamlearn.versions.pointer.pointer_log import PointerLog
    from streamlearn.versions.pointer.rebuild import rebuild_registry
    from streamlearn.versions.pointer.registry import Node, Registry, open_registry
    from streamlearn.versions.pointer.request import Request, Requests
    from streamlearn.versions.replica.node_replica import Replica
    from streamlearn.versions.store.interface import Store, open_store
    from streamlearn.versions.upkeep.compaction import compact
    from streamlearn.versions.upkeep.difference import diff
    from streamlearn.versions.upkeep.exchange import export_version, import_version
    from streamlearn.versions.upkeep.gc import plan_gc, sweep
    from streamlearn.versions.upkeep.revert import write_revert
    from streamlearn.versions.upkeep.verification import verify

__all__ = [
    "Chain", "Committed", "Cut", "Finding", "Head", "History", "Known", "Mover", "Node", "Pointer", "PointerLog",
    "Registry", "Replica", "Request", "Requests", "Store", "TimeSkip", "Verdict", "VersionRef", "VersionWriter",
    "compact", "diff", "export_version", "import_version", "load", "load_tensors", "open_registry", "open_store",
    "plan_gc", "rebuild_registry", "record_of", "sweep", "table_record", "verify", "write_revert", "write_verdict",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "format.chain": "Chain", "format.history": "History",
        "format.loading": "load load_tensors record_of table_record", "format.manifest": "Cut Head TimeSkip",
        "format.record": "VersionRef", "format.verdict": "Finding Verdict write_verdict",
        "format.version_summary": "Known", "format.writer": "Committed VersionWriter",
        "pointer.mover": "Mover", "pointer.moves": "Pointer", "pointer.pointer_log": "PointerLog",
        "pointer.rebuild": "rebuild_registry", "pointer.registry": "Node Registry open_registry",
        "pointer.request": "Request Requests",
        "replica.node_replica": "Replica",
        "store.interface": "Store open_store",
        "upkeep.compaction": "compact", "upkeep.difference": "diff", "upkeep.exchange": "export_version import_version",
        "upkeep.gc": "plan_gc sweep", "upkeep.revert": "write_revert", "upkeep.verification": "verify",
    },
)  # fmt: skip
