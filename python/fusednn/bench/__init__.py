"""The benchmark behind `python -m fusednn bench`; bench/README.md says how it measures.

`runner` walks the cases; each op's file (`conv`, `pool`, ...) says the same work once per library;
`measure` times, `ceilings` finds what the machine could do, `records` writes and reads results,
`table` prints them and `compare` sets two runs side by side.
"""
