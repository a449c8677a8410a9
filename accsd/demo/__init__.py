"""`accsd demo`: two jobs, three machines, a power cut and a machine that is woken, on one terminal in under a minute.

Everything on the stage is real: PostgreSQL (embedded), a builder, agents as processes of their own, services that make
files. Only the machines are played: one that is "asleep" is an agent that has not been started yet, and the script that
wakes it rings a bell that the demo answers by starting it; a power cut is a SIGKILL to an agent and all its tasks.

pipeline    the services and the workflow, a copy of examples/media-pipeline or examples/fan-out
machines    the processes on the stage
page        the page in a browser, while the story plays and for a look afterwards
scenes      what is seen of the database: for the screen and for the story
screen      live on a terminal, plain lines elsewhere
story       what happens, in order: the power cut, or with --story fan-out a step that becomes many tasks
"""
