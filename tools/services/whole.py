"""All services of a loop: a real Kafka, Redis and Flink of this machine, as an application's settings name them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tools.services.flink import FlinkJobServer
from tools.services.kafka import Kafka
from tools.services.kafka_cluster import KafkaCluster, kafka_cluster
from tools.services.redis import Redis
from tools.services.service import Service

__all__ = ["whole", "whole_settings"]

# On Flink what a reader left for later is taken up when a bundle ends, which a checkpoint makes sure of.
_CHECKPOINT_S = 1


def whole_settings(place: Path, ends: ExitStack) -> tuple[str, ...]:
    """Start them, to be ended by `ends`; what `--set` says of them.

    Raises:
        ServiceError: One cannot be had here.
    """
    return whole(place, ends)[1]


def whole(
    place: Path, ends: ExitStack, *, has_replicas: bool = False
) -> tuple[dict[str, Service | KafkaCluster], tuple[str, ...]]:
    """The same, and those of them that may be away for a while; with replicas, Kafka is three brokers.

    Raises:
        ServiceError: One cannot be had here.
    """
    kafka: Kafka | KafkaCluster
    if has_replicas:
        kafka = ends.enter_context(kafka_cluster(place / "kafka"))
    else:
        kafka = ends.enter_context(Kafka.start(place / "kafka"))
    redis = ends.enter_context(Redis.start(place / "redis"))
    flink = ends.enter_context(FlinkJobServer.start(place / "flink"))
    changes = (
        f"topics.root=kafka://{kafka.address}",
        f"registry.url={redis.url}",
        "ingest.runner=flink",
        f"ingest.job_endpoint={flink.job_endpoint}",
        f"ingest.artifact_endpoint={flink.artifact_endpoint}",
        f"ingest.checkpoint_s={_CHECKPOINT_S}",
    )
    return {"kafka": kafka, "redis": redis}, changes
