"""The host engine: nvImageCodec decodes, torch runs all other steps, with a thread per core.

Never: DALI.
"""
