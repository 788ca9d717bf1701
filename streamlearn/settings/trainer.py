"""Settings of training."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

__all__ = ["TrainerSettings", "ValidationSettings"]


class TrainerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a model learns from samples."""

    order: Annotated[
        Literal["strict", "arrival"],
        Meta(
            description="In which order messages are learned. `strict` derives it from the topics alone, so that the "
            "same samples give the same model to the byte, whatever the restarts; it waits for silent partitions and "
            "for whole steps. `arrival` waits for neither."
        ),
    ] = "arrival"
    step_rows: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Samples of one step. More are faster, and learn in fewer strides.")
    ] = 4_096
    step_wait_s: Annotated[
        float,
        Meta(gt=0, le=3_600, description="How long `arrival` waits for a step to fill before it learns a smaller one."),
    ] = 1.0
    staleness_steps: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="How many steps `arrival` may pull rows ahead of what is pushed. 0 is exact; 1 or 2 let "
            "pulling, learning and pushing go on side by side. `strict` pulls nothing ahead, whatever this says.",
        ),
    ] = 1
    queue_steps_max: Annotated[int, Meta(ge=1, le=1_000, description="Steps that may wait between two stages.")] = 2
    read_ahead_bytes: Annotated[
        int, Meta(ge=1 << 16, le=1 << 36, description="Bytes of messages that may wait to be learned, undecoded.")
    ] = 64 << 20
    poll_s: Annotated[
        float, Meta(gt=0, le=60, description="How long one look at the topic waits when nothing is there.")
    ] = 0.1
    restart_slack_s: Annotated[
        float,
        Meta(
            ge=0,
            le=30 * 86_400,
            description="How much longer than the longest window it is kept what was learned. Samples that come again "
            "later than that are refused and counted; at least as long as ingest may go back when it starts again.",
        ),
    ] = 3_600.0
    optimizer: Annotated[
        Literal["adam", "adagrad", "sgd"],
        Meta(description="How dense weights learn; rows learn by `tables.optimizer`."),
    ] = "adam"
    rate: Annotated[float, Meta(gt=0, le=1_000, description="The learning rate of dense weights.")] = 0.001
    warmup_steps: Annotated[
        int, Meta(ge=0, le=1 << 40, description="Steps over which all rates rise from 0; of rows and dense weights.")
    ] = 0
    decay_steps: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="After so many steps all rates have halved, after as many again they have halved again. 0 "
            "keeps them: right for a model that learns for ever.",
        ),
    ] = 0
    clip_norm: Annotated[
        float, Meta(ge=0, le=1e9, description="Longest gradient of all dense weights together; 0 for no limit.")
    ] = 0.0
    l2: Annotated[float, Meta(ge=0, le=1e3, description="Pull of dense weights towards 0, in their gradient.")] = 0.0
    row_gradients: Annotated[
        Literal["sum", "mean"],
        Meta(
            description="What a row learns from a step: the sum of its samples' gradients, as if each were a step of "
            "its own, or their share of the step's mean."
        ),
    ] = "sum"
    compute: Annotated[
        Literal["float32", "bfloat16", "float16"],
        Meta(
            description="In which numbers a ready-made model multiplies matrices, in training and serving; weights "
            "stay float32. bfloat16 is for devices that are made for it."
        ),
    ] = "float32"
    xla: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="Whether XLA compiles the step; `auto` where there is a GPU."),
    ] = "auto"
    device: Annotated[
        Literal["auto", "cpu", "gpu"], Meta(description="Where dense weights learn; `auto` takes a GPU where one is.")
    ] = "auto"
    threads: Annotated[
        int, Meta(ge=0, le=1_024, description="Threads of one operation of TensorFlow's; 0 leaves it to TensorFlow.")
    ] = 0
    seed: Annotated[int, Meta(ge=0, le=(1 << 31) - 1, description="Of the first dense weights.")] = 0
    bad_messages_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Messages that cannot be read and are left out, counted and kept aside, before training ends.",
        ),
    ] = 0
    refused_steps_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Steps in a row whose gradients are no numbers and that are left out and kept aside, before "
            "training ends.",
        ),
    ] = 10
    kept_bytes_max: Annotated[
        int, Meta(ge=0, le=1 << 40, description="Bytes of what is kept aside; the oldest go first.")
    ] = 256 << 20


_Width = Annotated[int, Meta(ge=1, le=31 * 86_400)]


class ValidationSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How first predictions are scored once their labels are final."""

    windows_s: Annotated[
        list[_Width],
        Meta(
            min_length=1,
            max_length=8,
            description="Widths of the windows, event time of impressions, that are scored, shortest first; each is a "
            "multiple of the one before it. The first is how fine curves are; a longer one keeps its rows for longer.",
        ),
    ] = field(default_factory=lambda: [60, 3_600, 86_400])
    summary_s: Annotated[
        int,
        Meta(ge=1, le=31 * 86_400, description="Versions say the scores of so much of the newest closed windows."),
    ] = 3_600
    rows_max: Annotated[
        int,
        Meta(
            ge=1_024,
            le=1 << 33,
            description="Predictions that are held, one for each label of a row; beyond it a share of them, chosen by "
            "a hash, stands for all. Plan 32 bytes each, and 100 more of the longest window while it is scored.",
        ),
    ] = 4_000_000
    segment_texts_max: Annotated[
        int,
        Meta(
            ge=1,
            le=250,
            description="Texts of one segment that are scored apart, the first that come; all others are `(other)`.",
        ),
    ] = 32
    folder: Annotated[
        str,
        Meta(
            description="Where scores of closed windows are kept. Empty is the folder `.streamlearn/validation` beside "
            "app.toml."
        ),
    ] = ""
    file_bytes_max: Annotated[
        int, Meta(ge=4_096, le=1 << 40, description="A file of scores that has so many bytes is followed by another.")
    ] = 16 << 20
    kept_bytes_max: Annotated[
        int,
        Meta(ge=8_192, le=1 << 50, description="Bytes of all files of scores; beyond it the oldest files go."),
    ] = 1 << 30
