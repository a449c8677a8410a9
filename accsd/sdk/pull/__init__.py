"""The pull mode: a service that claims its tasks by itself, in its own process, with the verbs that the agent uses.

instance      the name of this process among the nodes, and the lock that proves it
registration  registers the process, releases what an earlier one left, and says goodbye
task          the object that the author's function gets
files         a task's folder, made on first use
attempt       one claimed task, from the call of the function to its outcome
slots         the claimed tasks, and how many run at a time: each slot runs one after the other
threads       where plain functions run
claimer       when to claim, and how many
finisher      outcomes on their way to the database, gathered while others are under way
stop          whether the worker shall stop, and how soon
worker        all of these together, and the drain
process       a process of its own: settings, signals, the loop
"""
