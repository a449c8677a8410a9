"""Decisions as pure functions over plain values: no clock, no database, no models. The models are built on
them.
"""
