"""The screen: checks of images' headers that decide what may reach a decoder, and what Pillow decodes.

Never: nvImageCodec, I/O.
"""
