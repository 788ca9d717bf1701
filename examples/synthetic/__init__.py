"""Synthetic: traffic of any size with a known true click model; see README.md."""
