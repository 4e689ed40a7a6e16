"""Messages are told apart by number and content."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.events.course import WINDOW, Arrival, Course


def _payload(number: int, life: int = 0) -> bytes:
    return f"{life}:{number}".encode()


def _passed(course: Course, numbers: range) -> None:
    for number in numbers:
        assert course.place(number, _payload(number)) is Arrival.NEXT
        course.passed(number, _payload(number))


@settings(max_examples=100, deadline=None)
@given(
    first=st.integers(0, 2**63), count=st.integers(1, 50), step=st.integers(-60, 60), life=st.integers(0, 1)
)
def test_every_number_has_its_place(first: int, count: int, step: int, life: int) -> None:
    course = Course()
    _passed(course, range(first, first + count))
    last = first + count - 1
    number = max(0, last + step)
    arrival = course.place(number, _payload(number, life))
    if number == last + 1:
        assert arrival is Arrival.NEXT
    elif number > last:
        assert arrival is Arrival.GAP
    elif number >= first and life == 0:
        assert arrival is Arrival.SEEN
    else:
        assert arrival is Arrival.RESTART


def test_what_is_far_back_belongs_to_another_life() -> None:
    course = Course()
    _passed(course, range(2 * WINDOW))
    assert course.place(WINDOW, _payload(WINDOW)) is Arrival.SEEN
    assert course.place(WINDOW - 1, _payload(WINDOW - 1)) is Arrival.RESTART


def test_a_new_course_begins_anywhere() -> None:
    course = Course()
    _passed(course, range(5, 8))
    course.forget()
    assert course.place(2, _payload(2)) is Arrival.NEXT
    course.passed(2, _payload(2))
    assert course.place(1, _payload(1)) is Arrival.RESTART
