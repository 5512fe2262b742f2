"""Something that a recipe names: a built-in name, `path/file.py:name`, or `package.module:name`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


def find(spec: str, built_in: Mapping[str, str], what: str) -> Callable[..., Any]:
    """The function or class that `spec` names.

    Args:
        built_in: name → package.module:name; imported on use, because some need more than the core packages.
        what: the words for it in messages, such as "a reward".

    Raises ValueError for an unknown name, a file or function that isn't there, a file that fails to load.
    """
    where, colon, attribute = spec.rpartition(":")
    if not colon:
        if spec not in built_in:
            near = difflib.get_close_matches(spec, built_in, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"{spec!r} is not {what}; the nearest built-in one is {near!r}, and your own is given as"
                " path/file.py:name"
            )
        where, _, attribute = built_in[spec].partition(":")
    module = _load_file(Path(where), what) if where.endswith(".py") else _load_module(where, what)
    found = getattr(module, attribute, None)
    if not callable(found):
        there = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(f"{where} has no function {attribute!r}; it has {', '.join(there) or 'none'}")
    return found  # type: ignore[no-any-return]


def _load_file(path: Path, what: str) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"there is no file {path} to take {what} from")
    found = importlib.util.spec_from_file_location(f"treewise_user_{path.stem}", path)
    assert found is not None, f"{path} ends in .py"
    assert found.loader is not None, f"{path} is a file"
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's file does at import
        raise ValueError(f"{path} fails to load: {type(error).__name__}: {error}") from error
    return module


def _load_module(name: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever the user's module does at import
        raise ValueError(f"can't import {name!r} to take {what} from: {error}") from error
