"""The parts of observing: places, the log, timed calls, devices."""

from __future__ import annotations

import builtins
import io
import logging
import os
import pickle
import sys
import time
from typing import Any

import pytest
import torch

from hasten.instrument import patching
from hasten.instrument.observe import discover
from hasten.instrument.observe.base import Observer
from hasten.instrument.observe.calls import CallTimes
from hasten.instrument.observe.conductor import COPY, FineRecorder
from hasten.instrument.observe.devices import Devices
from hasten.instrument.observe.log import Log
from hasten.instrument.observe.output import Output
from hasten.instrument.observe.parts import Parts
from hasten.instrument.observe.places import is_users, place_of, users_frame
from hasten.instrument.observe.program import spread
from hasten.instrument.observe.reliefs import RELIEFS, relieved
from hasten.instrument.observe.utilisation import Utilisation
from hasten.instrument.recorder import Iteration


def test_whose_file_it_is() -> None:
    assert is_users(__file__) and is_users("/home/me/train.py")
    assert not is_users(torch.__file__) and not is_users(os.__file__)
    assert not is_users("<string>") and not is_users("<frozen importlib._bootstrap>")
    assert not is_users(sys.modules["hasten.records"].__file__)


def test_the_users_frame_is_the_innermost_of_theirs() -> None:
    seen: list[Any] = []
    module = torch.nn.Linear(1, 1)
    module.register_forward_pre_hook(lambda *_: seen.append(users_frame(0)))
    module(torch.ones(1))
    assert seen[0][0] == __file__


def test_a_class_of_a_library_has_no_place() -> None:
    assert place_of(torch.nn.Linear.forward) is None
    place = place_of(test_whose_file_it_is)
    assert place is not None and place.code.startswith("def test_whose_file_it_is")


class Thing:
    def work(self, amount: int) -> int:
        return amount + 1


def test_a_wrapped_call_is_logged_and_undone() -> None:
    log, before = Log(), Thing.work
    log.wrap(Thing, "work", "worked", lambda thing, amount: {"amount": amount}, noun="thing")
    log.observing = True
    thing = Thing()
    assert [thing.work(n) for n in range(3)] == [1, 2, 3]
    log.iteration_ended(plain=True)
    thing.work(9)
    log.iteration_ended(plain=False)
    (event,) = [e for e in log.events() if e.facts == {"amount": 2}] or log.events()[:1]
    assert event.place is not None and event.place.file == __file__
    counts = sum(e.count for e in log.events()), sum(e.observed for e in log.events())
    assert counts == (4, 3)
    assert [m.subject for m in log.sequences()[0]] == ["thing 0"] * 3
    log.restore()
    assert Thing.work is before and not patching.active()
    thing.work(1)
    assert sum(e.count for e in log.events()) == 4


def test_a_call_that_raises_is_logged_as_well() -> None:
    log = Log()
    log.wrap(Thing, "work", "worked")
    with pytest.raises(TypeError):
        Thing().work("x")  # type: ignore[arg-type]
    log.restore()
    assert [e.count for e in log.events()] == [1]


def test_a_script_that_compiles_a_wrapped_call_gets_the_original() -> None:
    """With fullgraph=True anything that dynamo can't trace would be an exception."""
    log, module = Log(), torch.nn.Linear(2, 2)
    log.wrap(Thing, "work", "worked")
    thing = Thing()

    def step(x: torch.Tensor) -> torch.Tensor:
        return module(x) * thing.work(1)

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    x = torch.ones(1, 2)
    assert torch.equal(compiled(x), module(x) * 2)
    log.restore()
    torch._dynamo.reset()
    assert not log.events()


def test_the_log_does_not_grow_without_end() -> None:
    log = Log()
    for line in range(3000):
        log.event("kind", at=("file.py", line, "f"))
    log.iteration_ended(plain=True)
    assert len(log.events()) <= 500 and len(log.sequences()[0]) <= 400


class Slow:
    def __call__(self, x: int) -> int:
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        return x


class Chain:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __call__(self, x: int) -> int:
        for part in self.parts:
            x = part(x)
        return x


def test_time_goes_to_the_class_that_spends_it() -> None:
    chain = Chain(Slow())
    before = sys.getprofile()
    with CallTimes() as calls:
        chain(1)
    assert sys.getprofile() is before
    assert calls.classes[Slow] > 0.015 > calls.classes[Chain]
    hottest = max(calls.lines, key=lambda line: calls.lines[line])
    assert hottest[0] == __file__


def test_copies_between_devices_are_a_phase() -> None:
    """With a device that every torch has instead of a GPU."""
    log, recorder = Log(), FineRecorder()
    devices = Devices(present=lambda: torch.device("meta"))
    devices.attach(recorder)
    devices.start(log)
    recorder.begin()
    tensor = torch.ones(1000)
    tensor.to("meta")
    tensor.to("cpu")
    tensor.to(torch.float64)
    iteration = recorder.finish()
    log.restore()
    assert not patching.active()
    (event,) = log.events()
    assert (event.kind, event.count, event.facts["bytes"]) == ("copy", 1, 4000)
    assert event.place is not None and event.place.code == 'tensor.to("meta")'
    assert iteration is not None and 0 < iteration.phases[COPY] < iteration.seconds


