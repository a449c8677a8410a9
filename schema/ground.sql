-- accsd: PostgreSQL is the state machine.
--
-- schema.sql is the whole of it: tables, the legal transitions, and one function for every change of state.
-- Whatever drives the work (the daemon, psql, a Go program) calls these functions; nothing else moves a row.
--
-- THE FILES: schema.sql is assembled from schema/*.sql in this order by `make schema`. Change those. Each noun names the same
-- thing in accsd/db/ and tests/db/.
--   ground.sql       version, clock, limits, ids, locks, answers; what makes a function a verb
--   audit.sql        who did what, when, by which way and why
--   access.sql       who acts; tokens, sessions and one-time codes
--   workflows.sql    workflows, checked and compiled when they are written
--   files.sql        files of workflow versions, which their tasks are given
--   tools.sql        tools that steps may use, with the types of what they take and give
--   jobs.sql         jobs and their tasks
--   transitions.sql  the legal transitions, and the guard that refuses every other write
--   months.sql       what is partitioned by month, and how months are made
--   events.sql       the history, append-only, in monthly partitions
--   feed.sql         events by id, for those who follow everything
--   queue.sql        what waits for a claim, what is live, concurrency keys
--   nodes.sql        nodes: registered, seen, awake, gone
--   offers.sql       tools that the services of nodes declare, until an operator accepts them
--   power.sql        when each node slept, was woken and was there
--   submit.sql       submission, instantiation, changes of what is asked
--   claim.sql        claims in the global order
--   lease.sql        what an attempt writes while it holds its lease: start, heartbeat, progress
--   finish.sql       the end of an attempt: finished, released, reclaimed
--   cancel.sql       ends that no attempt brings about: skip, cancel, close
--   resolve.sql      steps with expressions: run with what was worked out, skipped, or multiplied
--   retry.sql        dead letters, redrive, retry
--   pauses.sql       pauses, and the limits of concurrency keys
--   operations.sql   one action on many jobs or dead letters, in chunks
--   lists.sql        the key of cursors, views that people have saved
--   schedules.sql    schedules, their plans, and everything that waits for a time
--   firings.sql      the ledger of every due time, run keys, the verbs that settle what is due
--   topics.sql       events of the outside and of accsd's own, and the schedules that they start
--   conditions.sql   samples that are judged, and fire where a value crosses its threshold
--   quarantine.sql   a node on which a service fails, a step that fails everywhere
--   wake.sql         what wants nodes, and the calls that wake them
--   orders.sql       what a node is asked to do
--   artifacts.sql    the objects that attempts leave and are given
--   cache.sql        the results of steps that say so are used again
--   submissions.sql  what clients of an online judge call a job
--   outbox.sql       events for others: webhooks
--   deployments.sql  deployments that SeqPulse's clients announce, and what became of them
--   history.sql      archives of months, retention of finished jobs
--   upkeep.sql       what the builder has before it, and the net that mends
--   statistics.sql   how busy nodes were, how attempts ended, how long steps usually take
--   health.sql       which daemons are there, and what waits, runs, has failed, is stuck or overdue
--   why.sql          why a task does not run
--   joblib.sql       jobs, workers and providers of the joblib door
--   install.sql      the end of the installation: references, functions closed to the public
--
-- THE MAP
--   public.*                what people read and what any client may INSERT: workflows, jobs, job_tasks, task_events,
--                           task_artifacts, nodes, dead_letters, outbox_events, schedules, calendars; firings, events and tools to read.
--   accs.transitions        the legal moves, as rows. Everything that enforces them is generated from these rows.
--   accs.plans, accs.steps  a workflow and its steps, compiled and checked when the workflow is written.
--   accs.file_sets          the files that tasks of a workflow version are given, by checksum.
--   accs.lanes              the sets of nodes that may take a task: by service, labels and named node.
--   accs.pending_jobs       one narrow row for each job that is not instantiated yet, by due time.
--   accs.waiting            one narrow row for each queued task without unfinished dependencies. hold is null: claimable.
--                           Otherwise hold says what keeps it: 'backoff' (until due_at), 'key' (its concurrency key is
--                           taken), 'paused' (its workflow is paused), 'resolve' (its condition and input are not worked out yet).
--   accs.live               one narrow row for each task that is starting or running: capacity, keys and leases are
--                           counted here, so that they are derived from what really runs.
--   accs.concurrency_keys   how many tasks of a key may run at once.
--   accs.pauses             the services, workflows and nodes that take nothing new.
--   accs.operations         one action on many jobs or dead letters: how far it is, and what was answered.
--   accs.cursor_keys        what cursors of lists are sealed with. accs.views: queries that people have saved.
--   accs.plan_of            the next occurrences of each schedule, as data: SQL alone fires them.
--   accs.agenda             everything that waits for a time: one index says what is due next.
--   accs.run_keys           how many jobs of a key may be open at once; accs.open_runs: those that are, or wait for it.
--   accs.schedule_history   who did what to a schedule. accs.schedule_marks: occurrences to skip. accs.schedule_hold: a row while all
--                           schedules stand still. accs.schedule_states (a view): the state of each in one word, and what is next.
--   accs.backfills          runs for times that lie behind.
--   accs.subscriptions      the topic that each schedule of kind event listens to.
--   accs.inbox              one narrow row for each subscription and event that is not settled: who deletes it decides.
--   accs.event_keys         the first event of each key. accs.event_tallies: how many events each filter left out.
--   accs.conditions         the state of each condition; accs.condition_samples: the last samples that it was judged by.
--   accs.zones              the zone rules that plans were made with.
--   accs.actors             who acts. accs.tokens, accs.sessions, accs.login_codes: what lets them in, as digests;
--                           accs.live_tokens, accs.live_sessions (views): those that still do. No role reads them but through verbs.
--   accs.audit              what people did, a row a call. accs.audit_trail (a view): with the history of schedules.
--   accs.slots              one row for each node and service: two claims of one node lock it in turn.
--   accs.power              how each node is woken and sleeps: asleep → waking → booting → ready, or failed; the last call.
--   accs.node_history       what happened to each node.
--   accs.obstacles          why a node that is awake takes no tasks of a service now.
--   accs.tool_offers        tools that a node's services declare; they are none until an operator accepts them.
--   accs.node_orders        what a node is asked to do: send a magic packet into its network for a neighbour, or go to sleep.
--   accs.conclusions        how attempts ended lately, of steps that fail; from it accs.quarantines (a node's service takes
--                           nothing) and accs.step_health (a step that fails everywhere).
--   accs.outbox_targets     who is told what happens to jobs; the events themselves stand in public.outbox_events.
--   accs.seqpulse_deployments   deployments of a gateway's door; accs.deployment_jobs (a view): their jobs. public.scheduled_jobs,
--                           metric_samples, deployment_verdicts, sdh_hints (views): the same as SeqPulse has it.
--   accs.monthly            the tables that are partitioned by month: task_events, firings, events.
--   accs.archives           the months that are in the object store, with the chain of their digests.
--   accs.borrowed_files     outputs that a task has because it is done with the result of another one.
--   accs.cached_results     for steps with cache: which tasks have, or will have, the result of which input.
--   accs.doomed_objects     objects of removed jobs that are still in the store.
--   accs.damage             (a view) what disagrees with jobs and job_tasks; accs.repair_position: where the search stopped.
--   accs.service_load       (a view) how many tasks of each service wait and are live.
--   accs.power_log          each change of a node's power. accs.samples: how many tasks of a service were live on a node, by the minute.
--   accs.outcomes           how many attempts of a service ended in each minute, and how. accs.step_stats: how long steps usually take.
--   accs.statistics_position, accs.event_gaps   which events are counted in those.
--   accs.daemons            the processes of accsd, and what keeps their roles from their work.
--   accs.joblib_providers   what workers of the joblib door let others read. Its jobs are workflows, its workers nodes.
--   accs.verbs              what may be called, and by which roles: each is declared beside its function.
--   accs.locks              what one transaction at a time may do.
--   accs.schema_versions    which version of this schema is installed.
--
--   So a claim never meets a finished, blocked or future task, and no index covers a column of jobs or job_tasks
--   that changes at a transition: those updates are HOT. (docs/decisions/0001 has the figures.)
--
-- THE WAY OF A TASK
--   submit_jobs | instantiate_due_jobs → claim_tasks → start_tasks → report_progress, heartbeat →
--   finish_tasks (done, or error with retry) → its dependants become claimable in the same statement → the last
--   finish closes the job.
--   Beside the way: release_tasks, reclaim_tasks, adopt_tasks, skip_tasks, cancel_jobs, redrive, retry_jobs; for steps with
--   expressions resolve_tasks and fan_out, between their last dependency and their claim.
--   The net: repair, which finds accs.damage empty or mends it; recheck_holds, close_jobs.
--
-- RULES
--   Lock order: an operation → zones by name → schedules by id → agenda → jobs by id (FOR NO KEY UPDATE) → waiting → job_tasks by id →
--     live → run_keys by key → concurrency_keys by key. Whoever starts runs of several schedules in turn calls lock_runs first.
--     Waiting rows are claimed with SKIP LOCKED; a claim locks neither jobs nor anything else it could wait for
--     while others wait for it.
--   Fence: attempt_id grows by one at every claim and is never reused. A write from an attempt names task,
--     attempt_id and owner, and needs a lease that has not run out.
--   Answers: every verb answers each row with accepted | repeated | refused(reason), so that calling it twice is
--     safe and the outcome of a lost COMMIT can be settled by asking again.
--   Events: written in the statement that makes the transition. A guard refuses every other writer of a state.
--   Time: accs.clock() only; a lease counts from the end of the wait for it (accs.waited()).

CREATE SCHEMA accs;

-- ---------------------------------------------------------------------------------------------------------------
-- Ground: version, clock, limits, ids, locks, answers; what makes a function a verb
-- ---------------------------------------------------------------------------------------------------------------

CREATE TABLE accs.schema_versions (
  version     int PRIMARY KEY,
  applied_at  timestamptz NOT NULL DEFAULT now(),
  applied_by  text NOT NULL DEFAULT session_user
);

-- The only clock. Tests replace the body; a session can't.
CREATE FUNCTION accs.clock() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT now()';

-- How long this transaction has lasted: a lease that is given at its end does not begin at its beginning. (The clock stands still in it.)
CREATE FUNCTION accs.waited() RETURNS interval LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp() - now()';

-- The installer replaces the body with the configured prefix: a trigger can't read a process's environment.
CREATE FUNCTION accs.channel_prefix() RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'accs_'::text $$;

-- The default of the backoff where neither step nor caller says otherwise; the installer replaces the body likewise.
CREATE FUNCTION accs.backoff_base() RETURNS double precision LANGUAGE sql IMMUTABLE AS $$ SELECT 15.0::double precision $$;

-- How large the results of a task may be.
CREATE FUNCTION accs.max_result_bytes() RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT 262144 $$;

-- How many owners a task may lose before it is a dead letter.
CREATE FUNCTION accs.max_lost() RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT 5 $$;

-- For how long a task may be held without a sign of life.
CREATE FUNCTION accs.longest_lease() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '1 day' $$;

CREATE FUNCTION accs.unix_ms(p_ts timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT (date_part('epoch', p_ts) * 1000)::bigint $$;   -- not extract: its numeric costs 3 µs an id

CREATE SEQUENCE accs.id_seq CACHE 64;

-- A time-ordered UUID (version 7): the moment, the low bits of a count, chance, and the count again, scattered. So what one
-- statement makes lands side by side at the end of its indexes, and the last eight digits tell any two ids of a database apart:
-- they are what people see of a job. (An odd factor gives each of 2^32 counts another number.) An id is no secret: random() and the
-- statement's time do, at a third of the cost of gen_random_uuid() and clock_timestamp().
CREATE FUNCTION accs.new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
  SELECT encode(int8send((accs.unix_ms(statement_timestamp()) << 16) | 28672 | (nextval('accs.id_seq') & 4095))
                || int8send((-9223372036854775808) | (floor(random() * 1073741824)::bigint << 32)
                            | ((currval('accs.id_seq') & 4294967295) * 1640531527 & 4294967295)),
                'hex')::uuid
$$;

-- A task's id: its job's, with the step's number in the middle, where the chance was: the moment and the whole count stay, so no
-- other job's task has it. A job's tasks lie side by side in the order of its steps, and a parent can name its dependants before
-- their rows exist.
CREATE FUNCTION accs.task_id(p_job uuid, p_step int) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
  SELECT encode(substring(uuid_send(p_job) FOR 8) || int4send((-2147483648) | (p_step << 4)) || substring(uuid_send(p_job) FROM 13),
                'hex')::uuid
$$;

-- What one transaction at a time may do: whoever locks a row here has to be able to write it. (An advisory lock is anybody's: a
-- login that may only read could hold it for ever.)
CREATE TABLE accs.locks (name text PRIMARY KEY);
INSERT INTO accs.locks VALUES ('archives'), ('months'), ('node_leaves'), ('outbox_targets'), ('quarantines'), ('repair'),
                              ('tools'), ('workflows');

CREATE FUNCTION accs.lock(p_name text) RETURNS void LANGUAGE sql AS $$ SELECT FROM accs.locks WHERE name = p_name FOR UPDATE $$;

-- How a verb answers one row. The db_ columns are what the database holds when it refuses.
CREATE TYPE accs.answer AS (
  id              uuid,
  answer          text,          -- accepted | repeated | refused
  reason          text,          -- why refused
  db_status       text,
  db_attempt_id   int,
  db_lease_owner  text,
  db_lease_until  timestamptz
);

-- The answer for rows that were changed. It is inlined where it is asked for, and costs nothing there.
CREATE FUNCTION accs.accepted(p_ids uuid[], p_lease_until timestamptz DEFAULT NULL) RETURNS SETOF accs.answer
LANGUAGE sql IMMUTABLE AS $$
  SELECT u.id, 'accepted'::text, NULL::text, NULL::text, NULL::int, NULL::text, p_lease_until FROM unnest(p_ids) AS u (id)
$$;

-- True while a verb of ours runs: it acts as the schema's owner and has pinned exactly this search_path. Another login may set the same
-- path, but it may not create in this schema; the owner needs no privilege for it (docs/decisions/0007).
CREATE FUNCTION accs.in_verb() RETURNS boolean LANGUAGE sql STABLE AS
$$ SELECT current_setting('search_path') = 'pg_catalog, accs, pg_temp' AND has_schema_privilege('accs', 'CREATE') $$;

-- What may be called, and by whom: the roles are accs_scheduler and so on (accsd/db/roles.sql grants what stands here).
CREATE TABLE accs.verbs (
  name  text PRIMARY KEY,
  may   text[] NOT NULL CHECK (may <@ '{agent,scheduler,api,gateway,archive,reader}')
);

-- Pins the plans of a function. Generic plans by index touch as many rows as the arrays name, whatever the statistics say; without the
-- pins a batch of 1,000 fell into a hash join over the whole table. An entry of an index costs much, so that no plan goes through a
-- whole one: a session that began on empty tables did, and kept that plan for a backlog of 10,000 (0.9 ms a task claimed, on
-- PostgreSQL 18). Joins are nested loops, a look-up for each row; or hashes (p_hashes), which cost a large batch less where each table
-- that is joined has an "= ANY (array)" of its own; they have the same room whatever the server's work_mem is. What a function with
-- hashes calls inherits its pins, so that has such arrays too, or pins of its own.
CREATE FUNCTION accs.pin(p_function text, p_hashes boolean DEFAULT false) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('ALTER FUNCTION accs.%I SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
                  SET enable_hashjoin = %s SET enable_nestloop = %s SET enable_mergejoin = off SET random_page_cost = 0.1
                  SET cpu_index_tuple_cost = 0.1 SET jit = off', p_function, p_hashes, NOT p_hashes);
  IF p_hashes THEN
    EXECUTE format('ALTER FUNCTION accs.%I SET work_mem = %L', p_function, '64MB');
  END IF;
END $$;

-- Makes a function a verb; a migration that replaces the function says it again. A verb runs as the owner with a fixed
-- search_path, so that the roles need no right on the tables, and the guard is open while it runs.
CREATE FUNCTION accs.is_verb(verb text, may text[], pinned boolean DEFAULT false, hashes boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('ALTER FUNCTION accs.%I SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp', verb);
  IF pinned OR hashes THEN
    PERFORM accs.pin(verb, hashes);
  END IF;
  INSERT INTO accs.verbs AS v (name, may) VALUES (verb, may) ON CONFLICT (name) DO UPDATE SET may = excluded.may;
END $$;
