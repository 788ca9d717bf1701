"""Interactions: what users were shown and did, one stream for computed features and whatever else learns from it."""

from streamlearn.interactions.batch import InteractionBatch
from streamlearn.interactions.codec import decode_interactions, encode_interactions

__all__ = ["InteractionBatch", "decode_interactions", "encode_interactions"]
