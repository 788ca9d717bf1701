"""How TensorFlow is loaded: without Keras, which is there all the same when somebody asks for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from streamlearn.models import tensorflow_load
from streamlearn.models.tensorflow_load import may_leave_keras

__all__: list[str] = []

_LOADS = """
import gc, json, os, sys
from streamlearn.models.tensorflow_load import load_tensorflow
load_tensorflow()
loaded = [name in sys.modules for name in ("tensorflow", "keras", "matplotlib")]
import tensorflow as tf
assert tf.function(lambda x: x + 1)(1).numpy() == 2
print(json.dumps([loaded, gc.isenabled(), os.environ.get("TF_USE_LEGACY_KERAS")]))
"""
_KERAS = """
sys.stderr.write("Keras is asked for")
from tensorflow.keras import layers
print(type(layers.Dense(2)(tf.zeros((1, 3)))).__name__)
"""


def loaded(level: str | None, script: str) -> tuple[list[str], str]:
    """What a process that loads TensorFlow prints, and what it writes to stderr, where that level is asked for."""
    environ = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    if level is not None:
        environ["TF_CPP_MIN_LOG_LEVEL"] = level
    call = [sys.executable, "-c", script]
    told = subprocess.run(call, capture_output=True, text=True, timeout=600, check=True, env=environ)
    return told.stdout.splitlines(), told.stderr


def test_it_says_nothing_before_a_command_does_and_keras_is_loaded_when_it_is_asked_for_and_not_before() -> None:
    (said, made), stderr = loaded(None, _LOADS + _KERAS)
    assert json.loads(said) == [[True, False, False], True, None]
    assert made == "EagerTensor"
    assert stderr.partition("Keras is asked for")[0] == ""


def test_it_says_what_it_has_to_say_to_somebody_who_asks_for_it() -> None:
    (said,), stderr = loaded("0", _LOADS)
    assert json.loads(said) == [[True, False, False], True, None]
    assert stderr


def test_which_keras_a_user_wants_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert may_leave_keras({})
    for wanted in ("0", "1", ""):
        assert not may_leave_keras({"TF_USE_LEGACY_KERAS": wanted})
    monkeypatch.setattr(tensorflow_load, "find_spec", lambda _: object())
    assert not may_leave_keras({})


def test_what_was_written_while_it_was_loaded_is_shown_where_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with tensorflow_load._stderr_kept():
            os.write(2, b"why not")
            raise ImportError

    with pytest.raises(ImportError):
        fail()
    assert capfd.readouterr().err == "why not"
    with tensorflow_load._stderr_kept():
        os.write(2, b"as ever")
    assert capfd.readouterr().err == ""
