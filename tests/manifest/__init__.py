"""Tests of the objects of an installation on Kubernetes."""
