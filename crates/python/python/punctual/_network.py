"""Networks from files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

from ._native import Network


def load(path: Union[str, "os.PathLike[str]"]) -> Network:
    """Reads a network from a file.

    `.json` is JSON, `.toml` is TOML; of any other name JSON is what begins with
    `{`. Raises `OSError` if the file cannot be read, and `ValueError` with the
    name of the file if it means nothing.
    """
    file = Path(path)
    text = file.read_text(encoding="utf-8")
    ending = file.suffix
    is_json = ending == ".json" or (ending != ".toml" and text.lstrip().startswith("{"))
    try:
        return Network.from_json(text) if is_json else Network.from_toml(text)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
