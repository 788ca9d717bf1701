"""Tests that each setting is heeded: it is set to an odd value, and the value is seen where it acts."""
