"""The peer on Kafka: kafka-python's own producer and consumer, used as its documentation shows."""

from __future__ import annotations

import time

__all__ = ["consume", "produce"]


def produce(address: str, topic: str, record_bytes: int, records: int) -> float:
    """Records produced a second, all acknowledged."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=address, acks="all", linger_ms=5)
    value = b"v" * record_bytes
    begin = time.perf_counter()
    for _ in range(records):
        producer.send(topic, value, partition=0)
    producer.flush()
    taken = time.perf_counter() - begin
    producer.close()
    return records / taken


def consume(address: str, topic: str, records: int) -> float:
    """Records consumed a second."""
    from kafka import KafkaConsumer, TopicPartition

    settings = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    consumer = KafkaConsumer(bootstrap_servers=address, **settings)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    seen, begin = 0, time.perf_counter()
    while seen < records:
        for found in consumer.poll(timeout_ms=1_000, max_records=5_000).values():
            seen += len(found)
    taken = time.perf_counter() - begin
    consumer.close()
    return records / taken
