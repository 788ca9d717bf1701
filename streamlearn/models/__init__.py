"""Models: the protocol every model keeps. Nothing here loads TensorFlow."""

from streamlearn.models.protocol import Model, PackedSide

__all__ = ["Model", "PackedSide"]
