"""Settings of publishing: how often, which versions are rejected, and how long they are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from streamlearn.settings.constant import Fixed

__all__ = ["JudgeSettings", "PublisherSettings", "RetentionSettings"]


class PublisherSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How often a trainer publishes versions, and whether they are promoted."""

    publish_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="How often the trainer publishes what it has learned as a version. 1 works; if writing takes "
            "longer than this, intervals are skipped and the next version holds more.",
        ),
    ] = 60.0
    # Whether a version is published if nothing was learned in an interval.
    empty_versions: Fixed[bool] = False
    row_type: Annotated[
        Literal["float32", "float16", "int8"],
        Meta(
            description="Number format of rows in the files that serving reads. float16 takes half of the bytes and "
            "int8 a third, and both round. Training has float32 files of its own."
        ),
    ] = "float32"
    promote: Annotated[
        bool,
        Meta(description="Whether a version that passed the judge is promoted. If false, an operator promotes it."),
    ] = True
    on_reject: Annotated[
        Literal["hold", "rewind"],
        Meta(
            description="The reaction to a rejected version: `hold` serves the last good version until an operator "
            "decides; `rewind` also takes training back to it."
        ),
    ] = "hold"
    base_deltas_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="After this many deltas a new base is written from files. Lower it so that nodes start faster.",
        ),
    ] = 60
    # Consecutive cuts that may fail before the trainer ends.
    failures_max: Fixed[int] = 10


class JudgeSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits beyond which the judge rejects a version. A limit of 0 turns its check off."""

    # Rows that a version must have learned from since its parent.
    samples_rows_min: Fixed[int] = 1
    norm_ratio_max: Annotated[
        float,
        Meta(
            ge=0,
            le=1e9,
            description="Largest factor by which the norm of a table's rows or of a dense tensor may differ from the "
            "active version.",
        ),
    ] = 4.0
    auc_drop_ratio_max: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Largest share by which AUC may fall below the active version's, on the same recent samples.",
        ),
    ] = 0.02
    log_loss_rise_ratio_max: Annotated[
        float,
        Meta(
            ge=0,
            le=1e9,
            description="Largest share by which log loss may rise above the active version's, on the same recent "
            "samples.",
        ),
    ] = 0.05
    calibration_ratio_max: Annotated[
        float,
        Meta(
            ge=0,
            le=1e9,
            description="Largest ratio between the sums of predictions and of labels, in either direction. It "
            "applies only if the active version is within it.",
        ),
    ] = 1.5
    scored_rows_min: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 40,
            description="Number of recent closed samples below which AUC, log loss and calibration are not checked.",
        ),
    ] = 1_000
    # Most recent closed samples that are scored.
    scored_rows_max: Fixed[int] = 50_000
    # How long the judge may take.
    judge_s_max: Fixed[float] = 300.0


class RetentionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Which versions are kept in the store."""

    keep_versions_min: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Number of newest versions that are kept, whatever their age.")
    ] = 60
    keep_s: Annotated[float, Meta(ge=0, le=31_536_000_000, description="Versions younger than this are kept.")] = (
        86_400.0
    )
    # How long files are kept after the oldest retained version no longer needs them.
    grace_s: Fixed[float] = 900.0
    # Files that no manifest names are deleted once they are older than this.
    orphan_s: Fixed[float] = 86_400.0
    # Moves of the pointer that are kept in the store.
    pointer_moves_min: Fixed[int] = 100_000
