"""Vectors in versions: those that do not fit together are a defect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.errors import VersionDefect
from streamlearn.testing import ManualClock
from streamlearn.versions import Committed, Cut, Head, Store, VersionWriter, open_store, verify
from streamlearn.versions.format.library_files import check_vectors

_VECTORS: dict[str, Any] = {
    "key": np.array([3, 9], np.uint64),
    "row": np.ones((2, 4), np.int8),
    "scale": np.array([0.5, 0.0], np.float32),
    "gone": np.array([7], np.uint64),
}


def written(store: Store, vectors: dict[str, Any]) -> Committed:
    head = Head(
        model="m", run=1, version=1, kind="base", parent=None, fingerprint="f" * 16, windows="w" * 16, tables=()
    )
    writer = VersionWriter(store, head)
    writer.add_vectors(vectors)
    return writer.finish(Cut(), clock=ManualClock())


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"row": np.ones((2, 4), np.float32)}, "vectors have"),
        ({"row": np.ones(2, np.int8)}, "do not fit 2 keys"),
        ({"row": np.ones((3, 4), np.int8)}, "do not fit 2 keys"),
        ({"scale": np.array([0.5], np.float32)}, "do not fit 2 keys"),
        ({"scale": np.array([0.5, np.nan], np.float32)}, "negative or not finite"),
        ({"scale": np.array([0.5, -1.0], np.float32)}, "negative or not finite"),
        ({"key": np.array([3, 3], np.uint64)}, "a key occurs twice"),
        ({"gone": np.array([9], np.uint64)}, "a key occurs twice"),
        ({"more": np.zeros(2, np.float32)}, "vectors have"),
    ],
)
def test_vectors_that_do_not_fit_are_a_defect_that_verify_names(
    tmp_path: Path, changed: dict[str, Any], what: str
) -> None:
    check_vectors(_VECTORS, "there")
    with pytest.raises(VersionDefect, match=what):
        check_vectors(_VECTORS | changed, "there")
    store = open_store(tmp_path.as_uri())
    written(store, _VECTORS | changed)
    (found,) = verify(store, "m").defects
    assert what in found.message


def test_a_damaged_file_of_vectors_is_named(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    version = written(store, _VECTORS)
    assert verify(store, "m").defects == ()
    path = f"{version.folder}/{version.manifest.of_kind('vectors')[0].path}"
    whole = bytes(store.read(path, bytes_max=1 << 20))
    store.remove(path)
    store.create(path, whole[:-1] + bytes([whole[-1] ^ 1]))
    assert [(defect.path, defect.defect) for defect in verify(store, "m").defects] == [(path, "corrupted")]
