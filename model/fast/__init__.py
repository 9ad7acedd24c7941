"""Faster forms of what the model computes, each with the signature of the plain one.

attention.py makes a training step of the default config at least 5% faster on a CPU, and decode.py
decodes in C. A test compares each with its plain form.
"""
