"""The two functions of apex.amp that training scripts call."""

import contextlib


def initialize(model, optimizer, opt_level="O1"):
    return model, optimizer


@contextlib.contextmanager
def scale_loss(loss, optimizer):
    yield loss
