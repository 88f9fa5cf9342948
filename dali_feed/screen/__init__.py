"""The screen: what a payload says of itself, by a file per format, and what of it may reach a decoder.

Never: a decoder, I/O.
"""
