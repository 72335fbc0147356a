"""The interface of algorithms, and the code that all of them share: action selection, data,
updates, graph of a run.
"""
