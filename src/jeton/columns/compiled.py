"""Compiled loops: Numba's ``njit``, which caches on disk where it can and works where it cannot.

Modules import this as ``nb``. Numba keeps compiled code beside the source or in the user's cache
folder, and refuses ``cache=True`` where it can write to neither: on read-only file systems, or
without a home folder, as executors often are. Then the code goes to a private temporary folder, or
stays in memory.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

log = logging.getLogger(__name__)

types = numba.types
void = numba.void


def njit(signatures: Any = None, *, cache: bool = False, **options: Any) -> Callable[..., Any]:
    """``numba.njit`` as a decorator with arguments; ``cache=True`` never fails.

    >>> @njit(cache=True)
    ... def twice(n):
    ...     return 2 * n
    >>> twice(21)
    42
    """

    def decorate(function: Callable[..., Any]) -> Any:
        # What was typed into a prompt has no file, and no place in a cache.
        if cache and os.path.exists(inspect.getfile(function)):
            try:
                return _cached(function, signatures, options)
            except (RuntimeError, OSError) as error:
                _report(
                    "compiled code stays in memory, and each process makes it anew, since there "
                    f"is nowhere to write it: {error}"
                )
        return numba.njit(signatures, **options)(function)

    return decorate


def _cached(function: Callable[..., Any], signatures: Any, options: dict[str, Any]) -> Any:
    compile_it = numba.njit(**options)
    made = compile_it(function)
    try:
        made.enable_caching()
    except (RuntimeError, OSError) as error:
        folder = private_folder()
        if folder is None:
            raise
        _report(f"compiled code is kept in {folder}: {error}")
        settings: Any = numba.config
        before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
        try:
            made = compile_it(function)
            made.enable_caching()
        finally:
            settings.CACHE_DIR = before
    made._cache = Forgiving(made._cache)
    if signatures is not None:
        for signature in signatures if isinstance(signatures, list) else [signatures]:
            made.compile(signature)
        made.disable_compile()
    return made


def get_ready() -> None:
    """Have Numba load its own definitions, which the first call of a loop would wait for.

    That takes a third of a second, once for each process.

    >>> get_ready()
    """
    with global_compiler_lock:
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()


class Forgiving:
    """A cache of Numba's that ignores files it cannot use, instead of failing.

    Several processes may write to one folder, disks fill up, and folders go.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def load_overload(self, *args: Any) -> Any:
        """The stored code, or nothing."""
        try:
            return self._cache.load_overload(*args)
        except Exception as error:
            _report(f"compiled code in {self._cache.cache_path} cannot be read: {error!r}")
            return None

    def save_overload(self, *args: Any) -> None:
        """Store it if that is possible."""
        try:
            self._cache.save_overload(*args)
        except Exception as error:
            _report(f"compiled code cannot be kept in {self._cache.cache_path}: {error!r}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


@functools.cache
def private_folder() -> Path | None:
    """A temporary folder that only this user can write to, if there can be one.

    Its files are run as code, so they must be ours.
    """
    user = os.getuid() if hasattr(os, "getuid") else "user"
    try:
        folder = Path(tempfile.gettempdir()) / f"jeton-compiled-{user}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return None
        if hasattr(os, "getuid") and (found.st_uid != user or found.st_mode & 0o022):
            return None
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return None


@functools.cache
def _warned() -> list[str]:
    return []


def _report(text: str) -> None:
    """Log the first failure only, for all functions together."""
    if not _warned():
        _warned().append(text)
        log.warning("%s", text)
