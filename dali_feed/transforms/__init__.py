"""Transforms: what is done to an image, and how torchvision's and timm's classes say so.

Never at import: torch, torchvision, DALI, PIL.
"""
