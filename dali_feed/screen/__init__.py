"""The screen: checks of images' headers, a file per format, that decide what may reach a decoder.

Never: a decoder, I/O.
"""
