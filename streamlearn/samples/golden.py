"""Golden requests as a version keeps them: samples, and how its graphs scored them when it was cut."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from streamlearn.errors import BadRecord, DataError
from streamlearn.samples.codec import SampleCodec
from streamlearn.samples.sample import SampleBatch

__all__ = ["golden_bytes", "read_golden"]


def golden_bytes(codec: SampleCodec, batch: SampleBatch, logits: npt.NDArray[np.float32]) -> dict[str, bytes]:
    """As a version keeps them: `samples`, one message; `logits`, float32[rows, labels] as NumPy writes it."""
    written = io.BytesIO()
    np.save(written, np.ascontiguousarray(logits, np.float32), allow_pickle=False)
    return {"samples": codec.encode(batch), "logits": written.getvalue()}


def read_golden(
    codec: SampleCodec, entries: Mapping[str, bytes | memoryview]
) -> tuple[SampleBatch, npt.NDArray[np.float32]]:
    """What `golden_bytes` wrote.

    Raises:
        BadRecord: The samples or the logits are damaged.
    """
    try:
        batch = codec.decode(bytes(entries["samples"]))
        logits = np.lib.format.read_array(io.BytesIO(bytes(entries["logits"])), allow_pickle=False)
    except DataError:
        raise
    # Bytes that are no array, or of an absurd size, end in many ways; none of them is a bug here.
    except Exception as error:
        message = f"golden requests cannot be read: {type(error).__name__}: {error}"
        raise BadRecord(message) from None
    if logits.dtype != np.float32 or logits.shape != (len(batch), len(batch.labels)):
        message = f"{len(batch)} golden samples of {len(batch.labels)} labels have logits {logits.dtype}{logits.shape}"
        raise BadRecord(message)
    return batch, logits
