"""Names of bundles: each is that of a target, of a library and of a header, ``NAME.h``."""

from __future__ import annotations

from quantglow.bundle.tensors import is_identifier
from quantglow.errors import OptionError

TARGETS = {"all", "clean", "depend", "edit_cache", "help", "install", "package", "test"}
"""Targets that CMake has."""

LIBRARIES = {"c", "dl", "m", "pthread", "rt"}

C99 = """assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal
stdarg stdbool stddef stdint stdio stdlib string tgmath time wchar wctype"""
C11 = "stdalign stdatomic stdnoreturn threads uchar"
C23 = "stdbit stdckdint"
POSIX = """aio cpio devctl dirent dlfcn endian fcntl fmtmsg fnmatch ftw glob grp iconv langinfo
libgen libintl monetary mqueue ndbm netdb nl_types poll pthread pwd regex sched search semaphore
spawn strings stropts syslog tar termios trace ulimit unistd utime utmpx wordexp"""
"""Headers from POSIX.1-2001 to 2024 that lie in no folder."""

HEADERS = {name for standard in (C99, C11, C23, POSIX) for name in standard.split()}
TAKEN_NAMES = TARGETS | LIBRARIES | HEADERS
"""In lower case: file systems may not tell ``Float.h`` from ``float.h``."""


def check_name(name: str) -> None:
    """Raise ``OptionError`` for a name that cannot begin symbols of C, or that others have."""
    if not is_identifier(name):
        raise OptionError(
            f"name={name!r} is no identifier of C. Remedy: a letter, then letters, digits and _"
        )
    if name.lower() in TAKEN_NAMES:
        raise OptionError(
            f"name={name!r} is a target of CMake, a library or a header of C. Remedy: another name"
        )
