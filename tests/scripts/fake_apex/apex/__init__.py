"""Stands in for NVIDIA's apex, which needs a GPU to be built: the same names, and no scaling."""
