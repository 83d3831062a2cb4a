"""The version of the package, which is the server's."""

__version__ = "0.2.0-dev"
