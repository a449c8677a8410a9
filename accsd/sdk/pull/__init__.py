"""The pull mode: a service that claims its tasks by itself, in its own process, with the verbs that the agent uses.

instance    the name of this process among the nodes, and the lock that proves it
registration  what it offers, what was left, its goodbye
task        what the author's function gets
files       a task's folder, made when it is asked for
attempt     one claimed task, from the call of the function to its outcome
slots       so many tasks at a time, in each slot one after the other
threads     where plain functions run
claimer     when to claim, and how many
finisher    outcomes on their way to the database, gathered while others are under way
stop        whether it shall stop, and how soon
worker      all of these together, and the drain
process     a process of its own: settings, signals, the loop
"""
