"""Which pages hold what: a fixed pool, counted references, and a tree of the prefixes that full pages hold.

A page is a number; what it holds lies in the runner's memory. A page belongs to the free list, to one sequence, or to
the tree. Pages of the tree are full and never change, so any number of sequences use them without a copy; those that
none uses are taken, least recently used first, when the free list is empty. Children of a node are found by their
token ids themselves, in a dictionary whose keys are compared whole: equal hashes of other tokens find nothing.
"""

import heapq
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

# Why a prefix was not found in the tree, or not further.
MISSES = {
    "whole": "the log-probabilities of all its tokens are wanted",
    "off": "this model keeps its own caches, and no states of them",
    "state": "no state was kept further on",
    "short": "the prompt does not fill a page",
    "evicted": "the page was given up for another sequence",
    "differs": "no cached prompt goes on like this",
    "end": "nothing longer was cached",
}


class Node:
    """A full page in the tree; the root holds none."""

    __slots__ = ("children", "page", "parent", "path", "tokens", "used", "users")

    def __init__(self, parent: "Node | None", tokens: tuple[int, ...], page: int) -> None:
        self.parent = parent  # None: the root, or no longer in the tree
        self.tokens = tokens
        self.page = page
        self.path: bytes = path_after(parent.path, tokens) if parent else b""  # never what finds a page in the tree
        self.children: dict[tuple[int, ...], Node] = {}
        self.users = 0  # sequences
        self.used = 0  # the time of the last use, for eviction


def path_after(path: bytes, tokens: Iterable[int]) -> bytes:
    """The digest of all tokens from the root to the end of the page with these `tokens`, whose parent has `path`."""
    return blake2b(path + array("q", tokens).tobytes(), digest_size=32).digest()


@dataclass
class Table:
    """The pages of one sequence, in order. The first `len(nodes)` of them are the tree's, the others its own."""

    pages: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


class Pages:
    """`count` pages of `page` tokens. Not `shared`: no prefix is kept. For one thread."""

    def __init__(self, count: int, page: int, shared: bool = True) -> None:
        self.count = count
        self.page = page
        self.shared = shared
        self.evicted = 0  # pages, ever
        self._free = list(range(count - 1, -1, -1))
        self._root = Node(None, (), -1)
        self._unused = 0  # nodes without users
        self._oldest: list[tuple[int, int, Node]] = []  # a heap of what may be evicted; entries may be out of date
        self._time = 0
        self._lost: dict[bytes, None] = {}  # paths of prefixes that were evicted, for the reasons of misses only

    @property
    def available(self) -> int:
        """Pages that `grow` could give: free ones, and those of the tree that nobody uses."""
        return len(self._free) + self._unused

    @property
    def cached(self) -> int:
        """Pages of the tree that nobody uses."""
        return self._unused

    def pages_of(self, tokens: int) -> int:
        return -(-tokens // self.page)

    def match(self, tokens: Sequence[int], whole: bool = False) -> tuple[Table, str]:
        """A table with the longest prefix of `tokens` that the tree holds, and why it is no longer; `whole` asks for none.

        At least one token is left to compute, since its logits are needed. The reason is a key of MISSES, or "" where
        all pages that could be were found.
        """
        table = Table()
        if whole or not self.shared:
            return table, "whole" if whole else "off"
        node, most = self._root, (len(tokens) - 1) // self.page
        for number in range(most):
            child = node.children.get(self._key(tokens, number))
            if child is None:
                break
            self._use(table, child)
            node = child
        found = len(table.pages)
        if found == most:
            return table, "" if most else "short"
        if path_after(node.path, self._key(tokens, found)) in self._lost:
            return table, "evicted"
        return table, "differs" if node.children else "end"

    def cost(self, tokens: Sequence[int], whole: bool = False) -> int:
        """By how many pages `available` sinks when a new sequence of these tokens takes its pages, as `match` gives them."""
        node, used = self._root, 0
        while not whole and (used + 1) * self.page < len(tokens):
            child = node.children.get(self._key(tokens, used))
            if child is None or not child.users:
                break
            node, used = child, used + 1
        return self.pages_of(len(tokens)) - used

    def grow(self, table: Table, count: int) -> bool:
        """Give the table new pages until it has `count`; False, and nothing is done, when there are not enough."""
        missing = count - len(table.pages)
        if missing > self.available:
            return False
        for _ in range(missing):
            table.pages.append(self._free.pop() if self._free else self._evict())
        return True

    def commit(self, table: Table, tokens: Sequence[int], computed: int) -> None:
        """The first `computed` of `tokens` are in the table's pages now: the full ones go into the tree.

        Where the tree has a page of the same prefix already, the table takes that one and gives up its own. A table
        whose pages were flushed stays out of the tree.
        """
        if not self.shared or (table.nodes and table.nodes[-1].parent is None):
            return
        for number in range(len(table.nodes), computed // self.page):
            node, key = table.nodes[-1] if table.nodes else self._root, self._key(tokens, number)
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = Node(node, key, table.pages[number])
                self._unused += 1
                self._lost.pop(child.path, None)
            else:
                self._free.append(table.pages[number])
            del table.pages[number]
            self._use(table, child, number)

    def release(self, table: Table) -> None:
        """The sequence has ended: its own pages become free, those in the tree stay there."""
        self._free.extend(table.pages[len(table.nodes) :])
        for node in reversed(table.nodes):
            node.users -= 1
            if node.users == 0 and node.parent is None:  # flushed meanwhile
                self._free.append(node.page)
            elif node.users == 0:
                self._unused += 1
                self._offer(node)
        table.pages.clear()
        table.nodes.clear()

    def flush(self) -> int:
        """Forget every prefix; returns how many pages became free. Sequences keep the pages that they use."""
        nodes = list(self._root.children.values())
        before = len(self._free)
        while nodes:
            node = nodes.pop()
            nodes.extend(node.children.values())
            node.children, node.parent = {}, None
            if node.users == 0:
                self._free.append(node.page)
        self._root.children, self._oldest, self._unused = {}, [], 0
        self._lost.clear()
        return len(self._free) - before

    def _key(self, tokens: Sequence[int], number: int) -> tuple[int, ...]:
        return tuple(tokens[number * self.page : (number + 1) * self.page])

    def _use(self, table: Table, node: Node, number: int | None = None) -> None:
        self._time += 1
        self._unused -= node.users == 0
        node.users += 1
        node.used = self._time
        table.nodes.append(node)
        table.pages.insert(len(table.pages) if number is None else number, node.page)

    def _offer(self, node: Node) -> None:
        """Let `node` be evicted if nothing hangs on it."""
        if node.children or node.users:
            return
        heapq.heappush(self._oldest, (node.used, node.page, node))
        if len(self._oldest) > 2 * self.count:  # without evictions, entries that are out of date would pile up
            self._oldest = [entry for entry in self._oldest if self._current(*entry)]
            heapq.heapify(self._oldest)

    @staticmethod
    def _current(used: int, page: int, node: Node) -> bool:
        return not node.users and not node.children and node.used == used and node.parent is not None

    def _evict(self) -> int:
        """The page of the least recently used leaf. Users of a node use its parents too, so there is one."""
        while not self._current(*(entry := heapq.heappop(self._oldest))):
            pass
        node = entry[2]
        parent, node.parent = node.parent, None
        assert parent is not None
        del parent.children[node.tokens]
        if parent is not self._root:
            self._offer(parent)
        self._unused -= 1
        self.evicted += 1
        self._lost[node.path] = None
        if len(self._lost) > self.count:
            del self._lost[next(iter(self._lost))]
        return node.page
