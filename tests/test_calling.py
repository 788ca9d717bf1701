"""The page on asking a node: its programs of the shell and of Python as they stand, against a node of that model."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.features import FeatureSpec, Label, Slot
from streamlearn.features.keys import keys_of
from streamlearn.native import native
from streamlearn.serving.front import FrontLimits
from streamlearn.serving.model_schema import ItemInputs, LibraryInputs, described
from streamlearn.serving.node import NodeLimits
from streamlearn.table import TableOptions, TableSet
from tests.pages import ROOT, walk

_S_MAX = 600  # it only ends what hangs
_FEATURES = FeatureSpec(
    slots=(
        Slot("user_id", "user", table="main", dim=4),
        Slot("country", "user", table="main", dim=4, value="str"),
        Slot("watched", "user", table="main", dim=4, multi=True, pooling="mean"),
        Slot("video_id", "item", table="main", dim=4),
        Slot("author_id", "item", table="main", dim=4),
    ),
    item_id="video_id",
)
_TOWERS = FeatureSpec(slots=(*_FEATURES.slots[:2], _FEATURES.slots[3]), item_id="video_id")
_LIMITS = {"candidates_max": 64, "values_max": 512, "message_bytes_max": 1 << 16}


def items() -> tuple[Any, Any, int, None]:
    """The items 901 to 905 and their vectors, the last ones farther from every user."""
    slot, ids = _FEATURES.slot("video_id"), np.arange(901, 906)
    keys, none = keys_of(slot, ids), np.zeros(0, np.uint64)
    values, scales = native.encode_vectors(np.outer(0.5 ** np.arange(5), [1, 0, 0, 0]).astype(np.float32))
    blocks = native.Blocks(4).apply(keys, values, scales, none)
    return blocks, native.RawIds(False).apply(keys, ids, none), 1_700_000_000_000, None


@pytest.fixture
def node() -> Iterator[Any]:
    """A node of the page's model; what its lane gives are zeros, and ones of a user's vector."""
    tables = TableSet([TableOptions(spec, 100) for spec in _FEATURES.tables])
    tables.stage(1, None, [])
    labels, library = [Label("click", "click", "fast")], LibraryInputs(100, "click")
    text = described(_FEATURES, labels, list(tables.dims), _LIMITS, library=library)
    limits = FrontLimits(1, 100, 1_000, 0, 0, 0, 8, 1.0, 0, False, 120_000_000, 120_000_000)
    front = native.Front(text, ([1], [4], [1]), limits, 4)
    salt = native.slot_salt("video_id")
    towers = described(_TOWERS, [], list(tables.dims), _LIMITS, items=ItemInputs(salt, False, 100, 4))
    finding = native.Front(towers, ([1], [1], [1]), limits, 4)
    ended = threading.Event()

    def lane() -> None:
        while not ended.is_set():
            for each, scores in ((front, np.zeros((4, 1), np.float32)), (finding, np.ones((1, 4), np.float32))):
                work = each.take(0, 0.02)
                if work is not None:
                    each.give(work, scores)

    made = native.FrontNode(
        "ctr", front, ("127.0.0.1:0", "127.0.0.1:0"), NodeLimits(1, 100, 100, 1 << 16, 5_000),
        metrics=lambda: "some 1\n",
    )  # fmt: skip
    made.retrieve_by(finding)
    handle = front.add(1, tables.native)
    authors, keys = (
        keys_of(_FEATURES.slot("author_id"), np.arange(5)),
        keys_of(_FEATURES.slot("video_id"), np.arange(901, 906)),
    )
    native.ItemFeatures([("one", 0)]).apply(keys, [[authors]], np.zeros(0, np.uint64)).describe(front, handle)
    front.activate(handle)
    finding.activate(finding.add(1, tables.native, items=items()))
    made.set_state(True)
    # A lane is there once it has looked for work: who asks before that is refused.
    assert front.take(0, 0.0) is None
    assert finding.take(0, 0.0) is None
    thread = threading.Thread(target=lane)
    thread.start()
    try:
        yield made
    finally:
        front.drain()
        finding.drain()
        made.stop()
        ended.set()
        thread.join()


def test_the_programs_of_the_page_are_answered(node: Any, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "calling.md").read_text()
    page = page.replace("127.0.0.1:8000", node.http).replace("127.0.0.1:8001", node.grpc)
    page = page.replace('"deadline_ms": 5000', '"deadline_ms": 100000')  # a loaded machine answers late
    lines = []
    for kind, block in re.findall(r"^```(python|sh)\n(.*?)^```", page, flags=re.M | re.S):
        lines.append(block if kind == "sh" else f"python -W error - <<'END-OF-BLOCK'\n{block}END-OF-BLOCK\n")
    said = walk(tmp_path, "\necho\n".join(lines), s_max=_S_MAX)
    assert '"version":1,"scores":{"click":[0.5,0.5]}' in said, said
    assert '"model_version":"1"' in said, said
    assert '"data":[0.5,0.5]' in said, said
    assert '"version":1,"as_of_ms":1700000000000,"items":[{"id":903,"score":' in said, said
    assert '"data":[903,904]' in said, said
    best = ",".join(f'{{"id":{item},"scores":{{"click":0.5}}}}' for item in (903, 904))
    assert f'"as_of_ms":1700000000000,"candidates":3,"items":[{best}]' in said, said
    assert '{"live":true,"ready":true}' in said, said
    assert '"active":1' in said, said
    assert '"data_type":"TYPE_STRING"' in said, said
    assert '"model_name":"ctr.recommend"' in said, said
    assert '"candidates":5' in said, said
    assert '"inference_count":12' in said, said  # of candidates: two, two, three and five
    assert '"state":"READY"' in said, said
    assert "some 1" in said, said
    assert "version 1 click [0.5 0.5]" in said, said
    assert "StatusCode.FAILED_PRECONDITION this node does not keep version 999999; it has 1" in said, said
