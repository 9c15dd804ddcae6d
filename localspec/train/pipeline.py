"""A whole training: estimate, write answers, learn, judge, record."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from localspec import formats, machine
from localspec.chat.conversation import Message
from localspec.chat.session.session import Session
from localspec.drafter_names import LOOKUP
from localspec.engine.llama import default_threads
from localspec.engine.llama.taps import Taps
from localspec.errors import Cancelled, LocalspecError, OutOfMemory, UsageError, installs_extra
from localspec.loading.load import load_session
from localspec.loading.measurements.head_promise import SHARE, USUAL_TOKENS
from localspec.loading.measurements.tuning import wait_for_calm
from localspec.pairs.disk import folders, trained_heads, trainings
from localspec.pairs.disk.fingerprint import fingerprint
from localspec.pairs.gguf import head_checks
from localspec.pairs.gguf.gguf_writer import MetaValue, rewritten
from localspec.pairs.gguf.header import ModelFiles, read_model
from localspec.train.estimate import (
    TEXTS,
    Estimate,
    TrainingCosts,
    card_bytes,
    estimate,
    tokens_within,
)
from localspec.train.head.head_files import (
    ModelWeights,
    beginning,
    read_head,
    refuse,
    sizes_of,
    write_head,
)
from localspec.train.head.shape import HeadShape, candidates
from localspec.train.keep_awake import kept_awake
from localspec.train.recording import place, record, replaced
from localspec.train.step_costs import chosen_shape, costs
from localspec.train.target import find, target_options
from localspec.train.texts import token_ids
from localspec.train.texts.answers import (
    LONGEST,
    LONGEST_PROMPT,
    AnsweredText,
    AnswerFile,
    write_answers,
)
from localspec.train.texts.lessons import MOST_TEXTS, ROWS, Lessons
from localspec.train.texts.prompts import TrainingPrompts, gather
from localspec.train.texts.token_ids import AskedIds, prompt_ids
from localspec.train.train_request import TrainRequest
from localspec.train.training import Training
from localspec.train.training_folder import (
    TrainingChoices,
    TrainingFolder,
    TrainingTerms,
    require_disk,
)
from localspec.train.training_listener import TrainingListener
from localspec.train.training_result import TrainingResult
from localspec.train.verdict import head_verdict

if TYPE_CHECKING:
    from localspec.train.head.learning import HeadLearner

_STORE: Final = "conversations.db"


def train(request: TrainRequest, listener: TrainingListener) -> TrainingResult:
    """Train a head for a target on this machine, using llama.cpp's states of the target.

    Raises:
        UnsupportedModel: llama.cpp does not output the layers of this target.
        UsageError: an unfinished training exists, does not exist, or was started with other terms,
            contrary to the request; or there are too few prompts or conversations.
        LocalspecError: torch is missing, another training runs, the disk or the memory is too
            small, no head can pay, or the head is no better than the control.
        OSError: a file cannot be written.
        Cancelled: it was stopped; `--resume` continues.
    """
    target = find(request.pair, scan=request.scan)
    _require_files(request, target[1])
    _require_torch()
    prompts = _prompts(request, target[1], listener)
    with trainings.alone(), kept_awake() as awake:
        if machine.on_battery():
            listener.tell("this machine runs on its battery: a training takes long, plug it in")
        if not awake:
            listener.tell("nothing keeps this machine awake: while it sleeps, the training waits")
        return _TrainingRun(request, listener, target, prompts).whole()


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise LocalspecError(
            "`localspec train` needs PyTorch, which is not installed",
            f"Install it: {installs_extra('train')}",
        )


def _require_files(request: TrainRequest, target: ModelFiles) -> None:
    """Check before hours are spent that files can be read again, and the head be written."""
    given, out = (*request.prompts, *request.answers), request.out
    if pipe := next((path for path in given if not path.is_file()), None):
        raise UsageError(
            f"{pipe} is not a file: a training reads what it is given more than once",
            "Write it to a file first, and name that.",
        )
    if out is None:
        return
    if not (folder := out.absolute().parent).is_dir():
        raise UsageError(f"there is no folder {folder}", "Make it, or name another file with -o.")
    if folders.real(out) in map(folders.real, (*target.paths, *given)):
        raise UsageError(
            f"the head would take the place of {out}, which the training reads",
            "Name another file with -o.",
        )


def _prompts(
    request: TrainRequest, target: ModelFiles, listener: TrainingListener
) -> TrainingPrompts:
    """The prompts; the user's own conversations are those of the time when the training began."""
    if not request.history:
        return gather(request.prompts, [])
    kept = TrainingFolder(fingerprint(target.paths)).prompts() if request.resume else None
    return kept or gather(request.prompts, _history(listener))


