"""The protocol's own client: every call it makes is answered as it expects, by gRPC and by HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as by_grpc
import tritonclient.http as by_http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from streamlearn.load.load_run import Load
from streamlearn.serving.infer import InferAnswer, InferRequest, Tensor, numbers_tensor, texts_tensor
from streamlearn.testing import wait_until
from tests.serving.test_front import LIMITS, Rig, expected

_ITEMS = 7


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """A node that answers with version 1 and keeps version 2."""
    made = Rig()
    made.front.activate(made.handles[1])
    yield made
    made.close()


@pytest.fixture
def node(rig: Rig) -> Iterator[Any]:
    with by_grpc.InferenceServerClient(rig.node.grpc) as client:
        yield client


@pytest.fixture
def http(rig: Rig) -> Iterator[Any]:
    with by_http.InferenceServerClient(rig.node.http, concurrency=4) as client:
        yield client


def _arrays(items: int) -> dict[str, npt.NDArray[Any]]:
    """The request that `expected` says the logits of."""
    counts = [one % 3 for one in range(items)]
    return {
        "user_id": np.array([1]),
        "country": np.array([b"NO"], object),
        "seen": np.array([1, 2]),
        "age": np.array([30.0], np.float32),
        "item_id": np.arange(items),
        "topics": np.array([at for count in counts for at in range(count)], np.int64),
        "topics.lengths": np.array(counts, np.int32),
        "price": np.array([[at, 0.5] for at in range(items)], np.float32),
    }


_DATATYPES = {"i8": "INT64", "i4": "INT32", "f4": "FP32", "O": "BYTES", "f8": "FP64"}


def _inputs(module: Any, items: int = _ITEMS, binary: bool | None = None, **other: npt.NDArray[Any]) -> list[Any]:
    found = []
    for name, array in (_arrays(items) | other).items():
        one = module.InferInput(name, list(array.shape), _DATATYPES[array.dtype.str.lstrip("<|")])
        one.set_data_from_numpy(array) if binary is None else one.set_data_from_numpy(array, binary_data=binary)
        found.append(one)
    return found


def _named(module: Any, **how: bool) -> list[Any]:
    return [module.InferRequestedOutput(name, **how) for name in ("click.logit", "buy.logit")]


def _refused(call: Any) -> InferenceServerException:
    with pytest.raises(InferenceServerException) as caught:
        call()
    return caught.value


def _is_one(answer: Any, version: int, items: int = _ITEMS) -> bool:
    logits = answer.as_numpy("click.logit")
    return bool(np.array_equal(logits, np.array(expected(items, version), np.float32)))


def test_the_node_and_its_model_are_described(node: Any, http: Any) -> None:
    for client in (node, http):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("shop")
        assert client.is_model_ready("shop", "2")
        assert not client.is_model_ready("shop", "9")
    assert node.get_server_metadata(as_json=True)["name"] == http.get_server_metadata()["name"] == "streamlearn"
    told = node.get_model_metadata("shop", as_json=True)
    other = http.get_model_metadata("shop")
    for part in ("inputs", "outputs"):
        assert _texts(told[part]) == _texts(other[part])
    assert (told["versions"], told["platform"]) == (other["versions"], other["platform"])
    assert told["versions"] == ["1", "2"]
    assert {one["name"] for one in told["outputs"]} == {"click", "buy", "click.logit", "buy.logit"}
    assert {"name": "price", "datatype": "FP32", "shape": ["-1", "2"]} in _texts(told["inputs"])


def _texts(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one | {"shape": [str(dim) for dim in one["shape"]]} for one in tensors]


def test_configuration_index_and_statistics_are_the_same_by_both(node: Any, http: Any) -> None:
    by_name = node.get_model_config("shop", as_json=True)["config"]
    other = http.get_model_config("shop")
    for config in (by_name, other):
        kinds = {one["name"]: one["data_type"] for one in config["input"]}
        assert (config["name"], config["platform"], kinds["item_id"]) == ("shop", "streamlearn", "TYPE_INT64")
        assert kinds["country"] == "TYPE_STRING"
        assert config["parameters"]["candidates_max"]["string_value"] == str(LIMITS["candidates_max"])
    index = node.get_model_repository_index(as_json=True)["models"]
    assert [one["version"] for one in index] == ["1", "2"]
    assert [one["version"] for one in http.get_model_repository_index()] == ["1", "2"]
    node.infer("shop", _inputs(by_grpc))
    [told] = [one for one in http.get_inference_statistics("shop")["model_stats"] if one["version"] == "1"]
    assert told["inference_stats"]["success"]["count"] >= 1
    [same] = node.get_inference_statistics("shop", "1", as_json=True)["model_stats"]
    assert int(same["inference_count"]) == told["inference_count"] >= _ITEMS
    assert _refused(lambda: node.get_inference_statistics("shop", "9")).status() == "StatusCode.FAILED_PRECONDITION"


def test_raw_tensors_of_numbers_and_texts_are_scored(node: Any, http: Any) -> None:
    for client, module in ((node, by_grpc), (http, by_http)):
        answer = client.infer("shop", _inputs(module), outputs=_named(module), request_id="mine")
        assert _is_one(answer, 1)
        other = client.infer("shop", _inputs(module, country=np.array(["SE"], object)))
        assert other.as_numpy("click").shape == (_ITEMS,)
    told = answer.get_response()
    assert (told["model_version"], told["id"]) == ("1", "mine")
    # Whole numbers of any width, numbers of twice the width.
    narrow = _inputs(by_grpc, item_id=np.arange(_ITEMS, dtype=np.int32), age=np.array([30.0]))
    assert _is_one(node.infer("shop", narrow, outputs=_named(by_grpc)), 1)


def test_tensors_with_contents_of_their_type_are_answered_alike(rig: Rig) -> None:
    asked = service_pb2.ModelInferRequest(model_name="shop")
    fields = {"INT64": "int64_contents", "INT32": "int_contents", "FP32": "fp32_contents", "BYTES": "bytes_contents"}
    for name, array in _arrays(_ITEMS).items():
        kind = _DATATYPES[array.dtype.str.lstrip("<|")]
        one = asked.inputs.add(name=name, datatype=kind, shape=array.shape)
        getattr(one.contents, fields[kind]).extend(array.ravel().tolist())
    asked.outputs.add(name="click.logit")
    with grpc.insecure_channel(rig.node.grpc) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(asked)
    assert list(answer.outputs[0].contents.fp32_contents) == expected(_ITEMS, 1)
    assert not answer.raw_output_contents


@pytest.mark.parametrize("inputs", [True, False])
@pytest.mark.parametrize("outputs", [True, False])
def test_numbers_stand_in_the_json_or_behind_it(http: Any, inputs: bool, outputs: bool) -> None:
    answer = http.infer("shop", _inputs(by_http, binary=inputs), outputs=_named(by_http, binary_data=outputs))
    assert _is_one(answer, 1)
    assert ("data" in answer.get_response()["outputs"][0]) == (not outputs)


def test_bodies_whose_parts_do_not_fit_are_refused(rig: Rig) -> None:
    body = {"inputs": [{"name": "user_id", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}}]}
    for length, says in (("7", "the body is not JSON"), ("999999", "exceeds the"), ("x", "a number of bytes")):
        status, told = rig.ask("/v2/models/shop/infer", body, **{"inference-header-content-length": length})
        assert (status, says in told["error"]) == (400, True), told
    status, told = rig.ask("/v2/models/shop/infer", body)
    assert (status, "binary_data_size is 8, but only 0 bytes are left" in told["error"]) == (400, True), told
    status, told = rig.ask("/score", body, **{"content-encoding": "gzip"})
    assert (status, "uncompressed" in told["error"]) == (415, True), told


def test_a_version_is_pinned_by_its_number(node: Any, http: Any) -> None:
    for client, module in ((node, by_grpc), (http, by_http)):
        assert _is_one(client.infer("shop", _inputs(module), "2", outputs=_named(module)), 2)
    refused = _refused(lambda: node.infer("shop", _inputs(by_grpc), "9"))
    assert refused.status() == "StatusCode.FAILED_PRECONDITION"
    assert "it has 1, 2" in refused.message()
    assert _refused(lambda: http.infer("shop", _inputs(by_http), "9")).status() in ("409", 409)


def test_many_requests_at_once_are_answered_in_their_order_and_a_refused_one_by_nothing(rig: Rig) -> None:
    asked = [
        InferRequest("shop", tuple(_tensors(items)), version).encode()
        for items, version in ((3, "1"), (5, "2"), (3, "9"), (1, ""))
    ]
    answers = Load(rig.node.grpc, connections=2).ask_all(asked * 20)
    assert [one is None for one in answers] == [False, False, True, False] * 20
    for at in range(0, len(answers), 4):
        for answer, items, version in zip(answers[at : at + 4], (3, 5, 0, 1), (1, 2, 0, 1), strict=True):
            if answer is not None:
                told = InferAnswer.decode(answer)
                chances = 1 / (1 + np.exp(-np.array(expected(items, version))))
                assert told.version == str(version)
                np.testing.assert_allclose(told.outputs["click"].numbers.reshape(-1), chances, rtol=1e-5)


def _tensors(items: int) -> Iterator[Tensor]:
    for name, array in _arrays(items).items():
        yield texts_tensor(name, array.tolist()) if array.dtype == object else numbers_tensor(name, array)


def test_parameters_are_heard(rig: Rig, node: Any, http: Any) -> None:
    said = {"deadline_ms": 60_000, "route_key": "user-1", "shown": "0,3"}
    for client, module in ((node, by_grpc), (http, by_http)):
        assert _is_one(
            client.infer("shop", _inputs(module), outputs=_named(module), parameters=said, priority=1, timeout=10**8), 1
        )
        refused = _refused(
            lambda client=client, module=module: client.infer("shop", _inputs(module), parameters={"shown": "0,7"})
        )
        assert "names candidate 7; the indices are 0 to 6" in refused.message()
    rig.front.set_canary((rig.handles[2], 0.5))
    try:
        versions = set()
        for at in range(40):
            asked = {"parameters": {"route_key": f"user-{at}"}, "outputs": _named(by_grpc)}
            first, again = (node.infer("shop", _inputs(by_grpc), **asked).get_response().model_version for _ in "ab")
            assert first == again
            versions.add(first)
        assert versions == {"1", "2"}
    finally:
        rig.front.set_canary(None)


def test_many_are_under_way_on_one_client(node: Any, http: Any) -> None:
    told: list[Any] = []
    all_told = threading.Event()

    def hear(result: Any, error: Any) -> None:
        told.append(error or result)
        if len(told) == 20:
            all_told.set()

    for _ in range(20):
        node.async_infer("shop", _inputs(by_grpc), hear, outputs=_named(by_grpc))
    assert all_told.wait(120)
    assert all(_is_one(one, 1) for one in told)
    asked = [http.async_infer("shop", _inputs(by_http), outputs=_named(by_http)) for _ in range(8)]
    assert all(_is_one(one.get_result(), 1) for one in asked)


def test_what_is_wrong_has_its_status_and_the_node_goes_on(rig: Rig, node: Any) -> None:
    def status(*, model: str = "shop", inputs: list[Any] | None = None, **asked: Any) -> str:
        refused = _refused(lambda: node.infer(model, inputs or _inputs(by_grpc), **asked))
        return str(refused.status()).removeprefix("StatusCode.")

    assert status(model="other") == "NOT_FOUND"
    assert status(inputs=_inputs(by_grpc, user_id=np.array([1.0], np.float32))) == "INVALID_ARGUMENT"
    assert status(inputs=_inputs(by_grpc, item_id=np.array([[1]]))) == "INVALID_ARGUMENT"
    assert status(inputs=_inputs(by_grpc, nothing=np.array([1]))) == "INVALID_ARGUMENT"
    assert status(inputs=_inputs(by_grpc)[1:]) == "INVALID_ARGUMENT"
    assert status(outputs=[by_grpc.InferRequestedOutput("clack")]) == "INVALID_ARGUMENT"
    assert status(parameters={"priority_": 1}) == "INVALID_ARGUMENT"
    assert status(sequence_id=7) == "INVALID_ARGUMENT"
    assert status(inputs=_inputs(by_grpc, LIMITS["candidates_max"] + 1)) == "INVALID_ARGUMENT"
    assert status(inputs=_inputs(by_grpc, seen=np.arange(1 << 14))) == "OUT_OF_RANGE"
    with grpc.insecure_channel(rig.node.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            infer(b"\xff" * 100)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "shared memory" in _refused(lambda: _with_shared_memory(node)).message()
    for verb in (node.load_model, node.unload_model):
        assert _refused(lambda verb=verb: verb("shop")).status() == "StatusCode.UNIMPLEMENTED"
    assert _is_one(node.infer("shop", _inputs(by_grpc), outputs=_named(by_grpc)), 1)


def _with_shared_memory(node: Any) -> None:
    inputs = _inputs(by_grpc)
    for one in inputs:
        one.set_shared_memory("region", 8)
    node.infer("shop", inputs)


def test_a_deadline_that_passes_is_told(rig: Rig, node: Any, http: Any) -> None:
    rig.hold()
    try:
        with ThreadPoolExecutor(3) as pool:
            late = {"parameters": {"deadline_ms": 50}}
            first = pool.submit(lambda: _refused(lambda: node.infer("shop", _inputs(by_grpc), **late)))
            second = pool.submit(lambda: _refused(lambda: node.infer("shop", _inputs(by_grpc), client_timeout=0.05)))
            assert first.result().status() == second.result().status() == "StatusCode.DEADLINE_EXCEEDED"
        assert _refused(lambda: http.infer("shop", _inputs(by_http), **late)).status() in ("504", 504)
    finally:
        rig.let_go()
    wait_until(lambda: rig.front.waiting() == 0, "nobody to wait")
    assert _is_one(node.infer("shop", _inputs(by_grpc), outputs=_named(by_grpc)), 1)
