"""The nouns of fp16doctor: frozen dataclasses that the stages exchange.

Imports no torch at run time and knows no behaviour beyond derived properties.
"""
