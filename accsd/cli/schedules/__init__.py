"""`accsd schedules`: what starts jobs by itself.

group        the commands, and those that list schedules and show one
options      what several commands take: when, what else, the rule of a schedule
definitions  create, edit, end
files        schedules in files: read, compared, applied
changes      pause, resume, snooze, skip, run, hold
previews     what is ahead: preview, load
ledger       what has happened
backfills    runs for times that lie behind
calendars    days on which schedules do not fire, or on which alone they do
"""