def _without_long(prompts: TrainingPrompts, asked: AskedIds) -> TrainingPrompts:
    """The prompts under the same numbers, with nothing in place of those that are too long."""
    learnt, held_out = (
        tuple(one if ids else () for one, ids in zip(ones, its, strict=True))
        for ones, its in zip((prompts.learnt, prompts.held_out), asked, strict=True)
    )
    return replace(prompts, learnt=learnt, held_out=held_out)


def _history(listener: TrainingListener) -> list[list[Message]]:
    """The user's own conversations, of which there must be some."""
    listener.progress("Reading your conversations", None)
    found = token_ids.conversations(folders.data_folder() / _STORE, listener.cancel)
    if not found:
        raise UsageError(
            "there are no conversations of yours to train on",
            "Leave --from-history out: localspec has prompts to train on.",
        )
    return found


class _TrainingRun:
    """One training, step by step."""

    def __init__(
        self,
        request: TrainRequest,
        listener: TrainingListener,
        found: tuple[str, ModelFiles],
        prompts: TrainingPrompts,
    ) -> None:
        self.request, self.listener, self.prompts = request, listener, prompts
        self.name, self.target = found
        self.hash = fingerprint(self.target.paths)
        self.weights = ModelWeights(self.target.paths)
        self.work = TrainingFolder(self.hash)
        self.threads = request.threads or default_threads()
        first = request.init
        self.before = first and trained_heads.made_for(read_model(first).header)

    def whole(self) -> TrainingResult:
        """Run all steps; a training that is refused or stopped before it began leaves nothing."""
        request = self.request
        before = self.work.enter(self._terms(), resume=request.resume, anew=request.anew)
        try:
            return self._steps(before)
        except Cancelled:
            if (begun := self.work.begun()) and begun.terms == self._terms():
                how = "--resume in place of --anew" if request.anew else "--resume"
                self.listener.tell(f"stopped: the same command with {how} goes on")
            raise
        finally:
            self.work.close()

    def _steps(self, before: TrainingChoices | None) -> TrainingResult:
        """Run all steps, or those that are left after the choices `before`."""
        request, listener = self.request, self.listener
        options = target_options(self.target, LOOKUP, request.threads)
        with closing(
            load_session(options, progress=listener.progress, cancel=listener.cancel)
        ) as session:
            given = self._given(session)
            asked = self._asked(session, given)
            begun = before or self._begin(session, asked, sum(one.written for one in given))
            shape = self._shape(begun)
            samples, held = self._answers(session, begun, asked, given)
            self._learn(session, begun, shape, samples, held)
        return self._end(samples)

    def _terms(self) -> TrainingTerms:
        def hashes(paths: Sequence[Path]) -> tuple[str, ...]:
            return tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)

        request = self.request
        return TrainingTerms(
            target=self.hash,
            prompts=hashes(request.prompts),
            answers=hashes(request.answers),
            history=request.history,
            tokens=request.tokens,
            passes=request.passes,
            hours=request.hours,
            init=fingerprint([request.init]) if request.init else "",
        )

    def _given(self, session: Session) -> list[AnsweredText]:
        """The answers of the given files."""
        model, template = session.pair.target.model, session.template
        files = self.request.answers
        return [one for path in files for one in token_ids.given(path, template, model)]

    def _asked(self, session: Session, given: Sequence[AnsweredText]) -> AskedIds:
        """The ids of the prompts, of which some must fit."""
        its, template, listener = self.prompts, session.template, self.listener
        listener.progress("Reading the prompts", None)
        asked = AskedIds(
            *(prompt_ids(template, each, listener.cancel) for each in (its.learnt, its.held_out))
        )
        if not any(asked.held_out) or not (any(asked.learnt) or given):
            raise UsageError(
                f"the prompts are too long: what {self.name} reads of one may have"
                f" {LONGEST_PROMPT} tokens",
                "Name shorter ones with --prompts.",
            )
        return asked

    def _begin(self, session: Session, asked: AskedIds, given: int) -> TrainingChoices:
        """Choose the head's sizes, report the estimate, and check that it fits.

        Args:
            session: the loaded target.
            asked: the prompts.
            given: tokens of answers that are written already.
        """
        request, listener = self.request, self.listener
        if busy := wait_for_calm(listener.progress, listener.cancel):
            listener.tell(
                f"other programs keep {busy:.1f} cores busy: without them the training is faster"
                " than estimated"
            )
        listener.progress("Measuring this machine", None)
        options = target_options(self.target, LOOKUP, request.threads)
        with self._reading(session) as taps:
            found = costs(session, taps, self.threads)
        probe, cancel = self.work.probe, listener.cancel
        shapes = self._allowed()
        shape, share = chosen_shape(
            session, options, self.target, shapes, probe=probe, most=SHARE, cancel=cancel
        )
        found = replace(found, step_s=share * found.target.seconds(1))
        held = sum(map(bool, asked.held_out))
        wanted = self._tokens(shape, found, held, given)
        tokens = max(given, min(wanted, given + asked.most))
        if given > wanted:
            listener.tell(f"the given answers have {given:,} tokens: it learns from all of them")
        before = self.before.tokens if self.before else 0
        told = estimate(shape, found, tokens, request.passes, held=held, given=given, before=before)
        self._require_sense(told)
        begun = TrainingChoices(
            terms=self._terms(),
            tokens=tokens,
            feed_forward=shape.feed_forward,
            drafted=shape.drafted,
            path=str(self.target.paths[0].absolute()),
        )
        kept = _without_long(self.prompts, asked) if self.prompts.private else None
        self.work.begin(begun, kept)
        return begun

    def _allowed(self) -> list[HeadShape]:
        """The sizes to choose from: all for this target, or those of a given head."""
        every = list(candidates(self.target.header))
        if self.request.init is None:
            return every
        sizes = sizes_of(self.request.init)
        same = [each for each in every if (each.feed_forward, each.drafted) == sizes]
        for shape in same:
            read_head(self.request.init, shape)
            head_checks.require_head(read_model(self.request.init), self.target.header)
        return same or refuse(self.request.init)

    def _tokens(self, shape: HeadShape, found: TrainingCosts, held: int, given: int) -> int:
        request = self.request
        if request.tokens is not None:
            return request.tokens
        if request.hours is not None:
            return tokens_within(
                request.hours, shape, found, request.passes, held=held, given=given
            )
        return USUAL_TOKENS

    def _require_sense(self, told: Estimate) -> None:
        """Report the estimate; refuse a training that does not fit or would be useless."""
        from localspec.train.head.learning import device, has_own_memory  # noqa: PLC0415 - torch

        self.listener.tell(f"{self.name}: {told.sentence()}")
        if not told.pays:
            if not self.request.force:
                raise LocalspecError(told.doubt(), "Train all the same with --force.")
            self.listener.tell(told.doubt())
        require_disk(self.work.folder, told.disk)
        elsewhere = told.learning if has_own_memory(device(told.card)) else 0
        more, free = told.more - elsewhere, machine.available()
        if more > free:
            raise OutOfMemory(
                f"the training needs {formats.size(more)} of memory more than the target, and"
                f" {formats.size(free)} are free",
                "Close other programs, or train for a smaller target.",
            )

    def _shape(self, begun: TrainingChoices) -> HeadShape:
        """The chosen sizes, or those of the head to start from."""
        sizes = begun.feed_forward, begun.drafted
        for shape in candidates(self.target.header):
            if (shape.feed_forward, shape.drafted) == sizes:
                return shape
        raise UsageError(
            "the training that was stopped is for a head of a size that is not trained any more",
            "Begin anew with --anew.",
        )

    def _reading(self, session: Session) -> Taps:
        """A context that reads a step's texts and outputs all rows."""
        return Taps(
            session.pair.target.model,
            next(candidates(self.target.header)).taps,
            texts=MOST_TEXTS,
            n_ctx=ROWS,
            n_batch=ROWS,
            outputs=ROWS,
            threads=self.threads,
        )

    def _writing(self, session: Session) -> Taps:
        """A context that writes several answers at a time."""
        return Taps(
            session.pair.target.model,
            (),
            texts=TEXTS,
            n_ctx=TEXTS * LONGEST,
            n_batch=LONGEST_PROMPT + TEXTS,
            outputs=TEXTS,
            threads=self.threads,
        )

    def _answers(
        self,
        session: Session,
        begun: TrainingChoices,
        asked: AskedIds,
        given: Sequence[AnsweredText],
    ) -> tuple[list[AnsweredText], list[AnsweredText]]:
        """The answers to train on and the held-out ones; missing ones are written now."""
        held, learnt = AnswerFile(self.work.held), AnswerFile(self.work.answers)
        listener = self.listener
        with self._writing(session) as taps:
            known = {each.prompt for each in held.samples}
            greedy = (one for one in token_ids.greedy(asked.held_out) if one.prompt not in known)
            listener.progress("Answering the held-out prompts", None)
            for sample in write_answers(taps, TEXTS, greedy, listener.cancel):
                held.add(sample)
            have = before = sum(one.written for one in given) + learnt.written
            began = time.monotonic()
            more = token_ids.questions(asked.learnt, learnt.samples)
            writing = write_answers(taps, TEXTS, more, listener.cancel)
            while have < begun.tokens and (one := next(writing, None)) is not None:
                learnt.add(one)
                have += one.written
                each = (time.monotonic() - began) / (have - before)
                left = formats.duration(max(0.0, each * (begun.tokens - have)))
                listener.progress(
                    f"Answering: {have:,} of {begun.tokens:,} tokens, {left} left",
                    min(1.0, have / begun.tokens),
                )
        if not learnt.samples and not given:
            raise LocalspecError(
                f"{self.name} gives empty answers to these prompts", "Name others with --prompts."
            )
        return [*given, *learnt.samples], held.samples

    def _learn(
        self,
        session: Session,
        begun: TrainingChoices,
        shape: HeadShape,
        samples: Sequence[AnsweredText],
        held: Sequence[AnsweredText],
    ) -> None:
        """Train; afterwards the best head is in the work folder."""
        common = token_ids.commonest(samples)
        with self._reading(session) as taps:  # first: a card must have room for both
            learns, drafted = self._learner(shape, samples)
            lessons = Lessons(taps, self.weights)
            passes = begun.terms.passes
            training = Training(
                self.work, learns, lessons, samples, held, passes=passes, common=common
            )

            def write() -> None:
                write_head(
                    self.work.head,
                    shape,
                    learns.network.tensors(),
                    drafted=drafted,
                    target=self.target.paths[0],
                    about=self._about(samples, begun),
                )

            training.run(self.listener.cancel, self.listener.progress, write)

    def _learner(
        self, shape: HeadShape, samples: Sequence[AnsweredText]
    ) -> tuple[HeadLearner, Sequence[int]]:
        """The head to train, and the ids that it drafts."""
        from localspec.train.head.learning import device, learner  # noqa: PLC0415 - torch

        drafted: Sequence[int]
        if self.request.init is not None:
            tensors, drafted = read_head(self.request.init, shape)
        else:
            drafted = token_ids.by_frequency(samples, shape.vocab, shape.drafted)
            tensors = beginning(shape, self.weights, self.target.header.architecture, drafted)
        learns = learner(
            *(shape, tensors, drafted, self.threads),
            trained=self.request.init is not None,
            n_bytes=card_bytes(shape),
        )
        if learns.device.type != device().type:
            self.listener.tell(
                "the graphics card has too little memory left: the processor learns, which takes"
                " longer than estimated"
            )
        return learns, drafted

    def _about(
        self, samples: Sequence[AnsweredText], begun: TrainingChoices
    ) -> dict[str, MetaValue]:
        """Metadata of a head's file on how it was made."""
        tokens = begun.terms.passes * sum(one.written for one in samples)
        return {
            "general.name": f"head for {self.name}",
            trained_heads.TARGET: self.target.paths[0].name,
            trained_heads.TARGET_HASH: self.hash,
            trained_heads.TOKENS: tokens + (self.before.tokens if self.before else 0),
            trained_heads.PRIVATE: self.prompts.private
            or bool(self.before and self.before.private),
        }

    def _end(self, samples: Sequence[AnsweredText]) -> TrainingResult:
        """Judge the head, move it to its place, and let the target draft with it."""
        listener, request = self.listener, self.request
        options = target_options(self.target, str(self.work.head), request.threads)
        found = head_verdict.measure(
            options,
            self.prompts.held_out,
            token_ids.commonest(samples),
            listener.progress,
            listener.cancel,
        )
        if not found.better and not request.force:
            raise LocalspecError(
                "the head is no better than the control:"
                f" {formats.percent(found.greedy.first)} of first tokens accepted,"
                f" {formats.percent(found.greedy.control)} by always guessing the commonest token",
                "Train anew with more --tokens (--anew), or keep this head (--resume --force).",
            )
        out = place(self.target.paths[0], request.out)
        accepted = float(np.float32(found.reference.first))  # as the file of a head keeps it
        before = replaced(out, self.target.paths)
        if before > accepted and not (request.out or request.force):
            raise LocalspecError(
                f"the earlier head of this target stays: {formats.percent(before)} of its first"
                f" tokens are accepted, and {formats.percent(accepted)} of the new one's",
                "Train anew with more --tokens (--anew), or keep the new one (--resume --force, or"
                " -o FILE).",
            )
        rewritten(self.work.head, out, {trained_heads.ACCEPTED: accepted})
        name = record(self.target.paths, out)
        self.work.leave()
        return TrainingResult(head=out, name=name, found=found)
