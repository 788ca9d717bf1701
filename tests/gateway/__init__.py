"""Tests of what leads callers to the nodes of applications."""
