"""Weights and checkpoints on disk."""

from .safetensors import load, save

__all__ = ["load", "save"]
