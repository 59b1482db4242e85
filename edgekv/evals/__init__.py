"""Measures how well, how fast and in how much memory a model reads under a budget. The command line is `edgekv eval`.

Pictures and intervals need the extra `eval`.
"""
