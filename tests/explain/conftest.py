"""The program that links kubelet's managers, as the tests of alignment have it."""

from tests.alignment.conftest import on, program

__all__ = ["on", "program"]
