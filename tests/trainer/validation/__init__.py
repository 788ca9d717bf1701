"""Tests of progressive validation."""
