"""Tests of the pointer and of switches."""
