"""Memory ceilings in tests: a pytest plug-in, and what runs a function, a script or a test in a fresh process.

Importing the plug-in loads nothing else of edgekv; it lies in every pytest run where edgekv is installed.
"""
