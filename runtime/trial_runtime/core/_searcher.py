"""The length to train for, as a search gives it to a program."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterator
from typing import Any

from trial_runtime._cluster_info import Length
from trial_runtime.core._distributed import DistributedContext

logger = logging.getLogger("trial_runtime.core")


class Unit(enum.Enum):
    """Unit of ``searcher.max_length``."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherMode(enum.Enum):
    """The ranks that call ``operations()``: all in step, or the chief only."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHEIF_ONLY"  # as Determined spells it


class SearcherOperation:
    """Request to train up to a length, to validate, and to report the searcher's metric.

    Args:
        length: see :attr:`length`.
        is_chief: whether this rank reports.
        report: receives the share of the length that is done, from 0 to 1.
    """

    def __init__(self, length: int, is_chief: bool, report: Callable[[float], None]) -> None:
        self._length = length
        self._is_chief = is_chief
        self._report = report
        self._completed = False

    @property
    def length(self) -> int:
        """Return how much is trained in total when the operation is done, in the unit of ``searcher.max_length``."""
        return self._length

    def report_progress(self, length: float) -> None:
        """Report how much of the length is trained.

        Raises:
            RuntimeError: on another rank than the chief, or after the operation was completed.
        """
        if not self._is_chief:
            raise RuntimeError("you must only call op.report_progress() from the chief worker")
        if self._completed and length != self._length:
            raise RuntimeError("you must not call op.report_progress() after op.report_completed()")
        self._report(min(1.0, max(0.0, length / self._length)))

    def report_completed(self, searcher_metric: Any) -> None:
        """Report the searcher's metric, and that the length is trained.

        Raises:
            RuntimeError: on another rank than the chief, or a second time.
        """
        if not self._is_chief:
            raise RuntimeError("you must only call op.report_completed() from the chief worker")
        if self._completed:
            raise RuntimeError("you may only call op.report_completed() once")
        self._completed = True
        logger.info(f"SearcherOperation Complete: searcher_metric={searcher_metric}")


class SearcherContext:
    """Access to the length of the run: one operation, of ``searcher.max_length`` in the experiment config.

    Args:
        distributed: the ranks.
        config: the experiment config; None without ``ds-train``: the length is 1 then.
        target: how long this run trains, in a search maybe less than ``searcher.max_length``; None: not known.
        report: receives the share of the length that is done, from 0 to 1.
    """

    def __init__(
        self,
        distributed: DistributedContext,
        config: dict[str, Any] | None,
        target: Length | None,
        report: Callable[[float], None],
    ) -> None:
        self._distributed = distributed
        self._target = target
        self._searcher: dict[str, Any] = {"max_length": 1} if config is None else config.get("searcher") or {}
        self._report = report

    def operations(
        self, searcher_mode: SearcherMode = SearcherMode.WorkersAskChief, auto_ack: bool = True
    ) -> Iterator[SearcherOperation]:
        """Yield the operations of this run, one after the other; each must be completed. Collective, unless ChiefOnly.

        Args:
            searcher_mode: who calls it.
            auto_ack: accepted and not used.

        Raises:
            RuntimeError: the last operation was not completed, or a worker calls it in ChiefOnly mode.
            ValueError: the experiment config has no ``searcher.max_length``.
        """
        del auto_ack
        mode, length = SearcherMode(searcher_mode), self._length()
        is_chief = self._distributed.rank == 0
        if mode is SearcherMode.ChiefOnly and not is_chief:
            raise RuntimeError(
                "you cannot call searcher.operations(searcher_mode=ChiefOnly) from a non-chief worker."
            )  # fmt: skip
        if mode is SearcherMode.WorkersAskChief:
            length = self._distributed.broadcast(length)
        operation = SearcherOperation(length, is_chief, self._report)
        yield operation
        if is_chief and not operation._completed:
            raise RuntimeError("you must call op.report_completed() on each operation")
        if mode is SearcherMode.WorkersAskChief:
            self._distributed.broadcast(None)

    def acknowledge_out_of_ops(self) -> None:
        """Do nothing."""

    def get_configured_units(self) -> Unit | None:
        """Return the unit of ``searcher.max_length``; None when the config has a number without one."""
        length = self._searcher.get("max_length")
        name = next(iter(length), "") if isinstance(length, dict) else self._searcher.get("unit", "")
        return {"epochs": Unit.EPOCHS, "records": Unit.RECORDS, "batches": Unit.BATCHES}.get(name)

    def _length(self) -> int:
        length = self._searcher.get("max_length")
        # Records were turned into batches for the target, and what the program counts is in the config's unit.
        if self._target is not None and not (isinstance(length, dict) and self._target.unit not in length):
            return self._target.value
        if isinstance(length, dict) and length:
            length = next(iter(length.values()))
        if not isinstance(length, int):
            raise ValueError(
                "core_context.searcher needs a length: write searcher.max_length into the experiment config, "
                "e.g. max_length: {batches: 1000}."
            )
        return length
