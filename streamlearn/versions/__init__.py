"""Versions: the log of what a model was, as files in a store, and how they become tables."""

from streamlearn.versions.chain import Chain
from streamlearn.versions.defect import Defect
from streamlearn.versions.graphs import get_graph, graph_id_of, put_graph
from streamlearn.versions.load import Loaded, LoadedVersion, load, load_bytes, load_tensors, table_record
from streamlearn.versions.log import Log
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
    VersionRef,
)
from streamlearn.versions.settings import FileSettings, LoadSettings, StoreSettings
from streamlearn.versions.store import Entry, FileWriter, Store, Stored, open_store
from streamlearn.versions.writer import Committed, VersionWriter, assemble, commit

__all__ = [
    "Chain",
    "Committed",
    "Cut",
    "Defect",
    "Entry",
    "FileEntry",
    "FileKind",
    "FileSettings",
    "FileWriter",
    "Head",
    "Kind",
    "LoadSettings",
    "Loaded",
    "LoadedVersion",
    "Log",
    "Manifest",
    "OriginSkip",
    "Position",
    "Skip",
    "Store",
    "StoreSettings",
    "Stored",
    "TableRecord",
    "TimeSkip",
    "VersionRef",
    "VersionWriter",
    "assemble",
    "commit",
    "get_graph",
    "graph_id_of",
    "load",
    "load_bytes",
    "load_tensors",
    "open_store",
    "put_graph",
    "table_record",
]
