"""Metrics of reading: how far, how far ahead, what stands still and what was set aside."""

from __future__ import annotations

from streamlearn.telemetry import counter, gauge

__all__ = ["ReadBackMeter", "ReadMeter", "count_dead_letters", "count_left_out"]


class ReadMeter:
    """The metrics of one partition of both topics."""

    def __init__(self, partition: int) -> None:
        labels, of = ["partition"], str(partition)
        self.watermark = gauge(
            "ingest", "watermark", "seconds", "Event time up to which a partition was read, since 1970.", labels
        ).labels(of)
        self.still = gauge(
            "ingest", "watermark_still", "seconds", "Since a partition's watermark last moved.", labels
        ).labels(of)
        self.unacknowledged = gauge(
            "ingest", "unacknowledged", "bytes", "Read, and its samples are not acknowledged.", labels
        ).labels(of)
        self.read_ahead = gauge(
            "ingest", "read_ahead", "ratio", "Unacknowledged bytes of those allowed; at 1 reading waits.", labels
        ).labels(of)
        self.lead = gauge("ingest", "lead", "bytes", "Read of one topic ahead of the other.", ["partition", "topic"])
        self.blobs = counter("ingest", "blobs", "Elements given to the pipeline.", labels).labels(of)
        self.records = counter("ingest", "records", "Records given to the pipeline.", labels).labels(of)
        self.lead_waits = counter(
            "ingest",
            "lead_waits",
            "Looks at a partition at which one topic had records and waited for the other.",
            labels,
        ).labels(of)
        self.read_ahead_waits = counter(
            "ingest", "read_ahead_waits", "Looks at a partition at which reading waited for acknowledgements.", labels
        ).labels(of)
        self.impossible = counter(
            "ingest", "impossible_records", "Records stamped too far ahead to move time.", labels
        ).labels(of)


class ReadBackMeter:
    """The metrics of impressions that are read again.

    Args:
        bytes_max: What may be kept of them.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.fetches = counter("ingest", "read_back_fetches", "Reads of impressions that were read before.")
        self.hits = counter("ingest", "read_back_hits", "Stretches of impressions that were kept from such a read.")
        self._held = gauge(
            "ingest", "read_back", "ratio", "Bytes kept of impressions read again, of those allowed; at 1 some go."
        )

    def hold(self, held_bytes: int) -> None:
        """Say how many bytes are kept."""
        self._held.set(held_bytes / self._bytes_max)


def count_dead_letters(topic: str, partition: int, reason: str, count: int) -> None:
    """Count what was set aside, by where it came from."""
    help = "Records and events that were set aside, by origin and reason."
    counter("ingest", "dead_letters", help, ["topic", "partition", "reason"]).labels(topic, partition, reason).inc(
        count
    )


def count_left_out(why: str, count: int) -> None:
    """Count events that are good and no sample's: older than the start, or of an action that no label has."""
    counter("ingest", "events_left_out", "Good events that no sample needs, by why.", ["why"]).labels(why).inc(count)
