"""Settings of publishing: how often, which versions are rejected, and how long they are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from streamlearn.settings.constant import Fixed

__all__ = ["JudgeSettings", "PublisherSettings", "RetentionSettings"]


class PublisherSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How often a trainer publishes versions, and whether they are promoted."""

    publish_interval_s: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    """How often the trainer publishes what it has learned as a version. 1 works; if writing takes longer than this,
    intervals are skipped and the next version holds more."""
    empty_versions: Fixed[bool] = False
    """Whether a version is published if nothing was learned in an interval."""
    row_type: Literal["float32", "float16", "int8"] = "float32"
    """Number format of rows in the files that serving reads. float16 takes half of the bytes and int8 a third, and both
    round. Training has float32 files of its own."""
    promote: bool = True
    """Whether a version that passed the judge is promoted. If false, an operator promotes it."""
    on_reject: Literal["hold", "rewind"] = "hold"
    """The reaction to a rejected version: `hold` serves the last clean version until an operator decides; `rewind` also
    takes training back to it."""
    base_deltas_max: Annotated[int, Meta(ge=1, le=100_000)] = 60
    """After this many deltas a new base is written from files. Lower it so that nodes start faster."""
    failures_max: Fixed[int] = 10
    """Consecutive cuts that may fail before the trainer ends."""


class JudgeSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits beyond which the judge rejects a version. A limit of 0 turns its check off."""

    samples_rows_min: Fixed[int] = 1
    """Rows that a version must have learned from since its parent."""
    norm_ratio_max: Annotated[float, Meta(ge=0, le=1e9)] = 4.0
    """Largest factor by which the norm of a table's rows or of a dense tensor may differ from the active version."""
    auc_drop_ratio_max: Annotated[float, Meta(ge=0, le=1)] = 0.02
    """Largest share by which AUC may fall below the active version's, on the same recent samples. A fall that may be
    due to chance (under three standard errors) does not count."""
    hit_drop_ratio_max: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Largest share by which the hit rate of retrieval may fall below the active version's, on the same recent
    positives. A fall that may be due to chance (under three standard errors) does not count. Raise it if most items
    are new within minutes."""
    log_loss_rise_ratio_max: Annotated[float, Meta(ge=0, le=1e9)] = 0.05
    """Largest share by which log loss, or the loss of a label that is a number, may rise above the active version's, on
    the same recent samples. A rise that may be due to chance (under three standard errors) does not count."""
    calibration_ratio_max: Annotated[float, Meta(ge=0, le=1e9)] = 1.5
    """Largest ratio between the sums of predictions and of labels, in either direction. It applies only if the active
    version is within it."""
    scored_rows_min: Annotated[int, Meta(ge=1, le=1 << 40)] = 1_000
    """Number of recent closed samples below which AUC, log loss and calibration are not checked."""
    unscored: Literal["pass", "hold"] = "pass"
    """Whether a version that could not be compared with the active one is served. `hold` waits for one that can; the
    first version of a model is served in any case."""
    scored_rows_max: Fixed[int] = 50_000
    """Most recent closed samples that are scored."""
    judge_s_max: Fixed[float] = 300.0
    """How long the judge may take."""


class RetentionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Which versions are kept in the store."""

    keep_versions_min: Annotated[int, Meta(ge=1, le=1_000_000)] = 60
    """Number of newest versions that are kept, whatever their age."""
    keep_s: Annotated[float, Meta(ge=0, le=31_536_000_000)] = 86_400.0
    """Versions younger than this are kept."""
    grace_s: Fixed[float] = 900.0
    """How long files are kept after the oldest retained version no longer needs them."""
    orphan_s: Fixed[float] = 86_400.0
    """Files that no manifest names are deleted once they are older than this."""
    pointer_moves_min: Fixed[int] = 100_000
    """Moves of the pointer that are kept in the store."""
