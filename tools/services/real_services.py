"""A real Kafka, Redis and Flink on this machine, and the settings with which an application uses them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tools.services.flink import FlinkJobServer
from tools.services.kafka import Kafka
from tools.services.kafka_cluster import KafkaCluster, kafka_cluster
from tools.services.redis import Redis
from tools.services.service import Service

__all__ = ["start_services"]

# On Flink a reader continues delayed work only at the end of a bundle; a checkpoint ends bundles.
_CHECKPOINT_S = 1


def start_services(
    place: Path, stack: ExitStack, *, has_replicas: bool = False
) -> tuple[dict[str, Service | KafkaCluster], tuple[str, ...]]:
    """Start the services and register their end with `stack`. With replicas, Kafka has three brokers.

    Returns:
        The services that a loop survives without for a while, by name; and the settings for `--set`.

    Raises:
        ServiceError: A service cannot be installed or does not start.
    """
    kafka: Kafka | KafkaCluster
    if has_replicas:
        kafka = stack.enter_context(kafka_cluster(place / "kafka"))
    else:
        kafka = stack.enter_context(Kafka.start(place / "kafka"))
    redis = stack.enter_context(Redis.start(place / "redis"))
    flink = stack.enter_context(FlinkJobServer.start(place / "flink"))
    changes = (
        f"topics.root=kafka://{kafka.address}",
        f"registry.url={redis.url}",
        "ingest.runner=flink",
        f"ingest.job_endpoint={flink.job_endpoint}",
        f"ingest.artifact_endpoint={flink.artifact_endpoint}",
        f"ingest.checkpoint_s={_CHECKPOINT_S}",
    )
    return {"kafka": kafka, "redis": redis}, changes
