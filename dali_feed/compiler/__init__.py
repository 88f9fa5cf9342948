"""The compiler: turns a recipe of transforms into the program that an engine runs.

Never: pixels.
"""
