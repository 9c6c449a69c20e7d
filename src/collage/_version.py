"""The version: read from here by the build, the command line and every artefact."""

__version__ = "0.1.0"
