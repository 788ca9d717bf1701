"""Versions: the log of what a model was, as files in a store, how they become tables, and which one is served."""

from typing import TYPE_CHECKING

from streamlearn.lazy import lazy_names

if TYPE_CHECKING:
    from streamlearn.versions.chain import Chain
    from streamlearn.versions.defect import Defect
    from streamlearn.versions.fence import Fence, FenceRecord
    from streamlearn.versions.graphs import get_graph, graph_id_of, put_graph
    from streamlearn.versions.history import History
    from streamlearn.versions.known import Known
    from streamlearn.versions.loading import Loaded, LoadedVersion, load, load_bytes, load_tensors, table_record
    from streamlearn.versions.log import Log, read_manifest
    from streamlearn.versions.manifest import (
        Cut,
        FileEntry,
        FileKind,
        Head,
        Kind,
        Manifest,
        OriginSkip,
        Position,
        Skip,
        TableRecord,
        TimeSkip,
    )
    from streamlearn.versions.mover import Acted, Moved, Mover
    from streamlearn.versions.places import registry_url, store_url
    from streamlearn.versions.pointer import Canary, Pointer
    from streamlearn.versions.pointer_log import PointerLog
    from streamlearn.versions.record import VersionRef
    from streamlearn.versions.registry import Ack, Node, Note, Registry, open_registry
    from streamlearn.versions.request import Request, Requests
    from streamlearn.versions.settings import FileSettings, LoadSettings, StoreSettings
    from streamlearn.versions.standing import standings
    from streamlearn.versions.store import Entry, FileWriter, Store, Stored, open_store
    from streamlearn.versions.verdict import Finding, Verdict, read_verdict, write_verdict
    from streamlearn.versions.writer import Committed, VersionWriter, assemble, commit

__all__ = [
    "Ack",
    "Acted",
    "Canary",
    "Chain",
    "Committed",
    "Cut",
    "Defect",
    "Entry",
    "Fence",
    "FenceRecord",
    "FileEntry",
    "FileKind",
    "FileSettings",
    "FileWriter",
    "Finding",
    "Head",
    "History",
    "Kind",
    "Known",
    "LoadSettings",
    "Loaded",
    "LoadedVersion",
    "Log",
    "Manifest",
    "Moved",
    "Mover",
    "Node",
    "Note",
    "OriginSkip",
    "Pointer",
    "PointerLog",
    "Position",
    "Registry",
    "Request",
    "Requests",
    "Skip",
    "Store",
    "StoreSettings",
    "Stored",
    "TableRecord",
    "TimeSkip",
    "Verdict",
    "VersionRef",
    "VersionWriter",
    "assemble",
    "commit",
    "get_graph",
    "graph_id_of",
    "load",
    "load_bytes",
    "load_tensors",
    "open_registry",
    "open_store",
    "put_graph",
    "read_manifest",
    "read_verdict",
    "registry_url",
    "standings",
    "store_url",
    "table_record",
    "write_verdict",
]

__getattr__ = lazy_names(
    __name__,
    {
        "standing": "standings",
        "places": "registry_url store_url",
        "mover": "Acted Moved Mover",
        "chain": "Chain",
        "defect": "Defect",
        "fence": "Fence FenceRecord",
        "graphs": "get_graph graph_id_of put_graph",
        "history": "History",
        "known": "Known",
        "loading": "Loaded LoadedVersion load load_bytes load_tensors table_record",
        "log": "Log read_manifest",
        "manifest": "Cut FileEntry FileKind Head Kind Manifest OriginSkip Position Skip TableRecord TimeSkip",
        "pointer": "Canary Pointer",
        "pointer_log": "PointerLog",
        "record": "VersionRef",
        "registry": "Ack Node Note Registry open_registry",
        "request": "Request Requests",
        "settings": "FileSettings LoadSettings StoreSettings",
        "store": "Entry FileWriter Store Stored open_store",
        "verdict": "Finding Verdict read_verdict write_verdict",
        "writer": "Committed VersionWriter assemble commit",
    },
)
