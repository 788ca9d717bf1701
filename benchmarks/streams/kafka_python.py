"""The Kafka peer: the producer and consumer of kafka-python, used as its documentation shows."""

from __future__ import annotations

import time

__all__ = ["consume", "produce"]


def produce(address: str, topic: str, record_bytes: int, records: int) -> float:
    """Return the rate of acknowledged records, per second."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=address, acks="all", linger_ms=5)
    value = b"v" * record_bytes
    begin = time.perf_counter()
    for _ in range(records):
        producer.send(topic, value, partition=0)
    producer.flush()
    elapsed_s = time.perf_counter() - begin
    producer.close()
    return records / elapsed_s


def consume(address: str, topic: str, records: int) -> float:
    """Return the rate of consumed records, per second."""
    from kafka import KafkaConsumer, TopicPartition

    settings = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    consumer = KafkaConsumer(bootstrap_servers=address, **settings)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    consumed, begin = 0, time.perf_counter()
    while consumed < records:
        for batch in consumer.poll(timeout_ms=1_000, max_records=5_000).values():
            consumed += len(batch)
    elapsed_s = time.perf_counter() - begin
    consumer.close()
    return records / elapsed_s
