"""The compiler: a recipe of transforms made into the program that an engine runs.

Never: pixels.
"""
