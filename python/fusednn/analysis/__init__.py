"""Seeing what a network guarantees, and what it does.

`check_equivariance` and `check_invariance` test a symmetry, `transforms` has the usual ones;
`receptive_field` and `connections` tell what an output looks at; `summary` and `count_parameters`
what it costs; `gradient_flow` and `bptt_terms` where gradients go; `feature_maps` and
`attention_maps` what a network computes on its way; `plot` draws all this. None of them changes
the model.
"""

from . import plot, transforms
from .equivariance import Report, check_equivariance, check_invariance
from .flow import BpttTerms, GradientFlow, bptt_terms, gradient_flow
from .maps import attention_maps, feature_maps
from .reach import Connections, Field, ReceptiveField, connections, receptive_field
from .size import Row, Summary, count_parameters, summary

__all__ = [
    "BpttTerms",
    "Connections",
    "Field",
    "GradientFlow",
    "ReceptiveField",
    "Report",
    "Row",
    "Summary",
    "attention_maps",
    "bptt_terms",
    "check_equivariance",
    "check_invariance",
    "connections",
    "count_parameters",
    "feature_maps",
    "gradient_flow",
    "plot",
    "receptive_field",
    "summary",
    "transforms",
]
