"""ModelInfer's bytes against protobuf's own library."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.errors import BadRecord
from streamlearn.serving.infer import InferAnswer, InferRequest, Tensor, numbers_tensor, texts_tensor
from tests.serving.inference import answer_of, request_class

_INT64 = st.integers(-(2**63), 2**63 - 1)
_PARAMETERS = st.one_of(st.booleans(), _INT64, st.floats(allow_nan=False), st.text())
_TENSORS = st.builds(
    Tensor, st.text(), st.text(), st.lists(_INT64, max_size=3).map(tuple), st.binary(max_size=300)
)  # fmt: skip


@given(
    request=st.builds(
        InferRequest,
        st.text(),
        st.lists(_TENSORS, max_size=3).map(tuple),
        st.text(),
        st.text(),
        st.dictionaries(st.text(), _PARAMETERS, max_size=4),
    )
)
def test_requests_are_read_by_protobuf_as_they_were_written(request: InferRequest) -> None:
    found = request_class.FromString(request.encode())
    assert (found.model_name, found.model_version, found.id) == (request.model, request.version, request.id)
    heads = [(one.name, one.datatype, tuple(one.shape)) for one in found.inputs]
    assert heads == [(one.name, one.datatype, one.shape) for one in request.inputs]
    assert list(found.raw_input_contents) == [one.raw for one in request.inputs]
    names = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    parameters = {one.key: (one.value.ListFields(), one.value) for one in found.parameters}
    assert set(parameters) == set(request.parameters)
    for name, value in request.parameters.items():
        assert getattr(parameters[name][1], names[type(value)]) == value


def test_numbers_and_texts_become_tensors() -> None:
    assert numbers_tensor("a", np.array([1, -1], np.int64)) == Tensor(
        "a", "INT64", (2,), (1).to_bytes(8, "little") + b"\xff" * 8
    )
    assert numbers_tensor("b", np.zeros(6, np.float32), (2, 3)).shape == (2, 3)
    assert texts_tensor("c", [b"xy", b""]) == Tensor("c", "BYTES", (2,), b"\2\0\0\0xy\0\0\0\0")


def test_a_request_as_json_says_the_same() -> None:
    weights = numbers_tensor("w", np.array([[0.5], [1.5]], np.float32))
    request = InferRequest("a/b", (texts_tensor("c", ["é".encode(), b""]), weights), "7", "one", {"priority": 2})
    assert request.path == "/v2/models/a%2Fb/versions/7/infer"
    assert json.loads(request.body()) == {
        "id": "one",
        "parameters": {"priority": 2},
        "inputs": [
            {"name": "c", "datatype": "BYTES", "shape": [2], "data": ["é", ""]},
            {"name": "w", "datatype": "FP32", "shape": [2, 1], "data": [0.5, 1.5]},
        ],
    }
    assert InferRequest("m", ()).path == "/v2/models/m/infer"
    assert json.loads(InferRequest("m", ()).body()) == {"inputs": []}


def test_answers_are_read_as_protobuf_wrote_them() -> None:
    scores = np.array([[0.5, 1.5], [2.5, -1.0]], np.float32)
    outputs = {"click": ("FP32", scores.shape, scores.tobytes()), "version": ("INT64", (1,), (9).to_bytes(8, "little"))}
    found = InferAnswer.decode(answer_of("ctr", "9", outputs))
    assert (found.model, found.version) == ("ctr", "9")
    assert found.outputs["click"].numbers.tolist() == scores.tolist()
    assert found.outputs["version"].numbers.tolist() == [9]


@given(cut=st.integers(1, 60))
def test_a_torn_answer_is_named_or_lacks_what_was_cut(cut: int) -> None:
    whole = answer_of("ctr", "9", {"click": ("FP32", (2,), bytes(8))})
    try:
        found = InferAnswer.decode(whole[: max(0, len(whole) - cut)])
    except BadRecord:
        return
    assert not found.outputs


def test_values_that_do_not_fill_their_shape_are_refused() -> None:
    with pytest.raises(BadRecord, match="FP32"):
        assert Tensor("click", "FP32", (3,), bytes(8)).numbers is None
    with pytest.raises(BadRecord, match="BYTES"):
        assert texts_tensor("click", [b"a"]).numbers is None


@pytest.mark.parametrize("shape", [(0,) * 65, (0, 2**40, 2**40), (0, 2**63)])
def test_a_shape_that_no_array_has_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadRecord, match="a shape that no array has"):
        assert Tensor("click", "FP32", shape, b"").values is None
