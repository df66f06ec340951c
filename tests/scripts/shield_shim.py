"""Stands for hasten's bootstrap in the tests of the shield; copied to a sitecustomize.py."""

import os
import sys

if "HASTEN_SHIELD" in os.environ:
    sys.path.append(os.environ["SHIELD_TEST_MARK"])
    from hasten.instrument.shield.redirect import install_from, patches_for

    install_from(os.environ)
    sys.path.pop()
    if "--torch" in getattr(sys, "orig_argv", ()):
        import torch

        for name in ("torch.serialization", "torch"):
            patch = patches_for(name)
            assert patch is not None
            patch(sys.modules[name])
        assert torch.save is not None
