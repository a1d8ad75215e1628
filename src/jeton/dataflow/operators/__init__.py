"""Operators: a file for each, with a function that adds it to the graph.

The methods of `Stream`, `KeyedStream`, groups, scopes and flows document them and call these.
"""
