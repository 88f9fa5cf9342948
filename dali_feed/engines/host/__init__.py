"""The host engine: nvImageCodec decodes, torch runs the steps and a pass in C their end, with a thread per core.

Never: DALI.
"""
