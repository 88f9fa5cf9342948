"""The DALI engine: a graph that is fed batch by batch, and how it survives failures.

Never: a stateful random operator.
"""
