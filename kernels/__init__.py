"""CUDA kernels and their launchers: one operation is one .cu and one .py. Nothing here knows a source."""
