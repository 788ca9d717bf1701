"""Tests of workers: several processes that learn one model."""
