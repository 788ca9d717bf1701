"""The index of keys: what a dict says, however keys came and went."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.library import key_index
from streamlearn.library.key_index import KeyIndex

KEYS = st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 20), max_size=12)


@given(steps=st.lists(st.tuples(KEYS, st.booleans()), max_size=8), wanted=KEYS, tail=st.integers(0, 9))
def test_rows_are_found_by_key_and_by_rank(steps: list[tuple[list[int], bool]], wanted: list[int], tail: int) -> None:
    index, rows = KeyIndex(), dict[int, int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "_TAIL_MAX", tail)
        for keys, is_kept in steps:
            new = np.array(sorted({*keys} - rows.keys()), np.uint64)
            added = len(rows) + np.arange(len(new)) + 1_000 * len(keys)
            index.add(new, added)
            rows |= dict(zip(new.tolist(), added.tolist(), strict=True))
            if not is_kept:
                index.keep(index.keys % np.uint64(3) != 0)
                rows = {key: row for key, row in rows.items() if key % 3}
            ranks = np.arange(len(rows))[::-1].copy()
            assert index.at(ranks).tolist() == [rows[key] for key in sorted(rows)][::-1]
            assert index.find(np.array(wanted, np.uint64)).tolist() == [rows.get(key, -1) for key in wanted]
            assert len(index) == len(rows)
    assert index.keys.tolist() == sorted(rows)
    assert index.rows.tolist() == [rows[key] for key in sorted(rows)]
    assert KeyIndex(index.keys).at(np.arange(len(rows))).tolist() == list(range(len(rows)))
