"""The publisher."""
