"""The page manager against a model of it that knows what every page holds."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kt_core.engine.pages import Pages, Table

PAGE = 2


class Model(RuleBasedStateMachine):
    """Sequences come, compute, and end; `held` is what was last written into each page, as whole prefixes."""

    @initialize(count=st.integers(6, 14), shared=st.booleans())
    def begin(self, count, shared):
        self.pages = Pages(count, PAGE, shared)
        self.held: dict[int, tuple[int, ...]] = {}
        self.flushed: set[int] = set()  # tables that had pages in the tree then
        self.live: list[tuple[Table, list[int], int]] = []  # table, tokens, computed

    # Few tokens and short texts, so that prefixes meet often.
    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def admit(self, tokens):
        cost, before = self.pages.cost(tokens), self.pages.available
        if cost > before:
            return
        table, miss = self.pages.match(tokens)
        found = len(table.pages)
        assert found * PAGE < len(tokens)  # something is left to compute
        for number, page in enumerate(table.pages):
            assert self.held[page] == tuple(tokens[: (number + 1) * PAGE])  # never a wrong page
        assert (miss == "") == (found == (len(tokens) - 1) // PAGE and len(tokens) > PAGE and self.pages.shared)
        assert self.pages.grow(table, self.pages.pages_of(len(tokens)))
        assert self.pages.available == before - cost
        self.live.append((table, list(tokens), found * PAGE))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=st.integers(1, 4))
    def compute(self, data, more):
        index = data.draw(st.integers(0, len(self.live) - 1))
        table, tokens, computed = self.live[index]
        done = min(computed + more, len(tokens))
        in_use = [page for other, _, _ in self.live if other is not table for page in other.pages]
        for at in range(computed, done):
            page = table.pages[at // PAGE]
            assert page not in in_use  # what is written belongs to nobody else
            self.held[page] = tuple(tokens[: at + 1])
        self.pages.commit(table, tokens, done)
        for number in range(done // PAGE):
            assert self.held[table.pages[number]] == tuple(tokens[: (number + 1) * PAGE])
        self.live[index] = (table, tokens, done)
        if self.pages.shared and id(table) not in self.flushed and done:  # what is full can be found, and only that
            assert self.pages.cost(tokens[:done]) == self.pages.pages_of(done) - (done - 1) // PAGE

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 1))
    def answer(self, data, token):
        index = data.draw(st.integers(0, len(self.live) - 1))
        table, tokens, computed = self.live[index]
        if computed < len(tokens):
            return
        available = self.pages.available
        grown = self.pages.grow(table, self.pages.pages_of(len(tokens) + 1))
        assert grown or available == 0
        if grown:
            tokens.append(token)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data):
        table, _, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.flushed.discard(id(table))
        self.pages.release(table)
        assert table == Table()

    @rule()
    def flush(self):
        self.flushed = {id(table) for table, _, computed in self.live if computed >= PAGE}
        before = self.pages.cached
        assert self.pages.flush() == before and self.pages.cached == 0

    @invariant()
    def pages_are_neither_lost_nor_given_twice(self):
        if not hasattr(self, "pages"):
            return
        used = {page for table, _, _ in self.live for page in table.pages}
        assert self.pages.available == self.pages.count - len(used)
        for table, tokens, computed in self.live:
            assert len(set(table.pages)) == len(table.pages)
            for number in range(computed // PAGE):
                assert self.held[table.pages[number]] == tuple(tokens[: (number + 1) * PAGE])

    def teardown(self):
        if hasattr(self, "pages"):
            for table, _, _ in self.live:
                self.pages.release(table)
            taken = Table()
            assert self.pages.grow(taken, self.pages.count)  # every page can be had again
            assert sorted(taken.pages) == list(range(self.pages.count))


Model.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestPages = Model.TestCase


def fill(pages, tokens):
    table, miss = pages.match(tokens)
    assert pages.grow(table, pages.pages_of(len(tokens)))
    pages.commit(table, tokens, len(tokens))
    return table, miss


def test_least_recently_used_goes_first():
    pages = Pages(6, PAGE)
    for tokens in ([1, 1, 1], [2, 2, 2], [3, 3, 3]):
        pages.release(fill(pages, tokens)[0])
    pages.release(fill(pages, [1, 1, 1])[0])  # used again: now the second is the oldest
    fill(pages, [4] * 7)  # four pages, three are free
    assert pages.evicted == 1
    assert [pages.match([t, t, t])[1] for t in (1, 2, 3)] == ["", "evicted", ""]


def test_leaves_go_before_what_they_hang_on():
    pages = Pages(4, PAGE)
    pages.release(fill(pages, [1, 2, 3, 4, 5, 6, 7])[0])
    fill(pages, [9, 9, 9, 9])  # one free page and the deepest of three
    assert len(pages.match([1, 2, 3, 4, 5, 6, 7])[0].pages) == 2


def test_equal_hashes_find_nothing():
    """hash(-1) == hash(-2) in Python, so these prefixes collide; and they are other prefixes."""
    assert hash((-1, -1)) == hash((-2, -2))
    pages = Pages(4, PAGE)
    fill(pages, [-1, -1, 5])
    table, miss = pages.match([-2, -2, 5])
    assert (table.pages, miss) == ([], "differs")


@pytest.mark.parametrize(
    ("tokens", "miss"),
    [
        ([1, 2], "short"),
        ([1, 2, 3], ""),
        ([1, 2, 9, 9, 9], "differs"),
        ([7, 7, 7], "differs"),
        ([1, 2, 3, 4, 5, 6, 7], "end"),
    ],
)
def test_reasons_of_misses(tokens, miss):
    pages = Pages(9, PAGE)
    fill(pages, [1, 2, 3, 4, 5])
    assert pages.match(tokens)[1] == miss


def test_nothing_is_kept_that_is_not_shared():
    pages = Pages(4, PAGE, shared=False)
    pages.release(fill(pages, [1, 2, 3])[0])
    assert fill(pages, [1, 2, 3])[1] == "off" and pages.cached == 0


def test_stale_entries_do_not_pile_up():
    pages = Pages(4, PAGE)
    for _ in range(1000):
        pages.release(fill(pages, [1, 2, 3])[0])
    assert len(pages._oldest) <= 2 * pages.count + 1
