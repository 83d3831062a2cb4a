"""Puts the server into the wheel: what tools/dist has packed, unpacked where SHOAL_SERVER says. tools/wheel calls it."""

import os
import pathlib
import platform
import re

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        if version == "editable":
            return
        server = pathlib.Path(os.environ["SHOAL_SERVER"])
        for part in ("bin", "lib", "licences", "LICENSE", "NOTICE"):
            build_data["force_include"][str(server / part)] = f"shoal/_server/{part}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{glibc(server)}_{platform.machine()}"


def glibc(server):
    """The oldest release of the C library that has all that the server and its library call."""
    files = [server / "bin/shoal", *(server / "lib").glob("*.so*")]
    return max(int(minor) for file in files for minor in re.findall(rb"GLIBC_2\.(\d+)", file.read_bytes()))
