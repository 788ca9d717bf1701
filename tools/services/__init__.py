"""Real Kafka, Redis, Prism, Flink and a browser for tests, the demo and developers.

The files are fetched into a cache. Commands: `python -m tools.services fetch | up | status`.
"""

from tools.services.cache import Cache
from tools.services.chromium import Browser, Chromium
from tools.services.flink import FlinkJobServer
from tools.services.kafka import Kafka
from tools.services.kafka_cluster import KafkaCluster, kafka_cluster
from tools.services.ports import fixed_port, free_ports
from tools.services.prism import prism_path
from tools.services.redis import Redis
from tools.services.service import Service

__all__ = [
    "Browser",
    "Cache",
    "Chromium",
    "FlinkJobServer",
    "Kafka",
    "KafkaCluster",
    "Redis",
    "Service",
    "fixed_port",
    "free_ports",
    "kafka_cluster",
    "prism_path",
]
