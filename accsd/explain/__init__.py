"""What the state of jobs, tasks and machines means, in words and as documents. Rows of the database come in, sentences
and plain data go out: nothing here prints, knows a terminal or a browser. The commands use it, and whatever else shows
accsd to people.

why         why a job or a task does not run: each blocker of it
reasons     one blocker in words, and the next command to try
events      one event of a timeline
jobs        a job and its tasks: what each waits for, how it ended, why it is dead
segments    where the time of a job went, piece by piece; eta: when it will end; bar reads the facts for both
fleet       a node and a service: whether it takes work, and why it does not
fleet_time  what machines did, what that has cost, and which will be woken
changes     what the state machine answered to a person who wanted to change something
schedules   a schedule: what it means, why it stands still, what happened at a time;
            schedule_definitions checks, compares and writes one, schedule_changes tells the answers of its verbs
occurrences the times of a schedule: what is ahead, what lies around one
ledger      what became of each due time, and what a schedule loses
conditions  a condition: what it means, how it stands, what a sample led to
words       lengths of time, moments, ids
"""
