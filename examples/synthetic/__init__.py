"""Synthetic: traffic of any size whose true click model is known; see README.md."""
