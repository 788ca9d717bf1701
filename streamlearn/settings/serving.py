"""Settings of serving: shapes that are compiled, devices, and the cache of compiled code."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from streamlearn.settings.constant import Fixed

__all__ = ["ServingSettings"]

_Size = Annotated[int, Meta(ge=1, le=65_536)]


class ServingSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How requests are scored: which shapes are compiled, where they run, and how much may be compiled."""

    users_buckets: Annotated[list[_Size], Meta(min_length=1, max_length=16)] = field(
        default_factory=lambda: [1, 4, 16, 32]
    )
    """Numbers of requests in one execution, ascending. Each has an executable of the user graph; smaller numbers are
    padded to it. The score graph always takes the last number of users."""
    candidates_buckets: Annotated[list[_Size], Meta(min_length=1, max_length=32)] = field(
        default_factory=lambda: [8, 16, 32, 64, 128, 256]
    )
    """Numbers of candidates in one execution, ascending. Each has an executable of the score graph. With more of them
    there is less padding, but starting takes longer."""
    lengths: Annotated[list[_Size], Meta(max_length=2)] = field(default_factory=list)
    """Sequence lengths with executables of their own, ascending, at most two. The last must be the length that the
    features declare, which is the only one by default. A shorter first one makes short histories cheaper."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where graphs run. `auto` uses all GPUs if there are any, otherwise the CPU."""
    lanes: Annotated[int, Meta(ge=1, le=64)] = 1
    """Number of executions in parallel. On CPUs a lane is a thread and takes one core. On GPUs each has memory and
    streams of its own, and lanes are spread over the GPUs."""
    lane_nice: Annotated[int, Meta(ge=0, le=9)] = 0
    """Niceness of lanes relative to the threads that read requests. Use 7 if scoring is cheaper than parsing requests:
    under load, requests then queue for merging instead of in the socket. Otherwise use 0. With an allowance 0
    counts as 4, because an overloaded node reads far more than it scores; 1 is the least then."""
    lane_devices: Fixed[Literal["auto", "shared", "own"]] = "auto"
    """Whether each lane has a logical device of its own."""
    lane_memory_bytes: Annotated[int, Meta(ge=1 << 26, le=1 << 40)] = 4 << 30
    """GPU memory that each lane reserves, if there are several and they have logical devices or processes of their
    own."""
    lane_processes: bool = False
    """Whether each lane is a process, so that a crash does not end the node. Each process loads a TensorFlow of its
    own, and each execution takes a little longer."""
    lane_gpus: Annotated[list[str], Meta(max_length=64)] = field(default_factory=list)
    """CUDA_VISIBLE_DEVICES of each lane process, in turn. If empty, the environment is unchanged."""
    lane_answer_s_max: Fixed[float] = 30.0
    """How long one execution of a lane process may take."""
    lane_failures_max: Fixed[int] = 10
    """How many times in a row a lane is restarted, after it could not take work or return it or its process ended,
    before it stays down."""
    cache_folder: str = ""
    """Folder in which compiled code is kept between starts. Empty is the folder `compiled` in STREAMLEARN_CACHE. Anyone
    who can write to it can execute code in the node; restrict its permissions."""
    cache_bytes_max: Fixed[int] = 1 << 30
    """Most bytes of compiled code that are kept for one kind of machine."""
    compiles_max: Annotated[int, Meta(ge=1, le=100_000)] = 256
    """Most executables in one process, some megabytes each; TensorFlow never frees them. Beyond it, new shapes run
    uncompiled, and versions with new graphs are refused."""
    compile_calls_min: Fixed[int] = 100
    """How many times a shape without an executable must occur before one is compiled for it."""
    compile_queue_max: Fixed[int] = 16
    """Most shapes that wait to be compiled."""
    compile_s_max: Fixed[float] = 600.0
    """How long one compilation may take, or the start of the compiling process or of a lane process."""
    compile_failures_max: Fixed[int] = 5
    """Consecutive compilations that may fail before compiling stops."""
    cost_runs: Fixed[int] = 20
    """Runs of each executable before a node is ready; their median is its cost."""
    golden_difference_max: Annotated[float, Meta(ge=0, le=100)] = 1e-5
    """How far the score of a golden request may differ from training's: in logits, and as a share of logits above 1.
    Raise it if training or serving does not multiply in float32."""
