"""Checks before the compiled module is loaded: the processor, and a package of the same name."""

import importlib.metadata
import platform
import sys
import warnings

from . import built

_X86_64_V3 = ("avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")


def check() -> None:
    """Raises ImportError where the module cannot run. Warns if the distribution `millrace` is installed."""
    if built.arch == "x86-64-v3":
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise ImportError(f"{sys.platform} on {platform.machine()}: millrace needs Linux on x86-64")
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            flags = next((line.split() for line in lines if line.startswith("flags")), [])
        missing = [flag for flag in _X86_64_V3 if flag not in flags]
        if missing:
            raise ImportError(f"processor without {', '.join(missing)}: millrace needs x86-64-v3 (AVX2)")
    try:
        importlib.metadata.distribution("millrace")
    except importlib.metadata.PackageNotFoundError:
        return
    warnings.warn("the distribution `millrace` is another project and overwrites this package: uninstall it, then "
                  "install `millrace-pipeline` again", stacklevel=3)

