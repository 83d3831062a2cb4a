"""Imports a model's modules from the sources that the server read when it loaded the model, rather than from the files on disk.

A worker that is restarted thus runs the code that was loaded, even if the files have changed meanwhile. Modules keep the paths of their files, so that
they find data files beside them. Everything that is not in the snapshot is imported from disk: extension modules, installed packages, and files that
did not exist when the model was loaded.
"""

import importlib.machinery
import importlib.util
import linecache
import os
import sys

LOADERS = [
    (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
    (importlib.machinery.SourceFileLoader, importlib.machinery.SOURCE_SUFFIXES),
    (importlib.machinery.SourcelessFileLoader, importlib.machinery.BYTECODE_SUFFIXES),
]

_sources = {}  # by path


def install(sources):
    """Makes modules come from the given sources, which are bytes by path."""
    _sources.update(sources)
    folders = {os.path.dirname(path) for path in sources}

    def hook(folder):
        if folder not in folders:
            raise ImportError("no module of the model is in this directory")
        return Finder(folder)

    sys.path_hooks.insert(0, hook)
    for folder in folders:
        sys.path_importer_cache.pop(folder, None)


class Finder:
    """Finds the modules of one directory."""

    def __init__(self, folder):
        self.folder, self.disk = folder, importlib.machinery.FileFinder(folder, *LOADERS)

    def find_spec(self, name, target=None):
        path = os.path.join(self.folder, name.rpartition(".")[2])
        package = os.path.join(path, "__init__.py")
        if package in _sources:
            return spec(name, package, [path])
        found = self.disk.find_spec(name, target)
        compiled = found is not None and isinstance(found.loader, importlib.machinery.ExtensionFileLoader)  # preferred to sources, as usual
        if path + ".py" in _sources and not compiled:
            return spec(name, path + ".py")
        return found

    def invalidate_caches(self):
        self.disk.invalidate_caches()

    def iter_modules(self, prefix=""):
        """Lists the modules for pkgutil: those on disk, which are named like those of the snapshot unless some were added or removed since."""
        import pkgutil  # few models need it

        return pkgutil.iter_importer_modules(self.disk, prefix)


class Loader(importlib.machinery.SourceFileLoader):
    """Loads one module from the snapshot."""

    def path_stats(self, path):
        raise OSError("bytecode on disk may be of another source")

    def get_data(self, path):
        if path not in _sources:  # a data file beside the module
            return super().get_data(path)
        data = _sources[path]
        lines = importlib.util.decode_source(data).splitlines(keepends=True)
        linecache.cache[path] = len(data), None, lines, path  # for tracebacks
        return data


def spec(name, path, search=None):
    """Returns the spec of a module, from the snapshot if it has the path, otherwise from disk."""
    loader = Loader(name, path) if path in _sources else None
    return importlib.util.spec_from_file_location(name, path, loader=loader, submodule_search_locations=search)
