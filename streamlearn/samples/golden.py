"""The golden requests of a version: samples, and the scores of its graphs when it was cut."""

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
    """Return `samples`, one message, and `logits`, float32[rows, labels] in NumPy's file format."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(logits, np.float32), allow_pickle=False)
    return {"samples": codec.encode(batch), "logits": buffer.getvalue()}


def read_golden(
    codec: SampleCodec, entries: Mapping[str, bytes | memoryview]
) -> tuple[SampleBatch, npt.NDArray[np.float32]]:
    """Read the bytes of `golden_bytes`; raises BadRecord if the samples or the logits are damaged."""
    try:
        batch = codec.decode(bytes(entries["samples"]))
        logits = np.lib.format.read_array(io.BytesIO(bytes(entries["logits"])), allow_pickle=False)
    except DataError:
        raise
    # NumPy raises many types for bytes that are not an array, or of an absurd size.
    except Exception as error:
        message = f"golden requests cannot be read: {type(error).__name__}: {error}"
        raise BadRecord(message) from None
    if logits.dtype != np.float32 or logits.shape != (len(batch), len(batch.labels)):
        message = f"{len(batch)} golden samples of {len(batch.labels)} labels have logits {logits.dtype}{logits.shape}"
        raise BadRecord(message)
    return batch, logits
