"""The burst: how many candidates of requests were scored, by their answers."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from streamlearn.serving.protobuf import integers, nested
from tools.demo.burst import scored


def _answer(*scores: float) -> bytes:
    """An answer with one output."""
    head = nested(1, b"click") + nested(2, b"FP32") + integers(3, (len(scores),))
    return nested(1, b"small") + nested(2, b"7") + nested(5, head) + nested(6, np.array(scores, np.float32).tobytes())


def test_candidates_without_a_score_and_requests_without_an_answer_count_as_none() -> None:
    nan = math.nan
    done: Any = SimpleNamespace(
        answers=[
            (0, 1, _answer(0.1, 0.2, nan)),
            (1, 2, _answer(0.1, nan, nan)),
            (2, 3, None),
            (1, 4, _answer(0.1, 0.2, 0.3)),
        ]
    )
    assert scored(done) == 1.5
    assert scored(done, lambda at: at == 1) == 2.0
    assert scored(done, lambda at: at == 2) == 0.0
    assert math.isnan(scored(done, lambda at: at == 9))
