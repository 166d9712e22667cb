"""Tensor and its tape. The package is private in name only because `fusednn.tensor` is a function.

Layers, lowest first: `mode` (`no_grad`), `tape` (nodes and `record`), `walk` (backward), one file
per family of ops (`arithmetic`, `comparison`, `pointwise`, `linalg`, `reduction`, `extrema`,
`shape`, `order`, `inplace`, `indexing`) written as mixins, `tensor` (the class that joins them, and
whose methods call `functional`), `creation` (making new ones). Nothing is imported here, so that
`functional` can stand between `tape` and `tensor`.
"""
