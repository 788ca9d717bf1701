"""Tests of near-line retrieval."""
