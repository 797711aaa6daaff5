"""All kernels, imported so that they are declared: then `runtime.compile_all` has them all."""

from __future__ import annotations

import importlib
import pkgutil

from . import __path__

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    if _module != "all":
        importlib.import_module(f"{__package__}.{_module}")
