"""Where things are kept that can be had again: the user's cache folder, or `WHOLEGRAIN_CACHE`."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder; it may not be there yet, and it may be impossible to write."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.environ.get("WHOLEGRAIN_CACHE") or f"{base}/wholegrain"
    return Path(folder).expanduser()
