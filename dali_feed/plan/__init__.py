"""The plan: which sample comes in which slot, and the position of a run. Arithmetic.

Never: I/O, clocks, threads.
"""
