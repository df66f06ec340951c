"""The conductor: turns what happens at the seams into iterations, and acts between two of them.

Seams report events. The first events go to the detector; once it knows the loop, every border
between two iterations resumes the *program*, a generator that is sent the iteration which has
just ended and yields when the next may begin. While a program waits for its parent, the script
stands still at the border and nothing is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.optim import Optimizer

from hasten.instrument import patching
from hasten.instrument.detection import Detector, Loop
from hasten.instrument.loop import LoopSeams
from hasten.instrument.recorder import BACKWARD, DATA, FORWARD, OPTIMIZER, Iteration, Recorder
from hasten.instrument.seams.debugging import Debugging
from hasten.instrument.seams.loader import LoaderSeams
from hasten.instrument.seams.loader_keeping import Caches
from hasten.instrument.seams.optimizer import OptimizerEvents, OptimizerHandle
from hasten.instrument.seams.root import Root
from hasten.records import LoaderFacts, Setting

Program = Generator[None, Iteration, None]

_LOSSES_KEPT = 512
_EPOCH_BORDER = "epoch border"
_ODD_IN_A_ROW = 8  # void iterations, after which they are how this loop is


class Conductor:
    """Owns the seams of one process."""

    def __init__(self, program: Callable[[Conductor], Program]) -> None:
        self.recorder = Recorder()
        self.seams: LoopSeams | None = None
        self.iterations = self.backwards = self.steps = 0
        self.losses: list[torch.Tensor] = []
        self.step_observer: Callable[[Optimizer], None] | None = None
        self.notes: list[str] = []
        self.own_scaler = False
        self.debugging = Debugging()
        self._program_of = program
        self._program: Program | None = None
        self._detector: Detector | None = Detector()
        self._loop: Loop | None = None
        self._loader_seams: LoaderSeams | None = LoaderSeams(self)
        self._optimizer_events = OptimizerEvents(self._before_step, self._after_step)
        self._patches: list[patching.Patch] = []
        self._thread: int | None = None
        self._suspended = False
        self._fresh_epoch = False
        self._odd = 0  # void iterations in a row
        self._adopted_after = -1  # backward passes
        self._late: Detector | None = None
        self._early: tuple[Callable[[], None], Setting] | None = None

    # --- seams in and out -----------------------------------------------------------------

    def install(self) -> None:
        """Put every seam in that is needed to recognise the loop."""
        assert self._loader_seams is not None and self._detector is not None
        self._loader_seams.install()
        self._optimizer_events.install()
        self._detector.start()
        self.debugging.install()
        self._patch(torch.autograd, "backward", self._backward(torch.autograd.backward))
        self._patch(torch, "save", self._save(torch.save))
        scale = torch.amp.GradScaler.scale
        self._patch(torch.amp.GradScaler, "scale", self._scale(scale))

    def take_over(self, end: Callable[[], None], setting: Setting) -> None:
        """Call `end` when the loop is known, and have `setting` in force from then on."""
        self._early = end, setting

    def _patch(self, owner: Any, name: str, new: Any) -> None:
        self._patches.append(patching.replace(owner, name, new))

    def end_program(self, keep: set[str]) -> None:
        """Take out every seam but those that `keep` names ("loader", "roots")."""
        for patch in reversed(self._patches):
            patching.restore(patch)
        self._patches = []
        self.debugging.uninstall()
        if "loader" not in keep and self._loader_seams is not None:
            self._loader_seams.uninstall()
        if "roots" not in keep and self.seams is not None:
            for root in self.seams.roots:
                root.uninstall()
        self._program = None

    def uninstall(self) -> None:
        """Take out everything, whatever is in force and however far it has come."""
        if self.seams is not None:
            self.seams.apply({})
        if self._program is not None:
            self._program.close()
        for detector in (self._detector, self._late):
            if detector is not None:
                detector.stop()
        self._detector = self._late = None
        self.end_program(set())
        self._optimizer_events.uninstall()
        patching.restore_all()  # what units have replaced for good, such as dynamo's limits

    def before_block(self) -> None:
        """A block begins, and its setting isn't in force yet."""

    @property
    def loop(self) -> Loop | None:
        """The training loop, once it is known."""
        return self._loop

    @property
    def caches(self) -> Caches:
        """The kept items of every loader."""
        assert self._loader_seams is not None
        return self._loader_seams.caches

    @property
    def begun(self) -> int:
        """Iterations that have ended, and the last one where the script took no batch after it."""
        last = self._loop is not None and self._loop.loader is not None and self.recorder.steps > 0
        return self.iterations + last

    def loader_facts(self) -> LoaderFacts | None:
        """The training loader as the script built it."""
        if self._loop is None or self._loop.loader is None or self._loader_seams is None:
            return None
        owned = self._loader_seams.owned(self._loop.loader)
        return owned.facts() if owned is not None else None

    # --- the border -----------------------------------------------------------------------

    def _border(self) -> None:
        """One iteration ends here and the next begins."""
        if self._program is None:
            return
        iteration = self.recorder.finish()
        if iteration is not None:
            self.iterations += iteration.void != _EPOCH_BORDER
            self._judge(iteration)
            self._suspended = True
            try:
                self._program.send(iteration)
            except StopIteration:
                self._program = None
            finally:
                self._suspended = False
        self.recorder.begin()

    def _judge(self, iteration: Iteration) -> None:
        """What is out of the ordinary can't be compared, unless it is what this loop always does.

        A script that saves in every iteration, or whose epochs are one batch, has no others.
        """
        if not iteration.void:
            self._odd = 0
        elif iteration.void != _EPOCH_BORDER:
            self._odd += 1
            if self._odd > _ODD_IN_A_ROW:
                iteration.void = ""

    def _look(self) -> None:
        """See whether the loop can be recognised by now."""
        loop = self._detector.loop() if self._detector is not None else None
        if loop is not None:
            self._found(loop)

    def _found(self, loop: Loop) -> None:
        """The loop is known: seams that need it go in, the program waits for the first border."""
        assert self._detector is not None and self._loader_seams is not None
        self._loop, detector, self._detector = loop, self._detector, None
        detector.stop()
        self.notes += loop.notes
        self.iterations = detector.passed(loop)
        owned = self._loader_seams.owned(loop.loader) if loop.loader is not None else None
        self.seams = LoopSeams(loop, detector.optimizers, owned, self, self.debugging)
        for root in self.seams.roots:
            root.own_compile = root.own_compile or detector.compiles
            root.install()
        if self._early is not None:
            self._early[0]()
            self.seams.apply(self._early[1])
        self._thread = threading.get_ident()
        self._program = self._program_of(self)
        next(self._program)

    # --- events: loader -------------------------------------------------------------------

    def fetching(self, loader: Any) -> None:
        """A batch is about to be fetched."""
        if self._suspended or self._loop is None or self._foreign():
            return
        if self._is_training(loader):
            self._border()
            if self._fresh_epoch:
                self._fresh_epoch, self.recorder.void = False, "first batch of an epoch"
            self.recorder.enter(DATA)
        elif self._loop.loader is not None and id(loader) not in self._loop.companions:
            self.recorder.void = "another loader is read"

    def fetched(self, loader: Any, batch: Any) -> None:
        """A batch has come."""
        if self._suspended:
            return
        if self._detector is not None:
            self._detector.fetched(loader)
        elif self._is_training(loader) and not self._foreign():
            self.recorder.leave()

    def epoch_started(self, loader: Any) -> None:
        """The script asked for an iterator, and nothing has been started for it yet."""
        if not self._suspended and self._is_training(loader):
            self.recorder.void = _EPOCH_BORDER
            self._fresh_epoch = True

    def epoch_ended(self, loader: Any) -> None:
        """The script has read the last batch."""
        if self._suspended or not self._is_training(loader) or self._foreign():
            return
        self.recorder.leave()
        self.recorder.void = _EPOCH_BORDER

    def _is_training(self, loader: Any) -> bool:
        """Whether this is the training loader, or one like it that the script has built since."""
        loop = self._loop
        if loop is None or loop.loader is None:
            return False
        if loader is loop.loader:
            return True
        if loader in loop.others or _signature(loader) != _signature(loop.loader):
            return False
        if not self._in_training():  # a loader for validation may be built just alike
            return False
        self._adopt(loop, loader)
        return True

    def _in_training(self) -> bool:
        """Whether gradients are on and some root is in the mode in which it was seen training."""
        assert self.seams is not None
        modes = [root.module.training for root in self.seams.roots if root.training]
        return torch.is_grad_enabled() and (any(modes) or not modes)

    def _adopt(self, loop: Loop, loader: Any) -> None:
        """Scripts may build their loader anew for each epoch: what is in force goes with it."""
        assert self.seams is not None and self._loader_seams is not None
        if self.backwards == self._adopted_after:  # nothing was trained on what was adopted last
            loop.others.add(loop.loader)
        self._adopted_after = self.backwards
        loop.loader = loader
        self.seams.change_loader(self._loader_seams.owned(loader))

    # --- events: model, backward, optimizer -------------------------------------------------

    def root_entered(self, root: Root, training: bool) -> None:
        """A root is called."""
        if not training and not torch.is_grad_enabled() and not root.module.training:
            self.recorder.void = self.recorder.void or "validation"
        self.recorder.enter(FORWARD)

    def root_left(self, root: Root, training: bool) -> None:
        """Its call has ended."""
        self.recorder.leave()

    def _backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._suspended:
                return backward(tensors, *args, **kwargs)
            self._before_backward(tensors)
            try:
                return backward(tensors, *args, **kwargs)
            finally:
                self.recorder.leave()

        return wrapped

    def _before_backward(self, tensors: Any) -> None:
        self.backwards += 1
        self.recorder.backwards += 1
        self.debugging.look()
        loss = tensors if isinstance(tensors, torch.Tensor) else None
        if loss is not None and loss.numel() == 1 and len(self.losses) < _LOSSES_KEPT:
            self.losses.append(loss.detach())
        if self._detector is not None:
            self._detector.backward()
            self._look()
        elif self._loop is not None and self._loop.loader is None and self._loop.stepper is None:
            self._border()
        self.recorder.enter(BACKWARD)

    def _before_step(self, optimizer: Optimizer) -> None:
        if self._suspended:
            return
        if self._detector is not None:
            self._detector.stepped(optimizer)
            self._look()
        if self._late is not None:
            self._late_step(optimizer)
        loop = self._loop
        if loop is not None and loop.loader is None and optimizer is loop.stepper:
            self._border()
        if self.step_observer is not None:
            self.step_observer(optimizer)
        self.recorder.enter(OPTIMIZER)

    def _after_step(self, optimizer: Optimizer) -> None:
        if self._suspended:
            return
        self.recorder.leave()
        self.steps += 1
        self.recorder.steps += 1
        for handle in self.seams.optimizers if self.seams is not None else ():
            if handle.optimizer is optimizer:
                handle.steps += 1
                return
        if self.seams is not None and self._late is None:
            self._late = Detector()
            self._late.start()
            self._late.stepped(optimizer)

    # --- an optimizer that appears later ----------------------------------------------------

    def _late_step(self, optimizer: Optimizer) -> None:
        """A new optimizer has stepped before: its roots are known after its second step."""
        assert self._late is not None and self.seams is not None
        late, known = self._late, {id(h.optimizer) for h in self.seams.optimizers}
        again = any(optimizer is seen for seen in late.optimizers)
        late.stepped(optimizer)
        if not again or id(optimizer) in known:
            return
        late.stop()
        self._late = None
        setting = dict(self.seams.setting)
        self.seams.apply({})
        present = {id(root.module) for root in self.seams.roots}
        for module, training in late.roots():
            if id(module) not in present:
                root = Root(module, training, self)
                root.install()
                self.seams.roots.append(root)
        new = [o for o in late.optimizers if id(o) not in known]
        self.seams.optimizers += [OptimizerHandle(o) for o in new]
        self.seams.apply(setting)

    # --- events: others -------------------------------------------------------------------

    def _save(self, save: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.recorder.void = "a checkpoint is saved"
            return save(*args, **kwargs)

        return wrapped

    def _scale(self, scale: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self.own_scaler = self.own_scaler or scaler.is_enabled()
            return scale(scaler, *args, **kwargs)

        return wrapped

    def _foreign(self) -> bool:
        return self._thread is not None and threading.get_ident() != self._thread


def _signature(loader: Any) -> tuple[Any, ...]:
    """What two loaders of one training share, built by the same line of a script."""
    return (
        type(loader),
        type(loader.dataset),
        loader.batch_size,
        loader.drop_last,
        type(loader.sampler),
        type(loader.batch_sampler),
        getattr(loader.collate_fn, "__qualname__", type(loader.collate_fn)),
    )
