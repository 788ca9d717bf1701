"""A hand-made model of two graphs, with weights as arguments, made and called by TensorFlow in a process of its own.

Run as a program: `python -m tests.versions.saved_models FOLDER [INPUTS.npz CALLED SCORES.npz ...]`. It makes the model
in a folder, and then calls what was saved in others.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from streamlearn.models.tensorflow_load import load_tensorflow

load_tensorflow()

import tensorflow as tf  # noqa: E402

__all__ = ["main"]

_FEATURES, _HIDDEN, _LABELS = 6, 4, 2


def make(folder: str) -> None:
    """Save both graphs; no weight is in them."""
    module = tf.Module()

    def user(kernel: tf.Tensor, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"flat": tf.nn.relu(tf.matmul(inputs, kernel))}

    def score(kernel: tf.Tensor, bias: tf.Tensor, flat: tf.Tensor, index: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        return {"z": tf.matmul(tf.concat([tf.gather(flat, index), inputs], 1), kernel) + bias}

    def floats(*shape: int | None) -> tf.TensorSpec:
        return tf.TensorSpec(shape, tf.float32)

    module.user = tf.function(user, input_signature=[floats(_FEATURES, _HIDDEN), floats(None, _FEATURES)])
    module.score = tf.function(
        score,
        input_signature=[
            floats(_HIDDEN + _FEATURES, _LABELS), floats(_LABELS), floats(None, _HIDDEN),
            tf.TensorSpec([None], tf.int32), floats(None, _FEATURES),
        ],
    )  # fmt: skip
    signatures = {name: getattr(module, name).get_concrete_function() for name in ("user", "score")}
    tf.saved_model.save(module, folder, signatures=signatures)
    # A random number among others, which nobody needs to load it: with it no two savings were the same.
    (Path(folder) / "fingerprint.pb").unlink()


def call(inputs: str, *folders_and_scores: str) -> None:
    """Load what was saved in folders, one after the other, and score with the weights of a file."""
    for at in range(0, len(folders_and_scores), 2):
        _call(folders_and_scores[at], inputs, folders_and_scores[at + 1])


def _call(folder: str, inputs: str, scores: str) -> None:
    found, given = tf.saved_model.load(folder), np.load(inputs)
    flat = found.signatures["user"](kernel=given["user_kernel"], inputs=given["user_inputs"])["flat"]
    answer = found.signatures["score"](
        kernel=given["score_kernel"], bias=given["score_bias"], flat=flat, index=given["index"], inputs=given["inputs"]
    )
    np.savez(scores, z=answer["z"].numpy(), variables=len(list(getattr(found, "variables", []))))


def main(folder: str, *called: str) -> None:
    make(folder)
    if called:
        call(*called)


if __name__ == "__main__":
    main(*sys.argv[1:])
