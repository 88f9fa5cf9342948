"""Engines: a program run on a batch of payloads. One contract (`engine.py`), several engines.

Never: a source.
"""