def test_spread_names_bursts() -> None:
    assert spread([]).median == 0.0
    bursts = spread([1.0] * 9 + [91.0])
    assert (bursts.median, bursts.mean) == (1.0, 10.0)
    assert bursts.bursts == pytest.approx(0.91)


@pytest.mark.parametrize("name", RELIEFS)
def test_reliefs_leave_no_trace(name: str) -> None:
    with torch.autograd.set_detect_anomaly(True):
        with relieved((name,)):
            torch.autograd.set_detect_anomaly(True)
            assert torch.is_anomaly_enabled() is (name != "anomaly")
        assert torch.is_anomaly_enabled()
    assert not torch.is_anomaly_enabled() and not patching.active()


def test_free_copies_are_made_once_for_each_line_and_shape() -> None:
    """To the meta device, which every machine has."""
    x, weight = torch.ones(2), torch.ones(2, requires_grad=True)
    with relieved(("copies",)):
        one, two = (x.to("meta") for _ in range(2))
        other = torch.ones(3).to(device="meta", non_blocking=True)
        assert one is two and one.device.type == "meta" and other.shape == (3,)
        assert x.to(torch.float64).dtype is torch.float64 and x.cpu() is x
        assert weight.to("meta").requires_grad
    assert x.to("meta") is not one and not patching.active()


def test_what_is_printed_and_logged_is_timed_and_undone(capsys: Any) -> None:
    log, output = Log(), Output()
    before = builtins.print, logging.Logger.handle
    output.start(log)
    print("a", end="")
    print("b", file=SlowFile())
    logging.getLogger("hasten.test").error("c")
    assert pickle.loads(pickle.dumps(print)) is print
    assert output.taken() >= 0.02 and output.taken() == 0.0
    log.restore()
    assert (builtins.print, logging.Logger.handle) == before
    assert capsys.readouterr().out == "a"
    assert sum(event.count for event in log.events()) == 3
    assert {event.kind for event in log.events()} == {"output"}


class SlowFile(io.StringIO):
    def write(self, text: str) -> int:
        time.sleep(0.01)
        return super().write(text)


class Library:
    """NVIDIA's, as far as it is asked."""

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        rates._obj[0] = 87
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: Any, milliwatts: Any) -> int:
        milliwatts._obj.value = 312_500
        return 0 if handle else 3


def test_what_the_driver_says_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100, 2))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)) + 5)
    log, iteration = Log(), Iteration(0.1, 0.1, [])
    log.observing = True
    found = []
    for answer in ((Library(), 1), (Library(), 0), None):
        seen = Utilisation(lambda answer=answer: answer)  # type: ignore[misc]
        for _ in range(3):
            seen.iteration_ended(log, iteration)
        found.append(seen.finish(log, None))
    assert found[0] == {"busy": [87] * 3, "watts": [312.5] * 3}
    assert found[1] == {"busy": [87] * 3, "watts": []} and found[2] == {}


def test_times_are_told_apart_by_root_and_optimizer() -> None:
    log, parts = Log(), Parts()
    log.observing = True
    one, two = torch.nn.Linear(1, 1), torch.nn.Sequential()
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    for void in ("", "validation", ""):
        for module, seconds in ((one, 0.01), (two, 0.02), (two, 0.02)):
            parts.root_entered(log, module, True)
            time.sleep(seconds)
            parts.root_left(log, module, True)
        parts.before_step(log, optimizer)
        parts.after_step(log, optimizer)
        parts.iteration_ended(log, Iteration(0.1, 0.1, [], void))
    found = parts.finish(log, None)
    assert [(r["name"], r["calls"]) for r in found["roots"]] == [("Linear", 1), ("Sequential", 2)]
    assert found["roots"][0]["seconds"] >= 0.01 and found["roots"][1]["seconds"] >= 0.04
    assert [(o["name"], o["calls"]) for o in found["optimizers"]] == [("SGD", 1)]
    assert Parts().finish(log, None) == {}


def test_every_observer_is_found_and_documented() -> None:
    observers = discover()
    names = [observer.name for observer in observers]
    assert len(set(names)) == len(names) > 5
    for observer in observers:
        assert isinstance(observer, Observer) and type(observer).__doc__
        assert sys.modules[type(observer).__module__].__doc__


def test_observers_take_out_what_they_put_in() -> None:
    log = Log()
    for observer in discover():
        if isinstance(observer, Devices):
            observer.attach(FineRecorder())
        observer.start(log)
    assert patching.active()
    log.restore()
    assert not patching.active()
