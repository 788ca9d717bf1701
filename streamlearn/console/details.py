"""Details: all that the store has of one version, for whoever looks closer. Read anew each time it is asked for."""

from __future__ import annotations

from streamlearn.versions import History, Known, Store
from streamlearn.versions.format.log import read_manifest
from streamlearn.versions.format.verdict import read_verdict
from streamlearn.versions.pointer.facts import Facts, file_facts, manifest_facts

__all__ = ["details_of"]


def details_of(store: Store, model: str, one: Known) -> Facts:
    """What a version is made of, what the judge found, and up to where it has learned.

    Raises:
        StoreError: The store did not answer, or the manifest or the verdict is damaged.
    """
    folder = History(store, model).folder(one.ref)
    manifest, verdict = read_manifest(store, folder), read_verdict(store, folder)
    # Each file by itself may be tens of thousands; what people read is their sums.
    said = manifest_facts(manifest, verdict) | {"files": file_facts(manifest)}
    return said | {"version": one.version, "folder": f"{store.url}/{folder}", "sha256": one.ref.sha256}
