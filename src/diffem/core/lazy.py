"""Names that are imported when they are used for the first time, so that `import diffem` and `diffem --help` are fast.

A package lists its public names under `TYPE_CHECKING` for type checkers and editors, and here for Python (PEP 562).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from importlib import import_module
from typing import Any, TypeVar, cast

Entry = TypeVar("Entry")


def exports(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package that imports its public names on first use.

    Args:
        package: `__name__` of the package.
        names: The public names of each of its modules. A module without names is public itself.
    """
    module_of = {name: module for module, listed in names.items() for name in listed}

    def get(name: str) -> Any:
        if name in module_of:
            return getattr(import_module(f"{package}.{module_of[name]}"), name)
        if name in names and not names[name]:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


class Registry(MutableMapping[str, Entry]):
    """Entries by name. Those of `add_lazy` are imported when they are used."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry | str] = {}

    def add_lazy(self, entries: Mapping[str, str]) -> None:
        """Add entries by the place where they are defined, `module:name`."""
        self._entries |= entries

    def __getitem__(self, name: str) -> Entry:
        entry = self._entries[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = self._entries[name] = cast(Entry, getattr(import_module(module), attribute))
        return entry

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # without importing the entry

    def __setitem__(self, name: str, entry: Entry) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self)})"
