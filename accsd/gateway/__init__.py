"""The HTTP API, live and locked: everything that accsd knows and does, for programs and for the page.

A gateway is a client of the verbs and of the readers that commands use; agents never need one. roles.py is its table of
contents: the server (server.py, app.py, routes/), the hub of live updates, the worker of bulk operations.
"""
