"""The tree of segments: finds what was added, forgets the longest unused, and never more than it may hold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from threading import Thread

from hypothesis import given, settings
from hypothesis import strategies as st

from router.chain.segments import Piece, Segment, SegmentTree

_paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=5)


def _add(tree: SegmentTree, pieces: Sequence[Piece]) -> int:
    """Find a prompt and add what is missing; return how much was known."""
    path = tree.find(pieces)
    assert [segment.piece for segment in path] == list(pieces[: len(path)])
    tree.add(path, [Segment(piece, b"x" * 50) for piece in pieces[len(path) :]])
    return len(path)


@settings(max_examples=200, deadline=None)
@given(st.lists(_paths, max_size=30), st.integers(700, 8000))
def test_what_was_used_last_is_known_and_memory_is_bounded(prompts: list[list[Piece]], capacity: int) -> None:
    tree = SegmentTree(capacity)
    size = Segment("a", b"x" * 50).size
    for pieces in prompts:
        _add(tree, pieces)
        assert tree.held_bytes <= capacity
        # Its own first segments: what is forgotten of it are those at its end.
        assert len(tree.find(pieces)) == min(len(pieces), capacity // size)


def test_what_prompts_share_is_kept_once_and_longest() -> None:
    size = Segment("a", b"x" * 50).size
    tree = SegmentTree(4 * size)
    assert [_add(tree, ["s", one]) for one in "abcabc"] == [0, 1, 1, 2, 2, 2]
    assert tree.held_bytes == 4 * size
    # The fifth segment takes the place of the one that was not used for longest, which is no shared one.
    assert _add(tree, ["s", "d"]) == 1
    assert [len(tree.find(["s", one])) for one in "bcda"] == [2, 2, 2, 1]


def test_equal_pieces_in_other_places_are_others() -> None:
    tree = SegmentTree(10_000)
    _add(tree, ["a", "b"])
    assert (len(tree.find(["b"])), len(tree.find(["b", "a"])), len(tree.find([b"a"]))) == (0, 0, 0)


def test_what_was_forgotten_since_it_was_found_is_not_built_on() -> None:
    size = Segment("a", b"x" * 50).size
    tree = SegmentTree(size)
    _add(tree, ["a"])
    path = tree.find(["a", "b"])
    _add(tree, ["c"])
    tree.add(path, [Segment("b", b"x" * 50)])
    assert (len(tree.find(["a"])), len(tree.find(["c"])), tree.held_bytes) == (0, 1, size)


def test_what_two_add_at_once_is_kept_once() -> None:
    tree = SegmentTree(10_000)
    paths = [tree.find(["a", "b"]) for _ in range(2)]
    for path in paths:
        tree.add(path, [Segment(piece, b"x" * 50) for piece in "ab"])
    assert tree.held_bytes == 2 * Segment("a", b"x" * 50).size
    assert len(tree.find(["a", "b"])) == 2


def test_threads_may_add_the_same_at_once() -> None:
    tree = SegmentTree(20_000)
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        try:
            for _ in range(2000):
                _add(tree, [draw.choice("abcd") for _ in range(draw.randint(1, 6))])
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    held, left = 0, [tree._top]
    while left:
        children = left.pop().children.values()
        held += sum(child.size for child in children)
        left += children
    assert held == tree.held_bytes <= 20_000
    assert tree.held_bytes > 10_000
