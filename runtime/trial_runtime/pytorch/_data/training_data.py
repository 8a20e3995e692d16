"""The data that the loop reads: an endless stream for training, one pass for validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trial_runtime.errors import InvalidExperimentException
from trial_runtime.pytorch._data.epoch_replay import ResumableBatchSampler
from trial_runtime.pytorch._data.loader import DataLoader
from trial_runtime.pytorch._data.worker_rng import WorkerRng

_NOT_OURS = (
    "{method}() returned an instance of {kind}. Return a pytorch.DataLoader: the loop then shares the data among the "
    "ranks and resumes at the right batch. Or take care of both yourself; you can disable this check by "
    "calling {call} in the trial's __init__()."
)


class TrainingData:
    """This rank's batches of training data, without end.

    Args:
        loader: the trial's.
        replicas, rank: the number of data-parallel ranks, and this one's.
        state: :meth:`state_dict` of the data that was read before.
        samples_of: the trial's ``get_batch_length``.

    Attributes:
        taken: batches that were read from the start of training, over all resumes.
        samples: samples that were read in this process; None when ``samples_of`` cannot count them.
        length: batches an epoch; None when the loader has no length.
    """

    def __init__(
        self,
        loader: Any,
        replicas: int = 1,
        rank: int = 0,
        state: dict[str, Any] | None = None,
        samples_of: Callable[[Any], int] | None = None,
    ) -> None:
        state = state or {}
        self.taken = int(state.get("taken", 0))
        self.samples: int | None = None if samples_of is None else 0
        self._samples_of = samples_of
        self._batches: ResumableBatchSampler | None = None
        self._worker_rng = WorkerRng(0, self.taken)
        if isinstance(loader, DataLoader) and type(loader).get_data_loader is not DataLoader.get_data_loader:
            loader = loader.get_data_loader(repeat=True, skip=self.taken, num_replicas=replicas, rank=rank)
        elif isinstance(loader, DataLoader):
            state = _in_other_batches(state, replicas, loader.batch_sampler)
            self.taken = int(state.get("taken", 0))
            self._worker_rng = WorkerRng(loader.num_workers, self.taken, state.get("workers"))
            first = self._worker_rng.first(self.taken)
            loader, self._batches = loader._training_loader(
                replicas, rank, first, state.get("passes"), self._worker_rng
            )
        self._loader = loader
        self._loader_state = state.get("loader")
        self._iterator: Iterator[Any] | None = None
        try:
            self.length: int | None = len(loader)
        except TypeError:
            self.length = None

    def open(self) -> None:
        """Make the iterator, and with it the loader's workers."""
        if self._loader_state is not None and hasattr(self._loader, "load_state_dict"):
            self._loader.load_state_dict(self._loader_state)
        self._loader_state = None
        if not self._worker_rng.workers:
            self._iterator = iter(self._loader)
            return
        iterator = self._worker_rng.open(lambda: iter(self._loader))
        for _ in range(self._worker_rng.dropped):
            next(iterator)
        self._iterator = iterator

    def close(self) -> None:
        """Release the iterator: its workers must not outlive training."""
        self._iterator = self._loader = None  # the loader itself keeps the iterator of persistent workers

    def __iter__(self) -> TrainingData:
        return self

    def __next__(self) -> Any:
        assert self._iterator is not None, "open() comes first"
        batch: Any = next(self._iterator, _END)
        if batch is _END:  # a loader of the trial's own, at the end of a pass
            self.open()
            batch = next(self._iterator, _END)
            if batch is _END:
                raise InvalidExperimentException(
                    f"The training data loader ({type(self._loader).__name__}) gave no batch in a whole pass. "
                    "If it is a generator, which can be read only once, return an iterable object instead."
                )
        if self._worker_rng.workers:
            batch, stream = batch
            self._worker_rng.record(self.taken, stream)
        self.taken += 1
        if self.samples is not None and self._samples_of is not None:
            try:
                self.samples += self._samples_of(batch)
            except (TypeError, ValueError):  # a type that data_length() does not know: only the log has fewer words
                self.samples = None
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the random states that the data order around it and the workers' draws come from.

        Another kind of loader with a ``state_dict`` (such as torchdata's StatefulDataLoader) keeps its own.
        """
        if self._batches is None:
            own = self._loader.state_dict() if hasattr(self._loader, "state_dict") else None
            return {"taken": self.taken, "passes": [], "loader": own}
        first, sampler = self._worker_rng.first(self.taken), self._batches.batch_sampler
        return {
            "taken": self.taken,
            "passes": self._batches.state(first),
            "workers": self._worker_rng.state_dict(),
            "batch_size": getattr(sampler, "batch_size", None),
            "pass_length": self.length and len(sampler),
        }


def _in_other_batches(state: dict[str, Any], replicas: int, batch_sampler: Any) -> dict[str, Any]:
    """Return a position of another number of ranks, where a rank's batches have another size than before.

    A trial that keeps its global batch size has smaller batches on more ranks: the same sample comes next.
    """
    read, size = state.get("read", {}), getattr(batch_sampler, "batch_size", None)
    former_size, former_length = read.get("batch_size"), read.get("pass_length")
    if not size or not former_size or not former_length or size == former_size:
        return state
    length = len(batch_sampler)

    def index(former: int) -> int:
        passes, within = divmod(former, former_length)
        return int(passes * length + within * former_size // size)

    passes = [{**each, "start": index(int(each["start"]))} for each in state["passes"]]
    return {**state, "taken": index(int(read["batches"])) // replicas, "passes": passes}


class ValidationData:
    """One pass over validation data; an iterator that knows whether more is to come."""

    def __init__(self, loader: Any) -> None:
        self._iterator = iter(loader)
        self._next_batch: Any = _END

    @property
    def exhausted(self) -> bool:
        """Return whether there is no further batch; may load one to find out."""
        if self._next_batch is _END:
            self._next_batch = next(self._iterator, _END)
        return self._next_batch is _END

    def __iter__(self) -> ValidationData:
        return self

    def __next__(self) -> Any:
        if self.exhausted:
            raise StopIteration
        batch, self._next_batch = self._next_batch, _END
        return batch


def check_loader(loader: Any, method: str, checks_disabled: bool, call: str) -> None:
    """Refuse a loader that the loop cannot share and resume, unless the trial takes that on itself.

    Raises:
        RuntimeError: for anything but a :class:`DataLoader` while the checks are on.
    """
    if not isinstance(loader, DataLoader) and not checks_disabled:
        raise RuntimeError(_NOT_OURS.format(method=method, kind=type(loader).__name__, call=call))


def validation_loader(loader: Any, replicas: int = 1, rank: int = 0) -> Any:
    """Return the loader of this rank's share of validation data; any other kind of loader is returned as it is."""
    return loader.get_data_loader(num_replicas=replicas, rank=rank) if isinstance(loader, DataLoader) else loader


_END = object()


def check_epoch_length(epoch_length: int, micro_batches: int) -> None:
    """Refuse training data with less than one batch.

    Raises:
        InvalidExperimentException: when an epoch holds fewer micro-batches than a batch needs.
    """
    if epoch_length < micro_batches:
        raise InvalidExperimentException(
            f"The training data loader has {epoch_length} micro-batches a rank, but a batch takes {micro_batches} "
            "(gradient_accumulation_steps). Use more data, a smaller micro-batch, or fewer accumulation steps."
        )
