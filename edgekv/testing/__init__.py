"""Memory ceilings in tests: a pytest plug-in that runs a function, a script or a test in a fresh process.

The plug-in is part of every pytest run where edgekv is installed. So importing it loads nothing else of edgekv.
`models`, `programs` and `server_process` are in a checkout only, for its tests and benches.
"""
