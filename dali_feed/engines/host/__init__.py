"""The host engine: nvImageCodec decodes, torch does the rest, a thread per core.

Never: DALI.
"""
