"""Weights and checkpoints on disk."""

from .checkpoint import load_checkpoint, save_checkpoint
from .safetensors import load, save

__all__ = ["load", "load_checkpoint", "save", "save_checkpoint"]
