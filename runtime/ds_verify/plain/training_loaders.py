"""The loaders of a script, and which of them give the batches that it trains on.

Seen in the original's run on one rank: batches of a loader that trains are followed by a backward, and are not read
without gradients, nor for forward passes in ``eval()`` alone. That is asked of each pass over its data: a loader that
trains may be evaluated on, too. On several ranks these loaders are shared among them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

_RARE = 4
_CALLED_FROM = " < "


@dataclass
class _Pass:
    """A pass over the data of a loader.

    batches: read. followed: of them, those between two of which there is a backward. trained: of these, those that no
    evaluation was for. has_ended: whether a further batch was asked for when there was none.
    """

    batches: int = 0
    followed: int = 0
    trained: int = 0
    has_ended: bool = False


@dataclass
class LoaderUse:
    """A loader in the order of creation.

    site: where the script makes it, and the calls that lead there. shared: whether ranks can share it.
    """

    site: str
    shared: bool = True
    passes: list[_Pass] = field(default_factory=list)

    def batches(self) -> int:
        """Return how many batches were read."""
        return sum(each.batches for each in self.passes)

    def trains(self, is_unfinished: bool, is_judged: bool) -> bool:
        """Return whether it trains in one of four passes at least, as where each epoch ends with evaluations on it.

        A pass that began anew behind its first batch does not count beside longer ones, as one that is read ahead.

        Args:
            is_unfinished: whether the run ended behind the last batch. is_judged: whether evaluations do not count.
        """
        last = self.passes[-1]
        begun = [(each, each.batches - (is_unfinished and each is last)) for each in self.passes]
        longest = max((count for _, count in begun), default=0)
        counted = [(one, count) for one, count in begun if count > 1 or one.has_ended or count == longest > 0]
        judged = [((one.trained if is_judged else one.followed) * 2 >= count) for one, count in counted if count]
        return sum(judged) * _RARE >= len(judged) > 0


@dataclass
class Loaders:
    """All loaders of a script.

    Args:
        home: the folder of the script's code.
        on_new: called with each new loader and its number.
        on_begin: called with the number of a loader before it is read from its beginning.
    """

    home: str
    on_new: Callable[[DataLoader[Any], int, str], bool] = lambda *_: True
    on_begin: Callable[[int | None], None] = lambda _: None
    used: list[LoaderUse] = field(default_factory=list)
    _read: dict[int, _Pass] = field(default_factory=dict)
    _evaluated: set[int] = field(default_factory=set)  # of those read
    _last: int | None = None  # read
    _modes: set[bool] = field(default_factory=set)  # whether forward passes since then may train

    def trained(self) -> None:
        """Note a backward."""
        self._next(None)
        for number, read in self._read.items():
            read.followed += 1
            read.trained += number not in self._evaluated
        self._read.clear()
        self._evaluated.clear()

    def _next(self, number: int | None) -> None:
        """Note what the batch that was read last was for, before the next one is read."""
        if self._last is not None and self._modes == {False}:
            self._evaluated.add(self._last)
        self._last = number
        self._modes.clear()

    def _forward_ends(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        del inputs, output
        if self._last is not None and next(iter(module.parameters()), None) is not None:
            self._modes.add(module.training and torch.is_grad_enabled())

    def training(self) -> list[tuple[str, bool]]:
        """Return the site of each loader, and whether it trains.

        The run may end behind a batch. A loader of which it was the first one is like the others of its site, or else
        like those that the same function makes for other calls.
        """
        finished = {number: use.batches() - (number in self._read) for number, use in enumerate(self.used)}
        followed = {number: sum(one.followed for one in self.used[number].passes) for number in finished}
        most = max(followed.values(), default=0)
        is_judged = any(one.trained for use in self.used for one in use.passes)  # a script may train in eval()
        of_rounds = self._sites_of_rounds()
        trains = {
            number: followed[number] * _RARE > most // 2
            and self.used[number].trains(number in self._read, is_judged)
            and self.used[number].site not in of_rounds
            for number, batches in finished.items() if batches
        }  # fmt: skip
        sites: dict[str, bool] = {}
        for number, known in trains.items():
            sites[self.used[number].site] = known and sites.get(self.used[number].site, True)
        judged = [(self.used[number].site, does) for number, does in trains.items()]
        return [
            (
                use.site,
                trains[number] if number in trains else sites.get(use.site, _train_at_like_sites(use.site, judged)),
            )
            for number, use in enumerate(self.used)
        ]

    def _sites_of_rounds(self) -> set[str]:
        """Return the sites that make a loader for each step, which takes one batch of it, as of a task of few samples.

        There is nothing to share: a share of the batch is another task.
        """
        made: dict[str, list[LoaderUse]] = {}
        for use in self.used:
            if use.passes:
                made.setdefault(use.site, []).append(use)
        return {
            site
            for site, uses in made.items()
            if len(uses) > 1 and all(use.batches() == 1 and not use.passes[0].has_ended for use in uses)
        }

    @property
    def read_sites(self) -> list[str]:
        """The sites of loaders that were read: of others it is not known whether they train."""
        return sorted({use.site for use in self.used if use.passes})

    @property
    def unread(self) -> list[str]:
        """The lines that make loaders none of which was read."""
        read = {_line(use.site) for use in self.used if use.passes}
        return sorted({line for use in self.used if (line := _line(use.site))} - read)

    @property
    def guessed(self) -> list[str]:
        """The lines of loaders that train as far as one batch shows, where several do."""
        pairs = list(zip(self.used, self.training(), strict=True))
        training = [use for use, (_, trains) in pairs if trains]
        once = {_line(use.site) for use in training if sum(one.followed for one in use.passes) == 1}
        return sorted(once) if len({use.site for use in training}) > 1 else []

    @property
    def unshared(self) -> list[str]:
        """The lines that make loaders that train and that ranks cannot share."""
        pairs = zip(self.used, self.training(), strict=True)
        return sorted({_line(use.site) for use, (_, trains) in pairs if trains and not use.shared})

    @property
    def passes(self) -> int:
        """The most passes over the data of one line that makes loaders that train."""
        counts: dict[str, int] = {}
        for use, (site, trains) in zip(self.used, self.training(), strict=True):
            counts[site] = counts.get(site, 0) + (len(use.passes) if trains else 0)
        return max(counts.values(), default=0)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch all loaders that are made in the block."""
        read_again = DataLoader.__iter__
        make, begin, read = DataLoader.__init__, _BaseDataLoaderIter.__init__, _BaseDataLoaderIter.__next__

        @functools.wraps(make)
        def made(loader: Any, *args: Any, **kwargs: Any) -> None:
            make(loader, *args, **kwargs)
            number, site = len(self.used), self._site()
            loader._ds_verify_number = number
            self.used.append(LoaderUse(site))
            # the first batch of another one may be the data of this one, as next(iter(whole)) is
            self._evaluated |= {other for other in self._read if self.used[other].batches() == 1}
            self.used[-1].shared = self.on_new(loader, number, site)

        @functools.wraps(read_again)
        def reads(loader: Any) -> Any:
            batches: Any = read_again(loader)
            batches._ds_verify_pass = _Pass()  # workers that stay give the same object again
            return batches

        @functools.wraps(begin)
        def began(batches: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            number = getattr(loader, "_ds_verify_number", None)
            self.on_begin(number)
            begin(batches, loader, *args, **kwargs)
            batches._ds_verify_number, batches._ds_verify_pass = number, _Pass()

        @functools.wraps(read)
        def read_batch(batches: Any) -> Any:
            number, this = batches._ds_verify_number, batches._ds_verify_pass
            try:
                batch = read(batches)
            except StopIteration:
                self._read.pop(number, None)
                this.has_ended = True
                raise
            self._next(number)
            if number is not None:
                if not this.batches:
                    self.used[number].passes.append(this)
                this.batches += 1
                self._read[number] = this
                if not torch.is_grad_enabled():
                    self._evaluated.add(number)
            return batch

        with (
            torch.nn.modules.module.register_module_forward_hook(self._forward_ends),
            mock.patch.object(DataLoader, "__init__", made),
            mock.patch.object(DataLoader, "__iter__", reads),
            mock.patch.object(_BaseDataLoaderIter, "__init__", began),
            mock.patch.object(_BaseDataLoaderIter, "__next__", read_batch),
        ):
            yield

    def _site(self) -> str:
        frame: Any = sys._getframe(2)
        lines = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(self.home):
                lines.append(f"{Path(frame.f_code.co_filename).relative_to(self.home)}:{frame.f_lineno}")
            frame = frame.f_back
        return _CALLED_FROM.join(lines)


def _line(site: str) -> str:
    return site.split(_CALLED_FROM)[0]


def trains(number: int, site: str, known: Sequence[tuple[str, bool]], before: int = 0) -> bool:
    """Return whether a loader trains, from what is known of those of an earlier run.

    Args:
        number: of the loader, in the order of creation. site: where it is made.
        known: site of each loader of the earlier run, and whether it trained.
        before: how many loaders were made at this site before.
    """
    if number < len(known) and known[number][0] == site:
        return known[number][1]
    here = [trained for other, trained in known if other == site]
    for period in range(1, len(here) + 1):  # one loader of each phase, made again in each epoch
        if all(trained == here[index % period] for index, trained in enumerate(here)):
            return here[before % period]
    return _train_at_like_sites(site, known)


def _train_at_like_sites(site: str, known: Sequence[tuple[str, bool]]) -> bool:
    """Return whether all loaders train that are made at the line of a site, and called from most of the same lines."""
    lines = site.split(_CALLED_FROM)
    for depth in range(len(lines), 0, -1):  # a function that makes loaders for training and others is called twice
        same = [trained for other, trained in known if other.split(_CALLED_FROM)[:depth] == lines[:depth]]
        if same:
            return all(same)
    return False
