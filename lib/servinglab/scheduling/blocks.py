"""The pool of KV blocks: who holds which, and what they hold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from servinglab.base.checks import check_number


class Block:
    __slots__ = ("key", "users")

    def __init__(self) -> None:
        self.key: Hashable | None = None  # what it holds, once it is full and may be shared
        self.users = 1


class BlockPool:
    """Blocks of KV cache; of the free ones, those that hold nothing are taken first, then the longest unused.

    Parameters
    ----------
    num_blocks : int
        Usable blocks.
    caching : bool
        Whether a full block keeps what it holds until it is taken again.
    """

    def __init__(self, num_blocks: int, caching: bool) -> None:
        self._caching = caching
        self._empty = num_blocks  # free blocks that hold nothing: they need no identity
        self._unused: OrderedDict[Block, None] = OrderedDict()  # free blocks that hold something, oldest first
        self._held: dict[Hashable, dict[Block, None]] = {}  # equal contents may lie in several blocks

    @property
    def free(self) -> int:
        """How many blocks are free."""
        return self._empty + len(self._unused)

    def find(self, keys: Iterator[Hashable]) -> list[Block]:
        """The blocks that hold these contents, up to the first that none holds."""
        found: list[Block] = []
        if self._caching:
            for key in keys:
                blocks = self._held.get(key)
                if blocks is None:
                    break
                found.append(next(iter(blocks)))
        return found

    def unused(self, blocks: list[Block]) -> int:
        """How many of these blocks lie among the free ones."""
        return sum(block.users == 0 for block in blocks)

    def share(self, blocks: list[Block]) -> None:
        """Use blocks that are held already."""
        for block in blocks:
            if block.users == 0:
                del self._unused[block]
            block.users += 1

    def take(self, count: int) -> list[Block]:
        """Take free blocks; what they held is gone."""
        from_empty = min(count, self._empty)
        self._empty -= from_empty
        for _ in range(count - from_empty):
            block, _nothing = self._unused.popitem(last=False)
            del self._held[block.key][block]
            if not self._held[block.key]:
                del self._held[block.key]
        return [Block() for _ in range(count)]

    def keep(self, block: Block, key: Hashable) -> None:
        """Note what a full block holds."""
        if self._caching:
            block.key = key
            self._held.setdefault(key, {})[block] = None

    def give_back(self, blocks: list[Block]) -> None:
        """End one use of each, the tail first, so that a tail block is taken again before a head block."""
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0:
                if block.key is None:
                    self._empty += 1
                else:
                    self._unused[block] = None


def prefix_keys(number: int, prefix_ids: Any, prefix_tokens: int, block_size: int) -> Callable[[int], Hashable]:
    """What each block of a request holds, from the ids of its prompt's pieces.

    Parameters
    ----------
    number : int
        The request, for blocks that nobody else can hold.
    prefix_ids : sequence of int or None
        One id a piece of `prefix_tokens` tokens, equal where the prompts are equal up to there.
    prefix_tokens : int
        Tokens in a piece; a multiple of `block_size`.
    block_size : int

    Examples
    --------
    >>> key = prefix_keys(7, [40, 41], prefix_tokens=8, block_size=4)
    >>> [key(k) for k in range(5)]
    [('prefix', 40, 0), ('prefix', 40, 1), ('prefix', 41, 0), ('prefix', 41, 1), (7, 4)]
    """
    if prefix_ids is None:
        return lambda k: (number, k)
    if prefix_tokens % block_size:
        raise ValueError(f"prefix_tokens must be a multiple of block_size = {block_size}; got {prefix_tokens}")
    per_piece = prefix_tokens // block_size
    ids = [int(i) for i in prefix_ids]

    def key(k: int) -> Hashable:
        piece, part = divmod(k, per_piece)
        return ("prefix", ids[piece], part) if piece < len(ids) else (number, k)

    return key


class HasBlocks(Protocol):
    """What the engines ask of a KV cache."""

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can use."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        ...


@dataclass(frozen=True)
class Blocks:
    """A KV cache by its size alone.

    Parameters
    ----------
    usable_blocks : int
        Blocks that requests can use, at least 1. (vLLM's log counts one more, its null block.)
    block_size : int
        Tokens in a block, at least 1.

    Examples
    --------
    >>> Blocks(2587).usable_blocks * Blocks(2587).block_size
    41392
    """

    usable_blocks: int
    block_size: int = 16

    def __post_init__(self) -> None:
        for name in ("usable_blocks", "block_size"):
            object.__setattr__(self, name, check_number(name, getattr(self, name), ge=1, integer=True))
