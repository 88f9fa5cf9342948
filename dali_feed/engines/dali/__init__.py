"""The DALI engine: a graph in push mode, and what keeps it alive.

Never: a stateful random operator.
"""
