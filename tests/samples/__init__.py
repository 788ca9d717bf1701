"""Samples and their messages."""
