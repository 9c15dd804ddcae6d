"""Copies of the caches of other conversations, so that their prompts need not be read again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec import machine, private
from localspec.chat.prompt.prompt_ids import KnownIds
from localspec.chat.states.state_files import StateFiles, StateHeader, StoreProgress
from localspec.engine.cancel import Cancel
from localspec.engine.common_prefix import common_prefix
from localspec.engine.llama import Context
from localspec.errors import Cancelled

WORTH = 16  # tokens; reading fewer again is faster than copying them
_LEAST = 64  # tokens; fewer are not worth a file
_MOST = 32
_SHARE, _DISK_SHARE = 0.25, 0.1  # of the free memory, and of the free disk space


@dataclass(frozen=True, slots=True)
class _HeldCaches:
    """Copies of the caches, the target's first: whose they are, their tokens and their states."""

    contexts: tuple[Context, ...]
    tokens: tuple[list[int], ...]  # lists, as prompts are: comparing these is fast
    states: tuple[NDArray[np.uint8], ...]

    def n_bytes(self, *, on_disk: bool) -> int:
        """Bytes that the states take in memory or on the disk."""
        sizes = (each.nbytes for each in self.states if isinstance(each, np.memmap) is on_disk)
        return sum(sizes)

    def spilled(self, folder: Path) -> _HeldCaches:
        """Move these copies to unnamed files, which no other program can open and no crash leaves.

        Raises:
            OSError: there is no room for them.
        """
        return replace(self, states=tuple(_spilled(state, folder) for state in self.states))


def _spilled(state: NDArray[np.uint8], folder: Path) -> NDArray[np.uint8]:
    if not state.nbytes:
        return state
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(state.data)
        file.flush()
        return np.memmap(file, np.uint8, "r", shape=state.shape)  # the mapping stays valid


