"""Tests that need an NVIDIA GPU. One command runs them: ``make gpu``."""
