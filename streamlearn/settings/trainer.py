"""Settings of training."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from streamlearn.settings.constant import Fixed

__all__ = ["TrainerSettings", "ValidationSettings"]


class TrainerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a model learns from samples."""

    order: Annotated[
        Literal["strict", "arrival"],
        Meta(
            description="The order in which messages are learned. `strict` derives it from the topics alone, so the "
            "same samples give the same model to the byte, even after restarts; it waits for silent partitions and "
            "full steps. `arrival` waits for neither."
        ),
    ] = "arrival"
    step_rows: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 20,
            description="Samples in one step. Larger steps are faster but update the model less often. They "
            "overshoot if one step is a large share of what a row has learned so far.",
        ),
    ] = 1_024
    step_wait_s: Annotated[
        float,
        Meta(gt=0, le=3_600, description="How long `arrival` waits for a step to fill before it learns a smaller one."),
    ] = 1.0
    staleness_steps: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="How many steps ahead of the last push `arrival` may pull rows. 0 is exact. 1 or 2 overlap "
            "pulling, learning and pushing, which is faster but reads rows that are this many steps old. `strict` "
            "ignores it.",
        ),
    ] = 0
    # Most steps that wait between two stages.
    queue_steps_max: Fixed[int] = 2
    # Most bytes of undecoded messages that wait to be learned.
    read_ahead_bytes: Fixed[int] = 64 << 20
    # How long one poll of an empty topic waits.
    poll_s: Fixed[float] = 0.1
    restart_slack_s: Annotated[
        float,
        Meta(
            ge=0,
            le=30 * 86_400,
            description="How much longer than the longest window the trainer remembers which samples it has learned. "
            "Older samples are refused and counted. Keep it at least as long as ingest may go back when it "
            "restarts.",
        ),
    ] = 3_600.0
    optimizer: Annotated[
        Literal["adam", "adagrad", "sgd"],
        Meta(description="The optimizer of dense weights. Rows use `tables.optimizer`."),
    ] = "adam"
    rate: Annotated[float, Meta(gt=0, le=1_000, description="The learning rate of dense weights.")] = 0.001
    warmup_steps: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Steps in which the learning rates of rows and dense weights rise from 0 to their value.",
        ),
    ] = 0
    decay_steps: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="The learning rates halve each time this many steps have passed. 0 keeps them constant, "
            "which is right for a model that learns continuously.",
        ),
    ] = 0
    clip_norm: Annotated[
        float,
        Meta(
            ge=0,
            le=1e9,
            description="Dense gradients are clipped to this norm, taken over all dense weights; 0 turns it off.",
        ),
    ] = 0.0
    l2: Annotated[
        float, Meta(ge=0, le=1e3, description="L2 regularization of dense weights, added to their gradient.")
    ] = 0.0
    row_gradients: Annotated[
        Literal["sum", "mean"],
        Meta(
            description="How the gradients of a step's samples are combined for a row: `sum` adds them, as if each "
            "sample were a step of its own; `mean` divides them by the samples of the step."
        ),
    ] = "sum"
    compute: Annotated[
        Literal["float32", "bfloat16", "float16"],
        Meta(
            description="Number format in which ready-made models multiply matrices, in training and serving. "
            "Weights stay float32. Use bfloat16 only on devices that support it."
        ),
    ] = "float32"
    xla: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="Whether XLA compiles the step. `auto` turns it on if there is a GPU."),
    ] = "auto"
    device: Annotated[
        Literal["auto", "cpu", "gpu"], Meta(description="Where dense weights learn. `auto` uses a GPU if there is one.")
    ] = "auto"
    threads: Annotated[
        int, Meta(ge=0, le=1_024, description="Threads of one TensorFlow operation; 0 lets TensorFlow choose.")
    ] = 0
    seed: Annotated[int, Meta(ge=0, le=(1 << 31) - 1, description="Seed of the initial dense weights.")] = 0
    bad_messages_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="How many unreadable messages are skipped before training ends. They are counted and kept in "
            "APP/.streamlearn/kept.",
        ),
    ] = 0
    # Consecutive steps with gradients that are not finite before training ends. Such steps are skipped and kept in
    # APP/.streamlearn/kept.
    refused_steps_max: Fixed[int] = 10
    # Most bytes in APP/.streamlearn/kept; the oldest files are deleted first.
    kept_bytes_max: Fixed[int] = 256 << 20


_Width = Annotated[int, Meta(ge=1, le=31 * 86_400)]


class ValidationSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How predictions made before training on a sample are scored once its labels are final."""

    # Widths of the windows that are scored, in event time of impressions, ascending.
    windows_s: Fixed[list[_Width]] = field(default_factory=lambda: [60, 3_600, 86_400])
    # How much event time of the newest closed windows the scores of a version cover.
    summary_s: Fixed[int] = 3_600
    rows_max: Annotated[
        int,
        Meta(
            ge=1_024,
            le=1 << 33,
            description="Most predictions that are held, one for each label of a row. Beyond it, a sample of them, "
            "chosen by a hash, stands for all. Plan 32 bytes for each, and 100 more for each of the longest window "
            "while that is scored.",
        ),
    ] = 4_000_000
    # Most values of one segment that are scored separately: the first that occur.
    segment_texts_max: Fixed[int] = 32
    folder: Annotated[
        str,
        Meta(
            description="Folder of the scores of closed windows. Empty is the folder `.streamlearn/validation` "
            "beside app.toml."
        ),
    ] = ""
    # Size at which a new file of scores is begun.
    file_bytes_max: Fixed[int] = 16 << 20
    # Most bytes in all files of scores.
    kept_bytes_max: Fixed[int] = 1 << 30
