"""Small Keras networks as models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from streamlearn.features import FeatureSpec
from streamlearn.models import KerasModel

__all__ = ["Made", "one_network", "two_networks"]

Networks = tuple[keras.Model | None, keras.Model]


class Made(KerasModel):
    """Networks that a function makes."""

    def __init__(self, make: Callable[[FeatureSpec, int], Networks]) -> None:
        super().__init__()
        self.make = make

    def networks(self, features: FeatureSpec, labels: Sequence[str]) -> Networks:
        return self.make(features, len(labels))


def two_networks(features: FeatureSpec, labels: int, *extra: Any) -> Networks:
    """A vector of the user and his history, then a layer over it and the candidate; more layers of one at its end."""
    side = features.pack.user
    flat, history = keras.Input((side.flat_width,)), keras.Input((side.sequence_length, side.sequence_width))
    taste = keras.layers.Dense(3, activation="tanh")(flat)
    places = keras.layers.Dense(2)(history)
    user = keras.Model([flat, history], [taste, places])
    taste_of, places_of = keras.Input((3,)), keras.Input((side.sequence_length, 2))
    item = keras.Input((features.pack.item.flat_width,))
    both = keras.layers.Concatenate()([taste_of, keras.layers.GlobalAveragePooling1D()(places_of), item])
    hidden = keras.layers.Dense(4, activation="relu")(both)
    for layer in extra:
        hidden = layer(hidden)
    return user, keras.Model([taste_of, places_of, item], keras.layers.Dense(labels)(hidden))


def one_network(features: FeatureSpec, labels: int) -> Networks:
    """One functional network whose inputs have names."""
    inputs = {
        "item_flat": keras.Input((features.pack.item.flat_width,), name="item_flat"),
        "user_flat": keras.Input((features.pack.user.flat_width,), name="user_flat"),
    }
    both = keras.layers.Concatenate()([inputs["user_flat"], inputs["item_flat"]])
    return None, keras.Model(inputs, keras.layers.Dense(labels)(both))