class CachedPrefixes:
    """Restores the caches to the longest known prefix of a prompt; first copies what they hold.

    Args:
        contexts: returns the target's, then those of the draft models that are loaded by now.
        folder: for copies that do not fit in memory; None to drop them.
        room: returns the bytes of memory that all copies together may take.
        following: returns the ids with which the next prompt of the conversation begins whose last
            answer was written; None for those that the caches hold.
    """

    def __init__(
        self,
        contexts: Callable[[], Sequence[Context]],
        folder: Path | None = None,
        room: Callable[[], int] | None = None,
        *,
        following: Callable[[], Sequence[int] | None] = lambda: None,
    ) -> None:
        self._contexts = contexts
        self._folder = folder
        self._room = room or (lambda: int(_SHARE * (machine.available() + self.n_bytes)))
        self._following = following
        self._kept: list[_HeldCaches] = []  # the latest last

    @property
    def n_bytes(self) -> int:
        """Bytes of memory that the copies take."""
        return sum(one.n_bytes(on_disk=False) for one in self._kept)

    def forget(self) -> None:
        """Free all copies."""
        self._kept.clear()

    def switch(self, prompt: Sequence[int]) -> None:
        """Prepare the caches for `prompt`: restore the copy with the longest common prefix.

        What they hold is copied first if the next prompt of its conversation would miss it, as far
        as that prompt has it: of a model that thinks, it leaves out the last thought itself.

        A draft model that was loaded after the copy was made reads the prompt itself.
        """
        target = self._contexts()[0]
        here = common_prefix(target.tokens, prompt)
        best = max(self._kept, key=lambda one: _reach(target, one.tokens[0], prompt), default=None)
        further = best is not None and _reach(target, best.tokens[0], prompt) >= here + WORTH
        self._keep_after(here)
        if best is None or not further:
            return
        for context, tokens, state in zip(best.contexts, best.tokens, best.states, strict=True):
            context.restore(tokens, state)
        if len(best.tokens[0]) - common_prefix(best.tokens[0], prompt) < WORTH:
            self._kept = [one for one in self._kept if one is not best]  # a longer copy will follow

    def _keep_after(self, here: int) -> None:
        """Copy the caches if their conversation will miss what they hold after `here` tokens."""
        target = self._contexts()[0]
        if target.held < here + WORTH:
            return
        prompt = self._following()
        if prompt is not None and common_prefix(target.tokens, prompt) < here + WORTH:
            return
        _cut(self._contexts(), lambda: prompt)
        if target.held >= here + WORTH:
            self._keep()

    def _keep(self) -> None:
        """Copy the caches in place of the copies that this one extends; the oldest make room."""
        contexts = tuple(self._contexts())
        tokens = tuple(context.tokens[:] for context in contexts)
        if self._has_room(_state_bytes(contexts)):
            rest = [one for one in self._kept if tokens[0][: len(one.tokens[0])] != one.tokens[0]]
            self._kept = rest
            if all(one.tokens[0][: len(tokens[0])] != tokens[0] for one in rest):
                with suppress(MemoryError):  # the prompt is read again later
                    states = tuple(context.state() for context in contexts)
                    self._kept.append(_HeldCaches(contexts, tokens, states))
        self._make_room()

    def _has_room(self, size: int) -> bool:
        """Whether a copy of `size` bytes may be kept, in memory or on the disk."""
        return size <= self._room() or size <= self._disk_room()

    def _disk_room(self) -> int:
        """Bytes of the disk that all copies together may take; 0 without a folder for them."""
        if self._folder is not None:
            with suppress(OSError):
                private.make_folder(self._folder)
                free = shutil.disk_usage(self._folder).free
                return int(_DISK_SHARE * (free + self._on_disk))
        return 0

    @property
    def _on_disk(self) -> int:
        return sum(one.n_bytes(on_disk=True) for one in self._kept)

    def _make_room(self) -> None:
        """Move the oldest copies to the disk, and drop those that do not fit there either."""
        room, kept = self._room(), self._kept[-_MOST:]
        taken = sum(one.n_bytes(on_disk=False) for one in kept)
        for i, one in enumerate(kept):
            if taken > room and (frees := one.n_bytes(on_disk=False)):
                taken -= frees
                kept[i] = self._spilled(one)
        self._kept = [one for one in kept if one.states]
        if self._on_disk:
            room = self._disk_room()
            while self._on_disk > room:
                self._kept.pop(0)

    def _spilled(self, one: _HeldCaches) -> _HeldCaches:
        """A copy on the disk; an empty one if there is no room for it."""
        if self._folder is not None:
            with suppress(OSError):
                private.make_folder(self._folder)
                return one.spilled(self._folder)
        return replace(one, states=())


