"""Every model, exported once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from tests.models.exports import export_all


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All models, exported by this process, in which much else was made before: change copies only."""
    folder = tmp_path_factory.mktemp("exported")
    for size in range(7):
        tf.function(lambda one: one + 1).get_concrete_function(tf.TensorSpec([size]))
    export_all(folder, seed=3)
    return folder
