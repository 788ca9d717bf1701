"""Settings of `streamlearn up`: number of nodes, restarts, hang detection, and how long stopping may take."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.settings.constant import Fixed

__all__ = ["UpSettings"]


class UpSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How `streamlearn up` runs all processes of an application on one machine."""

    nodes: Annotated[int, Meta(ge=0, le=64)] = 1
    """Number of serving nodes; `--nodes` overrides it."""
    workers: Annotated[int, Meta(ge=0, le=64)] = 0
    """Number of workers that learn with the trainer. They need `workers.slices` above 1, and shards."""
    restarts_max: Annotated[int, Meta(ge=0, le=1_000)] = 5
    """How often one process may be restarted within 600 s. At the limit `up` stops all processes and ends with status
    1."""
    restarts_window_s: Fixed[float] = 600.0
    """Restarts older than this do not count, and after such a time the backoff starts from its first value."""
    backoff_first_ms: Fixed[int] = 500
    """The first backoff before a process is restarted."""
    backoff_ms_max: Fixed[int] = 30_000
    """The longest backoff before a process is restarted."""
    start_s_max: Fixed[float] = 120.0
    """How long a shard may take until it listens."""
    silence_s_max: Annotated[float, Meta(ge=0, le=86_400)] = 120.0
    """How long a ready process may send no heartbeat. After that `up` writes its thread stacks to its log, kills it and
    restarts it. 0 turns this off. Keep it above `topics.reach_s`, `ps.retry_wait_ms_max`, 30 s, and the time of one
    training step or one execution."""
    stop_s_max: Annotated[float, Meta(ge=0, le=86_400)] = 60.0
    """How long each stage of a stop may take: ingest, folding, trainer, workers, access, nodes, shards. Processes that
    still run after it are killed. Raise it if the last version takes longer to write."""
    log_bytes_max: Fixed[int] = 16 << 20
    """Size at which a process's log file is rotated."""
    log_files_max: Fixed[int] = 4
    """Rotated log files that are kept for each process."""
