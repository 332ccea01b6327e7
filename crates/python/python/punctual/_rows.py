"""What is known of each flow and path of a network, in order and by name."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Protocol, Sequence, Tuple, TypeVar, Union, overload


class Row(Protocol):
    """Something that is known of a flow and path."""

    @property
    def flow(self) -> str: ...
    @property
    def path(self) -> int: ...
    def to_dict(self) -> Dict[str, Any]: ...


T = TypeVar("T", bound=Row, covariant=True)


class Rows(Sequence[T]):
    """One entry for each flow and path, in the order of the network.

    `rows["m1"]` is the entry of a flow with one path, `rows["m1", 2]` that of a
    path; `KeyError` if there is none.
    """

    def __init__(self, rows: Sequence[T]) -> None:
        self._rows = tuple(rows)
        self._places = {(row.flow, row.path): place for place, row in enumerate(self._rows)}

    def records(self) -> List[Dict[str, Any]]:
        """One dictionary for each flow and path: `pandas.DataFrame(rows.records())`."""
        return [row.to_dict() for row in self._rows]

    @overload
    def __getitem__(self, key: Union[int, str, Tuple[str, int]]) -> T: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[T]: ...
    def __getitem__(self, key: Union[int, slice, str, Tuple[str, int]]) -> Union[T, Sequence[T]]:
        if isinstance(key, (int, slice)):
            return self._rows[key]
        if isinstance(key, str):
            if (key, 1) in self._places:
                raise KeyError(f"flow {key!r} has several paths; ask for [{key!r}, path]")
            key = (key, 0)
        return self._rows[self._places[key]]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[T]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._rows == getattr(other, "_rows")

    def __hash__(self) -> int:
        return hash(self._rows)