class StoredPrefix:
    """Restores the caches to the end of a stored conversation, even one of an earlier run.

    The caches of a conversation are written to its file when another conversation is opened, and at
    the end.

    Args:
        contexts: the target's, then those of the draft models that are loaded with it.
        states: the files.
    """

    def __init__(self, contexts: Sequence[Context], states: StateFiles) -> None:
        self._contexts = tuple(contexts)
        self._states = states
        self._later: tuple[Context, ...] = ()
        self._joined = ""  # describes the models of `_later`
        self._conversation = ""
        self._found: StateHeader | None = None
        self._restored: StateHeader | None = None
        self._lacking: StateHeader | None = None  # has caches of `_later` to restore
        self._held = False  # whether the caches belong to the conversation

    def enter(
        self,
        conversation: str,
        known: KnownIds,
        following: Callable[[], Sequence[int] | None],
        progress: StoreProgress = lambda _share: None,
    ) -> None:
        """Switch to another conversation.

        Args:
            conversation: its id; empty if it is not stored.
            known: holds the ids of the conversation before; replaced by those of the file.
            following: returns the ids with which the next prompt of that conversation begins; None
                for those that the caches hold.
            progress: receives the share of the caches that is stored.
        """
        if conversation == self._conversation:
            return
        held, self._held = self._held, False  # what fails is not tried with caches that are freed
        target = self._contexts[0]
        if held and self._conversation:
            _cut((*self._contexts, *self._later), following)
            if target.held >= _LEAST:
                self._restore_later(Cancel())  # or its caches would be lost with the file
                self._save(known.packed(), progress)
        self._conversation = conversation
        self._restored = self._lacking = None
        self._found = self._states.find(conversation) if conversation else None
        if self._found is not None:
            known.unpack(self._found.known)

    def restore(self, prompt: Sequence[int], cancel: Cancel) -> None:
        """Prepare the caches for a prompt of the conversation.

        Raises:
            Cancelled: `cancel` was set; the next call tries again.
        """
        self._restore_later(cancel)
        if self._found is not None:
            self._restore_found(self._found, prompt, cancel)
        self._found, self._held = None, True

    def _restore_found(self, found: StateHeader, prompt: Sequence[int], cancel: Cancel) -> None:
        """Restore all caches that are loaded, if the target's brings more of `prompt`."""
        target = self._contexts[0]
        if len(found.tokens) < len(self._contexts):
            return
        further = _reach(target, found.tokens[0], prompt)
        if further < common_prefix(target.tokens, prompt) + WORTH:
            return
        states = self._states.states(self._conversation, found, cancel)
        same = found.joined == self._joined
        contexts = (*self._contexts, *(self._later if same else ()))
        for context, tokens, state in zip(contexts, found.tokens, states, strict=False):
            context.restore(tokens, state)
        if states:
            self._restored = found

    def join(self, later: Sequence[Context], made_by: str, cancel: Cancel) -> None:
        """Include the caches of draft models that were loaded after the target.

        If the target's cache was restored without them, they are restored now, or with the next
        prompt if `cancel` is set.

        Args:
            later: the contexts of these models, just loaded.
            made_by: describes the models and how they run.
            cancel: interrupts the reading of their caches.
        """
        self._later, self._joined = tuple(later), made_by if later else ""
        found = self._restored
        if later and found is not None and found.joined == made_by:
            self._lacking = found
        with suppress(Cancelled):
            self._restore_later(cancel)

    def _restore_later(self, cancel: Cancel) -> None:
        """Restore the caches of models that joined after the target's cache was restored."""
        found, first = self._lacking, len(self._contexts)
        if found is None:
            return
        states = self._states.states(self._conversation, found, cancel)
        self._lacking = None
        stored = zip(self._later, found.tokens[first:], states[first:], strict=False)
        for context, tokens, state in stored:
            context.restore(tokens, state)

    def _save(self, known: bytes, progress: StoreProgress) -> None:
        """Write all caches; without those of later models if these leave too little room."""
        ways = [((*self._contexts, *self._later), self._joined), (self._contexts, "")]
        for contexts, joined in ways if self._later else ways[1:]:
            if not self._states.fits(_state_bytes(contexts)):
                continue
            tokens = [context.tokens for context in contexts]
            with suppress(MemoryError):  # the prompt is read again later
                states = [context.state() for context in contexts]
                if self._states.save(
                    self._conversation, known, tokens, states, joined=joined, progress=progress
                ):
                    return


def _cut(contexts: Sequence[Context], following: Callable[[], Sequence[int] | None]) -> None:
    """Cut off what the next prompt leaves out, as the last thought, where no copy could be cut.

    A draft that leaves out a part of the text, or has another vocabulary, keeps what it holds. One
    whose round was stopped holds drafted tokens after the target's.
    """
    ids = contexts[0].tokens

    def whole(one: Context) -> bool:
        return 0 < min(len(one.tokens), len(ids)) == common_prefix(one.tokens, ids)

    bound = [one for one in contexts if whole(one) and not one.reaches(0, one.held)]
    if bound and (prompt := following()) is not None:
        for one in bound:
            one.keep_prefix(prompt)


def _state_bytes(contexts: Sequence[Context]) -> int:
    """Bytes that copies of these caches take."""
    return sum(context.state_bytes() for context in contexts)


def _reach(target: Context, tokens: Sequence[int], prompt: Sequence[int]) -> int:
    """How many tokens of `prompt` the copy provides; 0 if only the whole copy could be restored."""
    common = common_prefix(tokens, prompt)
    return common if target.reaches(common, len(tokens)) else 0
