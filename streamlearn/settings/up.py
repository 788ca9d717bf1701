"""Settings of `streamlearn up`: how many processes, how often each is started again, how long it may take to stop."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["UpSettings"]


class UpSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How `streamlearn up` runs all processes of an application on one machine."""

    nodes: Annotated[int, Meta(ge=0, le=64, description="Serving nodes; `--nodes` is laid over it.")] = 1
    restarts_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000,
            description="How often one process is started again within `restarts_window_s`; at the bound all are "
            "stopped, and `up` ends with 1.",
        ),
    ] = 5
    restarts_window_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Restarts longer ago than this no longer count, and the wait begins with the first again.",
        ),
    ] = 600.0
    backoff_first_ms: Annotated[
        int, Meta(ge=1, le=3_600_000, description="The wait before a process is started again; it doubles.")
    ] = 500
    backoff_ms_max: Annotated[int, Meta(ge=1, le=3_600_000, description="The longest such wait.")] = 30_000
    start_s_max: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="How long a shard may take until it listens; then it is killed and started again. Nodes have "
            "`front.ready_s`.",
        ),
    ] = 120.0
    silence_s_max: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="For how long a process that is ready may not say that its work goes round; then it is ended, "
            "with where its threads stand in its log, and started again. 0 asks none. Keep it above `topics.reach_s`, "
            "`ps.retry_wait_ms_max`, `ps.order_wait_s_max`, and what one step of training or one execution takes.",
        ),
    ] = 120.0
    stop_s_max: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="How long ingest may take to stop, then the trainer, then nodes, then shards, each; what is "
            "there after that is killed. Raise it where the last version takes longer to write.",
        ),
    ] = 60.0
    log_bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 17,
            le=1 << 40,
            description="Bytes of one file of a process's log; then it becomes NAME.log.1, and a new one begins.",
        ),
    ] = 16 << 20
    log_files_max: Annotated[
        int,
        Meta(ge=1, le=1_000, description="Older files that are kept of each process; the oldest goes first."),
    ] = 4
