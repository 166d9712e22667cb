"""Weights and checkpoints on disk."""

from .checkpoint import load_checkpoint, save_checkpoint
from .safetensors import load, save
from .torch_file import load_torch

__all__ = ["load", "load_checkpoint", "load_torch", "save", "save_checkpoint"]
