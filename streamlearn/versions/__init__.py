"""Versions: the log of what a model was, as files in a store, how they become tables, and which one is served."""

from typing import TYPE_CHECKING

from streamlearn.lazy import lazy_names

if TYPE_CHECKING:
    from streamlearn.versions.announcer import Announcer
    from streamlearn.versions.chain import Chain
    from streamlearn.versions.compaction import Compacted, compact
    from streamlearn.versions.defect import Defect
    from streamlearn.versions.difference import DenseMove, Diff, RowMove, TableDiff, diff
    from streamlearn.versions.exchange import Exchanged, export_version, import_version
    from streamlearn.versions.fence import Fence, FenceRecord
    from streamlearn.versions.gc import GcPlan, Removal, Swept, plan_gc, sweep
    from streamlearn.versions.graphs import get_graph, graph_id_of, put_graph
    from streamlearn.versions.history import History
    from streamlearn.versions.hooks import Hooks, NoHooks
    from streamlearn.versions.known import Known
    from streamlearn.versions.loading import (
        Loaded,
        LoadedVersion,
        load,
        load_bytes,
        load_tensors,
        record_of,
        stage_version,
        table_record,
    )
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
    from streamlearn.versions.model import Model
    from streamlearn.versions.mover import Acted, Moved, Mover
    from streamlearn.versions.node_status import NodeStatus
    from streamlearn.versions.not_finite import NotFinite
    from streamlearn.versions.places import registry_url, store_url
    from streamlearn.versions.pointer import Canary, Pointer
    from streamlearn.versions.pointer_log import PointerLog
    from streamlearn.versions.reading import Reading
    from streamlearn.versions.rebuild import Rebuilt, kind_of_move, rebuild_registry
    from streamlearn.versions.record import VersionRef
    from streamlearn.versions.registry import Ack, Node, Note, Registry, open_registry
    from streamlearn.versions.replica import Replica
    from streamlearn.versions.request import Request, Requests
    from streamlearn.versions.retention import CommittedFolder, Going, LooseFolder, Reason, Retained, There, retain
    from streamlearn.versions.revert import write_revert
    from streamlearn.versions.scorer import Scorer
    from streamlearn.versions.scratch import Progress
    from streamlearn.versions.settings import FileSettings, LoadSettings, ScanSettings, StoreSettings
    from streamlearn.versions.standing import standings
    from streamlearn.versions.store import Entry, FileFound, FileWriter, Store, Stored, open_store
    from streamlearn.versions.verdict import Finding, Verdict, read_verdict, write_verdict
    from streamlearn.versions.verification import Found, Verified, verify
    from streamlearn.versions.writer import Committed, VersionWriter, assemble, commit

__all__ = [
    "Ack",
    "Acted",
    "Announcer",
    "Canary",
    "Chain",
    "Committed",
    "CommittedFolder",
    "Compacted",
    "Cut",
    "Defect",
    "DenseMove",
    "Diff",
    "Entry",
    "Exchanged",
    "Fence",
    "FenceRecord",
    "FileEntry",
    "FileFound",
    "FileKind",
    "FileSettings",
    "FileWriter",
    "Finding",
    "Found",
    "GcPlan",
    "Going",
    "Head",
    "History",
    "Hooks",
    "Kind",
    "Known",
    "LoadSettings",
    "Loaded",
    "LoadedVersion",
    "Log",
    "LooseFolder",
    "Manifest",
    "Model",
    "Moved",
    "Mover",
    "NoHooks",
    "Node",
    "NodeStatus",
    "NotFinite",
    "Note",
    "OriginSkip",
    "Pointer",
    "PointerLog",
    "Position",
    "Progress",
    "Reading",
    "Reason",
    "Rebuilt",
    "Registry",
    "Removal",
    "Replica",
    "Request",
    "Requests",
    "Retained",
    "RowMove",
    "ScanSettings",
    "Scorer",
    "Skip",
    "Store",
    "StoreSettings",
    "Stored",
    "Swept",
    "TableDiff",
    "TableRecord",
    "There",
    "TimeSkip",
    "Verdict",
    "Verified",
    "VersionRef",
    "VersionWriter",
    "assemble",
    "commit",
    "compact",
    "diff",
    "export_version",
    "get_graph",
    "graph_id_of",
    "import_version",
    "kind_of_move",
    "load",
    "load_bytes",
    "load_tensors",
    "open_registry",
    "open_store",
    "plan_gc",
    "put_graph",
    "read_manifest",
    "read_verdict",
    "rebuild_registry",
    "record_of",
    "registry_url",
    "retain",
    "stage_version",
    "standings",
    "store_url",
    "sweep",
    "table_record",
    "verify",
    "write_revert",
    "write_verdict",
]

__getattr__ = lazy_names(
    __name__,
    {
        "standing": "standings",
        "places": "registry_url store_url",
        "model": "Model",
        "mover": "Acted Moved Mover",
        "announcer": "Announcer",
        "chain": "Chain",
        "defect": "Defect",
        "fence": "Fence FenceRecord",
        "graphs": "get_graph graph_id_of put_graph",
        "history": "History",
        "hooks": "Hooks NoHooks",
        "known": "Known",
        "loading": "Loaded LoadedVersion load load_bytes load_tensors record_of stage_version table_record",
        "log": "Log read_manifest",
        "manifest": "Cut FileEntry FileKind Head Kind Manifest OriginSkip Position Skip TableRecord TimeSkip",
        "node_status": "NodeStatus",
        "not_finite": "NotFinite",
        "pointer": "Canary Pointer",
        "pointer_log": "PointerLog",
        "reading": "Reading",
        "rebuild": "Rebuilt kind_of_move rebuild_registry",
        "record": "VersionRef",
        "registry": "Ack Node Note Registry open_registry",
        "replica": "Replica",
        "request": "Request Requests",
        "scorer": "Scorer",
        "settings": "FileSettings LoadSettings ScanSettings StoreSettings",
        "store": "Entry FileFound FileWriter Store Stored open_store",
        "verdict": "Finding Verdict read_verdict write_verdict",
        "compaction": "Compacted compact",
        "difference": "DenseMove Diff RowMove TableDiff diff",
        "exchange": "Exchanged export_version import_version",
        "gc": "GcPlan Removal Swept plan_gc sweep",
        "retention": "CommittedFolder Going LooseFolder Reason Retained There retain",
        "revert": "write_revert",
        "scratch": "Progress",
        "verification": "Found Verified verify",
        "writer": "Committed VersionWriter assemble commit",
    },
)
