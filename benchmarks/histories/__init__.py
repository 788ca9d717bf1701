"""Histories as samples in memory, whose labels or truth are known."""
