"""For tests, of this package and of code that uses it."""

from .gradcheck import gradcheck
from .isa import isa

__all__ = ["gradcheck", "isa"]
