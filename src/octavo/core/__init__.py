"""The vocabulary every other room speaks: requests, sampling parameters, configuration, errors, units.

Plain Python only: no NumPy, no input or output, no import from any other part of Octavo.
"""
