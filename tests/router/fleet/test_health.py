"""Health: who is routed to, by the witness of probes and traffic."""

from __future__ import annotations

from router.fleet.health import Health, Standing


def _standing(health: Health) -> Standing:
    """Read anew: a type checker would take an earlier assertion for lasting."""
    return health.standing


def _on_trial(health: Health) -> bool:
    return health.on_trial


def _ready() -> Health:
    health = Health(failures_to_suspect=2)
    health.probe_passed(0.0)
    assert _standing(health) is Standing.READY
    return health


def test_it_joins_only_by_a_probe() -> None:
    health = Health(2)
    for _ in range(5):
        health.probe_failed(0.0, 0.0)
        health.unreachable()
        health.answer_succeeded()
    assert _standing(health) is Standing.JOINING


def test_one_failed_probe_is_chance_two_are_not() -> None:
    health = _ready()
    health.probe_failed(1.0, 0.5)
    assert _standing(health) is Standing.READY
    health.probe_failed(2.0, 1.5)
    assert _standing(health) is Standing.SUSPECT
    health.probe_passed(3.0)
    assert _standing(health) is Standing.READY


def test_a_busy_replica_that_still_answers_is_not_suspect() -> None:
    health = _ready()
    for second in range(10):
        health.heard(float(second))
        health.probe_failed(second + 0.5, asked_at=second - 0.1)
    assert _standing(health) is Standing.READY
    health.probe_failed(20.0, 19.0)
    health.probe_failed(21.0, 20.0)
    assert _standing(health) is Standing.SUSPECT


def test_a_refused_connection_takes_it_out_at_once() -> None:
    health = _ready()
    health.unreachable()
    assert _standing(health) is Standing.DOWN
    health.answer_succeeded()
    assert _standing(health) is Standing.DOWN
    health.probe_passed(1.0)
    assert _standing(health) is Standing.READY


def test_failed_answers_take_it_out_for_longer_each_time() -> None:
    health = _ready()
    health.answer_failed(0.0)
    health.answer_succeeded()
    health.answer_failed(1.0)
    assert _standing(health) is Standing.READY
    health.answer_failed(1.0)
    assert _standing(health) is Standing.SUSPECT
    # Probes pass all the while; they do not bring it back before its pause is over.
    health.probe_passed(1.5)
    assert _standing(health) is Standing.SUSPECT
    health.probe_passed(2.0)
    assert _standing(health) is Standing.READY
    # On trial: one more, and it is out for twice as long.
    health.answer_failed(2.0)
    assert _standing(health) is Standing.SUSPECT
    health.probe_passed(3.5)
    assert _standing(health) is Standing.SUSPECT
    health.probe_passed(4.0)
    assert _standing(health) is Standing.READY
    health.answer_succeeded()
    health.answer_failed(5.0)
    assert _standing(health) is Standing.READY


def test_not_ready_is_told_by_the_replica_itself() -> None:
    health = _ready()
    health.not_ready()
    assert _standing(health) is Standing.JOINING
    for _ in range(5):
        health.probe_failed(9.0, 8.0)
    assert _standing(health) is Standing.JOINING
    health.probe_passed(10.0)
    assert _standing(health) is Standing.READY
    health.unreachable()
    health.probe_failed(11.0, 10.0)
    health.probe_failed(12.0, 11.0)
    assert _standing(health) is Standing.DOWN


def test_draining_is_told_by_a_probe() -> None:
    health = _ready()
    health.probe_passed(1.0, draining=True)
    assert _standing(health) is Standing.DRAINING


def test_silence_is_refuted_by_bytes_or_by_a_trial() -> None:
    health = _ready()
    health.silent(10.0)
    assert _standing(health) is Standing.SUSPECT
    health.probe_passed(10.3)
    assert _standing(health) is Standing.SUSPECT
    health.heard(10.4)
    health.probe_passed(10.5)
    assert _standing(health) is Standing.READY
    assert _on_trial(health)
    health.silent(11.0)
    health.probe_passed(12.9)
    assert _standing(health) is Standing.SUSPECT
    health.probe_passed(13.0)
    assert _standing(health) is Standing.READY


def test_one_that_was_slow_is_on_trial_until_a_request_is_served() -> None:
    health = _ready()
    health.slow(10.0)
    # Sent before, and served: no news.
    health.answer_succeeded()
    health.heard(10.5)
    assert not health.returns(10.9)
    health.probe_passed(10.9)
    assert _standing(health) is Standing.SUSPECT
    assert health.returns(11.0)
    health.probe_passed(11.0)
    assert _on_trial(health)
    health.slow(11.5)
    assert not health.returns(13.4)
    assert health.returns(13.5)
    health.probe_passed(13.5)
    health.answer_succeeded()
    assert not _on_trial(health)
    # Its pauses begin anew.
    health.slow(20.0)
    assert health.returns(21.0)


def test_on_trial_the_first_failed_answer_decides_and_a_clients_mistake_does_not() -> None:
    health = Health(failures_to_suspect=3)
    health.probe_passed(0.0)
    for _ in range(3):
        health.answer_failed(1.0)
    health.probe_passed(2.0)
    assert _standing(health) is Standing.READY
    # A 4xx is told to nobody: it neither ends the trial nor fails it.
    assert _on_trial(health)
    health.answer_failed(2.5)
    assert _standing(health) is Standing.SUSPECT
    assert not health.returns(4.4)
    assert health.returns(4.5)


def test_who_hangs_again_soon_is_not_back_by_one_poll() -> None:
    health = _ready()
    for began in (10.0, 20.0):
        assert not health.probe_failed(began + 0.6, began)
        assert health.probe_failed(began + 1.2, began + 0.6)
        assert _standing(health) is Standing.SUSPECT
        health.probe_passed(began + 2.0)
        assert _standing(health) is (Standing.READY if began == 10.0 else Standing.SUSPECT)
    health.probe_passed(22.3)
    assert _standing(health) is Standing.READY
    assert _on_trial(health)


def test_another_process_is_held_against_nothing() -> None:
    health = _ready()
    health.slow(10.0)
    health.restarted()
    health.probe_passed(10.1)
    assert _standing(health) is Standing.READY
    assert not _on_trial(health)
