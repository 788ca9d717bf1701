"""Tests of the supervision of processes."""
