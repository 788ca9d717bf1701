"""The protocol's files for callers: reflection answers with them, and they declare what Triton's clients have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet  # type: ignore[import-untyped]
from tritonclient.grpc import model_config_pb2, service_pb2

_ROOT = Path(__file__).parent.parent.parent
_DESCRIPTORS = _ROOT / "native/serve/src/protocol/grpc/descriptors.bin"
_FILES = FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes()).file


def messages_of(file: FileDescriptorProto) -> dict[str, DescriptorProto]:
    found, waiting = dict[str, DescriptorProto](), [("", message) for message in file.message_type]
    while waiting:
        prefix, message = waiting.pop()
        found[prefix + message.name] = message
        waiting += [(f"{prefix}{message.name}.", nested) for nested in message.nested_type]
    return found


def fields_of(message: DescriptorProto) -> set[tuple[object, ...]]:
    return {(field.name, field.number, field.type, field.label, field.type_name) for field in message.field}


@pytest.fixture(scope="module")
def tritons() -> dict[str, DescriptorProto]:
    found = dict[str, DescriptorProto]()
    for module in (service_pb2, model_config_pb2):
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        found |= messages_of(file)
    return found


def test_the_descriptors_of_reflection_are_those_of_the_files(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I",
        "streamlearn/serving/proto",
        "oip.proto",
        "health.proto",
    ]
    compiled = tmp_path / "descriptors.bin"
    subprocess.run([*command, f"--descriptor_set_out={compiled}"], cwd=_ROOT, check=True, timeout=600)
    help = f"run {' '.join(command)} --descriptor_set_out={_DESCRIPTORS}"
    assert compiled.read_bytes() == _DESCRIPTORS.read_bytes(), help


def test_each_field_is_one_of_tritons(tritons: dict[str, DescriptorProto]) -> None:
    ours = messages_of(_FILES[0])
    assert _FILES[0].name == "oip.proto"
    for name, message in ours.items():
        assert fields_of(message) <= fields_of(tritons[name]), name
    assert fields_of(ours["ModelInferRequest"]) == fields_of(tritons["ModelInferRequest"])
    assert fields_of(ours["ModelInferResponse"]) == fields_of(tritons["ModelInferResponse"])


def test_each_method_is_one_of_tritons() -> None:
    file = FileDescriptorProto()
    service_pb2.DESCRIPTOR.CopyToProto(file)
    theirs = {(method.name, method.input_type, method.output_type) for method in file.service[0].method}
    service = _FILES[0].service[0]
    assert (file.package, file.service[0].name) == (_FILES[0].package, service.name)
    assert {(method.name, method.input_type, method.output_type) for method in service.method} <= theirs
