"""The library of items."""
