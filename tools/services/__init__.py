"""Real Kafka, Redis, Prism and Flink for tests, the demo and people: fetched into a cache, started, stopped.

Commands: `python -m tools.services fetch | up | status`.
"""

from tools.services.cache import Cache
from tools.services.flink import FlinkJobServer
from tools.services.kafka import Kafka
from tools.services.ports import fixed_port, free_ports
from tools.services.prism import prism_path
from tools.services.redis import Redis
from tools.services.service import Service

__all__ = [
    "Cache",
    "FlinkJobServer",
    "Kafka",
    "Redis",
    "Service",
    "fixed_port",
    "free_ports",
    "prism_path",
]
