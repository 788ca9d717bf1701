"""Schemas and their framing."""
