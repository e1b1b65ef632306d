"""Several observers where the engine knows of one."""

import logging
from collections.abc import Callable

from octavo.engine.generation import Generation
from octavo.engine.observing import EngineObserver, StepReport


class Observers:
    """Tells each of them; one that raises is not called again, and the others do not notice."""

    def __init__(self, *observers: EngineObserver) -> None:
        self._observers = list(observers)

    def arrived(self, generation: Generation) -> None:
        """A request was queued."""
        self._tell(lambda observer: observer.arrived(generation))

    def stepped(self, report: StepReport) -> None:
        """A step is done."""
        self._tell(lambda observer: observer.stepped(report))

    def finished(self, generation: Generation) -> None:
        """A request's output is complete."""
        self._tell(lambda observer: observer.finished(generation))

    def _tell(self, what: Callable[[EngineObserver], None]) -> None:
        for observer in self._observers.copy():
            try:
                what(observer)
            except Exception:
                self._observers.remove(observer)
                logging.getLogger(__name__).exception(
                    "%s failed as an observer of the engine; it is not called again", type(observer).__name__
                )
