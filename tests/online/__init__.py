"""Tests of computed features as they are served."""
