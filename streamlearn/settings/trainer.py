"""Settings of training."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from streamlearn.settings.constant import Fixed

__all__ = ["TrainerSettings", "ValidationSettings"]


class TrainerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a model learns from samples."""

    order: Literal["strict", "arrival"] = "arrival"
    """The order in which messages are learned. `strict` derives it from the topics alone, so the same samples give the
    same model to the byte, even after restarts; it waits for silent partitions and full steps. `arrival` waits for
    neither."""
    step_rows: Annotated[int, Meta(ge=1, le=1 << 20)] = 1_024
    """Samples in one step. Larger steps are faster but update the model less often. They overshoot if one step is a
    large share of what a row has learned so far."""
    step_wait_s: Annotated[float, Meta(gt=0, le=3_600)] = 1.0
    """How long `arrival` waits for a step to fill before it learns a smaller one."""
    staleness_steps: Annotated[int, Meta(ge=0, le=64)] = 0
    """How many steps ahead of the last push `arrival` may pull rows. 0 is exact. 1 or 2 overlap pulling, learning and
    pushing, which is faster but reads rows that are this many steps old. `strict` ignores it."""
    queue_steps_max: Fixed[int] = 2
    """Most steps that wait between two stages."""
    read_ahead_bytes: Fixed[int] = 64 << 20
    """Most bytes of undecoded messages that wait to be learned."""
    poll_s: Fixed[float] = 0.1
    """How long one poll of an empty topic waits."""
    restart_slack_s: Annotated[float, Meta(ge=0, le=30 * 86_400)] = 3_600.0
    """How much longer than the longest window the trainer remembers which samples it has learned. Older samples are
    refused and counted. Keep it at least as long as ingest may go back when it restarts."""
    optimizer: Literal["adam", "adagrad", "sgd"] = "adam"
    """The optimizer of dense weights. Rows use `tables.optimizer`."""
    rate: Annotated[float, Meta(gt=0, le=1_000)] = 0.0015
    """The learning rate of dense weights."""
    warmup_steps: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """Steps in which the learning rates of rows and dense weights rise from 0 to their value."""
    decay_steps: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """The learning rates halve each time this many steps have passed. 0 keeps them constant, which is right for a model
    that learns continuously."""
    clip_norm: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Dense gradients are clipped to this norm, taken over all dense weights; 0 turns it off."""
    l2: Annotated[float, Meta(ge=0, le=1e3)] = 0.0
    """L2 regularization of dense weights, added to their gradient."""
    row_gradients: Literal["sum", "mean"] = "sum"
    """How the gradients of a step's samples are combined for a row: `sum` adds them, as if each sample were a step of
    its own; `mean` divides them by the samples of the step."""
    compute: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format in which ready-made models multiply matrices, in training and serving. Weights stay float32. Use
    bfloat16 only on devices that support it."""
    xla: Literal["auto", "on", "off"] = "auto"
    """Whether XLA compiles the step. `auto` turns it on if there is a GPU."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where dense weights learn. `auto` uses a GPU if there is one."""
    threads: Annotated[int, Meta(ge=0, le=1_024)] = 0
    """Threads of one TensorFlow operation; 0 lets TensorFlow choose."""
    seed: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] = 0
    """Seed of the initial dense weights."""
    bad_messages_max: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """How many unreadable messages are skipped before training ends. They are counted and kept in
    APP/.streamlearn/kept."""
    refused_steps_max: Fixed[int] = 10
    """Consecutive steps with gradients that are not finite before training ends. Such steps are skipped and kept in
    APP/.streamlearn/kept."""
    kept_bytes_max: Fixed[int] = 256 << 20
    """Most bytes in APP/.streamlearn/kept; the oldest files are deleted first."""


_Width = Annotated[int, Meta(ge=1, le=31 * 86_400)]


class ValidationSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How predictions made before training on a sample are scored once its labels are final."""

    windows_s: Fixed[list[_Width]] = field(default_factory=lambda: [60, 3_600, 86_400])
    """Widths of the windows that are scored, in event time of impressions, ascending."""
    summary_s: Fixed[int] = 3_600
    """How much event time of the newest closed windows the scores of a version cover."""
    rows_max: Annotated[int, Meta(ge=1_024, le=1 << 33)] = 4_000_000
    """Most predictions that are held, one for each label of a row. Beyond it, a sample of them, chosen by a hash,
    stands for all. Plan 32 bytes for each, and 180 more for each of the longest window while that is scored. A base
    holds them too, with 26 bytes and one for each segment; a delta holds those made since the version before it."""
    segment_texts_max: Fixed[int] = 32
    """Most values of one segment that are scored separately: the first that occur."""
    folder: str = ""
    """Folder of the scores of closed windows. Empty is the folder `.streamlearn/validation` beside app.toml."""
    file_bytes_max: Fixed[int] = 16 << 20
    """Size at which a new file of scores is begun."""
    kept_bytes_max: Fixed[int] = 1 << 30
    """Most bytes in all files of scores."""
