"""Adds the server to the wheel. tools/wheel sets SHOAL_SERVER to the unpacked result of tools/dist."""

import os
import pathlib
import re

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        if version == "editable":
            return
        server = pathlib.Path(os.environ["SHOAL_SERVER"])
        for part in ("bin", "lib", "models", "licences", "LICENSE", "NOTICE", "sbom.cdx.json"):
            build_data["force_include"][str(server / part)] = f"shoal/_server/{part}"
        build_data["pure_python"] = False
        machine = {"amd64": "x86_64", "arm64": "aarch64"}[server.name.rpartition("-")[2]]
        build_data["tag"] = f"py3-none-manylinux_2_{glibc(server)}_{machine}"


def glibc(server):
    """Returns the minor version of the oldest glibc that has all functions that the server and its library use."""
    files = [server / "bin/shoal", *(server / "lib").glob("*.so*")]
    return max(int(minor) for file in files for minor in re.findall(rb"GLIBC_2\.(\d+)", file.read_bytes()))
