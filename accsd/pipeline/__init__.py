"""Workflows through which data flows: what their expressions refer to, whether that is there, and what follows for a
step when everything that it depends on is there. Pure, but for the CEL library behind `accsd.expressions`.

A pipeline is a way to write a workflow (`document`); `flow` reads its expressions and checks them when it is written;
`resolution` works out what becomes of a step. Called by the resolver on the control host and by `accsd workflows`.
"""
