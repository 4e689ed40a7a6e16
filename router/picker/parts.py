"""Parts: what every exchange works with, handed over as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from router.fleet.fleet import Fleet
from router.gateway.serving import Serving
from router.observe.metrics import RouterMetrics
from router.picker.metrics import PickerMetrics
from router.picker.pick import Picker


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """`serving` returns what serves by the options of now; a request stays with what it began with."""

    serving: Callable[[], Serving]
    fleet: Fleet
    picker: Picker
    metrics: RouterMetrics
    picker_metrics: PickerMetrics
