"""Settings of publishing: how often, what is refused, and what stays."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

__all__ = ["JudgeSettings", "PublisherSettings", "RetentionSettings"]


class PublisherSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How often a trainer publishes, and what becomes of it."""

    publish_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="How often what was learned is cut into a version. 1 works; where writing takes longer, ticks "
            "are skipped and the next version holds more.",
        ),
    ] = 60.0
    empty_versions: Annotated[
        bool, Meta(description="Whether an interval in which nothing was learned publishes a version all the same.")
    ] = False
    row_type: Annotated[
        Literal["float32", "float16", "int8"],
        Meta(
            description="How rows are in the files that serving reads. float16 and int8 are half and a third of the "
            "bytes, and round; training reads float32 beside them."
        ),
    ] = "float32"
    promote: Annotated[
        bool, Meta(description="Whether versions that passed are promoted; false leaves that to people.")
    ] = True
    on_reject: Annotated[
        Literal["hold", "rewind"],
        Meta(
            description="What follows a rejection: `hold` serves the last good version until someone decides; `rewind` "
            "asks training to go back to it by itself."
        ),
    ] = "hold"
    base_deltas_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="A base is written from files after so many deltas. Lower it for faster starts of nodes.",
        ),
    ] = 60
    failures_max: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Cuts that may fail one after the other before the trainer ends."),
    ] = 10


class JudgeSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """When a version is not promoted. A limit of 0 turns its check off."""

    samples_rows_min: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Rows a version must have learned from since its parent.",
        ),
    ] = 1
    norm_ratio_max: Annotated[
        float,
        Meta(
            ge=0,
            le=1e9,
            description="The norm of rows of a table, or of a dense tensor, may grow or shrink by this factor from the "
            "active version.",
        ),
    ] = 4.0
    auc_drop_ratio_max: Annotated[
        float,
        Meta(ge=0, le=1, description="Share of the active version's AUC that may be lost on the same recent samples."),
    ] = 0.02
    log_loss_rise_ratio_max: Annotated[
        float,
        Meta(ge=0, le=1e9, description="Share by which the log loss may rise over the active version's."),
    ] = 0.05
    calibration_ratio_max: Annotated[
        float,
        Meta(
            ge=0,
            le=1e9,
            description="Factor by which the sum of predictions may be off the sum of labels, either way, when the "
            "active version's is less.",
        ),
    ] = 1.5
    scored_rows_min: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 40,
            description="Recent closed samples below which nothing is said of AUC, log loss and calibration.",
        ),
    ] = 1_000
    scored_rows_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 40,
            description="The most recent closed samples that are scored. They are held within their messages: plan the "
            "memory of four times as many.",
        ),
    ] = 50_000
    judge_s_max: Annotated[
        float, Meta(gt=0, le=86_400, description="How long judging may take; a version not judged by then is rejected.")
    ] = 300.0


class RetentionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Which versions stay in the store."""

    keep_versions_min: Annotated[
        int, Meta(ge=1, le=1_000_000, description="The newest versions that stay whatever their age.")
    ] = 60
    keep_s: Annotated[float, Meta(ge=0, le=31_536_000_000, description="Versions younger than this stay.")] = 86_400.0
    grace_s: Annotated[
        float,
        Meta(
            ge=0,
            le=31_536_000,
            description="How long files stay after the floor was raised above them. Keep it longer than a node takes "
            "to start.",
        ),
    ] = 900.0
    orphan_s: Annotated[
        float,
        Meta(
            gt=0,
            le=31_536_000,
            description="What no manifest names goes when it is older. Keep it longer than a version takes to write.",
        ),
    ] = 86_400.0
    pointer_moves_min: Annotated[
        int, Meta(ge=1, le=10_000_000, description="Moves of the pointer that stay in the store.")
    ] = 100_000
