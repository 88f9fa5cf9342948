"""`dali-feed bench`: what a machine, its storage, its broker and its loaders give, beside a ceiling and peers.

Never: what a training run needs.
"""
