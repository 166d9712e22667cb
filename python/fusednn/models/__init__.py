"""Whole networks, built of `nn`."""

from .lenet import LeNet

__all__ = ["LeNet"]
