"""Measuring: how well, how fast and in how much memory a model reads under a budget. The command line is `edgekv eval`.

What draws pictures or computes intervals needs the extra: pip install 'edgekv[eval]'.
"""
