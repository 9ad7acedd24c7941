"""Several processes share a batch; what concerns one process alone. Real jobs are in
tests/test_processes.py."""

from training.processes import Processes
from training.runtime import StopSignal


def test_a_signal_anywhere_stops_all_and_none_is_lost() -> None:
    """The first of two processes, where one comes to the other, or here while they agree."""

    class Two(Processes):
        def sum(self, *numbers: float) -> list[float]:
            stop.number = meanwhile
            return [number + other for number in numbers]

    for meanwhile, other in ((0, 0), (0, 15), (15, 0)):
        stop = StopSignal()
        assert Two(0, 2).stop_requested(stop) == bool(other)
        assert stop.number == max(meanwhile, other)
