"""Kafka behind TLS and a password, for real."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from streamlearn.errors import ConfigError, TopicUnreachable
from streamlearn.settings.topics import KafkaSettings
from streamlearn.topics import AccessSettings, TopicSettings, create_topic
from tools.services import Kafka, free_ports

USER, PASSWORD = "alice", "correct horse"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def secured(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a listener with TLS and SASL, and the file of the CA that signed its certificate."""
    del kafka  # asked for only so that this is skipped where there is no Kafka
    folder = tmp_path_factory.mktemp("secured")
    authority, ca_file, key_file = trustme.CA(), folder / "ca.pem", folder / "key.pem"
    authority.cert_pem.write_to_path(ca_file)
    issued = authority.issue_cert("127.0.0.1")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    # Java reads keys in PKCS #8 alone.
    pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    key_file.write_bytes(pkcs8 + b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    (port,) = free_ports(1)

    def properties(ports: Sequence[int]) -> dict[str, str]:
        plain, controller = (f"127.0.0.1:{number}" for number in ports)
        return {
            "listeners": f"PLAINTEXT://{plain},CONTROLLER://{controller},SECURED://127.0.0.1:{port}",
            "advertised.listeners": f"PLAINTEXT://{plain},SECURED://127.0.0.1:{port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURED:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(key_file),
            "listener.name.secured.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secured.plain.sasl.jaas.config": f'{LOGIN} user_{USER}="{PASSWORD}";',
        }

    with Kafka.start(folder / "kafka", properties=properties):
        yield f"127.0.0.1:{port}", ca_file


def _access(ca_file: Path, unreachable_after_ms: int = 120_000, **changed: str) -> AccessSettings:
    security = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": USER, **changed}
    kafka = KafkaSettings(ssl_cafile=str(ca_file), **security)  # type: ignore[arg-type]
    return AccessSettings(unreachable_after_ms=unreachable_after_ms, request_timeout_ms=2_000, kafka=kafka)


def test_a_topic_behind_tls_and_a_password_is_written_and_read(
    secured: tuple[str, Path], topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMLEARN_KAFKA_PASSWORD", PASSWORD)
    address, ca_file = secured
    url = f"kafka://{address}/{topic_name}"
    with create_topic(url, TopicSettings(), _access(ca_file)) as topic:
        with topic.writer() as writer:
            writer.append(0, [b"value"])
        with topic.reader([0]) as reader:
            assert reader.read(0, 0, wait_ms=60_000).values == [b"value"]


def test_a_wrong_password_is_refused_and_never_shown(
    secured: tuple[str, Path], topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMLEARN_KAFKA_PASSWORD", "hunter2")
    address, ca_file = secured
    with pytest.raises(TopicUnreachable) as caught:
        create_topic(f"kafka://{address}/{topic_name}", TopicSettings(), _access(ca_file, 3_000))
    assert address in caught.value.message
    assert "hunter2" not in str(caught.value) + repr(caught.value)


def test_a_password_that_is_not_set_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMLEARN_KAFKA_PASSWORD", raising=False)
    with pytest.raises(ConfigError) as caught:
        create_topic("kafka://127.0.0.1:1/topic", TopicSettings(), _access(tmp_path / "ca.pem"))
    assert "STREAMLEARN_KAFKA_PASSWORD" in caught.value.help
