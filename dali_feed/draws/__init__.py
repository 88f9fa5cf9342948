"""Draws: the random numbers of a run, pure in (seed, epoch, sample, stream), and the map of who owns which stream.

Never: a generator with a state, and what the numbers are used for.
"""
