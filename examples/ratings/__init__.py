"""Ratings of films: labels that are numbers."""
