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

-- ---------------------------------------------------------------------------------------------------------------
-- Audit: who did what, when, by which way, and why
-- ---------------------------------------------------------------------------------------------------------------

-- One count for the audit and for schedule_history: accs.audit_trail, which unites them, has an order.
CREATE SEQUENCE accs.audit_seq;

-- What people did, or asked for in vain: one row a call, written by the verb itself, so that psql leaves it too. Append-only.
CREATE TABLE accs.audit (
  id          bigint PRIMARY KEY DEFAULT nextval('accs.audit_seq'),
  ts          timestamptz NOT NULL DEFAULT accs.clock(),
  actor       text NOT NULL,                     -- who says to have done it (p_by), or the login
  via         text NOT NULL CHECK (via IN ('cli', 'http', 'mcp', 'sql')),
  action      text NOT NULL,                     -- the verb, as a rule
  kind        text NOT NULL,                     -- of what target names: job, node, service, workflow …
  target      text,                              -- null where a call named several, or none
  reason      text,
  answer      text NOT NULL CHECK (answer IN ('accepted', 'repeated', 'refused')),
  detail      jsonb,                             -- of several: how many of each answer, and the first ids; why one was refused
  request_id  text
);

CREATE FUNCTION accs.refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the audit is append-only: % is refused', TG_OP
    USING ERRCODE = 'AC005', HINT = 'The builder removes what is older than 400 days.';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON accs.audit
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_audit_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON accs.audit FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_audit_change();

-- By which way a call came: the gateway sets it for its transaction, the commands are known by the name of their connection. For the
-- record only: any login can set both, and nothing is allowed or refused because of them.
CREATE FUNCTION accs.via() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN current_setting('accs.via', true) IN ('cli', 'http', 'mcp', 'sql') THEN current_setting('accs.via')
              WHEN current_setting('application_name') IN ('accsd cli', 'accsd run', 'accsd demo') THEN 'cli' ELSE 'sql' END
$$;

-- Writes the row of a call and returns its answer, so that a verb can end with it. p_refusal says why it was refused.
CREATE FUNCTION accs.audited(p_action text, p_kind text, p_target text, p_answer text, p_by text, p_reason text,
                             p_refusal text DEFAULT NULL, p_detail jsonb DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
  INSERT INTO accs.audit (actor, via, action, kind, target, reason, answer, detail, request_id)
  VALUES (left(coalesce(nullif(p_by, ''), session_user), 200), accs.via(), p_action, p_kind, left(p_target, 300),
          left(p_reason, 2000), p_answer,
          nullif(coalesce(p_detail, '{}') || jsonb_strip_nulls(jsonb_build_object('refused', p_refusal)), '{}'),
          left(nullif(current_setting('accs.request_id', true), ''), 200))
  RETURNING answer
$$;

-- The same for a call that named several: one row, with how many of each answer, why which were refused, and the first ids.
CREATE FUNCTION accs.audit_each(p_action text, p_kind text, p_ids text[], p_answers text[], p_refusals text[], p_by text, p_reason text,
                                p_detail jsonb DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_n record;
BEGIN
  IF coalesce(cardinality(p_ids), 0) = 0 THEN   -- nothing was asked for
    RETURN;
  ELSIF cardinality(p_ids) = 1 THEN
    PERFORM accs.audited(p_action, p_kind, p_ids[1], p_answers[1], p_by, p_reason, p_refusals[1], p_detail);
    RETURN;
  END IF;
  SELECT count(*) FILTER (WHERE a = 'accepted') AS accepted, count(*) FILTER (WHERE a = 'repeated') AS repeated,
         count(*) FILTER (WHERE a = 'refused') AS refused INTO v_n FROM unnest(p_answers) a;
  PERFORM accs.audited(p_action, p_kind, NULL,
    CASE WHEN v_n.accepted > 0 THEN 'accepted' WHEN v_n.repeated > 0 THEN 'repeated' ELSE 'refused' END, p_by, p_reason, NULL,
    coalesce(p_detail, '{}') || jsonb_strip_nulls(jsonb_build_object(
      'count', cardinality(p_ids), 'accepted', v_n.accepted, 'repeated', nullif(v_n.repeated, 0),
      'refused', (SELECT jsonb_object_agg(r.why, r.n) FROM (SELECT coalesce(why, 'unknown') AS why, count(*) AS n
                    FROM unnest(p_answers, p_refusals) AS u (answer, why) WHERE u.answer = 'refused' GROUP BY 1) r),
      'ids', to_jsonb(p_ids[1:20]))));
END $$;

-- The same for verbs that answer row by row: the answers go through it.
CREATE FUNCTION accs.audit_answers(p_action text, p_kind text, p_answers accs.answer[], p_by text, p_reason text,
                                   p_detail jsonb DEFAULT NULL)
RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
BEGIN
  PERFORM accs.audit_each(p_action, p_kind, ARRAY(SELECT a.id::text FROM unnest(p_answers) a),
    ARRAY(SELECT a.answer FROM unnest(p_answers) a), ARRAY(SELECT a.reason FROM unnest(p_answers) a), p_by, p_reason, p_detail);
  RETURN QUERY SELECT * FROM unnest(p_answers);
END $$;

-- Somebody was shown what is masked for others.
CREATE FUNCTION accs.note_reveal(p_kind text, p_target text, p_by text, p_reason text DEFAULT NULL, p_detail jsonb DEFAULT NULL)
RETURNS void LANGUAGE sql AS $$ SELECT accs.audited('reveal', p_kind, p_target, 'accepted', p_by, p_reason, NULL, p_detail) $$;
SELECT accs.is_verb('note_reveal', may => '{scheduler,api}');

-- Removes the oldest rows that are older than p_keep, up to p_limit. Their ids tell their order: no index on ts is needed.
CREATE FUNCTION accs.prune_audit(p_keep interval DEFAULT '400 days', p_limit int DEFAULT 10000) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_gone int;
BEGIN
  IF p_keep < interval '30 days' THEN
    RAISE EXCEPTION 'the audit is kept for 30 days at least' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  DELETE FROM accs.audit WHERE ts < accs.clock() - p_keep AND id = ANY (ARRAY(SELECT id FROM accs.audit ORDER BY id LIMIT p_limit));
  GET DIAGNOSTICS v_gone = ROW_COUNT;
  RETURN v_gone;
END $$;
SELECT accs.is_verb('prune_audit', may => '{scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- Access: who acts, tokens, browser sessions, one-time codes
-- ---------------------------------------------------------------------------------------------------------------

-- Who acts. A name is never given to another one. limits: schedules, max_priority, runs_per_hour, least_interval_sec, and tools, the
-- beginnings of the names that it may use; none where one is missing.
CREATE TABLE accs.actors (
  id           uuid PRIMARY KEY DEFAULT accs.new_id(),
  name         text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 200),
  kind         text NOT NULL DEFAULT 'service' CHECK (kind IN ('person', 'service', 'assistant')),
  limits       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(limits) = 'object'
                 AND NOT jsonb_path_exists(limits - 'tools', 'strict $.* ? (@.type() != "number")')
                 AND coalesce(jsonb_typeof(limits -> 'tools'), 'array') = 'array'
                 AND NOT jsonb_path_exists(limits, '$.tools[*] ? (@.type() != "string")')),
  created_at   timestamptz NOT NULL DEFAULT accs.clock(),
  disabled_at  timestamptz
);

CREATE FUNCTION accs.put_actor(p_name text, p_kind text DEFAULT 'service', p_limits jsonb DEFAULT '{}', p_disabled boolean DEFAULT false,
                               p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
  v_id uuid;
BEGIN
  INSERT INTO accs.actors AS a (name, kind, limits, disabled_at) VALUES (p_name, p_kind, p_limits, CASE
    WHEN p_disabled THEN accs.clock() END)
  ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, limits = excluded.limits,
         disabled_at = CASE WHEN p_disabled THEN coalesce(a.disabled_at, excluded.disabled_at) END
  RETURNING id INTO v_id;
  PERFORM accs.audited('put_actor', 'actor', p_name, 'accepted', p_by, p_reason, NULL,
                       jsonb_build_object('kind', p_kind, 'limits', p_limits, 'disabled', p_disabled));
  RETURN v_id;
END $$;
SELECT accs.is_verb('put_actor', may => '{scheduler,api}');

-- What lets somebody in: 256 random bits that their owner alone has, here their SHA-256. id is the part of a token that is no
-- secret. Rights belong to the token: one actor may have several. limits narrows it: {workflows, services, events, tools: names, each
-- may end in *; door, project}. subject: a share, which shows one job.
CREATE TABLE accs.tokens (
  id            text PRIMARY KEY CHECK (id ~ '^[a-z0-9]{8}$'),
  sha256        bytea NOT NULL UNIQUE CHECK (length(sha256) = 32),
  name          text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  actor         text NOT NULL REFERENCES accs.actors (name),
  scopes        text[] NOT NULL CHECK (scopes <> '{}' AND scopes <@ '{read,submit,operate,admin,agent}'),
  limits        jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(limits) = 'object' AND pg_column_size(limits) <= 16384
                  AND limits - '{workflows,services,events,tools,door,project,artifacts}'::text[] = '{}'),
  subject       text CHECK (subject ~ '^job:[0-9a-f-]{36}$'),
  created_at    timestamptz NOT NULL DEFAULT accs.clock(),
  created_by    text NOT NULL,
  expires_at    timestamptz,
  last_used_at  timestamptz,                     -- to the minute
  revoked_at    timestamptz,
  revoked_by    text,
  of_token      text,                            -- the one that it was made with (exchange_token, create_share): it dies with that one
  CHECK (subject IS NULL OR (scopes = '{read}' AND expires_at <= created_at + interval '30 days') IS TRUE)
);

CREATE INDEX tokens_actor ON accs.tokens (actor);

-- The session of a browser. It ends after 12 h without a request, after 7 days, with its token, or when its actor is disabled.
-- scopes: of one that began with a code; otherwise those of the token count, as they are now.
CREATE TABLE accs.sessions (
  id            text PRIMARY KEY CHECK (id ~ '^[a-z0-9]{8}$'),
  sha256        bytea NOT NULL UNIQUE CHECK (length(sha256) = 32),
  actor         text NOT NULL REFERENCES accs.actors (name),
  token_id      text REFERENCES accs.tokens (id) ON DELETE CASCADE,
  scopes        text[] CHECK (scopes <> '{}' AND scopes <@ '{read,submit,operate,admin,agent}'),
  created_at    timestamptz NOT NULL DEFAULT accs.clock(),
  last_seen_at  timestamptz NOT NULL DEFAULT accs.clock(),
  expires_at    timestamptz NOT NULL,
  user_agent    text CHECK (length(user_agent) <= 200),
  CHECK ((token_id IS NULL) = (scopes IS NOT NULL))
);

CREATE INDEX sessions_token ON accs.sessions (token_id) WHERE token_id IS NOT NULL;   -- revoke_token

-- A code that opens one session, within 60 s.
CREATE TABLE accs.login_codes (
  sha256      bytea PRIMARY KEY CHECK (length(sha256) = 32),
  actor       text NOT NULL REFERENCES accs.actors (name),
  scopes      text[] NOT NULL CHECK (scopes <> '{}' AND scopes <@ '{read,submit,operate,admin,agent}'),
  expires_at  timestamptz NOT NULL
);

-- Makes the actor where there is none. Says why nobody may act in that name: it is disabled, or is of another kind.
CREATE FUNCTION accs.flaw_of_actor(p_name text, p_kind text, p_default text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_actor accs.actors;
BEGIN
  INSERT INTO accs.actors (name, kind) VALUES (p_name, coalesce(p_kind, p_default)) ON CONFLICT (name) DO NOTHING;
  SELECT * INTO v_actor FROM accs.actors WHERE name = p_name;
  RETURN CASE WHEN v_actor.disabled_at IS NOT NULL THEN 'actor_disabled' WHEN v_actor.kind <> p_kind THEN 'actor_of_another_kind' END;
END $$;

-- A token whose text the caller has made: only its digest comes here. p_lives null: it never expires. p_kind null: the kind that the
-- actor has, or service.
CREATE FUNCTION accs.create_token(p_id text, p_sha256 bytea, p_name text, p_scopes text[], p_actor text DEFAULT NULL,
                                  p_kind text DEFAULT NULL, p_limits jsonb DEFAULT '{}', p_lives interval DEFAULT '90 days',
                                  p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (answer text, reason text, expires_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_actor text := coalesce(p_actor, p_name);
  v_said  jsonb := jsonb_strip_nulls(jsonb_build_object('name', p_name, 'actor', v_actor, 'scopes', p_scopes,
                                                        'limits', nullif(p_limits, '{}'), 'lives', p_lives));
  v_no    text;
  v_row   accs.tokens;
BEGIN
  SELECT * INTO v_row FROM accs.tokens t WHERE t.id = p_id;
  IF FOUND THEN   -- the answer of the first call was lost; another token of this id is next to impossible, and its maker tries again
    RETURN QUERY SELECT CASE WHEN v_row.sha256 = p_sha256 THEN 'repeated' ELSE 'refused' END,
                        CASE WHEN v_row.sha256 <> p_sha256 THEN 'id_taken' END, v_row.expires_at;
    RETURN;
  END IF;
  v_no := accs.flaw_of_actor(v_actor, p_kind, 'service');
  IF v_no IS NOT NULL THEN
    RETURN QUERY SELECT accs.audited('create_token', 'token', p_id, 'refused', p_by, p_reason, v_no, v_said), v_no, NULL::timestamptz;
    RETURN;
  END IF;
  INSERT INTO accs.tokens (id, sha256, name, actor, scopes, limits, created_by, expires_at)
  VALUES (p_id, p_sha256, p_name, v_actor, p_scopes, p_limits, coalesce(p_by, session_user), accs.clock() + p_lives) RETURNING * INTO v_row;
  RETURN QUERY SELECT accs.audited('create_token', 'token', p_id, 'accepted', p_by, p_reason, NULL, v_said), NULL::text, v_row.expires_at;
END $$;
SELECT accs.is_verb('create_token', may => '{scheduler,api}');

-- A token that shows one job to whoever has it, for 30 days at most. It belongs to the one who shares, and is dead when that one is
-- disabled. p_of: the token that he came with; the share lasts no longer than that one, and dies with it.
CREATE FUNCTION accs.create_share(p_id text, p_sha256 bytea, p_job uuid, p_lives interval, p_artifacts boolean DEFAULT false,
                                  p_by text DEFAULT NULL, p_reason text DEFAULT NULL, p_of text DEFAULT NULL)
RETURNS TABLE (answer text, reason text, expires_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_actor text := coalesce(p_by, session_user);
  v_of    accs.tokens;
  v_no    text;
  v_row   accs.tokens;
BEGIN
  SELECT * INTO v_row FROM accs.tokens t WHERE t.id = p_id;
  IF FOUND THEN
    RETURN QUERY SELECT CASE WHEN v_row.sha256 = p_sha256 THEN 'repeated' ELSE 'refused' END,
                        CASE WHEN v_row.sha256 <> p_sha256 THEN 'id_taken' END, v_row.expires_at;
    RETURN;
  END IF;
  v_no := CASE WHEN NOT EXISTS (SELECT FROM public.jobs j WHERE j.id = p_job) THEN 'not_found'
               WHEN (p_lives BETWEEN interval '0' AND interval '30 days') IS NOT TRUE THEN 'lives_too_long' END;
  v_no := coalesce(v_no, accs.flaw_of_actor(v_actor, NULL, 'person'));
  IF v_no IS NULL THEN
    SELECT * INTO v_of FROM accs.tokens WHERE id = p_of;
    INSERT INTO accs.tokens (id, sha256, name, actor, scopes, limits, subject, created_by, expires_at, of_token)
    VALUES (p_id, p_sha256, 'share of job ' || right(p_job::text, 8), v_actor, '{read}',
            CASE WHEN p_artifacts THEN '{"artifacts": true}'::jsonb ELSE '{}' END, 'job:' || p_job, v_actor,
            least(accs.clock() + p_lives, v_of.expires_at), coalesce(v_of.of_token, v_of.id))
    RETURNING * INTO v_row;
  END IF;
  RETURN QUERY SELECT accs.audited('create_share', 'job', p_job::text, CASE WHEN v_no IS NULL THEN 'accepted' ELSE 'refused' END, p_by,
                                   p_reason, v_no, jsonb_build_object('share', p_id, 'lives', p_lives, 'artifacts', p_artifacts)),
                      v_no, v_row.expires_at;
END $$;
SELECT accs.is_verb('create_share', may => '{scheduler,api}');

-- Ends a token, and its sessions with it.
CREATE FUNCTION accs.revoke_token(p_id text, p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS TABLE (answer text, reason text)
LANGUAGE plpgsql AS $$
DECLARE
  v_ended int;
BEGIN
  UPDATE accs.tokens SET revoked_at = accs.clock(), revoked_by = coalesce(p_by, session_user) WHERE id = p_id AND revoked_at IS NULL;
  IF FOUND THEN
    DELETE FROM accs.sessions WHERE token_id = p_id;
    GET DIAGNOSTICS v_ended = ROW_COUNT;
    RETURN QUERY SELECT accs.audited('revoke_token', 'token', p_id, 'accepted', p_by, p_reason, NULL,
                                     jsonb_strip_nulls(jsonb_build_object('sessions', nullif(v_ended, 0)))), NULL::text;
  ELSIF EXISTS (SELECT FROM accs.tokens WHERE id = p_id) THEN
    RETURN QUERY SELECT accs.audited('revoke_token', 'token', p_id, 'repeated', p_by, p_reason), NULL::text;
  ELSE
    RETURN QUERY SELECT accs.audited('revoke_token', 'token', p_id, 'refused', p_by, p_reason, 'not_found'), 'not_found'::text;
  END IF;
END $$;
SELECT accs.is_verb('revoke_token', may => '{scheduler,api}');

-- The one place that says which tokens let somebody in.
CREATE VIEW accs.live_tokens AS
  SELECT t.id, t.sha256, t.actor, a.kind, t.scopes, t.limits, t.subject, t.last_used_at, t.expires_at
    FROM accs.tokens t JOIN accs.actors a ON a.name = t.actor
   WHERE t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > accs.clock()) AND a.disabled_at IS NULL
     AND (t.of_token IS NULL OR EXISTS (SELECT FROM accs.tokens o WHERE o.id = t.of_token AND o.revoked_at IS NULL));

-- Who comes with a token: a row, or none. It only reads; is_stale says that touch_token is due. The digest is found by equality: whoever
-- could measure how far two digests agree would learn the beginning of a SHA-256, which tells nothing about the 256 random bits.
CREATE FUNCTION accs.check_token(p_id text, p_sha256 bytea)
RETURNS TABLE (actor text, kind text, scopes text[], limits jsonb, subject text, is_stale boolean) LANGUAGE sql STABLE AS $$
  SELECT t.actor, t.kind, t.scopes, t.limits, t.subject, (t.last_used_at >= date_trunc('minute', accs.clock())) IS NOT TRUE
    FROM accs.live_tokens t WHERE t.id = p_id AND t.sha256 = p_sha256
$$;
SELECT accs.is_verb('check_token', may => '{scheduler,api}');

-- A token for whoever comes with another one, such as the secret of an agent: of the same actor, with the same scopes and limits. It ends
-- after p_lives, and never later than that one. No row: that one lets nobody in, is a share, or is not of this actor.
CREATE FUNCTION accs.exchange_token(p_id text, p_sha256 bytea, p_with text, p_with_sha256 bytea, p_lives interval,
  p_actor uuid DEFAULT NULL)
RETURNS TABLE (actor text, scopes text[], expires_in interval) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO accs.tokens (id, sha256, name, actor, scopes, limits, created_by, expires_at, of_token)
  SELECT p_id, p_sha256, left('access by ' || t.name, 200), t.actor, t.scopes, t.limits, t.actor,
         least(accs.clock() + p_lives, t.expires_at), coalesce(t.of_token, t.id)
    FROM accs.live_tokens l JOIN accs.tokens t ON t.id = l.id JOIN accs.actors a ON a.name = t.actor
   WHERE l.id = p_with AND l.sha256 = p_with_sha256 AND l.subject IS NULL AND (p_actor IS NULL OR a.id = p_actor)
  ON CONFLICT (id) DO NOTHING;   -- the answer of the first call was lost
  RETURN QUERY SELECT t.actor, t.scopes, t.expires_at - accs.clock() FROM accs.tokens t WHERE t.id = p_id AND t.sha256 = p_sha256;
END $$;
SELECT accs.is_verb('exchange_token', may => '{scheduler,api}');

CREATE FUNCTION accs.touch_token(p_id text) RETURNS void LANGUAGE sql AS $$
  UPDATE accs.tokens SET last_used_at = date_trunc('minute', accs.clock())
   WHERE id = p_id AND (last_used_at >= date_trunc('minute', accs.clock())) IS NOT TRUE
$$;
SELECT accs.is_verb('touch_token', may => '{scheduler,api}');

-- All tokens, without what would let anybody in.
CREATE FUNCTION accs.list_tokens() RETURNS TABLE (
  id text, name text, actor text, kind text, scopes text[], limits jsonb, subject text, created_at timestamptz, created_by text,
  expires_at timestamptz, last_used_at timestamptz, revoked_at timestamptz, revoked_by text, state text
) LANGUAGE sql STABLE AS $$
  SELECT t.id, t.name, t.actor, a.kind, t.scopes, t.limits, t.subject, t.created_at, t.created_by, t.expires_at, t.last_used_at,
         coalesce(t.revoked_at, o.revoked_at), coalesce(t.revoked_by, o.revoked_by),
         CASE WHEN t.revoked_at IS NOT NULL OR o.revoked_at IS NOT NULL THEN 'revoked' WHEN t.expires_at <= accs.clock() THEN 'expired'
              WHEN a.disabled_at IS NOT NULL THEN 'disabled' ELSE 'live' END
    FROM accs.tokens t JOIN accs.actors a ON a.name = t.actor LEFT JOIN accs.tokens o ON o.id = t.of_token ORDER BY t.created_at DESC, t.id
$$;
SELECT accs.is_verb('list_tokens', may => '{scheduler,api}');

-- Whether anybody could come from elsewhere: a share is no reason to be open to others.
CREATE FUNCTION accs.any_tokens() RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT FROM accs.live_tokens WHERE subject IS NULL)
$$;
SELECT accs.is_verb('any_tokens', may => '{scheduler,api}');

-- A code for whoever can reach this database already. Only its digest comes here.
CREATE FUNCTION accs.create_code(p_sha256 bytea, p_actor text, p_scopes text[], p_by text DEFAULT NULL)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
DECLARE
  v_no text := accs.flaw_of_actor(p_actor, NULL, 'person');
BEGIN
  IF v_no IS NULL THEN
    INSERT INTO accs.login_codes (sha256, actor, scopes, expires_at) VALUES (p_sha256, p_actor, p_scopes, accs.clock() + interval '60 s')
    ON CONFLICT (sha256) DO NOTHING;
  END IF;
  RETURN QUERY SELECT accs.audited('create_code', 'actor', p_actor, CASE WHEN v_no IS NULL THEN 'accepted' ELSE 'refused' END,
                                   coalesce(p_by, p_actor), NULL, v_no, jsonb_build_object('scopes', p_scopes)), v_no;
END $$;
SELECT accs.is_verb('create_code', may => '{scheduler,api}');

-- Which sessions are alive, with what their callers may now.
CREATE VIEW accs.live_sessions AS
  SELECT s.id, s.sha256, s.actor, a.kind, coalesce(t.scopes, s.scopes) AS scopes, coalesce(t.limits, '{}') AS limits, s.token_id, t.subject,
         s.created_at, s.last_seen_at, s.expires_at, s.user_agent
    FROM accs.sessions s JOIN accs.actors a ON a.name = s.actor LEFT JOIN accs.live_tokens t ON t.id = s.token_id
   WHERE s.expires_at > accs.clock() AND a.disabled_at IS NULL AND (s.token_id IS NULL OR t.id IS NOT NULL);

-- Opens a session for a live token, or for a code, which is spent by it. No row: neither lets anybody in.
CREATE FUNCTION accs.open_session(p_id text, p_sha256 bytea, p_token_id text, p_token_sha256 bytea, p_code_sha256 bytea,
                                  p_user_agent text DEFAULT NULL)
RETURNS TABLE (actor text, kind text, scopes text[], limits jsonb, token_id text, subject text, expires_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_who record;
BEGIN
  IF p_code_sha256 IS NOT NULL THEN
    DELETE FROM accs.login_codes WHERE sha256 = p_code_sha256 AND expires_at > accs.clock()
    RETURNING actor, NULL::text AS token_id, scopes INTO v_who;
  ELSE
    SELECT t.actor, t.id AS token_id, NULL::text[] AS scopes INTO v_who FROM accs.live_tokens t
     WHERE t.id = p_token_id AND t.sha256 = p_token_sha256;
  END IF;
  IF v_who.actor IS NULL THEN
    RETURN;
  END IF;
  INSERT INTO accs.sessions (id, sha256, actor, token_id, scopes, expires_at, user_agent)
  VALUES (p_id, p_sha256, v_who.actor, v_who.token_id, v_who.scopes, accs.clock() + interval '12 hours', left(p_user_agent, 200));
  PERFORM accs.touch_token(v_who.token_id);
  RETURN QUERY SELECT s.actor, s.kind, s.scopes, s.limits, s.token_id, s.subject, s.expires_at FROM accs.live_sessions s WHERE s.id = p_id;
END $$;
SELECT accs.is_verb('open_session', may => '{scheduler,api}');

-- Who comes with a session's cookie: as check_token, it only reads.
CREATE FUNCTION accs.check_session(p_id text, p_sha256 bytea)
RETURNS TABLE (actor text, kind text, scopes text[], limits jsonb, token_id text, subject text, is_stale boolean) LANGUAGE sql STABLE AS $$
  SELECT s.actor, s.kind, s.scopes, s.limits, s.token_id, s.subject, s.last_seen_at <= accs.clock() - interval '1 min'
    FROM accs.live_sessions s WHERE s.id = p_id AND s.sha256 = p_sha256
$$;
SELECT accs.is_verb('check_session', may => '{scheduler,api}');

-- The session was used: it lives 12 h from now, but not longer than 7 days.
CREATE FUNCTION accs.touch_session(p_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE accs.sessions SET last_seen_at = accs.clock(),
         expires_at = least(accs.clock() + interval '12 hours', created_at + interval '7 days')
   WHERE id = p_id AND last_seen_at <= accs.clock() - interval '1 min' AND expires_at > accs.clock();
  IF FOUND THEN
    PERFORM accs.touch_token(s.token_id) FROM accs.sessions s WHERE s.id = p_id;
  END IF;
END $$;
SELECT accs.is_verb('touch_session', may => '{scheduler,api}');

CREATE FUNCTION accs.list_sessions() RETURNS TABLE (id text, actor text, token_id text, created_at timestamptz, last_seen_at timestamptz,
                                                    expires_at timestamptz, user_agent text) LANGUAGE sql STABLE AS $$
  SELECT s.id, s.actor, s.token_id, s.created_at, s.last_seen_at, s.expires_at, s.user_agent FROM accs.live_sessions s
   ORDER BY s.created_at DESC, s.id
$$;
SELECT accs.is_verb('list_sessions', may => '{scheduler,api}');

-- Who ends a session that is another one's (p_by) is in the audit; to log out is not.
CREATE FUNCTION accs.end_session(p_id text, p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_actor text;
BEGIN
  DELETE FROM accs.sessions WHERE id = p_id RETURNING actor INTO v_actor;
  IF v_actor <> p_by THEN
    PERFORM accs.audited('end_session', 'session', p_id, 'accepted', p_by, p_reason, NULL, jsonb_build_object('actor', v_actor));
  END IF;
  RETURN CASE WHEN v_actor IS NULL THEN 'repeated' ELSE 'accepted' END;
END $$;
SELECT accs.is_verb('end_session', may => '{scheduler,api}');

-- Removes what lets nobody in any more: codes, sessions and exchanged tokens at once, others when the audit forgets them too. Returns how
-- many.
CREATE FUNCTION accs.forget_access(p_keep interval DEFAULT '400 days') RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_codes    int;
  v_sessions int;
  v_tokens   int;
BEGIN
  DELETE FROM accs.login_codes WHERE expires_at <= accs.clock();
  GET DIAGNOSTICS v_codes = ROW_COUNT;
  DELETE FROM accs.sessions s WHERE NOT EXISTS (SELECT FROM accs.live_sessions l WHERE l.id = s.id);
  GET DIAGNOSTICS v_sessions = ROW_COUNT;
  DELETE FROM accs.tokens t WHERE least(t.revoked_at, t.expires_at) < accs.clock() -
    CASE WHEN t.of_token IS NULL OR t.subject IS NOT NULL THEN p_keep ELSE '0' END;
  GET DIAGNOSTICS v_tokens = ROW_COUNT;
  RETURN v_codes + v_sessions + v_tokens;
END $$;
SELECT accs.is_verb('forget_access', may => '{scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- Workflows: checked and compiled when they are written
-- ---------------------------------------------------------------------------------------------------------------

CREATE TABLE public.workflows (
  id          uuid PRIMARY KEY DEFAULT accs.new_id(),
  name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  version     int NOT NULL DEFAULT 1 CHECK (version >= 1),
  is_active   boolean NOT NULL DEFAULT true,
  steps       jsonb NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT accs.clock(),
  updated_at  timestamptz NOT NULL DEFAULT accs.clock(),
  created_by  text,
  notify      text[] NOT NULL DEFAULT '{}',     -- accs.outgoing_events that targets of the outbox are told beside their own
  params      jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(params) = 'object'),   -- expressions: params, where options say nothing
  options_schema  jsonb CHECK (jsonb_typeof(options_schema) = 'object'),            -- JSON Schema of jobs.options
  files       jsonb NOT NULL DEFAULT '[]',      -- what its tasks are given: [{name, key, size, sha256}], objects in the store
  title       text CHECK (length(title) BETWEEN 1 AND 200),   -- for people, who find it beside the name
  meta        jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(meta) = 'object'),   -- what doors keep with it: {"joblib": {"schema": …}}
  UNIQUE (name, version)
);

-- A lane is a set of nodes that may take a task: those that serve it, have these labels and, if named, this name.
-- Tasks that only some nodes may take stand in a lane of their own, never at the head of one that all scan.
CREATE TABLE accs.lanes (
  id        int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  service   text NOT NULL,
  requires  jsonb NOT NULL,
  node      text
);

-- claim_tasks, by service; hashed, because labels may be longer than an index takes
CREATE UNIQUE INDEX lanes_service ON accs.lanes (service, md5(requires::text), coalesce(node, ''));

-- A workflow that passed every check, and its steps.
CREATE TABLE accs.plans (
  workflow_id  uuid PRIMARY KEY REFERENCES public.workflows (id) ON DELETE CASCADE,
  step_count   int NOT NULL,
  first_key    text NOT NULL
);

CREATE TABLE accs.steps (
  workflow_id      uuid NOT NULL REFERENCES accs.plans (workflow_id) ON DELETE CASCADE,
  step_no          int NOT NULL,
  task_key         text NOT NULL,
  service          text NOT NULL,
  depends_on       text[] NOT NULL,
  dependants       int[],
  params           jsonb NOT NULL,
  max_attempts     int NOT NULL,
  timeout_sec      double precision,
  backoff          jsonb,
  requires         jsonb NOT NULL,
  node             text,
  concurrency_key  text,
  lane             int NOT NULL,
  notify           text[],
  resolve          boolean,          -- true: its tasks wait for the resolver before they can be claimed
  files            int,              -- accs.file_sets, where its tasks are given files
  PRIMARY KEY (workflow_id, step_no)
);

CREATE INDEX steps_roots ON accs.steps (workflow_id, lane, concurrency_key) WHERE depends_on = '{}' AND resolve IS NULL;   -- wake_demand

CREATE FUNCTION accs.invalid(p_workflow text, p_problem text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'workflow "%": %', p_workflow, p_problem USING ERRCODE = 'AC001';
END $$;

CREATE FUNCTION accs.backoff_is_valid(p jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE jsonb_typeof(p)
    WHEN 'array' THEN jsonb_array_length(p) > 0
                      AND NOT jsonb_path_exists(p, 'strict $[*] ? (@.type() != "number" || @ < 0 || @ > 31622400)', silent => true)
    WHEN 'object' THEN (NOT p ? 'strategy' OR p ->> 'strategy' IN ('exponential', 'linear', 'fixed'))
                       AND (p - '{strategy,base,cap}'::text[]) = '{}'
                       AND NOT jsonb_path_exists(p, 'strict $.* ? (@.type() == "number" && (@ < 0 || @ > 31622400))')
                       AND coalesce(jsonb_typeof(p -> 'base'), 'null') IN ('number', 'null')
                       AND coalesce(jsonb_typeof(p -> 'cap'), 'null') IN ('number', 'null')
    ELSE false END
$$;

CREATE FUNCTION accs.step_fields() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT '{key,service,depends_on,default_params,max_attempts,backoff,timeout,requires,node,concurrency_key,concurrency_limit,
           uses,with,save_as,if,delay,for_each,if_item,max_parallel,max_items,tolerate,cache,files}'::text[]
$$;

-- What is wrong with a step's cache; null: nothing. A text such as 7d is read in Python.
CREATE FUNCTION accs.flaw_of_cache(s jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN jsonb_typeof(s -> 'cache') NOT IN ('number', 'string', 'object') OR jsonb_typeof(c.lasts) IS NULL
         OR jsonb_typeof(c.lasts) NOT IN ('number', 'string')
         OR jsonb_typeof(s -> 'cache') = 'object' AND (s -> 'cache') - '{for,salt}'::text[] <> '{}'
         OR s -> 'cache' ? 'salt' AND (jsonb_typeof(s -> 'cache' -> 'salt') <> 'string' OR length(s -> 'cache' ->> 'salt') > 200)
      THEN 'cache must be a number of seconds, a text such as 7d, or {"for": seconds, "salt": text}'
    WHEN jsonb_typeof(c.lasts) = 'number' AND (c.lasts #>> '{}')::numeric NOT BETWEEN 1 AND 31536000
      THEN 'cache must be at least 1 second and at most 365 days'
    WHEN s ? 'delay' THEN 'cache and delay exclude each other'
    WHEN starts_with(s ->> 'uses', 'accs.') THEN 'the result of a tool of accsd itself is not cached'
  END
    FROM (SELECT CASE jsonb_typeof(s -> 'cache') WHEN 'object' THEN s -> 'cache' -> 'for' ELSE s -> 'cache' END AS lasts) c
$$;

-- What is wrong with the shape of the fields by which data flows; null: nothing. What their expressions say is Python's to check: before a
-- workflow is written, or else by the resolver.
CREATE FUNCTION accs.flaw_of_flow(s jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN coalesce(jsonb_typeof(s -> 'with'), 'object') <> 'object' THEN 'with must be a JSON object'
    WHEN pg_column_size(s -> 'with') > 65536 AND octet_length((s -> 'with')::text) > 98304 THEN 'with is larger than 64 KiB'
    WHEN jsonb_path_exists(s -> 'with', 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")')
      THEN 'with is nested deeper than 64 levels'
    WHEN s ? 'save_as' AND (jsonb_typeof(s -> 'save_as') <> 'string' OR s ->> 'save_as' !~ '^[A-Za-z_][A-Za-z0-9_]{0,99}$')
      THEN 'save_as must be a name: letters, digits and "_", not beginning with a digit, no longer than 100'
    WHEN s ? 'if' AND jsonb_typeof(s -> 'if') NOT IN ('string', 'boolean') THEN 'if must be an expression'
    WHEN s ? 'if_item' AND jsonb_typeof(s -> 'if_item') NOT IN ('string', 'boolean') THEN 'if_item must be an expression'
    WHEN s ? 'delay' AND jsonb_typeof(s -> 'delay') NOT IN ('string', 'number')
      THEN 'delay must be a number of seconds, a text such as 10m, or an expression'
    WHEN s ? 'for_each' AND jsonb_typeof(s -> 'for_each') NOT IN ('string', 'number', 'array', 'object')
      THEN 'for_each must be an expression, a list, an object or a whole number'
    WHEN NOT s ? 'for_each' AND s ?| '{if_item,max_parallel,max_items,tolerate}'
      THEN format('%s needs a for_each', (SELECT k FROM unnest('{if_item,max_parallel,max_items,tolerate}'::text[]) k WHERE s ? k LIMIT 1))
    WHEN s ? 'max_parallel' AND (jsonb_typeof(s -> 'max_parallel') <> 'number' OR s ->> 'max_parallel' !~ '^([1-9][0-9]{0,5}|1000000)$')
      THEN 'max_parallel must be a whole number from 1 to 1,000,000'
    WHEN s ? 'max_parallel' AND s ->> 'concurrency_key' IS NOT NULL THEN 'max_parallel and concurrency_key exclude each other'
    WHEN s ? 'max_items' AND (jsonb_typeof(s -> 'max_items') <> 'number' OR s ->> 'max_items' !~ '^([1-9][0-9]{0,3}|10000)$')
      THEN 'max_items must be a whole number from 1 to 10,000'
    WHEN s ? 'tolerate' AND s ->> 'tolerate' !~ CASE jsonb_typeof(s -> 'tolerate') WHEN 'number' THEN '^[0-9]{1,5}$'
                                                     WHEN 'string' THEN '^([0-9]|[1-9][0-9]|100)%$' ELSE '^$' END
      THEN 'tolerate must be a number of items, or a share of them such as 10%'
    WHEN s ? 'cache' THEN accs.flaw_of_cache(s)
  END
$$;

-- Each step is looked at once; the first problem in the order of the steps is reported. Speaks of step "key" where
-- there is one, else of step number n. (The planner takes a JSON array for 100 rows: nested loops would be quadratic.
-- PostgreSQL before 18 prices what is disabled so high that it would compile the plan, for a second each time.)
CREATE FUNCTION accs.check_steps(p_name text, p_steps jsonb) RETURNS void LANGUAGE plpgsql SET enable_nestloop = off SET jit = off AS $$
DECLARE
  v_problem text;
BEGIN
  IF jsonb_typeof(p_steps) IS DISTINCT FROM 'array' THEN
    PERFORM accs.invalid(p_name, 'steps must be a JSON array');
  ELSIF jsonb_array_length(p_steps) = 0 THEN
    PERFORM accs.invalid(p_name, 'there is no step');
  ELSIF jsonb_array_length(p_steps) > 100000 THEN
    PERFORM accs.invalid(p_name, format('%s steps are more than the 100,000 that a job may have', jsonb_array_length(p_steps)));
  END IF;

  WITH step AS MATERIALIZED (
    SELECT n, s, CASE WHEN jsonb_typeof(s) = 'object' THEN s ->> 'key' END AS key
      FROM jsonb_array_elements(p_steps) WITH ORDINALITY AS e (s, n)
  ), flaw AS (
    SELECT n, CASE WHEN key <> '' THEN format('step "%s"', key) ELSE format('step number %s', n) END || ': ' ||
      CASE
        WHEN jsonb_typeof(s) <> 'object' THEN 'must be a JSON object'
        WHEN jsonb_typeof(s -> 'key') IS DISTINCT FROM 'string' OR s ->> 'key' = '' THEN 'key is missing or empty'
        WHEN key !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'
          THEN 'a key has letters, digits, ".", "_" and "-" only, begins with a letter or digit, and is no longer than 100'
        WHEN s - accs.step_fields() <> '{}'
          THEN format('unknown field "%s"', (SELECT k FROM jsonb_object_keys(s - accs.step_fields()) k LIMIT 1))
        WHEN jsonb_typeof(s -> 'service') IS DISTINCT FROM 'string' OR s ->> 'service' = '' THEN 'service is missing or empty'
        WHEN s ->> 'service' !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$'
          THEN format('"%s" is no service name: letters, digits, ".", "_" and "-" only, beginning with a letter or digit, '
                      'no longer than 40', s ->> 'service')
        WHEN s ->> 'service' = 'builder' THEN 'the service name "builder" is reserved'
        WHEN s ->> 'service' = 'accs' AND NOT s ? 'uses' THEN 'the service "accs" is for tools: say which one (uses)'
        WHEN s ? 'uses' AND accs.flaw_of_use(s) IS NOT NULL THEN accs.flaw_of_use(s)
        WHEN coalesce(jsonb_typeof(s -> 'depends_on'), 'array') <> 'array'
             OR jsonb_path_exists(s, 'strict $.depends_on[*] ? (@.type() != "string")', silent => true)
          THEN 'depends_on must be a list of step keys'
        WHEN coalesce(jsonb_typeof(s -> 'default_params'), 'object') <> 'object' THEN 'default_params must be a JSON object'
        -- by either measure: jsonb is large for small numbers, its text for large ones, and the text has spaces
        WHEN pg_column_size(s -> 'default_params') > 65536 AND octet_length((s -> 'default_params')::text) > 98304
          THEN 'default_params are larger than 64 KiB'
        WHEN jsonb_path_exists(s -> 'default_params', 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")')
          THEN 'default_params are nested deeper than 64 levels'
        WHEN s ? 'max_attempts' AND (jsonb_typeof(s -> 'max_attempts') <> 'number' OR s ->> 'max_attempts' !~ '^([1-9][0-9]{0,5}|1000000)$')
          THEN 'max_attempts must be a whole number from 1 to 1,000,000'
        WHEN coalesce(jsonb_typeof(s -> 'timeout'), 'null') <> 'null'
             AND (jsonb_typeof(s -> 'timeout') <> 'number' OR (s ->> 'timeout')::numeric NOT BETWEEN 5e-324 AND 1e308)
          THEN 'timeout must be a number of seconds above 0'
        WHEN coalesce(jsonb_typeof(s -> 'requires'), 'object') <> 'object'
             OR jsonb_path_exists(s, 'strict $.requires.* ? (@.type() == "object" || @.type() == "array" || @.type() == "null")',
                                  silent => true)
          THEN 'requires must be a JSON object of labels, which are texts, numbers, true or false'
        WHEN coalesce(jsonb_typeof(s -> 'node'), 'null') NOT IN ('string', 'null') OR length(s ->> 'node') NOT BETWEEN 1 AND 200
          THEN 'node must be the name of a node'
        WHEN coalesce(jsonb_typeof(s -> 'concurrency_key'), 'null') NOT IN ('string', 'null')
             OR length(s ->> 'concurrency_key') NOT BETWEEN 1 AND 200
          THEN 'concurrency_key must be a text of up to 200 characters'
        WHEN coalesce(jsonb_typeof(s -> 'concurrency_limit'), 'null') <> 'null'
             AND (jsonb_typeof(s -> 'concurrency_limit') <> 'number' OR s ->> 'concurrency_limit' !~ '^([1-9][0-9]{0,5}|1000000)$')
          THEN 'concurrency_limit must be a whole number from 1 to 1,000,000'
        WHEN s ->> 'concurrency_limit' IS NOT NULL AND s ->> 'concurrency_key' IS NULL THEN 'concurrency_limit needs a concurrency_key'
        WHEN starts_with(s ->> 'concurrency_key', 'map/') THEN 'a concurrency_key that begins with "map/" is reserved'
        WHEN coalesce(jsonb_typeof(s -> 'backoff'), 'null') <> 'null' AND accs.backoff_is_valid(s -> 'backoff') IS NOT TRUE
          THEN 'backoff must be {"strategy": "exponential" | "linear" | "fixed", "base": seconds, "cap": seconds} '
               'or a list of seconds, none above 366 days'
        WHEN s ? 'files' AND (jsonb_typeof(s -> 'files') <> 'array' OR jsonb_array_length(s -> 'files') > 1000
                              OR jsonb_path_exists(s, 'strict $.files[*] ? (@.type() != "string")', silent => true))
          THEN 'files must be a list of up to 1,000 names of files of the workflow, or of folders of them'
        WHEN s ?| '{with,save_as,if,delay,for_each,if_item,max_parallel,max_items,tolerate,cache}' THEN accs.flaw_of_flow(s)
      END AS problem
      FROM step
  ), twice AS (
    SELECT max(n) AS n, format('step "%s": the key is used by %s steps', key, count(*)) AS problem
      FROM step WHERE key IS NOT NULL GROUP BY key HAVING count(*) > 1
  ), needs AS (
    SELECT n, key, d FROM step, LATERAL jsonb_array_elements_text(
      CASE WHEN jsonb_typeof(s) = 'object' AND jsonb_typeof(s -> 'depends_on') = 'array' THEN s -> 'depends_on' ELSE '[]' END) d
  ), needs_flaw AS (
    SELECT n, format(CASE WHEN d = key THEN 'step "%s": depends on itself'
                          WHEN o.found IS NULL THEN 'step "%s": depends on "%s", which does not exist'
                          ELSE 'step "%s": names "%s" more than once in depends_on' END, key, d) AS problem
      FROM (SELECT n, key, d, count(*) AS times FROM needs GROUP BY 1, 2, 3) x
      LEFT JOIN (SELECT DISTINCT key AS found FROM step) o ON o.found = x.d
     WHERE d = key OR o.found IS NULL OR times > 1
  )
  SELECT problem INTO v_problem
    FROM (SELECT * FROM flaw WHERE problem IS NOT NULL UNION ALL SELECT * FROM twice UNION ALL SELECT * FROM needs_flaw) f
   ORDER BY n LIMIT 1;
  IF v_problem IS NOT NULL THEN
    PERFORM accs.invalid(p_name, v_problem);
  END IF;
END $$;

-- Peels off the steps whose dependencies are all peeled; what is left contains a cycle. Arrays indexed by step number
-- keep it linear: 100,000 steps take well under a second.
CREATE FUNCTION accs.check_acyclic(p_name text, p_workflow uuid) RETURNS void LANGUAGE plpgsql SET enable_nestloop = on SET jit = off AS $$
DECLARE
  v_left   int[];        -- unfinished dependencies by step
  v_first  int[];        -- where a step's dependants begin in v_dependant
  v_dependant int[];
  v_todo   int[];
  v_done   int := 0;
  v_step   int;
  v_child  int;
  v_at     int;
  v_path   int[] := '{}';
BEGIN
  SELECT array_agg(cardinality(depends_on) ORDER BY step_no), array_agg(before ORDER BY step_no),
         coalesce(array_agg(step_no ORDER BY step_no) FILTER (WHERE depends_on = '{}'), '{}')
    INTO v_left, v_first, v_todo
    FROM (SELECT *, 1 + (sum(coalesce(cardinality(dependants), 0)) OVER (ORDER BY step_no))::int
                      - coalesce(cardinality(dependants), 0) AS before
            FROM accs.steps WHERE workflow_id = p_workflow) s;
  SELECT array_agg(d ORDER BY step_no, d) INTO v_dependant
    FROM accs.steps, unnest(dependants) d WHERE workflow_id = p_workflow;
  v_first := v_first || (1 + coalesce(cardinality(v_dependant), 0));
  WHILE v_done < cardinality(v_todo) LOOP
    v_done := v_done + 1;
    v_step := v_todo[v_done];
    FOR v_at IN v_first[v_step] .. v_first[v_step + 1] - 1 LOOP
      v_child := v_dependant[v_at];
      v_left[v_child] := v_left[v_child] - 1;
      IF v_left[v_child] = 0 THEN
        v_todo := v_todo || v_child;
      END IF;
    END LOOP;
  END LOOP;
  IF v_done = cardinality(v_left) THEN
    RETURN;
  END IF;
  -- walk upwards among the steps that are left until one comes again: that is a cycle to show
  SELECT i INTO v_step FROM unnest(v_left) WITH ORDINALITY u (n, i) WHERE n > 0 ORDER BY i LIMIT 1;
  -- (bounded: a cycle longer than anybody would read is only named by where it was met)
  WHILE array_position(v_path, v_step) IS NULL AND cardinality(v_path) < 50 LOOP
    v_path := v_path || v_step;
    SELECT p.step_no INTO v_step FROM accs.steps s JOIN accs.steps p ON p.workflow_id = s.workflow_id AND p.task_key = ANY (s.depends_on)
     WHERE s.workflow_id = p_workflow AND s.step_no = v_path[cardinality(v_path)] AND v_left[p.step_no] > 0
     ORDER BY p.step_no LIMIT 1;
  END LOOP;
  IF array_position(v_path, v_step) IS NOT NULL THEN
    v_path := v_path[array_position(v_path, v_step):] || v_step;
  END IF;
  PERFORM accs.invalid(p_name, format('step "%s" depends on itself in a cycle: %s',
    (SELECT task_key FROM accs.steps WHERE workflow_id = p_workflow AND step_no = v_step),
    (SELECT string_agg(s.task_key, ' → ' ORDER BY i DESC) FROM unnest(v_path) WITH ORDINALITY u (n, i)
       JOIN accs.steps s ON s.workflow_id = p_workflow AND s.step_no = u.n)));
END $$;

CREATE FUNCTION accs.check_notify(p_name text, p_notify text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_event text;
BEGIN
  FOREACH v_event IN ARRAY p_notify LOOP
    IF v_event = ANY (accs.outgoing_events()) IS NOT TRUE THEN
      PERFORM accs.invalid(p_name, format('notify: "%s" is no event; there are %s', v_event,
                                          array_to_string(accs.outgoing_events(), ', ')));
    END IF;
  END LOOP;
END $$;

CREATE FUNCTION accs.compile_workflow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_nestloop = off SET jit = off AS $$
DECLARE
  v_keys text[];
BEGIN
  PERFORM accs.check_steps(NEW.name, NEW.steps);
  PERFORM accs.check_notify(NEW.name, NEW.notify);

  DELETE FROM accs.plans WHERE workflow_id = NEW.id;
  INSERT INTO accs.plans (workflow_id, step_count, first_key)
  VALUES (NEW.id, jsonb_array_length(NEW.steps),
          coalesce((SELECT s ->> 'key' FROM jsonb_array_elements(NEW.steps) WITH ORDINALITY e (s, n)
                     WHERE coalesce(s -> 'depends_on', '[]') = '[]' ORDER BY n LIMIT 1), ''));

  -- in order, here and below: two workflows written at once must not wait for each other
  WITH changed AS (
    INSERT INTO accs.concurrency_keys AS k (key, max_running)
    SELECT s ->> 'concurrency_key', max(coalesce((s ->> 'concurrency_limit')::int, 1))
      FROM jsonb_array_elements(NEW.steps) s WHERE s ->> 'concurrency_key' IS NOT NULL GROUP BY 1 ORDER BY 1
    ON CONFLICT (key) DO UPDATE SET max_running = excluded.max_running
      WHERE k.max_running <> excluded.max_running
        AND EXISTS (SELECT FROM jsonb_array_elements(NEW.steps) s
                     WHERE s ->> 'concurrency_key' = k.key AND s ->> 'concurrency_limit' IS NOT NULL)
    RETURNING key)
  SELECT array_agg(key) INTO v_keys FROM changed;
  PERFORM accs.admit(v_keys);

  INSERT INTO accs.lanes (service, requires, node)
  SELECT DISTINCT s ->> 'service', coalesce(s -> 'requires', '{}'), s ->> 'node'
    FROM jsonb_array_elements(NEW.steps) s ORDER BY 1, 2, 3
  ON CONFLICT DO NOTHING;

  INSERT INTO accs.steps (workflow_id, step_no, task_key, service, depends_on, dependants, params, max_attempts, timeout_sec,
                          backoff, requires, node, concurrency_key, lane, notify, resolve)
  WITH step AS MATERIALIZED (
    SELECT n::int AS n, s, s ->> 'key' AS key, s ->> 'service' AS service, s ->> 'node' AS node,
           coalesce(s -> 'requires', '{}') AS requires,
           ARRAY(SELECT jsonb_array_elements_text(coalesce(s -> 'depends_on', '[]'))) AS depends_on,
           (s -> 'with')::text LIKE '%${%' AS templated,
           -- its result is checked, or the control host does it: the resolver notes the tool with the task
           s ? 'uses' AND (SELECT t.output_schema IS NOT NULL OR t.kind <> 'service' FROM accs.tool_named(s ->> 'uses') t) AS typed
      FROM jsonb_array_elements(NEW.steps) WITH ORDINALITY e (s, n)
  ), edge AS (
    SELECT p.n AS parent, array_agg(c.n ORDER BY c.n) AS children, p.s ? 'for_each' AS fans
      FROM (SELECT n, unnest(depends_on) AS needs FROM step) c JOIN step p ON p.key = c.needs GROUP BY p.n, p.s
  ), joins AS (   -- what depends on a fan-out is given the list of its results by the resolver
    SELECT DISTINCT unnest(children) AS n FROM edge WHERE fans
  )
  SELECT NEW.id, step.n, step.key, step.service, step.depends_on, edge.children,
         coalesce(s -> 'default_params', '{}') || CASE WHEN templated THEN '{}' ELSE coalesce(s -> 'with', '{}') END,
         coalesce((s ->> 'max_attempts')::int, 3),
         (s ->> 'timeout')::double precision, nullif(s -> 'backoff', 'null'), step.requires, step.node, s ->> 'concurrency_key', l.id,
         nullif(ARRAY(SELECT n FROM unnest(NEW.notify) n WHERE n LIKE 'task.%'), '{}'),
         nullif(s ?| '{if,delay,for_each,cache}' OR templated IS TRUE OR joins.n IS NOT NULL
                OR step.depends_on = '{}' AND NEW.options_schema IS NOT NULL OR typed, false)
    FROM step LEFT JOIN edge ON edge.parent = step.n LEFT JOIN joins ON joins.n = step.n
    JOIN accs.lanes l ON l.service = step.service AND l.requires = step.requires AND l.node IS NOT DISTINCT FROM step.node;

  PERFORM accs.check_acyclic(NEW.name, NEW.id);
  RETURN NULL;
END $$;
CREATE TRIGGER compile_workflow AFTER INSERT OR UPDATE OF steps, notify, options_schema ON public.workflows
  FOR EACH ROW EXECUTE FUNCTION accs.compile_workflow();

CREATE FUNCTION accs.touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.updated_at := accs.clock();
  RETURN NEW;
END $$;
CREATE TRIGGER touch BEFORE UPDATE ON public.workflows FOR EACH ROW EXECUTE FUNCTION accs.touch();

CREATE FUNCTION accs.refuse_used_workflow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM public.jobs WHERE workflow_id = OLD.id) THEN
    RAISE EXCEPTION 'workflow "%" version % has jobs', OLD.name, OLD.version
      USING ERRCODE = 'foreign_key_violation', HINT = 'UPDATE workflows SET is_active = false keeps it from being submitted.';
  END IF;
  RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER refuse_used_workflow BEFORE DELETE OR UPDATE OF id ON public.workflows FOR EACH ROW
  EXECUTE FUNCTION accs.refuse_used_workflow();

-- Whoever writes new versions waits here for the others, until the end of the transaction: two must not make the same next version.
CREATE FUNCTION accs.lock_workflows() RETURNS void LANGUAGE sql AS $$ SELECT accs.lock('workflows') $$;
SELECT accs.is_verb('lock_workflows', may => '{scheduler,api}');

-- A workflow is in the audit however it was written, after it was checked: triggers fire by name. Who wrote it: as apply_workflow was
-- told, the row says, or the login.
CREATE FUNCTION accs.audit_workflow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_row  public.workflows := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
  v_said text := nullif(current_setting('accs.by', true), '');
BEGIN
  PERFORM accs.audited(CASE TG_OP WHEN 'DELETE' THEN 'delete_workflow' ELSE 'apply_workflow' END, 'workflow', v_row.name, 'accepted',
    CASE WHEN TG_OP = 'INSERT' THEN coalesce(v_said, v_row.created_by) ELSE v_said END,
    nullif(current_setting('accs.reason', true), ''), NULL,
    jsonb_build_object('version', v_row.version, 'is_active', v_row.is_active, 'steps', jsonb_array_length(v_row.steps),
                       'made', TG_OP = 'INSERT'));
  RETURN NULL;
END $$;
CREATE TRIGGER record_new AFTER INSERT OR DELETE ON public.workflows FOR EACH ROW EXECUTE FUNCTION accs.audit_workflow();
CREATE TRIGGER record_change AFTER UPDATE ON public.workflows FOR EACH ROW
  WHEN (to_jsonb(OLD) - 'updated_at' IS DISTINCT FROM to_jsonb(NEW) - 'updated_at') EXECUTE FUNCTION accs.audit_workflow();

-- Writes a workflow under its name and version; what stands there already is replaced. p_workflow: name, version, steps, notify,
-- params, options_schema, files, title, meta. Without meta, what stands there stays: a file knows nothing of doors.
CREATE FUNCTION accs.apply_workflow(p_workflow jsonb, p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
  v_id uuid;
BEGIN
  PERFORM set_config('accs.by', coalesce(p_by, ''), true), set_config('accs.reason', coalesce(p_reason, ''), true);
  INSERT INTO public.workflows (name, version, steps, created_by, notify, params, options_schema, files, title, meta)
  SELECT w.name, coalesce(w.version, 1), w.steps, p_by, coalesce(w.notify, '{}'), coalesce(w.params, '{}'), w.options_schema,
         coalesce(w.files, '[]'), w.title, coalesce(w.meta, '{}')
    FROM jsonb_populate_record(NULL::public.workflows, p_workflow) w
  ON CONFLICT (name, version) DO UPDATE SET steps = excluded.steps, notify = excluded.notify, is_active = true, params = excluded.params,
         options_schema = excluded.options_schema, files = excluded.files, title = excluded.title,
         meta = CASE WHEN p_workflow ? 'meta' THEN excluded.meta ELSE workflows.meta END
  RETURNING id INTO v_id;
  PERFORM set_config('accs.by', '', true), set_config('accs.reason', '', true);   -- not for what else this transaction writes
  RETURN v_id;
END $$;
SELECT accs.is_verb('apply_workflow', may => '{scheduler,api}');

-- Nobody can submit it any more, in any version; its jobs go on. Written anew, it is there again.
CREATE FUNCTION accs.retire_workflow(p_name text, p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM public.workflows w WHERE w.name = p_name) THEN
    RETURN QUERY SELECT accs.audited('retire_workflow', 'workflow', p_name, 'refused', p_by, p_reason, 'not_found'), 'not_found'::text;
    RETURN;
  END IF;
  PERFORM set_config('accs.by', coalesce(p_by, ''), true), set_config('accs.reason', coalesce(p_reason, ''), true);
  -- each version leaves its row in the audit
  UPDATE public.workflows w SET is_active = false WHERE w.name = p_name AND w.is_active;
  RETURN QUERY SELECT CASE WHEN FOUND THEN 'accepted'
                           ELSE accs.audited('retire_workflow', 'workflow', p_name, 'repeated', p_by, p_reason) END, NULL::text;
  PERFORM set_config('accs.by', '', true), set_config('accs.reason', '', true);
END $$;
SELECT accs.is_verb('retire_workflow', may => '{scheduler,api}');

-- ---------------------------------------------------------------------------------------------------------------
-- Files of workflow versions: objects in the store that are laid into every task of a version
-- ---------------------------------------------------------------------------------------------------------------

-- The files that tasks of a workflow are given: [{name, key, size, sha256}], as they stand in workflows.files or as a step has chosen from
-- them. A set never changes: a version that is written anew gets new sets, and its jobs keep those that they were submitted with. All of
-- them stay until the workflow goes, so what is named here is never taken out of the store.
CREATE TABLE accs.file_sets (
  id           int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  workflow_id  uuid NOT NULL REFERENCES public.workflows (id) ON DELETE CASCADE,
  files        jsonb NOT NULL
);

CREATE UNIQUE INDEX file_sets_workflow ON accs.file_sets (workflow_id, md5(files::text));   -- file_workflow; hashed, because lists are long

-- What is wrong with one file; null: nothing. A name is a path beneath the task's folder `files`.
CREATE FUNCTION accs.flaw_of_file(f jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN jsonb_typeof(f) <> 'object' THEN 'must be a JSON object'
    WHEN jsonb_typeof(f -> 'name') IS DISTINCT FROM 'string' THEN 'name is missing'
    WHEN octet_length(f ->> 'name') > 500 OR f ->> 'name' ~ '(^|/)\.{0,2}(/|$)|[^/]{255}[^/]|[[:cntrl:]\\]'
      THEN 'name must be a relative path without ".", ".." and "\", of up to 500 bytes'
    WHEN f ? 'source' THEN 'source is a path on the machine of its author: `accsd workflows apply` puts that file into the store'
    WHEN f - '{name,key,size,sha256}'::text[] <> '{}'
      THEN format('unknown field "%s"', (SELECT k FROM jsonb_object_keys(f - '{name,key,size,sha256}'::text[]) k LIMIT 1))
    WHEN jsonb_typeof(f -> 'key') IS DISTINCT FROM 'string' OR octet_length(f ->> 'key') NOT BETWEEN 1 AND 1024
      THEN 'key must be that of an object in the store'
    WHEN jsonb_typeof(f -> 'sha256') IS DISTINCT FROM 'string' OR f ->> 'sha256' !~ '^[0-9a-f]{64}$' THEN 'sha256 must be 64 hex digits'
    WHEN jsonb_typeof(f -> 'size') IS DISTINCT FROM 'number' OR f ->> 'size' !~ '^[0-9]{1,15}$' THEN 'size must be a number of bytes'
  END
$$;

CREATE FUNCTION accs.check_files(p_name text, p_files jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_problem text;
BEGIN
  IF jsonb_typeof(p_files) <> 'array' OR jsonb_array_length(p_files) > 1000 THEN
    PERFORM accs.invalid(p_name, 'files must be a list of up to 1,000 files');
  END IF;
  SELECT CASE WHEN f ->> 'name' <> '' THEN format('file "%s": ', left(f ->> 'name', 100)) ELSE format('file number %s: ', n) END
         || accs.flaw_of_file(f) INTO v_problem
    FROM jsonb_array_elements(p_files) WITH ORDINALITY e (f, n) WHERE accs.flaw_of_file(f) IS NOT NULL ORDER BY n LIMIT 1;
  IF v_problem IS NULL THEN
    WITH file AS MATERIALIZED (
      SELECT f ->> 'name' AS name, string_to_array(f ->> 'name', '/') AS parts FROM jsonb_array_elements(p_files) f)
    SELECT format('file "%s": the name is used twice', name) INTO v_problem FROM file GROUP BY name HAVING count(*) > 1
     UNION ALL
    SELECT format('file "%s": there is a file "%s", which is no folder', a.name, b.name)
      FROM file a, generate_series(1, cardinality(a.parts) - 1) i, file b WHERE b.name = array_to_string(a.parts[:i], '/') LIMIT 1;
  END IF;
  IF v_problem IS NULL AND (SELECT sum((f ->> 'size')::bigint) FROM jsonb_array_elements(p_files) f) > 107374182400 THEN
    v_problem := 'its files have more than 100 GiB together';
  END IF;
  IF v_problem IS NOT NULL THEN
    PERFORM accs.invalid(p_name, v_problem);
  END IF;
END $$;

-- The files that a step has chosen by their names, or by the folders that they are in; all where it has not chosen.
CREATE FUNCTION accs.chosen_files(p_files jsonb, p_wanted jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN p_wanted IS NULL THEN p_files ELSE (
    SELECT coalesce(jsonb_agg(f ORDER BY n), '[]') FROM jsonb_array_elements(p_files) WITH ORDINALITY e (f, n)
     WHERE EXISTS (SELECT FROM jsonb_array_elements_text(p_wanted) w
                    WHERE f ->> 'name' = w OR starts_with(f ->> 'name', rtrim(w, '/') || '/'))) END
$$;

-- Gives each compiled step the set of its files. After compile_workflow, whose name comes before this one's.
CREATE FUNCTION accs.file_workflow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_problem text;
BEGIN
  IF NEW.files = '[]' AND NOT jsonb_path_exists(NEW.steps, '$[*].files') THEN
    UPDATE accs.steps SET files = NULL WHERE workflow_id = NEW.id AND files IS NOT NULL;
    RETURN NULL;
  END IF;
  PERFORM accs.check_files(NEW.name, NEW.files);
  WITH wish AS MATERIALIZED (   -- 100,000 steps may wish for the same
    SELECT s -> 'files' AS wanted, min(n) AS n FROM jsonb_array_elements(NEW.steps) WITH ORDINALITY e (s, n) WHERE s ? 'files' GROUP BY 1)
  SELECT format('step "%s": files: there is neither a file nor a folder "%s" among the files of the workflow',
                NEW.steps -> (wish.n - 1)::int ->> 'key', left(w, 200)) INTO v_problem
    FROM wish, jsonb_array_elements_text(wish.wanted) w
   WHERE accs.chosen_files(NEW.files, jsonb_build_array(w)) = '[]' ORDER BY wish.n LIMIT 1;
  IF v_problem IS NOT NULL THEN
    PERFORM accs.invalid(NEW.name, v_problem);
  END IF;
  INSERT INTO accs.file_sets (workflow_id, files)
  SELECT DISTINCT NEW.id, c.files
    FROM (SELECT DISTINCT s -> 'files' AS wanted FROM jsonb_array_elements(NEW.steps) s) w, accs.chosen_files(NEW.files, w.wanted) c (files)
   WHERE c.files <> '[]'
  ON CONFLICT DO NOTHING;
  WITH step AS MATERIALIZED (
    SELECT n, s -> 'files' AS wanted FROM jsonb_array_elements(NEW.steps) WITH ORDINALITY e (s, n)
  ), choice AS MATERIALIZED (
    SELECT w.wanted, f.id FROM (SELECT DISTINCT wanted FROM step) w
      LEFT JOIN accs.file_sets f ON f.workflow_id = NEW.id AND md5(f.files::text) = md5(accs.chosen_files(NEW.files, w.wanted)::text))
  UPDATE accs.steps s SET files = choice.id FROM step JOIN choice ON coalesce(choice.wanted, 'null') = coalesce(step.wanted, 'null')
   WHERE s.workflow_id = NEW.id AND s.step_no = step.n AND s.files IS DISTINCT FROM choice.id;
  RETURN NULL;
END $$;
CREATE TRIGGER file_workflow AFTER INSERT OR UPDATE OF steps, notify, options_schema, files ON public.workflows
  FOR EACH ROW EXECUTE FUNCTION accs.file_workflow();

-- ---------------------------------------------------------------------------------------------------------------
-- Tools: what a step may use, with the types of its input and its result
-- ---------------------------------------------------------------------------------------------------------------

-- A version of a tool never changes: workflows name it, and their jobs must mean tomorrow what they mean today. What changes is
-- written as the next version.
CREATE TABLE public.tools (
  id             uuid PRIMARY KEY DEFAULT accs.new_id(),
  name           text NOT NULL CHECK (name ~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$' AND length(name) <= 100),
  version        int NOT NULL CHECK (version >= 1),
  kind           text NOT NULL CHECK (kind IN ('service', 'http', 'builtin')),
  service        text NOT NULL CHECK (service ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$' AND service <> 'builder'),
  input_schema   jsonb NOT NULL CHECK (jsonb_typeof(input_schema) = 'object' AND pg_column_size(input_schema) <= 262144),
  output_schema  jsonb CHECK (jsonb_typeof(output_schema) = 'object' AND pg_column_size(output_schema) <= 262144),
  request        jsonb CHECK (jsonb_typeof(request) = 'object' AND pg_column_size(request) <= 65536),   -- kind http: url, method, headers
  defaults       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(defaults) = 'object'),   -- of steps that use it
  description    text NOT NULL DEFAULT '' CHECK (octet_length(description) <= 16384),
  examples       jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(examples) = 'array' AND pg_column_size(examples) <= 65536),
  scopes         text[] NOT NULL DEFAULT '{}',
  is_active      boolean NOT NULL DEFAULT true,
  created_at     timestamptz NOT NULL DEFAULT accs.clock(),
  created_by     text,
  UNIQUE (name, version),
  CHECK ((kind = 'service') = (service <> 'accs')),   -- the control host does the others
  CHECK ((kind = 'http') = (request IS NOT NULL)),
  CHECK ((kind = 'builtin') = starts_with(name, 'accs.'))
);

CREATE FUNCTION accs.keep_tool() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND (to_jsonb(OLD) - 'is_active') IS DISTINCT FROM (to_jsonb(NEW) - 'is_active') THEN
    RAISE EXCEPTION 'tool "%@%" can''t be changed', OLD.name, OLD.version
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'accs.put_tool writes what has changed as its next version.';
  ELSIF TG_OP = 'DELETE' AND EXISTS (
    SELECT FROM public.workflows w
     WHERE w.steps @> jsonb_build_array(jsonb_build_object('uses', format('%s@%s', OLD.name, OLD.version)))) THEN
    RAISE EXCEPTION 'tool "%@%" is used by a workflow', OLD.name, OLD.version
      USING ERRCODE = 'foreign_key_violation', HINT = 'accs.retire_tool keeps new workflows from using it.';
  END IF;
  RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER keep_tool BEFORE UPDATE OR DELETE ON public.tools FOR EACH ROW EXECUTE FUNCTION accs.keep_tool();

-- Writes a tool: as its next version where it differs from the newest one, which is in use again otherwise.
CREATE FUNCTION accs.put_tool(p_tool jsonb, p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (tool text, tool_version int, answer text) LANGUAGE plpgsql AS $$
DECLARE
  v_was public.tools;
  v_new public.tools;
BEGIN
  PERFORM accs.lock('tools');
  SELECT * INTO v_was FROM public.tools t WHERE t.name = p_tool ->> 'name' ORDER BY t.version DESC LIMIT 1;
  v_new := jsonb_populate_record(NULL::public.tools, jsonb_build_object('defaults', '{}'::jsonb, 'description', '', 'examples', '[]'::jsonb,
             'scopes', '[]'::jsonb) || jsonb_strip_nulls(p_tool) || jsonb_build_object(
             'id', accs.new_id(), 'version', coalesce(v_was.version, 0) + 1, 'is_active', true, 'created_at', accs.clock(),
             'created_by', coalesce(p_by, session_user)));
  IF v_new.kind = 'builtin' THEN
    RAISE EXCEPTION 'a tool of kind builtin comes with accsd' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF to_jsonb(v_was) - '{id,version,is_active,created_at,created_by}'::text[]
     = to_jsonb(v_new) - '{id,version,is_active,created_at,created_by}'::text[] THEN
    UPDATE public.tools t SET is_active = true WHERE t.id = v_was.id AND NOT t.is_active;
    RETURN QUERY SELECT v_was.name, v_was.version, accs.audited('put_tool', 'tool', format('%s@%s', v_was.name, v_was.version),
      CASE WHEN FOUND THEN 'accepted' ELSE 'repeated' END, p_by, p_reason);
    RETURN;
  END IF;
  INSERT INTO public.tools SELECT v_new.*;
  RETURN QUERY SELECT v_new.name, v_new.version,
    accs.audited('put_tool', 'tool', format('%s@%s', v_new.name, v_new.version), 'accepted', p_by, p_reason);
END $$;
SELECT accs.is_verb('put_tool', may => '{scheduler,api}');

-- No new workflow can use it, in this version or in any (null). What uses it goes on.
CREATE FUNCTION accs.retire_tool(p_name text, p_version int DEFAULT NULL, p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
DECLARE
  v_which text := concat_ws('@', p_name, p_version);
BEGIN
  PERFORM accs.lock('tools');
  IF NOT EXISTS (SELECT FROM public.tools t WHERE t.name = p_name AND t.version = coalesce(p_version, t.version)) THEN
    RETURN QUERY SELECT accs.audited('retire_tool', 'tool', v_which, 'refused', p_by, p_reason, 'not_found'), 'not_found'::text;
    RETURN;
  ELSIF starts_with(p_name, 'accs.') THEN
    RETURN QUERY SELECT accs.audited('retire_tool', 'tool', v_which, 'refused', p_by, p_reason, 'builtin'), 'builtin'::text;
    RETURN;
  END IF;
  UPDATE public.tools t SET is_active = false WHERE t.name = p_name AND t.version = coalesce(p_version, t.version) AND t.is_active;
  RETURN QUERY SELECT accs.audited('retire_tool', 'tool', v_which, CASE WHEN FOUND THEN 'accepted' ELSE 'repeated' END, p_by, p_reason),
                      NULL::text;
END $$;
SELECT accs.is_verb('retire_tool', may => '{scheduler,api}');

CREATE FUNCTION accs.tool_named(p_uses text) RETURNS public.tools LANGUAGE sql STABLE AS $$
  SELECT t.* FROM public.tools t
   WHERE t.name = split_part(p_uses, '@', 1)
     AND t.version = CASE WHEN split_part(p_uses, '@', 2) ~ '^[1-9][0-9]{0,8}$' THEN split_part(p_uses, '@', 2)::int END
$$;

-- What is wrong with the tool of a step; null: nothing. Who writes a workflow chooses the version, so that it stays the same.
CREATE FUNCTION accs.flaw_of_use(s jsonb) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN jsonb_typeof(s -> 'uses') <> 'string' OR s ->> 'uses' !~ '^[a-z][a-z0-9_.]{0,99}@[1-9][0-9]{0,8}$'
      THEN 'uses must be a tool and its version, such as media.probe@1'
    WHEN t.id IS NULL THEN format('there is no tool "%s"', s ->> 'uses')
    WHEN s ->> 'service' IS DISTINCT FROM t.service THEN format('the tool "%s" needs the service "%s"', s ->> 'uses', t.service)
  END
    FROM (SELECT) one LEFT JOIN accs.tool_named(s ->> 'uses') t ON true
$$;

-- Whether limits of an actor allow a tool: it begins with one of the names under "tools", where there are some.
CREATE FUNCTION accs.may_use(p_limits jsonb, p_tool text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT NOT p_limits ? 'tools'
      OR EXISTS (SELECT FROM jsonb_array_elements_text(p_limits -> 'tools') AS u (name) WHERE starts_with(p_tool, rtrim(u.name, '*')))
$$;

-- Who writes a workflow may use its tools; for those who write without accsd.
CREATE FUNCTION accs.check_use() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_by   text := coalesce(NEW.created_by, session_user);
  v_step jsonb;
BEGIN
  SELECT s INTO v_step FROM accs.actors a, jsonb_array_elements(NEW.steps) s
   WHERE a.name = v_by AND s ? 'uses' AND NOT accs.may_use(a.limits, split_part(s ->> 'uses', '@', 1)) LIMIT 1;
  IF FOUND THEN
    PERFORM accs.invalid(NEW.name, format('step "%s": %s may not use the tool "%s"', v_step ->> 'key', v_by, v_step ->> 'uses'));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER use_of_tools AFTER INSERT OR UPDATE OF steps, created_by ON public.workflows
  FOR EACH ROW WHEN (NEW.steps @? '$[*].uses') EXECUTE FUNCTION accs.check_use();

-- Of these jobs and tools: those that the owner of the workflow, or who submitted the job, may not use any more.
CREATE FUNCTION accs.refused_tools(p_jobs uuid[], p_tools text[]) RETURNS TABLE (job_id uuid, tool text, actor text)
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN QUERY
  SELECT u.job_id, u.tool, a.name
    FROM unnest(p_jobs, p_tools) AS u (job_id, tool)
    JOIN public.jobs j ON j.id = u.job_id JOIN public.workflows f ON f.id = j.workflow_id
    JOIN accs.actors a ON a.name IN (f.created_by, j.created_by)
   WHERE NOT accs.may_use(a.limits, u.tool) ORDER BY a.name;
END $$;
SELECT accs.is_verb('refused_tools', may => '{scheduler}');

-- What every installation has. The control host does it; assert and transform need nobody but the resolver.
INSERT INTO public.tools (name, version, kind, service, description, input_schema, output_schema) VALUES
  ('accs.emit_event', 1, 'builtin', 'accs', 'Emits an event. A repeated attempt emits it once.',
   '{"type": "object", "required": ["topic"], "additionalProperties": false, "properties": {
       "topic": {"type": "string", "minLength": 1, "maxLength": 200}, "payload": {"type": "object"},
       "key": {"type": "string", "minLength": 1, "maxLength": 200}}}',
   '{"type": "object", "required": ["event_id"], "properties": {"event_id": {"type": "integer"}}}'),
  ('accs.submit', 1, 'builtin', 'accs', 'Submits a job. With wait the step ends with that job, and fails if it fails.',
   '{"type": "object", "required": ["workflow"], "additionalProperties": false, "properties": {
       "workflow": {"type": "string", "minLength": 1, "maxLength": 200}, "version": {"type": "integer", "minimum": 1},
       "options": {"type": "object"}, "priority": {"type": "integer", "minimum": -2147483648, "maximum": 2147483647},
       "wait": {"type": "boolean"}}}',
   '{"type": "object", "required": ["job_id"], "properties": {"job_id": {"type": "string"}, "status": {"type": "string"}}}'),
  ('accs.wait_event', 1, 'builtin', 'accs', 'Ends when an event of a topic comes that matches, or when so much time has passed.',
   '{"type": "object", "required": ["topic"], "additionalProperties": false, "properties": {
       "topic": {"type": "string", "minLength": 1, "maxLength": 200}, "match": {"type": "string", "minLength": 1, "maxLength": 4096},
       "values": {"type": "object"}, "timeout": {"type": ["string", "number"]}}}',
   '{"type": "object", "required": ["timed_out"], "properties": {"timed_out": {"type": "boolean"}, "event": {"type": "object"}}}'),
  ('accs.assert', 1, 'builtin', 'accs', 'Fails, for good, where a condition does not hold.',
   '{"type": "object", "required": ["that"], "additionalProperties": false, "properties": {
       "that": {"type": "boolean"}, "message": {"type": "string", "maxLength": 1000}}}', NULL),
  ('accs.transform', 1, 'builtin', 'accs', 'Its result is its input: with is worked out, and no node is needed.',
   '{"type": "object", "additionalProperties": true}', NULL);

-- ---------------------------------------------------------------------------------------------------------------
-- Jobs and their tasks
-- ---------------------------------------------------------------------------------------------------------------

CREATE SEQUENCE accs.order_seq;

CREATE TABLE public.jobs (
  id                uuid PRIMARY KEY DEFAULT accs.new_id(),
  workflow_id       uuid NOT NULL REFERENCES public.workflows (id),
  status            text NOT NULL DEFAULT 'queued' CHECK (status = ANY ('{queued,running,done,error,cancelled}')),
  progress          numeric DEFAULT 0 CHECK (progress BETWEEN 0 AND 1),
  current_task_key  text,
  priority          int NOT NULL DEFAULT 0,
  order_seq         bigint NOT NULL DEFAULT nextval('accs.order_seq'),
  options           jsonb DEFAULT '{}',
  scheduled_at      timestamptz,
  error_code        text,
  error_message     text,
  created_at        timestamptz NOT NULL DEFAULT accs.clock(),
  started_at        timestamptz,
  finished_at       timestamptz,
  updated_at        timestamptz NOT NULL DEFAULT accs.clock(),
  -- additions
  idempotency_key   text,                       -- the same key submitted again is the same job
  created_by        text,
  trace_id          text,
  generation        int NOT NULL DEFAULT 0,     -- +1 at every retry
  task_count        int NOT NULL DEFAULT 0,
  open_tasks        int NOT NULL DEFAULT 0 CHECK (open_tasks BETWEEN 0 AND task_count),
  task_progress     numeric NOT NULL DEFAULT 0, -- the sum of its tasks' progress; jobs.progress is this / task_count
  trigger           jsonb,                      -- what brought it about, where that was not a plain submission
  schedule_id       uuid,                       -- the schedule that started it
  no_cache          boolean,                    -- true: its steps run, although a result of the same input is known
  run_key           text                        -- of the jobs of a key only so many are open at once: accs.open_runs
) WITH (fillfactor = 40);   -- room for what its jobs become, twice: at 48 every tenth update of a job that was inserted left its page

CREATE INDEX jobs_order_seq ON public.jobs (order_seq);                  -- lists in the global order
CREATE UNIQUE INDEX jobs_idempotency_key ON public.jobs (idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE public.job_tasks (
  id                  uuid PRIMARY KEY,
  job_id              uuid NOT NULL REFERENCES public.jobs (id),
  task_key            text NOT NULL,
  service_name        text NOT NULL,
  status              text NOT NULL DEFAULT 'queued'
                      CHECK (status = ANY ('{queued,starting,running,done,error,skipped,cancelled}')),
  depends_on          text[] NOT NULL DEFAULT '{}',
  attempt             int NOT NULL DEFAULT 0,    -- failures that spent the budget
  max_attempts        int NOT NULL DEFAULT 3,
  next_attempt_at     timestamptz,
  priority            int NOT NULL DEFAULT 0,    -- the job's, copied at instantiation
  progress            numeric DEFAULT 0,
  params              jsonb DEFAULT '{}',        -- the step's default_params, never overridden
  results             jsonb,
  assigned_node       text,
  claimed_by          text,
  claimed_at          timestamptz,
  started_at          timestamptz,
  finished_at         timestamptz,
  created_at          timestamptz NOT NULL DEFAULT accs.clock(),
  updated_at          timestamptz NOT NULL DEFAULT accs.clock(),
  -- additions
  attempt_id          int NOT NULL DEFAULT 0,    -- the fence: +1 at every claim, never reused
  lease_owner         text,
  lease_until         timestamptz,
  lost                int NOT NULL DEFAULT 0,    -- owners lost; bounded by accs.max_lost()
  generation          int NOT NULL DEFAULT 0,    -- +1 at every redrive or retry
  step_no             int NOT NULL,
  lane                int NOT NULL,              -- accs.lanes: the nodes that may take it
  remaining           int NOT NULL DEFAULT 0,    -- dependencies not satisfied yet
  dependants          uuid[],                    -- the tasks that wait for this one
  given               jsonb,                     -- what the attempt received beside params and job options
  outcome             text,                      -- how the attempt outcome_attempt_id ended, to answer "repeated"
  outcome_attempt_id  int,
  error_code          text,
  error_message       text,
  requires            jsonb NOT NULL DEFAULT '{}',
  concurrency_key     text,
  timeout_sec         double precision,
  backoff             jsonb,
  notify              text[],                    -- what its workflow's notify says of tasks, if anything: announce_subscribed
  -- null but for steps with expressions, which the resolver looks at: null costs a row nothing
  resolve             boolean,                   -- true: it waits for the resolver; false: the resolver has given it what it needs
  items               int,                       -- of a step that was multiplied: how many tasks it became
  tolerate            int,                       -- and how many of them may fail for good
  parent              uuid,                      -- of such a task: the step that became it, and
  item_no             int,                       --   which item it is for, from 0
  tolerated           boolean,                   -- it failed for good, and the steps below go on without it
  files               int,                       -- accs.file_sets: the files of its workflow that it is given, if there are any
  CONSTRAINT lease_while_live CHECK (
    (status = ANY ('{starting,running}')) = (lease_owner IS NOT NULL)
    AND (lease_owner IS NULL) = (lease_until IS NULL)),
  -- serves "the tasks of a job" and refuses a step twice
  UNIQUE (job_id, task_key)
) WITH (fillfactor = 38);   -- and here for two, longer ones: at 50 every seventh update left its page, and the table ended larger

-- the tasks of a step that was multiplied
CREATE UNIQUE INDEX job_tasks_parent ON public.job_tasks (parent, item_no) WHERE parent IS NOT NULL;

-- What is asked of columns that hardly change is asked by triggers when they are written. Every UPDATE of any column reads the text of
-- every CHECK of its table anew, which was 8 % of a single claim and finish.
CREATE FUNCTION accs.refuse_value() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% %: %', CASE TG_TABLE_NAME WHEN 'jobs' THEN 'job' ELSE 'task' END, NEW.id, TG_ARGV[0]
    USING ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
END $$;
-- no larger and no deeper than what a task can be handed; 64 levels are at least 512 bytes, so small ones are not searched
CREATE TRIGGER jobs_options_check AFTER INSERT OR UPDATE OF options ON public.jobs FOR EACH ROW
  WHEN (NOT (jsonb_typeof(NEW.options) = 'object'
             AND (pg_column_size(NEW.options) < 512 OR pg_column_size(NEW.options) <= 1048576
                  AND NOT jsonb_path_exists(NEW.options, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")'))))
  EXECUTE FUNCTION accs.refuse_value('options must be a JSON object of at most 1 MiB and 64 levels');
CREATE TRIGGER jobs_trigger_check AFTER INSERT OR UPDATE OF trigger ON public.jobs FOR EACH ROW
  WHEN (jsonb_typeof(NEW.trigger) <> 'object') EXECUTE FUNCTION accs.refuse_value('trigger must be a JSON object');
CREATE TRIGGER jobs_times_check AFTER INSERT OR UPDATE OF scheduled_at, created_at ON public.jobs FOR EACH ROW
  WHEN (NOT (NEW.created_at BETWEEN '0001-01-02Z' AND '9999-12-30Z')
        OR NOT (NEW.scheduled_at BETWEEN '0001-01-02Z' AND '9999-12-30Z' OR NOT isfinite(NEW.scheduled_at)))
  EXECUTE FUNCTION accs.refuse_value('scheduled_at and created_at must be in the years 1 to 9999');
CREATE TRIGGER job_tasks_counts_check AFTER INSERT OR UPDATE OF max_attempts, remaining ON public.job_tasks FOR EACH ROW
  WHEN (NEW.max_attempts < 1 OR NEW.remaining < 0)
  EXECUTE FUNCTION accs.refuse_value('max_attempts must be at least 1 and remaining at least 0');

-- ---------------------------------------------------------------------------------------------------------------
-- The legal transitions, and the guard: whoever writes a state does it through a verb, and only along one of them
-- ---------------------------------------------------------------------------------------------------------------

CREATE TABLE accs.transitions (
  entity       text NOT NULL CHECK (entity IN ('task', 'job')),
  from_status  text NOT NULL,
  to_status    text NOT NULL,
  verb         text NOT NULL,
  via          text,              -- two transitions in one write, with the events of both
  PRIMARY KEY (entity, from_status, to_status)
);

INSERT INTO accs.transitions (entity, from_status, to_status, verb) VALUES
  ('task', 'queued',    'starting',  'claim_tasks'),
  ('task', 'starting',  'running',   'start_tasks'),
  ('task', 'running',   'done',      'finish_tasks'),
  ('task', 'running',   'error',     'finish_tasks'),
  ('task', 'starting',  'error',     'finish_tasks'),
  ('task', 'starting',  'queued',    'release_tasks, reclaim_tasks, finish_tasks'),
  ('task', 'running',   'queued',    'release_tasks, reclaim_tasks, finish_tasks'),
  ('task', 'queued',    'skipped',   'skip_tasks'),
  ('task', 'queued',    'cancelled', 'cancel_jobs'),
  ('task', 'starting',  'cancelled', 'cancel_jobs'),
  ('task', 'running',   'cancelled', 'cancel_jobs'),
  ('task', 'error',     'queued',    'redrive, retry_jobs'),
  ('task', 'skipped',   'queued',    'redrive, retry_jobs'),
  ('task', 'cancelled', 'queued',    'retry_jobs'),
  ('task', 'done',      'queued',    'retry_jobs'),
  ('job',  'queued',    'running',   'instantiate_due_jobs'),
  ('job',  'running',   'done',      'finish_tasks, close_jobs'),
  ('job',  'running',   'error',     'finish_tasks, close_jobs'),
  ('job',  'running',   'cancelled', 'cancel_jobs'),
  ('job',  'queued',    'error',     'instantiate_due_jobs'),
  ('job',  'queued',    'cancelled', 'cancel_jobs'),
  ('job',  'done',      'running',   'retry_jobs'),
  ('job',  'error',     'running',   'redrive, retry_jobs'),
  ('job',  'cancelled', 'running',   'redrive, retry_jobs');
INSERT INTO accs.transitions (entity, from_status, to_status, verb, via) VALUES ('task', 'queued', 'running', 'claim_tasks', 'starting');

CREATE FUNCTION accs.refuse_write() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_entity text := CASE TG_TABLE_NAME WHEN 'jobs' THEN 'job' ELSE 'task' END;
  v_verbs  text;
BEGIN
  IF TG_OP = 'UPDATE' AND OLD.status IS DISTINCT FROM NEW.status THEN
    SELECT verb INTO v_verbs FROM accs.transitions
     WHERE entity = v_entity AND from_status = OLD.status AND to_status = NEW.status AND via IS NULL;
    IF v_verbs IS NULL THEN
      RAISE EXCEPTION '% %: % → % is not a legal transition', v_entity, OLD.id, OLD.status, NEW.status
        USING ERRCODE = 'AC002', HINT = 'SELECT * FROM accs.transitions lists the legal ones.';
    END IF;
    RAISE EXCEPTION '% %: % → % must not be written by a plain UPDATE', v_entity, OLD.id, OLD.status, NEW.status
      USING ERRCODE = 'AC002', HINT = format('Call the verb in schema accs that does it: %s.', v_verbs);
  ELSIF TG_OP = 'UPDATE' THEN
    RAISE EXCEPTION '% %: this column belongs to the state machine and must not be written by a plain UPDATE', v_entity, OLD.id
      USING ERRCODE = 'AC002', HINT = 'Call a verb in schema accs; accs.change_jobs changes a job''s priority, options and scheduled_at.';
  ELSIF TG_OP = 'INSERT' THEN
    RAISE EXCEPTION '%: tasks are made from the steps of a workflow, not inserted', TG_TABLE_NAME
      USING ERRCODE = 'AC002', HINT = 'INSERT INTO jobs (workflow_id) or call accs.submit.';
  END IF;
  RAISE EXCEPTION '%: % is refused, because rows of the state machine are removed by retention only', TG_TABLE_NAME, TG_OP
    USING ERRCODE = 'AC002', HINT = 'To stop a job call accs.cancel_jobs.';
END $$;

-- The condition is generated from accs.transitions, so that it is written once, and evaluated inside the trigger's WHEN:
-- a row trigger that looked the transition up cost 25–55 % of the throughput. AFTER, because a BEFORE trigger locks
-- every row a second time. PostgreSQL reads the text of a WHEN anew for each statement, so it is short: no function to
-- inline, and a legal move is the first letters of both states. (As a CASE it took an eighth of the time of a single claim.)
DO $guard$
DECLARE
  v_legal text;
BEGIN
  SELECT string_agg(left(from_status, 2) || left(to_status, 2), ' ') INTO v_legal FROM accs.transitions WHERE entity = 'task';
  EXECUTE format($$
    CREATE TRIGGER guard_transition AFTER UPDATE OF
      id, job_id, task_key, service_name, status, depends_on, attempt, next_attempt_at, priority, progress, results,
      assigned_node, claimed_by, claimed_at, started_at, finished_at, created_at, attempt_id, lease_owner, lease_until,
      lost, generation, step_no, lane, remaining, dependants, given, outcome, outcome_attempt_id, error_code,
      error_message, requires, concurrency_key, notify, resolve, items, tolerate, parent, item_no, tolerated, files ON public.job_tasks
    FOR EACH ROW WHEN (current_setting('search_path') <> 'pg_catalog, accs, pg_temp'
                       OR (OLD.status <> NEW.status AND strpos(%L, left(OLD.status, 2) || left(NEW.status, 2)) = 0))
    EXECUTE FUNCTION accs.refuse_write()$$, v_legal);
  SELECT string_agg(left(from_status, 2) || left(to_status, 2), ' ') INTO v_legal FROM accs.transitions WHERE entity = 'job';
  EXECUTE format($$
    CREATE TRIGGER guard_transition AFTER UPDATE OF
      id, workflow_id, status, progress, current_task_key, order_seq, error_code, error_message, created_at, started_at,
      finished_at, generation, task_count, open_tasks, task_progress, trigger, schedule_id, run_key ON public.jobs
    FOR EACH ROW WHEN (current_setting('search_path') <> 'pg_catalog, accs, pg_temp'
                       OR (OLD.status <> NEW.status AND strpos(%L, left(OLD.status, 2) || left(NEW.status, 2)) = 0))
    EXECUTE FUNCTION accs.refuse_write()$$, v_legal);
END $guard$;

CREATE TRIGGER guard_insert AFTER INSERT ON public.job_tasks
  FOR EACH ROW WHEN (current_setting('search_path') <> 'pg_catalog, accs, pg_temp') EXECUTE FUNCTION accs.refuse_write();
CREATE TRIGGER guard_delete BEFORE DELETE ON public.job_tasks
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_write();
CREATE TRIGGER guard_delete BEFORE DELETE ON public.jobs
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_write();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON public.job_tasks
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_write();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON public.jobs
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_write();

-- Who has set the path of the verbs and is not their owner: asked once for each statement, because it costs more than the path, and
-- here, because the text of a WHEN is read anew for each statement.
CREATE FUNCTION accs.refuse_forgery() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('search_path') <> 'pg_catalog, accs, pg_temp' OR has_schema_privilege('accs', 'CREATE') THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION '%: rows of the state machine are written by its verbs, and "%" does not own them', TG_TABLE_NAME, current_user
    USING ERRCODE = 'AC002', HINT = 'Call a verb in schema accs.';
END $$;
CREATE TRIGGER guard_owner BEFORE INSERT OR UPDATE OR DELETE ON public.job_tasks FOR EACH STATEMENT
  EXECUTE FUNCTION accs.refuse_forgery();
CREATE TRIGGER guard_owner BEFORE UPDATE OR DELETE ON public.jobs FOR EACH STATEMENT
  EXECUTE FUNCTION accs.refuse_forgery();

CREATE FUNCTION accs.refuse_begun_jobs() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_bad uuid;
BEGIN
  SELECT id INTO v_bad FROM fresh
   WHERE status <> 'queued' OR task_count <> 0 OR open_tasks <> 0 OR generation <> 0 OR task_progress <> 0
      OR progress IS DISTINCT FROM 0 OR started_at IS NOT NULL OR finished_at IS NOT NULL
      OR error_code IS NOT NULL OR error_message IS NOT NULL OR current_task_key IS NOT NULL OR schedule_id IS NOT NULL
        OR run_key IS NOT NULL
   LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'job %: a job begins as queued, with nothing done', v_bad
      USING ERRCODE = 'AC002', HINT = 'Insert workflow_id, options, priority and scheduled_at, and leave the rest to the defaults.';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER guard_insert AFTER INSERT ON public.jobs
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_begun_jobs();

-- ---------------------------------------------------------------------------------------------------------------
-- Months: the tables that grow with time are partitioned by month; months are made ahead of time and leave through the archive
-- ---------------------------------------------------------------------------------------------------------------

-- Each has a default partition as the net, and a function accs.mark_of(row): the sum of the marks says, with the count, whether a month
-- still holds the rows that were archived.
CREATE TABLE accs.monthly (
  name     text PRIMARY KEY,            -- in schema public; its months are NAME_YYYY_MM, in UTC
  at       text NOT NULL,               -- the column by which it is partitioned
  refuse   text NOT NULL,               -- the trigger function that refuses to empty it
  aged_by  text NOT NULL,               -- the column by which a row is old: one that was written late stays as long as others
  stays    text NOT NULL DEFAULT 'false'   -- a condition on a row e: somebody still needs it here, however old it is
);

-- The table of a month; null: no month has that name.
CREATE FUNCTION accs.table_of(p_month text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT m.name FROM accs.monthly m WHERE p_month ~ ('^' || m.name || '_[0-9]{4}_(0[1-9]|1[0-2])$')
$$;

-- Begin and end of a month, in UTC: what follows is read as timestamp or as timestamptz alike.
CREATE FUNCTION accs.begin_of(p_month text) RETURNS timestamp LANGUAGE sql IMMUTABLE AS $$
  SELECT make_timestamp(left(right(p_month, 7), 4)::int, right(p_month, 2)::int, 1, 0, 0, 0)
$$;
CREATE FUNCTION accs.bounds_of(p_month text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY[to_char(accs.begin_of(p_month), 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
               to_char(accs.begin_of(p_month) + interval '1 month', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')]
$$;

-- Makes the months of a table from this one to p_ahead later, and those of past months whose rows are in the default partition;
-- returns the names of those it made. Rows that fell into the default partition are moved. ATTACH needs no lock that stops
-- writers of other months; the lock timeout keeps it from queueing behind a long reader of the default partition, and the next
-- pass tries again. One table at a time: a transaction that writes to two of them must not wait for us while we wait for it.
CREATE FUNCTION accs.make_months(p_table text, p_ahead int DEFAULT 3) RETURNS SETOF text LANGUAGE plpgsql
SET lock_timeout = '2s' SET timezone = 'UTC' AS $$
DECLARE
  v_now    timestamp := accs.clock() AT TIME ZONE 'UTC';
  v_table  accs.monthly;
  v_past   timestamp[];
  v_from   timestamp;
  v_month  text;
  v_bounds text[];
  v_moves  boolean;
BEGIN
  SELECT * INTO v_table FROM accs.monthly WHERE name = p_table;
  IF NOT FOUND THEN
    RAISE EXCEPTION '"%" is no table that has months', left(p_table, 100) USING ERRCODE = 'invalid_parameter_value';
  ELSIF p_ahead > 120 THEN
    RAISE EXCEPTION 'partitions are made for at most 120 months ahead, not for %', p_ahead USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM accs.lock('months');
  EXECUTE format('SELECT array_agg(m) FROM (SELECT DISTINCT date_trunc(''month'', %1$I)::timestamp AS m FROM public.%2$I
                   WHERE %1$I >= ''1970-01-01Z'' AND %1$I < $1 LIMIT 12) past', v_table.at, p_table || '_default')
    INTO v_past USING v_now;
  FOR v_from IN SELECT generate_series(date_trunc('month', v_now), date_trunc('month', v_now) + make_interval(months => p_ahead), '1 month')
                UNION SELECT unnest(v_past) ORDER BY 1 LOOP
    v_month := p_table || '_' || to_char(v_from, 'YYYY_MM');
    CONTINUE WHEN to_regclass('public.' || v_month) IS NOT NULL;
    v_bounds := accs.bounds_of(v_month);
    IF v_from <= v_now THEN
      -- too late to be ahead: an INSERT that has chosen the default partition already would fail there. Nobody may be under way.
      EXECUTE format('LOCK TABLE ONLY public.%I IN SHARE ROW EXCLUSIVE MODE', p_table);
    END IF;
    EXECUTE format('CREATE TABLE public.%I (LIKE public.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', v_month, p_table);
    -- ATTACH takes this lock anyway; before the look at the rows, so that none can come in between
    EXECUTE format('LOCK TABLE public.%I IN ACCESS EXCLUSIVE MODE', p_table || '_default');
    EXECUTE format('SELECT EXISTS (SELECT FROM public.%1$I WHERE %2$I >= %3$L AND %2$I < %4$L)', p_table || '_default', v_table.at,
                   v_bounds[1], v_bounds[2]) INTO v_moves;
    IF v_moves THEN
      EXECUTE format('WITH moved AS (DELETE FROM public.%1$I WHERE %2$I >= %3$L AND %2$I < %4$L RETURNING *)
                      INSERT INTO public.%5$I SELECT * FROM moved', p_table || '_default', v_table.at, v_bounds[1], v_bounds[2], v_month);
    END IF;
    EXECUTE format('ALTER TABLE public.%I ATTACH PARTITION public.%I FOR VALUES FROM (%L) TO (%L)', p_table, v_month, v_bounds[1],
                   v_bounds[2]);
    EXECUTE format('CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.%I
                    FOR EACH STATEMENT EXECUTE FUNCTION accs.%I()', v_month, v_table.refuse);
    RETURN NEXT v_month;
  END LOOP;
END $$;
SELECT accs.is_verb('make_months', may => '{scheduler,archive}');

-- The months of a table that are in the database, oldest first; with p_age only those whose rows are all older, and no
-- longer needed.
CREATE FUNCTION accs.months_of(p_table text, p_age interval DEFAULT NULL) RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_table accs.monthly;
  v_month text;
  v_young boolean;
BEGIN
  SELECT * INTO v_table FROM accs.monthly WHERE name = p_table;
  FOR v_month IN SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                  WHERE i.inhparent = to_regclass('public.' || p_table) AND accs.table_of(c.relname) = p_table ORDER BY 1 LOOP
    v_young := (accs.begin_of(v_month) + interval '1 month') AT TIME ZONE 'UTC' > accs.clock() - p_age;
    IF NOT v_young AND (v_table.aged_by, v_table.stays) <> (v_table.at, 'false') THEN
      EXECUTE format('SELECT EXISTS (SELECT FROM public.%I e WHERE e.%I > $1 OR %s)', v_month, v_table.aged_by, v_table.stays) INTO v_young
        USING accs.clock() - p_age;
    END IF;
    IF v_young IS NOT TRUE THEN
      RETURN NEXT v_month;
    END IF;
  END LOOP;
END $$;
SELECT accs.is_verb('months_of', may => '{scheduler,archive,api,reader}');

-- ---------------------------------------------------------------------------------------------------------------
-- Events: append-only, monthly partitions made ahead of time, a default partition as the net
-- ---------------------------------------------------------------------------------------------------------------

CREATE TABLE public.task_events (
  id           bigserial,
  job_id       uuid NOT NULL,
  job_task_id  uuid,
  ts           timestamptz NOT NULL DEFAULT accs.clock(),
  source       text NOT NULL,
  level        text NOT NULL DEFAULT 'info' CHECK (level = ANY ('{debug,info,warn,error}')),
  type         text NOT NULL,
  message      text,
  data         jsonb,
  -- addition: the attempt that it belongs to; as a column, because building it into data cost a tenth of the throughput
  attempt_id   int
) PARTITION BY RANGE (ts);

-- No primary key: a sequence that nobody else writes makes the ids, nothing looks for one of them alone, and its index would be a
-- tenth of all that the server does for a task (docs/decisions/0001).
CREATE INDEX task_events_job ON public.task_events (job_id, ts DESC);   -- a job's timeline, and within it a task's
-- What has happened lately, and what came after an event that somebody has read (accsd/db/feed.py). One index for both: a second BRIN
-- on id alone cost a job 2 to 6 % more instructions.
CREATE INDEX task_events_ts ON public.task_events USING brin (ts, id) WITH (autosummarize = on);

CREATE FUNCTION accs.refuse_event_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'task_events is append-only: % is refused', TG_OP
    USING ERRCODE = 'AC005', HINT = 'History leaves the database partition by partition, after it was archived.';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON public.task_events
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_event_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.task_events
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_event_change();

CREATE TABLE public.task_events_default PARTITION OF public.task_events DEFAULT;
ALTER TABLE public.task_events_default REPLICA IDENTITY FULL;   -- make_months moves its rows, also where they are published
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.task_events_default
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_event_change();

CREATE FUNCTION accs.mark_of(e public.task_events) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT e.id $$;
INSERT INTO accs.monthly (name, at, refuse, aged_by) VALUES ('task_events', 'ts', 'refuse_event_change', 'ts');

-- What only a verb that changes something may write.
CREATE FUNCTION accs.own_event_types() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT '{status,retry,wake,repair,changed,cache}'::text[]
$$;

-- JSON that is no larger than 1 MiB, or a note that it was.
CREATE FUNCTION accs.bounded(p jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN pg_column_size(p) > 1048576
              THEN jsonb_build_object('omitted', format('%s bytes are more than 1 MiB', pg_column_size(p))) ELSE p END
$$;

-- Arrays in, so that an agent can send what has gathered in one round trip. An agent's login speaks only of tasks that a node of its own
-- has held, and in the name of their services.
CREATE FUNCTION accs.append_events(
  p_job_ids uuid[], p_task_ids uuid[], p_sources text[], p_levels text[], p_types text[], p_messages text[], p_data jsonb[]
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
  PERFORM accs.check_size(cardinality(p_job_ids));
  IF p_types && accs.own_event_types() THEN
    RAISE EXCEPTION 'events of the types % are written by the verbs that they tell of', array_to_string(accs.own_event_types(), ', ')
      USING ERRCODE = 'AC005';
  END IF;
  IF NOT (accs.speaks_for_all() OR coalesce(pg_has_role(session_user, to_regrole('accs_api'), 'MEMBER'), false)) AND EXISTS (
    SELECT FROM unnest(p_job_ids, p_task_ids, p_sources) AS e (job_id, task_id, source)
     WHERE NOT EXISTS (SELECT FROM public.job_tasks t JOIN public.nodes n ON n.name = t.claimed_by AND n.login = session_user
                        WHERE t.id = e.task_id AND t.job_id = e.job_id
                          AND e.source IN ('agent:' || t.service_name, 'service:' || t.service_name))) THEN
    RAISE EXCEPTION 'the login "%" writes events only of tasks that a node of its own has held', session_user USING ERRCODE = 'AC006';
  END IF;
  RETURN QUERY
  INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data)
  SELECT e.job_id, e.task_id, accs.clock(), left(e.source, 200), coalesce(e.level, 'info'), left(e.type, 100), left(e.message, 65536),
         accs.bounded(e.data)
    FROM unnest(p_job_ids, p_task_ids, p_sources, p_levels, p_types, p_messages, p_data)
         AS e (job_id, task_id, source, level, type, message, data)
  RETURNING id;
END $$;
SELECT accs.is_verb('append_events', may => '{agent,scheduler,api}');

-- What attempts say of themselves, in the order given. Only of those that hold their lease: a zombie's words are dropped.
-- Answers for each attempt how many were accepted; none: it is stale. Without a lock: an attempt that ends at this moment
-- has said it while it was alive.
CREATE FUNCTION accs.append_task_events(
  p_owner text, p_task_ids uuid[], p_attempt_ids int[], p_levels text[], p_types text[], p_messages text[], p_data jsonb[]
) RETURNS TABLE (task_id uuid, attempt_id int, accepted int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  IF session_user <> current_user OR cardinality(p_task_ids) > 10000 THEN
    PERFORM accs.check_attempt(p_owner, cardinality(p_task_ids));
  END IF;
  RETURN QUERY
  WITH said AS MATERIALIZED (
    SELECT s.*, l.job_id, l.service
      FROM unnest(p_task_ids, p_attempt_ids, p_levels, p_types, p_messages, p_data) WITH ORDINALITY
             AS s (task_id, attempt_id, level, type, message, data, n)
      LEFT JOIN accs.live l ON l.task_id = s.task_id AND l.attempt_id = s.attempt_id AND l.owner = p_owner AND l.lease_until > v_now
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
    SELECT s.job_id, s.task_id, v_now, 'service:' || s.service, coalesce(s.level, 'info'),
           CASE WHEN s.type <> ALL (accs.own_event_types()) THEN left(s.type, 100) ELSE 'log' END, left(s.message, 65536),
           accs.bounded(s.data), s.attempt_id
      FROM said s WHERE s.job_id IS NOT NULL ORDER BY s.n
  )
  SELECT s.task_id, s.attempt_id, count(s.job_id)::int FROM said s GROUP BY s.task_id, s.attempt_id;
END $$;
SELECT accs.is_verb('append_task_events', pinned => true, may => '{agent,scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- The feed: events by id, for those who follow everything
-- ---------------------------------------------------------------------------------------------------------------

-- The highest id that an event was given, whether or not its transaction has come to an end yet; 0: none was. A reader begins here, and
-- finds out here that the database is another one than a moment ago (restored, failed over), because its ids have gone back.
CREATE FUNCTION accs.feed_head() RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM public.task_events_id_seq s
$$;
SELECT accs.is_verb('feed_head', may => '{api}');

-- ---------------------------------------------------------------------------------------------------------------
-- The queue: what waits for a claim, what is live, and the concurrency keys between them
-- ---------------------------------------------------------------------------------------------------------------

-- How many tasks with a key may run at once.
CREATE TABLE accs.concurrency_keys (
  key          text PRIMARY KEY,
  max_running  int NOT NULL DEFAULT 1 CHECK (max_running >= 1)
);

-- What a claim looks at: the queued tasks whose dependencies are all satisfied, and what holds them.
CREATE TABLE accs.waiting (
  task_id     uuid PRIMARY KEY,
  lane        int NOT NULL,
  rank        int NOT NULL,          -- minus the job's priority, so that one ascending index is the global order
  order_seq   bigint NOT NULL,
  created_at  timestamptz NOT NULL,
  hold        text CHECK (hold IN ('backoff', 'key', 'paused', 'resolve')),
  due_at      timestamptz,
  key         text,
  CHECK ((hold IS NOT DISTINCT FROM 'backoff') = (due_at IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX waiting_claim ON accs.waiting (lane, rank, order_seq, created_at, task_id) WHERE hold IS NULL;  -- claim_tasks
CREATE INDEX waiting_due ON accs.waiting (lane, due_at) WHERE hold = 'backoff';                              -- promote
CREATE INDEX waiting_key ON accs.waiting (key, lane, rank, order_seq, created_at, task_id)                   -- admit
  WHERE key IS NOT NULL AND (hold IS NULL OR hold = 'key');
CREATE INDEX waiting_paused ON accs.waiting (task_id) WHERE hold = 'paused';                                 -- resume
CREATE INDEX waiting_resolve ON accs.waiting (rank, order_seq, created_at, task_id) WHERE hold = 'resolve';  -- tasks_to_resolve

-- What is starting or running. Leases, capacity and keys are counted here.
CREATE TABLE accs.live (
  task_id      uuid PRIMARY KEY,
  job_id       uuid NOT NULL,
  service      text NOT NULL,
  node         text NOT NULL,
  owner        text NOT NULL,
  attempt_id   int NOT NULL,
  key          text,
  progress     numeric NOT NULL DEFAULT 0,
  lease_until  timestamptz NOT NULL
) WITH (fillfactor = 70,
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- none on lease_until: what is live is little, reclaim reads all of it, and heartbeats stay HOT
CREATE INDEX live_node ON accs.live (node, service);                     -- capacity; an owner's own leases
CREATE INDEX live_key ON accs.live (key) WHERE key IS NOT NULL;          -- admit, claim_tasks

-- One NOTIFY for each service that got something claimable, and one for the resolver, once per statement.
CREATE FUNCTION accs.notify_services() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_notify(accs.channel_prefix() || coalesce(service, '_resolve'), '')
     FROM (SELECT DISTINCT l.service
             FROM (SELECT DISTINCT CASE WHEN hold IS NULL THEN lane END AS lane FROM fresh WHERE hold IS NULL OR hold = 'resolve') f
             LEFT JOIN accs.lanes l ON l.id = f.lane) s;
  RETURN NULL;
END $$;
CREATE TRIGGER notify_services AFTER INSERT ON accs.waiting
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION accs.notify_services();
CREATE TRIGGER notify_services_again AFTER UPDATE ON accs.waiting
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION accs.notify_services();

-- Whether a task lets those run that depend on it.
CREATE FUNCTION accs.satisfies(p_status text, p_code text, p_tolerated boolean) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT p_status = 'done' OR p_status = 'skipped' AND p_code IS DISTINCT FROM 'upstream_failed' OR p_tolerated IS TRUE
$$;

-- What a task still waits for, given by its job, the steps that it depends on and the step that it is an item of, if any: each of
-- those steps, and where one was multiplied, each of its tasks. The task of an item waits for its step alone, which has waited for the
-- others. p_open are tasks that count as open whatever they are, because they are about to be. By one look-up for each key, as in
-- claim_tasks, and of narrow rows: a step that was multiplied names all its tasks in dependants. p_open is read as rows, which are
-- hashed once and not compared one by one.
CREATE FUNCTION accs.unsatisfied(p_job uuid, p_depends_on text[], p_parent uuid, p_open uuid[] DEFAULT '{}') RETURNS SETOF uuid
LANGUAGE sql STABLE AS $$
  SELECT d.id FROM unnest(p_depends_on) AS k (key), LATERAL (
      SELECT id, status, error_code, tolerated, resolve FROM public.job_tasks
       WHERE job_id = p_job AND task_key = k.key OFFSET 0) m, LATERAL (
      SELECT m.id, m.status, m.error_code, m.tolerated WHERE p_parent IS NULL OR p_parent = m.id UNION ALL
      SELECT c.id, c.status, c.error_code, c.tolerated FROM public.job_tasks c
       WHERE m.resolve IS NOT NULL AND c.parent = m.id AND p_parent IS NULL) d
   WHERE NOT accs.satisfies(d.status, d.error_code, d.tolerated) OR d.id IN (SELECT unnest(p_open))
$$;

-- Locks the jobs of these tasks, in the order that everybody keeps, and says where their rows stand while they are locked. Nearly
-- always all are live, and the narrow table knows their jobs.
CREATE FUNCTION accs.lock_jobs_of(p_task_ids uuid[]) RETURNS tid[] LANGUAGE plpgsql AS $$
BEGIN
  RETURN ARRAY(
    SELECT ctid FROM public.jobs WHERE id = ANY (ARRAY(
      WITH known AS MATERIALIZED (SELECT job_id FROM accs.live WHERE task_id = ANY (p_task_ids))
      SELECT job_id FROM known
      UNION SELECT job_id FROM public.job_tasks WHERE id = ANY (p_task_ids) AND (SELECT count(*) FROM known) < cardinality(p_task_ids)))
     ORDER BY id FOR NO KEY UPDATE);
END $$;

-- Lets the first waiting tasks of each key and lane stand as claimable, as many as the key has room for, and holds the
-- others. Under the key's lock, and in a statement after it, so that the count of live ones is the true one. Ready rows
-- that a claim has locked are left alone: it checks the limit itself. A verb gathers all its keys and calls this once, at
-- its end: two calls in one transaction could lock two keys in the order in which another transaction does not.
-- Nothing happens where there are no keys, or null.
CREATE FUNCTION accs.admit(p_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_keys IS NULL OR p_keys = '{}' THEN
    RETURN;
  END IF;
  PERFORM FROM accs.concurrency_keys WHERE key = ANY (p_keys) ORDER BY key FOR NO KEY UPDATE;
  WITH RECURSIVE room AS (
    SELECT k.key, greatest(0, k.max_running - (SELECT count(*) FROM accs.live l WHERE l.key = k.key))::int AS n
      FROM accs.concurrency_keys k WHERE k.key = ANY (p_keys)
  ), lane AS (   -- the distinct lanes of each key, by hopping through the index
    SELECT r.key, r.n, (SELECT min(w.lane) FROM accs.waiting w WHERE w.key = r.key AND (w.hold IS NULL OR w.hold = 'key')) AS id FROM room r
    UNION ALL
    SELECT l.key, l.n, (SELECT min(w.lane) FROM accs.waiting w WHERE w.key = l.key AND (w.hold IS NULL OR w.hold = 'key') AND w.lane > l.id)
      FROM lane l WHERE l.id IS NOT NULL
  ), first AS (
    SELECT f.task_id FROM lane l, LATERAL (
      SELECT w.task_id FROM accs.waiting w
       WHERE w.key = l.key AND w.lane = l.id AND (w.hold IS NULL OR w.hold = 'key')
       ORDER BY w.rank, w.order_seq, w.created_at, w.task_id LIMIT l.n) f
     WHERE l.id IS NOT NULL
  ), change AS (
    SELECT w.task_id, NULL::text AS hold FROM accs.waiting w
     WHERE w.task_id IN (SELECT task_id FROM first) AND w.hold = 'key'
    UNION ALL
    SELECT w.task_id, 'key' FROM accs.waiting w
     WHERE w.key = ANY (p_keys) AND w.hold IS NULL AND w.task_id NOT IN (SELECT task_id FROM first)
  ), free AS (
    SELECT w.task_id, c.hold FROM change c JOIN accs.waiting w ON w.task_id = c.task_id FOR UPDATE OF w SKIP LOCKED
  )
  UPDATE accs.waiting w SET hold = f.hold FROM free f WHERE w.task_id = f.task_id AND (w.hold IS NULL OR w.hold = 'key');
END $$;
SELECT accs.pin('admit');

-- Makes tasks wait that have just become runnable: at once, or until a due time. The caller admits the keys it returns.
CREATE FUNCTION accs.enqueue(p_task_ids uuid[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  v_keys text[];
BEGIN
  WITH fresh AS (
    INSERT INTO accs.waiting (task_id, lane, rank, order_seq, created_at, hold, due_at, key)
    SELECT t.id, t.lane, -j.priority, j.order_seq, t.created_at,
           CASE WHEN t.next_attempt_at > accs.clock() THEN 'backoff'
                WHEN j.workflow_id = ANY ((SELECT accs.paused_workflows())::uuid[]) THEN 'paused'
                WHEN t.resolve THEN 'resolve'
                WHEN t.concurrency_key IS NOT NULL THEN 'key' END,
           CASE WHEN t.next_attempt_at > accs.clock() THEN t.next_attempt_at END,
           t.concurrency_key
      FROM public.job_tasks t JOIN public.jobs j ON j.id = t.job_id
     WHERE t.id = ANY (p_task_ids) AND t.status = 'queued' AND t.remaining = 0
    RETURNING key, hold)
  SELECT array_agg(DISTINCT key) INTO v_keys FROM fresh WHERE hold = 'key';
  RETURN v_keys;
END $$;
SELECT accs.pin('enqueue');

-- Takes tasks out of waiting; the caller holds their jobs' locks, so that nobody else makes them wait again. Waits for a
-- claim under way, which may put a row back that must not run yet: as a new row, which the first DELETE can't see.
CREATE FUNCTION accs.unqueue(p_task_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  LOOP
    DELETE FROM accs.waiting WHERE task_id = ANY (p_task_ids);
    EXIT WHEN NOT EXISTS (SELECT FROM accs.waiting WHERE task_id = ANY (p_task_ids));
  END LOOP;
END $$;

-- ---------------------------------------------------------------------------------------------------------------
-- Nodes: who registers one and may speak for it, whether it is there, awake or asleep
-- ---------------------------------------------------------------------------------------------------------------

CREATE TABLE public.nodes (
  name             text PRIMARY KEY CHECK (name <> ''),
  labels           jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object'),
  last_seen        timestamptz CHECK (last_seen BETWEEN '0001-01-02Z' AND '9999-12-30Z'),
  awake_state      text NOT NULL DEFAULT 'unknown' CHECK (awake_state IN ('unknown', 'awake', 'sleep')),
  wake_method      text CHECK (wake_method IN ('wol', 'provider', 'script')),
  mac              text,
  provider_ref     text,
  script           text,
  max_concurrency  jsonb NOT NULL DEFAULT '{}'
                   CHECK (jsonb_typeof(max_concurrency) = 'object'
                          AND NOT jsonb_path_exists(max_concurrency,
                                                    '$.* ? (@.type() != "number" || @ < 0 || @ > 1000000 || @.floor() != @)')),
  -- additions: whose it is, and which machine and process last registered it
  login            text,
  machine_id       text,
  boot_id          text,
  instance         text,
  CONSTRAINT bounded CHECK (octet_length(name) <= 200 AND pg_column_size(labels) <= 65536 AND pg_column_size(max_concurrency) <= 65536
    AND octet_length(concat(mac, provider_ref, script, machine_id, boot_id, instance)) <= 8192)
) WITH (fillfactor = 50);

-- A row for each service that a node offers. Two claims of one node lock it in turn, so that they do not both see the last free
-- slot; a row, for the reason that accs.locks has.
CREATE TABLE accs.slots (
  node     text NOT NULL,
  service  text NOT NULL,
  PRIMARY KEY (node, service)
);

-- Waking and sleeping, beside nodes.awake_state. try_id is the fence of whoever makes the last call; ok is null until he has
-- said whether it got through. A node that is seen is ready, whatever was before.
CREATE TABLE accs.power (
  node          text PRIMARY KEY REFERENCES public.nodes (name) ON DELETE CASCADE,
  state         text NOT NULL CHECK (state IN ('unknown', 'asleep', 'waking', 'booting', 'ready', 'failed')),
  since         timestamptz NOT NULL DEFAULT accs.clock(),
  because       text,                       -- why it is awake (its agent says it), or is not woken (the builder does)
  try_id        uuid,
  tried_at      timestamptz,
  method        text,
  ok            boolean,
  error         text,                       -- why that call did not get through
  tries         int NOT NULL DEFAULT 0,     -- since the node was last seen
  called_at     timestamptz,                -- the last call since then that got through
  called_by     text,                       -- by which method
  brought_by    text,                       -- the method that brought it when it came last
  latency       interval,                   -- usual: from the call until the node is seen
  last_latency  interval,
  networks      cidr[] NOT NULL DEFAULT '{}',  -- the segments that it is in: who shares one can wake it
  watts         jsonb CHECK (jsonb_typeof(watts) = 'object'   -- what it draws: asleep, booting, idle, busy; null: nobody has said
                             AND NOT jsonb_path_exists(watts, '$.* ? (@.type() != "number" || @ < 0)'))
) WITH (fillfactor = 50);

-- What happened to each node, the last 1,000 things.
CREATE TABLE accs.node_history (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  node     text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  ts       timestamptz NOT NULL DEFAULT accs.clock(),
  state    text NOT NULL,
  message  text NOT NULL,
  data     jsonb NOT NULL DEFAULT '{}'
);

CREATE INDEX node_history_node ON accs.node_history (node, id);

-- Why an agent that lives takes no tasks of a service now: its disk is full, its engine is away, the service says "not now".
CREATE TABLE accs.obstacles (
  node         text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  service      text NOT NULL,
  since        timestamptz NOT NULL DEFAULT accs.clock(),
  reason       text NOT NULL,
  PRIMARY KEY (node, service)
);

-- Whoever is the owner, or the control host, acts for every node. A verb runs as the owner; session_user is who has logged in.
CREATE FUNCTION accs.speaks_for_all() RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT pg_has_role(session_user, current_user, 'MEMBER')
         OR coalesce(pg_has_role(session_user, to_regrole('accs_scheduler'), 'MEMBER'), false)
$$;

CREATE FUNCTION accs.check_size(p_rows int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_rows > 10000 THEN
    RAISE EXCEPTION 'one call is for at most 10,000 rows, and this one has %', p_rows
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Divide it.';
  END IF;
END $$;

-- For the verbs of an attempt: who calls them may speak for this node, asks for no endless lease, and for a number of tasks that
-- one transaction can bear. A node belongs to the first login that registers it and does not speak for all.
-- (The verbs look themselves whether there is anything to check: a call costs as much as a small statement.)
CREATE FUNCTION accs.check_caller(p_node text, p_rows int DEFAULT 0, p_lease interval DEFAULT '1 s') RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_login text;
BEGIN
  PERFORM accs.check_size(p_rows);
  IF (p_lease > '0' AND p_lease <= accs.longest_lease()) IS NOT TRUE THEN
    RAISE EXCEPTION 'a lease of % is not possible: it lasts longer than 0 and at most %', p_lease, accs.longest_lease()
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF session_user <> current_user AND NOT accs.speaks_for_all() THEN
    SELECT coalesce(login, session_user) INTO v_login FROM public.nodes WHERE name = p_node;
    IF v_login IS DISTINCT FROM session_user::text THEN
      RAISE EXCEPTION 'not_your_node: "%" %, and this is the login "%"', p_node,
          CASE WHEN v_login IS NULL THEN 'is not registered' ELSE format('belongs to the login "%s"', v_login) END, session_user
        USING ERRCODE = 'AC006',
              HINT = format('To give it to this login: accsd db node-login %s; to start anew: accsd nodes remove %s.', p_node, p_node);
    END IF;
  END IF;
END $$;

-- The same for the verbs of an attempt. What the control host does itself are tools, as nodes of its own; nobody else may do them: they
-- have its secrets.
CREATE FUNCTION accs.check_attempt(p_node text, p_rows int DEFAULT 0, p_lease interval DEFAULT '1 s', p_service text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_control boolean := accs.is_control(p_node);
BEGIN
  PERFORM accs.check_caller(p_node, p_rows, p_lease);
  IF session_user = current_user OR pg_has_role(session_user, current_user, 'MEMBER') THEN
    RETURN;
  ELSIF p_service IS NOT NULL AND v_control <> (p_service = 'accs')
        OR NOT coalesce(pg_has_role(session_user, to_regrole(CASE WHEN v_control THEN 'accs_scheduler' ELSE 'accs_agent' END), 'MEMBER'),
                        true) THEN
    RAISE EXCEPTION 'not_your_node: "%" is for %, and this is the login "%"', p_node,
        CASE WHEN v_control THEN 'the tools of a control host' ELSE 'services of a node' END, session_user
      USING ERRCODE = 'AC006', HINT = 'A control host does tools (the service accs), and agents do everything else.';
  END IF;
END $$;

CREATE FUNCTION accs.is_control(p_node text) RETURNS boolean LANGUAGE sql STABLE AS $$ SELECT starts_with(p_node, 'control/') $$;

-- A thing that happened to a node.
CREATE FUNCTION accs.note_node(p_node text, p_state text, p_message text, p_data jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO accs.node_history (node, state, message, data) VALUES (p_node, p_state, p_message, jsonb_strip_nulls(p_data));
  DELETE FROM accs.node_history WHERE node = p_node
     AND id <= (SELECT id FROM accs.node_history WHERE node = p_node ORDER BY id DESC OFFSET 1000 LIMIT 1);
END $$;

-- A node's power takes a new state, and its history says so.
CREATE FUNCTION accs.note_power(p_node text, p_state text, p_message text, p_data jsonb DEFAULT '{}') RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE accs.power SET state = p_state, since = accs.clock() WHERE node = p_node AND state <> p_state;
  IF FOUND THEN
    PERFORM accs.log_power(p_node, p_state, p_message, p_data ->> 'method');
  END IF;
  INSERT INTO accs.node_history (node, state, message, data) VALUES (p_node, p_state, p_message, jsonb_strip_nulls(p_data));
  DELETE FROM accs.node_history WHERE node = p_node
     AND id <= (SELECT id FROM accs.node_history WHERE node = p_node ORDER BY id DESC OFFSET 1000 LIMIT 1);
END $$;

-- At each heartbeat, so it is little while nothing changes: whoever is seen is ready. How long it took since the last call is
-- what it is expected to take the next time; one slow start does not change that much. A call that is still under way counts,
-- too: a script may wait until the machine is up. Who comes much later than any machine takes to start was switched on by
-- somebody else: that is no measure, or it would be waited for as long the next time. The builder hears of it, because others
-- may be waiting to start.
CREATE FUNCTION accs.node_seen(p_node text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_was  accs.power;
  v_took interval;
  v_by   text;
BEGIN
  SELECT * INTO v_was FROM accs.power WHERE node = p_node AND state <> 'ready' FOR UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  IF v_was.called_at IS NOT NULL THEN
    v_took := accs.clock() - v_was.called_at;
    v_by := v_was.called_by;
  ELSIF v_was.try_id IS NOT NULL AND v_was.ok IS NULL THEN
    v_took := accs.clock() - v_was.tried_at;
    v_by := v_was.method;
  END IF;
  IF v_took > interval '30 min' THEN
    v_took := NULL;
    v_by := NULL;
  END IF;
  UPDATE accs.power SET because = NULL, try_id = NULL, tries = 0, error = NULL, called_at = NULL, called_by = NULL,
    brought_by = coalesce(v_by, brought_by), last_latency = coalesce(v_took, last_latency),
    latency = CASE WHEN v_took IS NULL THEN latency WHEN latency IS NULL THEN v_took ELSE latency + (v_took - latency) * 0.3 END
   WHERE node = p_node;
  PERFORM accs.note_power(p_node, 'ready',
    CASE WHEN v_took IS NULL THEN 'it is there'
         ELSE format('it is there, %s s after it was called by %s', round(extract(epoch FROM v_took), 1), v_by) END,
    jsonb_build_object('latency_ms', round(extract(epoch FROM v_took) * 1000), 'method', v_by, 'tries', nullif(v_was.tries, 0)));
  IF v_was.tries > 0 THEN
    PERFORM pg_notify(accs.channel_prefix() || 'builder', '');
  END IF;
END $$;

-- Of another process than the one that has registered the node.
CREATE FUNCTION accs.refuse_instance(p_node text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_node public.nodes;
BEGIN
  SELECT * INTO v_node FROM public.nodes WHERE name = p_node;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'node "%" is not registered', p_node USING ERRCODE = 'AC004', HINT = 'Call accs.register_node first.';
  END IF;
  RAISE EXCEPTION 'the name "%" is taken: machine %, boot %, process % was seen under it % s ago', p_node,
      coalesce(v_node.machine_id, 'unknown'), coalesce(v_node.boot_id, 'unknown'), coalesce(v_node.instance, 'unknown'),
      round(extract(epoch FROM accs.clock() - v_node.last_seen), 1)
    USING ERRCODE = 'AC007', HINT = 'Give one of the two machines another name: node.name in its settings, or ACC_NODE_NAME.';
END $$;

-- Registers a node or says anew what it offers. What is null stays as it is; watts of {} and tools of [] are forgotten. The
-- control host runs what `script` names, so an agent's login must not choose it: it could name any program there. Two machines
-- with one name would take each other's tasks for their own. Where the boot differs, another instance has to be silent for
-- p_lease, or to have said goodbye, before the name changes hands (a replaced disk, a power cut); clones of a disk share the
-- machine's id.
CREATE FUNCTION accs.register_node(
  p_name text, p_labels jsonb DEFAULT '{}', p_max_concurrency jsonb DEFAULT '{}', p_wake_method text DEFAULT NULL, p_mac text DEFAULT NULL,
  p_provider_ref text DEFAULT NULL, p_script text DEFAULT NULL, p_networks cidr[] DEFAULT NULL,
  p_machine_id text DEFAULT NULL, p_boot_id text DEFAULT NULL, p_instance text DEFAULT NULL, p_lease interval DEFAULT '2 min',
  p_watts jsonb DEFAULT NULL, p_tools jsonb DEFAULT NULL
) RETURNS SETOF public.nodes LANGUAGE plpgsql AS $$
DECLARE
  v_now   timestamptz := accs.clock();
  v_login text := CASE WHEN NOT accs.speaks_for_all() THEN session_user END;
  v_was   public.nodes;
BEGIN
  INSERT INTO public.nodes (name) VALUES (p_name) ON CONFLICT DO NOTHING;
  SELECT * INTO v_was FROM public.nodes WHERE name = p_name FOR NO KEY UPDATE;
  PERFORM accs.check_caller(p_name, 0, p_lease);
  IF p_instance <> v_was.instance AND p_boot_id IS DISTINCT FROM v_was.boot_id THEN
    IF v_was.awake_state = 'awake' AND v_was.last_seen > v_now - p_lease THEN
      PERFORM accs.refuse_instance(p_name);
    END IF;
    PERFORM accs.note_node(p_name, 'registered', CASE WHEN p_machine_id = v_was.machine_id THEN 'its machine has started anew'
        ELSE format('another machine has taken the name over: %s, before it %s',
                    coalesce(p_machine_id, 'unknown'), coalesce(v_was.machine_id, 'unknown')) END,
      jsonb_build_object('boot_id', p_boot_id, 'boot_id_before', v_was.boot_id));
  END IF;
  RETURN QUERY
  UPDATE public.nodes n SET last_seen = v_now, awake_state = 'awake', login = coalesce(n.login, v_login),
    labels = coalesce(p_labels, n.labels), max_concurrency = coalesce(p_max_concurrency, n.max_concurrency),
    wake_method = coalesce(p_wake_method, n.wake_method), mac = coalesce(p_mac, n.mac),
    provider_ref = coalesce(p_provider_ref, n.provider_ref),
    script = CASE WHEN v_login IS NULL THEN coalesce(p_script, n.script) ELSE n.script END,
    machine_id = CASE WHEN p_instance IS NULL THEN n.machine_id ELSE p_machine_id END,
    boot_id = CASE WHEN p_instance IS NULL THEN n.boot_id ELSE p_boot_id END, instance = coalesce(p_instance, n.instance)
   WHERE n.name = p_name
  RETURNING n.*;
  INSERT INTO accs.slots (node, service) SELECT p_name, k FROM jsonb_object_keys(p_max_concurrency) k ORDER BY k ON CONFLICT DO NOTHING;
  INSERT INTO accs.power AS w (node, state, networks) VALUES (p_name, 'unknown', coalesce(p_networks, '{}'))
  ON CONFLICT (node) DO UPDATE SET networks = p_networks WHERE p_networks IS NOT NULL AND w.networks <> p_networks;
  UPDATE accs.power SET watts = nullif(p_watts, '{}')
   WHERE node = p_name AND p_watts IS NOT NULL AND watts IS DISTINCT FROM nullif(p_watts, '{}');
  IF p_tools IS NOT NULL THEN
    PERFORM accs.note_offers(p_name, p_tools);
  END IF;
  IF v_was.awake_state = 'awake' AND v_was.last_seen < v_now - p_lease THEN
    PERFORM accs.log_silence(p_name, v_was.last_seen);
  END IF;
  PERFORM accs.node_seen(p_name);
END $$;
SELECT accs.is_verb('register_node', may => '{agent,scheduler}');

-- Some labels of a node, the others stay: two who label it at once lose nothing of each other. Null: the node is not there.
CREATE FUNCTION accs.label_node(p_node text, p_add jsonb DEFAULT '{}', p_remove text[] DEFAULT '{}') RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_labels jsonb;
BEGIN
  PERFORM FROM public.nodes WHERE name = p_node FOR NO KEY UPDATE;
  PERFORM accs.check_caller(p_node);
  UPDATE public.nodes SET labels = labels - p_remove || p_add WHERE name = p_node RETURNING labels INTO v_labels;
  RETURN v_labels;
END $$;
SELECT accs.is_verb('label_node', may => '{gateway,scheduler}');

-- A machine that is no more: its name, its history and what was held against it go. What runs there, or was seen within p_silent, stays.
CREATE FUNCTION accs.forget_node(p_name text, p_silent interval DEFAULT '2 min', p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
DECLARE
  v_node public.nodes;
  v_no   text;
BEGIN
  SELECT * INTO v_node FROM public.nodes WHERE name = p_name FOR UPDATE;
  IF NOT FOUND THEN
    v_no := 'not_found';
  ELSIF EXISTS (SELECT FROM accs.live WHERE node = p_name) THEN
    v_no := 'holds_tasks';
  ELSIF v_node.awake_state = 'awake' AND v_node.last_seen > accs.clock() - p_silent THEN
    v_no := 'is_here';
  ELSE
    DELETE FROM accs.slots WHERE node = p_name;
    DELETE FROM accs.conclusions WHERE node = p_name;
    DELETE FROM accs.pauses WHERE kind = 'node' AND name = p_name;
    DELETE FROM public.nodes WHERE name = p_name;
  END IF;
  -- what is no machine comes and goes with its process, and nobody has removed it
  IF NOT (coalesce(v_node.labels ? 'accs.kind', false) OR starts_with(p_name, 'control/')) THEN
    PERFORM accs.audited('forget_node', 'node', p_name, CASE WHEN v_no IS NULL THEN 'accepted' ELSE 'refused' END, p_by, p_reason, v_no);
  END IF;
  RETURN QUERY SELECT CASE WHEN v_no IS NULL THEN 'accepted' ELSE 'refused' END, v_no;
END $$;
SELECT accs.is_verb('forget_node', may => '{scheduler,api}');

-- Why a node stays awake, as its agent sees it.
CREATE FUNCTION accs.note_awake(p_node text, p_because text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  UPDATE accs.power SET because = left(p_because, 2000)
   WHERE node = p_node AND state = 'ready' AND because IS DISTINCT FROM left(p_because, 2000);
  RETURN CASE WHEN FOUND THEN 'accepted' ELSE 'repeated' END;
END $$;
SELECT accs.is_verb('note_awake', may => '{agent}');

-- An orderly goodbye: 'unknown' when the daemon stops, 'sleep' when the machine goes to sleep. When it was last seen stays. A node
-- that goes to sleep must hold no lease, and names the nodes that it relies on to be awake. The goodbye is refused if one of those
-- has left, so that two nodes that rely on each other do not both sleep.
CREATE FUNCTION accs.node_leaves(p_node text, p_awake_state text DEFAULT 'unknown', p_because text DEFAULT NULL,
                                 p_counting_on text[] DEFAULT '{}')
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_state text := CASE p_awake_state WHEN 'sleep' THEN 'asleep' ELSE 'unknown' END;
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  IF p_awake_state = 'sleep' THEN
    PERFORM accs.lock('node_leaves');
    IF EXISTS (SELECT FROM accs.live WHERE node = p_node)
       OR EXISTS (SELECT FROM public.nodes WHERE name = ANY (p_counting_on) AND awake_state <> 'awake') THEN
      RETURN 'refused';
    END IF;
  END IF;
  UPDATE public.nodes SET awake_state = p_awake_state WHERE name = p_node AND awake_state <> p_awake_state;
  IF FOUND THEN
    INSERT INTO accs.power (node, state) VALUES (p_node, 'ready') ON CONFLICT DO NOTHING;
    UPDATE accs.power SET because = NULL WHERE node = p_node;
    PERFORM accs.note_power(p_node, v_state,
      coalesce(p_because, CASE v_state WHEN 'asleep' THEN 'it goes to sleep' ELSE 'its agent stops' END));
    RETURN 'accepted';
  ELSIF EXISTS (SELECT FROM public.nodes WHERE name = p_node) THEN
    RETURN 'repeated';
  END IF;
  RAISE EXCEPTION 'node "%" is not registered', p_node USING ERRCODE = 'AC004', HINT = 'Call accs.register_node first.';
END $$;
SELECT accs.is_verb('node_leaves', may => '{agent,scheduler}');

-- What keeps this node from a service that it offers; null: nothing. For who asks why his task waits.
CREATE FUNCTION accs.note_obstacle(p_node text, p_service text, p_reason text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  IF p_reason IS NULL THEN
    DELETE FROM accs.obstacles WHERE node = p_node AND service = p_service;
  ELSE
    INSERT INTO accs.obstacles AS o (node, service, reason)
    SELECT n.name, left(p_service, 40), left(p_reason, 2000) FROM public.nodes n WHERE n.name = p_node
    ON CONFLICT (node, service) DO UPDATE SET reason = excluded.reason WHERE o.reason <> excluded.reason;
  END IF;
  RETURN CASE WHEN FOUND THEN 'accepted' ELSE 'repeated' END;
END $$;
SELECT accs.is_verb('note_obstacle', may => '{agent}');

-- ---------------------------------------------------------------------------------------------------------------
-- Offers: tools that the services of a node declare, until an operator accepts them
-- ---------------------------------------------------------------------------------------------------------------

-- What a node says of itself, and no more: nothing here is a tool, and nobody has checked the document. Who accepts an offer checks it and
-- calls put_tool.
CREATE TABLE accs.tool_offers (
  node      text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  service   text NOT NULL CHECK (octet_length(service) <= 200),
  tool      text NOT NULL CHECK (octet_length(tool) <= 200),
  document  jsonb NOT NULL CHECK (jsonb_typeof(document) = 'object'),
  since     timestamptz NOT NULL DEFAULT accs.clock(),   -- said so, in these words
  PRIMARY KEY (node, service)
);

-- The tools that a node offers, in place of those that it offered before: [{name, service, input_schema, …}]. For register_node, which
-- must not fail for the size of one: what is too large, or names no service, is left out.
CREATE FUNCTION accs.note_offers(p_node text, p_tools jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF jsonb_typeof(p_tools) <> 'array' OR jsonb_array_length(p_tools) > 50 THEN
    RAISE EXCEPTION 'a node offers a list of at most 50 tools' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  p_tools := (SELECT coalesce(jsonb_agg(u.tool ORDER BY u.n), '[]') FROM jsonb_array_elements(p_tools) WITH ORDINALITY AS u (tool, n)
               WHERE jsonb_typeof(u.tool) = 'object' AND octet_length(u.tool ->> 'service') <= 200
                 AND octet_length(u.tool ->> 'name') <= 200
                 AND coalesce(octet_length((u.tool -> 'input_schema')::text), 0) <= 65536
                 AND coalesce(octet_length((u.tool -> 'output_schema')::text), 0) <= 65536
                 AND octet_length((u.tool - '{input_schema,output_schema}'::text[])::text) <= 65536);
  DELETE FROM accs.tool_offers o WHERE o.node = p_node
     AND NOT EXISTS (SELECT FROM jsonb_array_elements(p_tools) AS u (tool) WHERE u.tool ->> 'service' = o.service);
  INSERT INTO accs.tool_offers AS o (node, service, tool, document)
  SELECT DISTINCT ON (u.tool ->> 'service') p_node, u.tool ->> 'service', u.tool ->> 'name', u.tool
    FROM jsonb_array_elements(p_tools) WITH ORDINALITY AS u (tool, n) ORDER BY u.tool ->> 'service', u.n
  ON CONFLICT (node, service) DO UPDATE SET tool = excluded.tool, document = excluded.document, since = excluded.since
   WHERE o.document <> excluded.document;
END $$;

-- ---------------------------------------------------------------------------------------------------------------
-- Power: when each node slept, was woken, started and was there, for as long as people ask what that has cost
-- ---------------------------------------------------------------------------------------------------------------

-- Each change of accs.power.state, kept for 400 days (forget_statistics); node_history has only the last 1,000 things. ready: it is there,
-- whether it works or not (accs.samples know that). unknown and failed: nobody knows what it draws.
CREATE TABLE accs.power_log (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  node     text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  ts       timestamptz NOT NULL,
  state    text NOT NULL CHECK (state IN ('unknown', 'asleep', 'waking', 'booting', 'ready', 'failed')),
  because  text,
  method   text                             -- by which it was called, or by which it came
);

CREATE INDEX power_log_node ON accs.power_log (node, ts, id);   -- power_log of a time, and what it was before

-- A node's power has taken a new state. The same state again is no change.
CREATE FUNCTION accs.log_power(p_node text, p_state text, p_because text, p_method text) RETURNS void LANGUAGE sql AS $$
  INSERT INTO accs.power_log (node, ts, state, because, method)
  SELECT p_node, accs.clock(), p_state, left(p_because, 2000), p_method
   WHERE (SELECT l.state FROM accs.power_log l WHERE l.node = p_node ORDER BY l.ts DESC, l.id DESC LIMIT 1) IS DISTINCT FROM p_state
$$;

-- A node that counted as ready was silent, and is there again: a power cut, a crash, a suspend that nobody announced. Nobody has noticed
-- if nothing wanted the node meanwhile.
CREATE FUNCTION accs.log_silence(p_node text, p_since timestamptz) RETURNS void LANGUAGE sql AS $$
  INSERT INTO accs.power_log (node, ts, state, because)
  SELECT p_node, s.ts, s.state, s.because
    FROM (VALUES (1, p_since, 'unknown', 'it was not seen any more'), (2, accs.clock(), 'ready', 'it is there again'))
           AS s (n, ts, state, because)
   WHERE EXISTS (SELECT FROM accs.power w WHERE w.node = p_node AND w.state = 'ready' AND w.since < p_since)
   ORDER BY s.n
$$;

-- ---------------------------------------------------------------------------------------------------------------
-- Submission and instantiation
-- ---------------------------------------------------------------------------------------------------------------

-- Jobs that are not instantiated yet.
CREATE TABLE accs.pending_jobs (
  job_id  uuid PRIMARY KEY,
  due_at  timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX pending_jobs_due ON accs.pending_jobs (due_at);             -- instantiate_due_jobs

-- A plain INSERT INTO jobs is a submission. Whoever inserts it: a queued job is noted as pending and the builder is told.
CREATE FUNCTION accs.note_new_jobs() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_bad   record;
  v_told  boolean;
  v_known uuid[];
BEGIN
  SELECT bool_or(w.notify && ARRAY['job.submitted', 'job.started']), array_agg(w.id) INTO v_told, v_known
    FROM (SELECT id, notify FROM public.workflows WHERE id IN (SELECT workflow_id FROM fresh) FOR KEY SHARE) w;   -- as a foreign key does
  SELECT id, workflow_id INTO v_bad FROM fresh WHERE workflow_id <> ALL (coalesce(v_known, '{}')) LIMIT 1;   -- a join is 0.4 µs a job more
  IF FOUND THEN
    RAISE EXCEPTION 'job %: there is no workflow %', v_bad.id, v_bad.workflow_id
      USING ERRCODE = 'foreign_key_violation', HINT = 'SELECT id, name, version FROM workflows lists them.';
  END IF;
  INSERT INTO accs.pending_jobs (job_id, due_at) SELECT id, coalesce(scheduled_at, created_at) FROM fresh WHERE status = 'queued';
  IF FOUND THEN
    PERFORM pg_notify(accs.channel_prefix() || 'builder', '');
  END IF;
  IF v_told THEN
    PERFORM accs.announce_subscribed_jobs(ARRAY(SELECT id FROM fresh ORDER BY order_seq));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER note_new_jobs AFTER INSERT ON public.jobs
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION accs.note_new_jobs();

-- Priority, options and the due time may be changed by hand while the job is queued.
CREATE FUNCTION accs.note_changed_job() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF OLD.status <> 'queued' THEN
    RAISE EXCEPTION 'job % is %: priority, options and scheduled_at are fixed once it has started', OLD.id, OLD.status
      USING ERRCODE = 'AC002', HINT = 'accs.change_jobs changes the priority; for other options, submit another job.';
  END IF;
  UPDATE accs.pending_jobs SET due_at = coalesce(NEW.scheduled_at, NEW.created_at) WHERE job_id = NEW.id;
  PERFORM pg_notify(accs.channel_prefix() || 'builder', '');
  RETURN NULL;
END $$;
CREATE TRIGGER note_changed_job AFTER UPDATE OF priority, options, scheduled_at ON public.jobs
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.note_changed_job();

-- Makes the tasks of jobs that are running already and have none. One pass: a step's row becomes a task's row, and those
-- without dependencies wait at once. The caller admits the keys it returns.
CREATE FUNCTION accs.make_tasks(p_job_ids uuid[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  v_now  timestamptz := accs.clock();
  v_keys text[];
  v_miscounted boolean;
BEGIN
  WITH fresh AS MATERIALIZED (
    SELECT accs.task_id(j.id, s.step_no) AS id, j.id AS job_id, j.task_count, j.priority, j.order_seq, j.workflow_id, s.step_no, s.task_key,
           s.service, s.depends_on, s.max_attempts, s.params, s.node, s.lane, s.requires, s.concurrency_key, s.timeout_sec, s.backoff,
           s.notify, s.resolve, s.files,
           CASE WHEN s.dependants IS NOT NULL THEN ARRAY(SELECT accs.task_id(j.id, d) FROM unnest(s.dependants) d) END AS dependants
      FROM unnest(p_job_ids) AS o (id) JOIN public.jobs j ON j.id = o.id JOIN accs.steps s ON s.workflow_id = j.workflow_id
  ), made AS (
    INSERT INTO public.job_tasks (id, job_id, task_key, service_name, depends_on, max_attempts, priority, params, assigned_node, created_at,
                                  updated_at, step_no, lane, remaining, dependants, requires, concurrency_key, timeout_sec, backoff, notify,
                                  resolve, files)
    SELECT id, job_id, task_key, service, depends_on, max_attempts, priority, params, node, v_now, v_now, step_no, lane,
           cardinality(depends_on), dependants, requires, concurrency_key, timeout_sec, backoff, notify, resolve, files FROM fresh
  ), queued AS (
    INSERT INTO accs.waiting (task_id, lane, rank, order_seq, created_at, hold, key)
    SELECT id, lane, -priority, order_seq, v_now,
           CASE WHEN workflow_id = ANY ((SELECT accs.paused_workflows())::uuid[]) THEN 'paused'
                WHEN resolve THEN 'resolve'
                WHEN concurrency_key IS NOT NULL THEN 'key' END,
           concurrency_key
      FROM fresh WHERE depends_on = '{}'
    RETURNING key, hold
  )
  SELECT array_agg(DISTINCT key) FILTER (WHERE hold = 'key'), EXISTS (SELECT FROM fresh GROUP BY job_id HAVING count(*) <> max(task_count))
    INTO v_keys, v_miscounted FROM queued;
  -- the steps were written anew after the caller had counted them; a lock would let an open transaction stop the builder
  IF v_miscounted THEN
    UPDATE public.jobs j SET task_count = c.n, open_tasks = c.n, current_task_key = c.first
      FROM (SELECT job_id, count(*) AS n, (array_agg(task_key ORDER BY step_no) FILTER (WHERE depends_on = '{}'))[1] AS first
              FROM public.job_tasks WHERE job_id = ANY (p_job_ids) GROUP BY job_id) c WHERE j.id = c.job_id;
  END IF;
  RETURN v_keys;
END $$;

-- What submit_jobs is told of a job that a schedule starts.
CREATE TYPE accs.run AS (schedule_id uuid, run_key text, waits boolean, created_by text);

-- Submits jobs, one for each workflow id; the other arrays may be null or have one element for each. A due job is
-- instantiated in this very transaction. The same idempotency key, or the same job id, again is the same job: repeated. p_runs is for
-- schedules.
CREATE FUNCTION accs.submit_jobs(
  p_workflow_ids uuid[], p_options jsonb[] DEFAULT NULL, p_priorities int[] DEFAULT NULL, p_scheduled_at timestamptz[] DEFAULT NULL,
  p_keys text[] DEFAULT NULL, p_job_ids uuid[] DEFAULT NULL, p_created_by text DEFAULT NULL, p_trace_ids text[] DEFAULT NULL,
  p_triggers jsonb[] DEFAULT NULL, p_runs accs.run[] DEFAULT NULL, p_no_cache boolean[] DEFAULT NULL
) RETURNS TABLE (job_id uuid, answer text, reason text, status text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_ids   uuid[];
  v_fresh uuid[];
  v_due   uuid[];
  v_keys  text[];
BEGIN
  SELECT array_agg(coalesce(u.id, accs.new_id()) ORDER BY n) INTO v_ids
    FROM unnest(p_workflow_ids, p_job_ids) WITH ORDINALITY AS u (workflow_id, id, n);
  WITH made AS (
    INSERT INTO public.jobs (id, workflow_id, status, current_task_key, priority, options, scheduled_at, created_at, started_at, updated_at,
                             created_by, trace_id, task_count, open_tasks, idempotency_key, order_seq, trigger, schedule_id, run_key,
                             no_cache)
    SELECT u.id, w.id, CASE WHEN due THEN 'running' ELSE 'queued' END, CASE WHEN due THEN p.first_key END, coalesce(u.priority, 0),
           coalesce(u.options, '{}'), u.scheduled_at, v_now, CASE WHEN due THEN v_now END, v_now, coalesce(u.created_by, p_created_by),
             u.trace_id,
           CASE WHEN due THEN p.step_count ELSE 0 END, CASE WHEN due THEN p.step_count ELSE 0 END, u.key, u.order_seq, u.trigger,
             u.schedule_id,
           u.run_key, nullif(u.no_cache, false)
      FROM (SELECT u.*, nextval('accs.order_seq') AS order_seq   -- in the order given
              FROM unnest(p_workflow_ids, v_ids, p_options, p_priorities, p_scheduled_at, p_keys, p_trace_ids, p_triggers, p_runs,
                          p_no_cache)
                AS u (workflow_id, id, options, priority, scheduled_at, key, trace_id, trigger, schedule_id, run_key, waits, created_by,
                      no_cache)) u
      JOIN public.workflows w ON w.id = u.workflow_id AND w.is_active
      JOIN accs.plans p ON p.workflow_id = w.id,
           LATERAL (SELECT coalesce(u.scheduled_at <= v_now, true) AND u.waits IS NOT TRUE AS due) d
     -- two batches with the same keys or ids in another order must not wait for each other's rows
     ORDER BY u.key, CASE WHEN u.key IS NULL THEN u.id END, u.order_seq
    ON CONFLICT DO NOTHING
    RETURNING id, status)
  SELECT array_agg(id), array_agg(id) FILTER (WHERE status = 'running') INTO v_fresh, v_due FROM made;

  IF v_due IS NOT NULL THEN
    INSERT INTO public.task_events (job_id, ts, source, level, type, message, data)
    SELECT u.id, v_now, 'builder', 'info', 'status', 'queued → running', '{"from": "queued", "to": "running"}'
      FROM unnest(v_due) AS u (id);
    v_keys := accs.make_tasks(v_due);
  END IF;
  IF v_keys IS NOT NULL THEN   -- asked here, because a call costs as much as a small statement
    PERFORM accs.admit(v_keys);
  END IF;

  IF cardinality(v_fresh) = cardinality(v_ids) AND p_runs IS NULL THEN
    RETURN QUERY SELECT u.id, 'accepted'::text, NULL::text,
                        CASE WHEN coalesce(p_scheduled_at[i::int] <= v_now, true) THEN 'running' ELSE 'queued' END
                   FROM unnest(v_ids) WITH ORDINALITY AS u (id, i) ORDER BY i;
    RETURN;
  END IF;
  RETURN QUERY
  SELECT coalesce(j.id, k.id),
         CASE WHEN j.id = ANY (v_fresh) THEN 'accepted' WHEN j.id IS NOT NULL OR k.id IS NOT NULL THEN 'repeated' ELSE 'refused' END,
         CASE WHEN j.id IS NOT NULL OR k.id IS NOT NULL THEN NULL
              WHEN w.id IS NULL THEN 'workflow_not_found' WHEN NOT w.is_active THEN 'workflow_inactive' ELSE 'workflow_invalid' END,
         coalesce(j.status, k.status)
    FROM unnest(v_ids) WITH ORDINALITY AS u (id, i)
    LEFT JOIN public.jobs j ON j.id = u.id
    LEFT JOIN public.jobs k ON k.idempotency_key = p_keys[i::int]
    LEFT JOIN public.workflows w ON w.id = p_workflow_ids[i::int]
   ORDER BY i;
END $$;
SELECT accs.is_verb('submit_jobs', pinned => true, may => '{scheduler,api}');

-- One job, by the workflow's name: for people and scripts. Without a version, the newest active one.
CREATE FUNCTION accs.submit(
  p_workflow text, p_options jsonb DEFAULT '{}', p_priority int DEFAULT 0, p_scheduled_at timestamptz DEFAULT NULL,
  p_key text DEFAULT NULL, p_version int DEFAULT NULL, p_created_by text DEFAULT NULL, p_no_cache boolean DEFAULT false
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_workflow uuid;
  v_job uuid;
BEGIN
  SELECT id INTO v_workflow FROM public.workflows
   WHERE name = p_workflow AND is_active AND (p_version IS NULL OR version = p_version) ORDER BY version DESC LIMIT 1;
  IF v_workflow IS NULL THEN
    RAISE EXCEPTION 'there is no active workflow "%"%', p_workflow, coalesce(' of version ' || p_version, '')
      USING ERRCODE = 'AC004', HINT = 'SELECT name, version, is_active FROM workflows lists them.';
  END IF;
  SELECT s.job_id INTO v_job FROM accs.submit_jobs(ARRAY[v_workflow], ARRAY[p_options], ARRAY[p_priority], ARRAY[p_scheduled_at],
                                    CASE WHEN p_key IS NOT NULL THEN ARRAY[p_key] END, NULL, p_created_by,
                                    p_no_cache => CASE WHEN p_no_cache THEN ARRAY[true] END) s;
  RETURN v_job;
END $$;
SELECT accs.is_verb('submit', may => '{scheduler,api}');

-- Moves these queued jobs, which the caller has locked, to running, and makes their tasks. The caller admits the keys it
-- returns.
CREATE FUNCTION accs.instantiate(p_job_ids uuid[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  WITH moved AS (
    UPDATE public.jobs j SET status = 'running', started_at = v_now, updated_at = v_now, current_task_key = p.first_key,
           task_count = p.step_count, open_tasks = p.step_count
      FROM accs.plans p WHERE j.id = ANY (p_job_ids) AND p.workflow_id = j.workflow_id
    RETURNING j.id)
  INSERT INTO public.task_events (job_id, ts, source, level, type, message, data)
  SELECT id, v_now, 'builder', 'info', 'status', 'queued → running', '{"from": "queued", "to": "running"}' FROM moved;
  DELETE FROM accs.pending_jobs WHERE job_id = ANY (p_job_ids);
  RETURN accs.make_tasks(p_job_ids);
END $$;

-- A queued job that can never be instantiated ends in error, with a readable reason; the others go on.
CREATE FUNCTION accs.reject_job(p_job uuid, p_code text, p_message text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  UPDATE public.jobs SET status = 'error', error_code = p_code, error_message = p_message, finished_at = v_now, updated_at = v_now
   WHERE id = p_job;
  PERFORM accs.end_runs(ARRAY[p_job]);
  INSERT INTO public.task_events (job_id, ts, source, level, type, message, data)
  VALUES (p_job, v_now, 'builder', 'error', 'status', p_message, jsonb_build_object('from', 'queued', 'to', 'error', 'error_code', p_code));
  DELETE FROM accs.pending_jobs WHERE job_id = p_job;
END $$;

-- Takes due jobs (or the ones given, due or not) in the order of their due times and instantiates them. Jobs that another
-- builder has locked are left to it. One bad job never stops the others: it ends in error by itself.
CREATE FUNCTION accs.instantiate_due_jobs(p_limit int DEFAULT 100, p_job_ids uuid[] DEFAULT NULL)
RETURNS TABLE (job_id uuid, answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_want uuid[];
  v_good uuid[];
  v_keys text[];
  v_row  record;
  v_id   uuid;
BEGIN
  -- The pending rows are read without a lock: jobs come first in the lock order.
  v_want := coalesce(p_job_ids, ARRAY(
    SELECT p.job_id FROM accs.pending_jobs p WHERE p.due_at <= accs.clock() ORDER BY p.due_at LIMIT p_limit));
  v_want := ARRAY(SELECT id FROM public.jobs WHERE id = ANY (v_want) AND status = 'queued' ORDER BY id FOR NO KEY UPDATE SKIP LOCKED);

  FOR v_row IN SELECT j.id, w.name, w.is_active, p.workflow_id AS plan FROM public.jobs j JOIN public.workflows w ON w.id = j.workflow_id
                 LEFT JOIN accs.plans p ON p.workflow_id = w.id
                WHERE j.id = ANY (v_want) AND (NOT w.is_active OR p.workflow_id IS NULL) LOOP
    PERFORM accs.reject_job(v_row.id, 'workflow_inactive', format('workflow "%s" is not active', v_row.name));
    RETURN QUERY SELECT v_row.id, 'refused'::text, 'workflow_inactive'::text;
  END LOOP;

  v_good := ARRAY(SELECT j.id FROM public.jobs j WHERE j.id = ANY (v_want) AND j.status = 'queued' ORDER BY j.order_seq);
  BEGIN
    v_keys := accs.instantiate(v_good);
    RETURN QUERY SELECT u.id, 'accepted'::text, NULL::text FROM unnest(v_good) AS u (id);
  EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
    FOREACH v_id IN ARRAY v_good LOOP
      BEGIN
        v_keys := v_keys || accs.instantiate(ARRAY[v_id]);
        RETURN QUERY SELECT v_id, 'accepted'::text, NULL::text;
      EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
        PERFORM accs.reject_job(v_id, 'instantiate_failed', SQLERRM);
        RETURN QUERY SELECT v_id, 'refused'::text, 'instantiate_failed'::text;
      END;
    END LOOP;
  END;

  PERFORM accs.admit(v_keys);

  IF p_job_ids IS NOT NULL THEN
    RETURN QUERY
    SELECT u.id, CASE WHEN j.task_count > 0 THEN 'repeated' ELSE 'refused' END,
           CASE WHEN j.task_count > 0 THEN NULL WHEN j.id IS NULL THEN 'not_found' WHEN j.status = 'queued' THEN 'locked'
                ELSE 'not_in_expected_state' END
      FROM unnest(p_job_ids) AS u (id) LEFT JOIN public.jobs j ON j.id = u.id WHERE u.id <> ALL (v_want);
  END IF;
END $$;
SELECT accs.is_verb('instantiate_due_jobs', may => '{scheduler}');

-- Changes what is asked of jobs; null leaves a value as it is. The priority of a job that runs changes for what is open of it;
-- its options and its time are fixed. What waits is taken out and put back in its new place: a claim under way could put a row
-- back with the old rank.
CREATE FUNCTION accs.change_jobs(p_job_ids uuid[], p_priority int DEFAULT NULL, p_options jsonb DEFAULT NULL,
                                 p_scheduled_at timestamptz DEFAULT NULL, p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_open  uuid[];
  v_jobs  uuid[];
  v_tasks uuid[];
  v_keys  text[];
BEGIN
  v_open := ARRAY(SELECT id FROM public.jobs WHERE id = ANY (p_job_ids) AND status IN ('queued', 'running') ORDER BY id FOR NO KEY UPDATE);
  v_jobs := ARRAY(SELECT id FROM public.jobs WHERE id = ANY (v_open)
                     AND (status = 'queued' OR p_options IS NULL AND p_scheduled_at IS NULL)
                     AND (p_priority <> priority OR p_options IS DISTINCT FROM options AND p_options IS NOT NULL
                          OR p_scheduled_at IS DISTINCT FROM scheduled_at AND p_scheduled_at IS NOT NULL) ORDER BY id);
  IF v_jobs <> '{}' THEN
    v_tasks := ARRAY(SELECT id FROM public.job_tasks
                      WHERE job_id = ANY (v_jobs) AND status IN ('queued', 'starting', 'running') ORDER BY id);
    PERFORM accs.unqueue(v_tasks);
    INSERT INTO public.task_events (job_id, ts, source, level, type, message, data)
    SELECT id, v_now, coalesce(p_by, 'operator'), 'info', 'changed', coalesce(p_reason, 'changed'), jsonb_strip_nulls(jsonb_build_object(
             'priority', CASE WHEN p_priority <> priority THEN jsonb_build_object('from', priority, 'to', p_priority) END,
             'scheduled_at', CASE WHEN p_scheduled_at IS NOT NULL THEN jsonb_build_object('from', scheduled_at, 'to', p_scheduled_at) END,
             'options', CASE WHEN p_options IS NOT NULL THEN ARRAY(SELECT k FROM jsonb_object_keys(coalesce(options, '{}') || p_options) k
                                                                   WHERE options -> k IS DISTINCT FROM p_options -> k ORDER BY k) END))
      FROM public.jobs WHERE id = ANY (v_jobs);
    UPDATE public.jobs SET priority = coalesce(p_priority, priority), options = coalesce(p_options, options),
           scheduled_at = coalesce(p_scheduled_at, scheduled_at), updated_at = v_now WHERE id = ANY (v_jobs);
    UPDATE public.job_tasks t SET priority = p_priority, updated_at = v_now   -- of those that have ended, too: they may be retried
      FROM (SELECT id FROM public.job_tasks WHERE job_id = ANY (v_jobs) AND priority <> p_priority ORDER BY id) u WHERE t.id = u.id;
    UPDATE accs.pending_jobs p SET due_at = coalesce(j.scheduled_at, j.created_at) FROM public.jobs j
     WHERE j.id = p.job_id AND p.job_id = ANY (v_jobs);
    v_keys := accs.enqueue(v_tasks);
    PERFORM accs.admit(v_keys);
    PERFORM pg_notify(accs.channel_prefix() || 'builder', '');
  END IF;
  RETURN QUERY
  SELECT * FROM accs.audit_answers('change_jobs', 'job', ARRAY(
    SELECT ROW(u.id, CASE WHEN u.id = ANY (v_jobs) THEN 'accepted' WHEN r.reason IS NULL THEN 'repeated' ELSE 'refused' END,
               CASE WHEN u.id <> ALL (v_jobs) THEN r.reason END, j.status, NULL::int, NULL::text, NULL::timestamptz)::accs.answer
      FROM unnest(p_job_ids) AS u (id) LEFT JOIN public.jobs j ON j.id = u.id,
           LATERAL (SELECT CASE WHEN j.id IS NULL THEN 'not_found' WHEN j.id <> ALL (v_open) THEN 'already_finished'
                                WHEN j.status = 'running' AND (p_options IS NOT NULL OR p_scheduled_at IS NOT NULL)
                                  THEN 'already_started' END AS reason) r), p_by, p_reason,
    -- not the options themselves: they may be large, and may hold what is masked elsewhere
    jsonb_strip_nulls(jsonb_build_object('priority', p_priority, 'scheduled_at', p_scheduled_at,
      'options', CASE WHEN p_options IS NOT NULL THEN ARRAY(SELECT k FROM jsonb_object_keys(p_options) k ORDER BY k LIMIT 50) END)));
END $$;
SELECT accs.is_verb('change_jobs', may => '{scheduler,api}');

-- For the builder, between its passes: is a job due, when is the next one, and when does the next lease end. Times are distances
-- from this clock, as in agent_outlook. All of live is read: it is little,
-- and an index on lease_until would cost every heartbeat more.
CREATE FUNCTION accs.builder_outlook() RETURNS TABLE (due boolean, next_job interval, next_lease interval) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  RETURN QUERY
  SELECT coalesce(p.due_at <= v_now, false), CASE WHEN isfinite(p.due_at) THEN greatest(p.due_at - v_now, '0') END,
         CASE WHEN isfinite(p.lease_until) THEN greatest(p.lease_until - v_now, '0') END
    FROM (SELECT (SELECT p.due_at FROM accs.pending_jobs p ORDER BY p.due_at LIMIT 1) AS due_at,
                 (SELECT min(l.lease_until) FROM accs.live l) AS lease_until) p;
END $$;
SELECT accs.is_verb('builder_outlook', pinned => true, may => '{scheduler}');


-- ---------------------------------------------------------------------------------------------------------------
-- Claims: tasks are taken in the global order
-- ---------------------------------------------------------------------------------------------------------------

-- Retries whose time has come become claimable, without anybody's help. Bounded, so that a herd that is due at once is
-- worked off claim by claim instead of running into a timeout for ever. True if it locked keys.
CREATE FUNCTION accs.promote(p_lanes int[]) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_keys text[];
BEGIN
  WITH due AS (
    SELECT task_id FROM accs.waiting WHERE lane = ANY (p_lanes) AND hold = 'backoff' AND due_at <= accs.clock()
     LIMIT 10000 FOR UPDATE SKIP LOCKED
  ), freed AS (
    UPDATE accs.waiting w SET due_at = NULL, hold = CASE WHEN j.workflow_id = ANY ((SELECT accs.paused_workflows())::uuid[]) THEN 'paused'
                                                         WHEN w.key IS NOT NULL THEN 'key' END
      FROM due, public.job_tasks t, public.jobs j WHERE w.task_id = due.task_id AND t.id = w.task_id AND j.id = t.job_id
    RETURNING w.key, w.hold)
  SELECT array_agg(DISTINCT key) INTO v_keys FROM freed WHERE hold = 'key';
  IF v_keys IS NULL THEN
    RETURN false;
  END IF;
  PERFORM accs.admit(v_keys);
  RETURN true;
END $$;
SELECT accs.pin('promote');

-- Takes the first p_limit claimable rows of several lanes out of waiting, in the global order, and returns their task ids in
-- that order. Rows that another claim has locked are passed over. (Of one lane the index gives the order; here the heads of the
-- lanes are merged first and then locked, so that no row is locked that is not taken. The coalesce keeps the planner from an index of all
-- that is claimable.)
CREATE FUNCTION accs.take(p_lanes int[], p_limit int) RETURNS TABLE (task_id uuid, key text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_left  int := p_limit;
  v_after accs.waiting;
  v_head  accs.waiting[];
  v_took  int;
BEGIN
  v_after.rank := -2147483648;
  v_after.order_seq := -9223372036854775808;
  v_after.created_at := '-infinity';
  v_after.task_id := '00000000-0000-0000-0000-000000000000';
  WHILE v_left > 0 LOOP
    SELECT array_agg(h ORDER BY h.rank, h.order_seq, h.created_at, h.task_id) INTO v_head FROM (
      SELECT h.* FROM unnest(p_lanes) l, LATERAL (
        SELECT w.* FROM accs.waiting w
         WHERE w.lane = l AND w.hold IS NULL
           AND (w.rank, w.order_seq, w.created_at, w.task_id) > (v_after.rank, v_after.order_seq, v_after.created_at, v_after.task_id)
         ORDER BY w.rank, w.order_seq, w.created_at, w.task_id LIMIT v_left) h
       ORDER BY h.rank, h.order_seq, h.created_at, h.task_id LIMIT v_left) h;
    EXIT WHEN v_head IS NULL;
    v_after := v_head[cardinality(v_head)];
    RETURN QUERY
    WITH taken AS (
      DELETE FROM accs.waiting WHERE ctid = ANY (ARRAY(
        SELECT w.ctid FROM accs.waiting w
         WHERE w.task_id = ANY (ARRAY(SELECT h.task_id FROM unnest(v_head) h)) AND coalesce(w.hold, '') = ''
           FOR UPDATE SKIP LOCKED))
      RETURNING *)
    SELECT t.task_id, t.key FROM taken t ORDER BY t.rank, t.order_seq, t.created_at, t.task_id;
    GET DIAGNOSTICS v_took = ROW_COUNT;
    v_left := v_left - v_took;
  END LOOP;
END $$;

-- Of tasks just taken, those that a pause or a full concurrency key keeps from running go back to wait; the others are
-- returned, with their keys. The keys are locked first and counted in the next statement: counting inside one statement
-- let four claimers pass a limit of one. p_taken are the keys of what this claim has taken before, which is not live yet.
-- A claim that holds the lock of a key already must not wait for another one (p_wait is false): what belongs to a key that
-- somebody else has locked goes back as claimable as it was, and the claim is content with what it has (busy).
CREATE FUNCTION accs.hold_back(p_task_ids uuid[], p_keys text[], p_taken text[], p_wait boolean,
                               OUT ids uuid[], OUT keys text[], OUT busy boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_ours   text[];
  v_paused uuid[];
  v_full   uuid[];
  v_busy   uuid[];
  v_admit  text[];
BEGIN
  v_paused := ARRAY(SELECT t.id FROM public.job_tasks t JOIN public.jobs j ON j.id = t.job_id
                     WHERE t.id = ANY (p_task_ids) AND j.workflow_id = ANY ((SELECT accs.paused_workflows())::uuid[]));
  IF p_wait THEN
    v_ours := ARRAY(SELECT key FROM accs.concurrency_keys WHERE key = ANY (p_keys) ORDER BY key FOR NO KEY UPDATE);
  ELSE
    v_ours := ARRAY(SELECT key FROM accs.concurrency_keys WHERE key = ANY (p_keys) ORDER BY key FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
  v_busy := ARRAY(SELECT u.id FROM unnest(p_task_ids, p_keys) AS u (id, key)
                   WHERE u.key IS NOT NULL AND u.key <> ALL (v_ours) AND u.id <> ALL (v_paused));
  v_full := ARRAY(
    SELECT b.id FROM (
      SELECT u.id, u.key, row_number() OVER (PARTITION BY u.key ORDER BY u.n) AS n
        FROM unnest(p_task_ids, p_keys) WITH ORDINALITY AS u (id, key, n) WHERE u.key = ANY (v_ours) AND u.id <> ALL (v_paused)) b
      JOIN accs.concurrency_keys k ON k.key = b.key
     WHERE b.n > k.max_running - (SELECT count(*) FROM accs.live l WHERE l.key = b.key)
                               - (SELECT count(*) FROM unnest(p_taken) AS m (key) WHERE m.key = b.key));
  PERFORM accs.enqueue(v_paused || v_full || v_busy);
  IF v_busy <> '{}' THEN
    UPDATE accs.waiting SET hold = NULL WHERE task_id = ANY (v_busy) AND hold = 'key';
  END IF;
  -- a paused task had a place at its key that is the next one's now
  SELECT array_agg(DISTINCT u.key) INTO v_admit FROM unnest(p_task_ids, p_keys) AS u (id, key)
   WHERE u.id = ANY (v_paused) AND u.key = ANY (v_ours);
  IF v_admit IS NOT NULL THEN   -- asked here, because a call costs as much as a small statement
    PERFORM accs.admit(v_admit);
  END IF;
  SELECT coalesce(array_agg(u.id ORDER BY u.n), '{}'), array_agg(u.key ORDER BY u.n) INTO ids, keys
    FROM unnest(p_task_ids, p_keys) WITH ORDINALITY AS u (id, key, n) WHERE u.id <> ALL (v_paused || v_full || v_busy);
  busy := v_busy <> '{}';
END $$;
SELECT accs.pin('hold_back');

-- What a claim hands to the agent.
CREATE TYPE accs.claimed AS (
  task_id       uuid,
  job_id        uuid,
  task_key      text,
  service_name  text,
  attempt_id    int,
  attempt       int,
  max_attempts  int,
  status        text,
  params        jsonb,
  options       jsonb,
  given         jsonb,
  timeout_sec   double precision,
  lease_until   timestamptz,
  trace_id      text,
  trigger       jsonb,
  output_schema jsonb                -- of the tool that the step uses, where it has one
);

-- Claims up to p_limit tasks of a service for a node, in the global order: jobs.priority DESC, order_seq, created_at, id.
-- Touches no finished, blocked or future row, and none that this node may not take. With p_start they are started as well, for
-- whoever has nothing to prepare: one write of the row instead of two, and the events of both transitions. A claim of 0 takes nothing,
-- but walks through the same statements, so that they are planned when the connection's first real claim comes (25 ms).
CREATE FUNCTION accs.claim_tasks(p_service text, p_owner text, p_node text, p_limit int, p_lease interval, p_start boolean DEFAULT false)
RETURNS SETOF accs.claimed LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now    timestamptz := accs.clock();
  v_cap    int;
  v_lanes  int[];
  v_paused boolean;
  v_is_due boolean;          -- something that waited for its time
  v_until  timestamptz;
  v_ill    text;             -- this service on this node: 'shut', or on 'trial'
  v_probe  timestamptz;
  v_want   int := greatest(0, p_limit);
  v_asked  int;
  v_ids    uuid[] := '{}';
  v_batch  uuid[];
  v_keys   text[];
  v_held   boolean;          -- a workflow is paused
  v_taken  text[];           -- the keys of v_ids
  v_locked boolean := false; -- this claim holds a key's lock
  v_busy   boolean := false;
  v_source text := 'agent:' || p_service;
  v_to     text := CASE WHEN p_start THEN 'running' ELSE 'starting' END;
  v_data   jsonb := jsonb_build_object('from', 'queued', 'to', 'starting', 'owner', p_owner, 'node', p_node);
BEGIN
  IF session_user <> current_user OR (p_limit <= 10000 AND p_lease > '0' AND p_lease <= '1 day') IS NOT TRUE THEN
    PERFORM accs.check_attempt(p_node, p_limit, p_lease, p_service);
    IF p_owner IS DISTINCT FROM p_node THEN
      PERFORM accs.check_attempt(p_owner);
    END IF;
  END IF;
  -- all at once, because a claim for a single task is mostly the starting of statements
  SELECT (n.max_concurrency ->> p_service)::int, l.ids, q.state, q.probe_at,
         EXISTS (SELECT FROM accs.pauses WHERE kind = 'service' AND name = p_service OR kind = 'node' AND name = p_node),
         EXISTS (SELECT FROM accs.waiting WHERE lane = ANY (l.ids) AND hold = 'backoff' AND due_at <= v_now)
    INTO v_cap, v_lanes, v_ill, v_probe, v_paused, v_is_due
    FROM public.nodes n LEFT JOIN accs.quarantines q ON q.node = n.name AND q.service = p_service,
         LATERAL (SELECT ARRAY(SELECT l.id FROM accs.lanes l
                                WHERE l.service = p_service AND (l.node IS NULL OR l.node = p_node) AND l.requires <@ n.labels) AS ids) l
   WHERE n.name = p_node;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'node "%" is not registered', p_node USING ERRCODE = 'AC004', HINT = 'Call accs.register_node first.';
  END IF;
  IF v_lanes = '{}' OR v_paused THEN
    RETURN;
  END IF;
  -- a service in pull mode has no agent that probes: its claim counts as the probe
  IF p_start AND p_limit > 0 AND v_ill = 'shut' AND v_probe <= v_now THEN
    PERFORM accs.note_probe(p_node, p_service, NULL, '0');
    v_ill := 'trial';
  END IF;
  IF v_ill = 'shut' THEN
    RETURN;
  ELSIF v_ill = 'trial' THEN
    v_cap := least(v_cap, 1);
  END IF;
  IF v_cap IS NOT NULL THEN
    IF NOT v_is_due AND p_limit > 0 AND NOT EXISTS (SELECT FROM accs.waiting WHERE lane = ANY (v_lanes) AND hold IS NULL) THEN
      RETURN;   -- who finds nothing locks nothing, and so writes nothing
    END IF;
    -- two claims of one node at the same time must not both see the last free slot
    PERFORM FROM accs.slots WHERE node = p_node AND service = p_service FOR UPDATE;
    IF NOT FOUND THEN   -- the node was written by hand
      INSERT INTO accs.slots (node, service) VALUES (p_node, p_service) ON CONFLICT DO NOTHING;
      PERFORM FROM accs.slots WHERE node = p_node AND service = p_service FOR UPDATE;
    END IF;
    v_want := greatest(0, least(v_want, v_cap - (SELECT count(*) FROM accs.live WHERE node = p_node AND service = p_service)));
  END IF;

  IF v_is_due THEN
    v_locked := accs.promote(v_lanes);
  END IF;
  LOOP
    v_asked := v_want - cardinality(v_ids);
    EXIT WHEN v_busy OR v_asked = 0 AND p_limit > 0;
    IF cardinality(v_lanes) = 1 THEN
      WITH taken AS (
        DELETE FROM accs.waiting WHERE ctid = ANY (ARRAY(
          SELECT w.ctid FROM accs.waiting w WHERE w.lane = v_lanes[1] AND w.hold IS NULL
           ORDER BY w.rank, w.order_seq, w.created_at, w.task_id LIMIT v_asked FOR UPDATE SKIP LOCKED))
        RETURNING *)
      SELECT array_agg(t.task_id), array_agg(t.key), EXISTS (SELECT FROM accs.pauses WHERE kind = 'workflow') INTO v_batch, v_keys, v_held
        FROM (SELECT * FROM taken ORDER BY rank, order_seq, created_at, task_id) t;
    ELSE
      SELECT array_agg(t.task_id), array_agg(t.key), EXISTS (SELECT FROM accs.pauses WHERE kind = 'workflow') INTO v_batch, v_keys, v_held
        FROM accs.take(v_lanes, v_asked) t;
    END IF;
    EXIT WHEN v_batch IS NULL;
    IF cardinality(array_remove(v_keys, NULL)) > 0 OR v_held THEN
      SELECT v_ids || h.ids, v_taken || h.keys, h.busy, v_locked OR cardinality(array_remove(v_keys, NULL)) > 0
        INTO v_ids, v_taken, v_busy, v_locked FROM accs.hold_back(v_batch, v_keys, v_taken, NOT v_locked) h;
    ELSE
      v_ids := v_ids || v_batch;
    END IF;
    EXIT WHEN cardinality(v_batch) < v_asked;
  END LOOP;
  IF v_ids = '{}' AND p_limit > 0 THEN
    RETURN;
  END IF;

  v_until := v_now + accs.waited() + p_lease;   -- what it has waited for locks is not taken off the lease

  RETURN QUERY
  WITH moved AS (
    UPDATE public.job_tasks t SET status = v_to, attempt_id = t.attempt_id + 1, claimed_by = p_owner, claimed_at = v_now,
           lease_owner = p_owner, lease_until = v_until, next_attempt_at = NULL, progress = 0, updated_at = v_now,
           started_at = CASE WHEN p_start THEN v_now END,
           -- The results of the steps that it depends on, by key. What is too large to hand over is left out with a note rather
           -- than stopping the lane. The fence (OFFSET 0) keeps it one index look-up for each key: PostgreSQL 15 read all tasks
           -- of the job instead.
           -- What the resolver has given stays, among it the lists of results of steps that were multiplied, and which steps' results
           -- are too large for it.
           given = CASE WHEN t.depends_on <> '{}' THEN (
             SELECT coalesce(t.given, '{}') || CASE WHEN sum(pg_column_size(d.results)) > 16777216
                         THEN jsonb_build_object('inputs', '{}'::jsonb, 'omitted', to_jsonb(t.depends_on))
                         ELSE jsonb_build_object('inputs', coalesce(jsonb_object_agg(d.task_key, coalesce(
                                CASE WHEN d.items IS NOT NULL THEN t.given #> ARRAY['inputs', d.task_key] END, d.results, '{}')), '{}')) END
               FROM unnest(t.depends_on) AS k (key), LATERAL (
                 SELECT u.task_key, u.results, u.items FROM public.job_tasks u
                  WHERE u.job_id = t.job_id AND u.task_key = k.key OFFSET 0) d
              WHERE (t.given -> 'omitted' ? k.key) IS NOT TRUE) ELSE t.given END
     WHERE t.id = ANY (v_ids) AND t.status = 'queued'
    RETURNING t.id, t.job_id, t.task_key, t.attempt_id, t.attempt, t.max_attempts, t.params, t.given, t.timeout_sec, t.concurrency_key,
              t.created_at
  ), leased AS (
    INSERT INTO accs.live (task_id, job_id, service, node, owner, attempt_id, key, lease_until)
    SELECT id, job_id, p_service, p_node, p_owner, attempt_id, concurrency_key, v_until FROM moved
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
    SELECT job_id, id, v_now, v_source, 'info', 'status', 'queued → starting', v_data, attempt_id FROM moved
    UNION ALL
    SELECT job_id, id, v_now, v_source, 'info', 'status', 'starting → running', '{"from": "starting", "to": "running"}', attempt_id
      FROM moved WHERE p_start
  )
  SELECT m.id, m.job_id, m.task_key, p_service, m.attempt_id, m.attempt, m.max_attempts, v_to,
         CASE WHEN m.given ? 'with' THEN m.params || (m.given -> 'with') ELSE m.params END, j.options, m.given,
         m.timeout_sec, v_until, j.trace_id, j.trigger,
         CASE WHEN m.given ? 'tool' THEN (accs.tool_named(m.given ->> 'tool')).output_schema END
    FROM moved m JOIN public.jobs j ON j.id = m.job_id WHERE j.id = ANY (ARRAY(SELECT job_id FROM moved))
   ORDER BY j.priority DESC, j.order_seq, m.created_at, m.id;
END $$;
SELECT accs.is_verb('claim_tasks', hashes => true, may => '{agent,scheduler}');

-- What an owner holds, to settle a claim whose COMMIT was lost and to adopt its own work after a restart. Leases that are
-- still good are extended; what has run out belongs to reclaim.
CREATE FUNCTION accs.adopt_tasks(p_owner text, p_node text, p_lease interval) RETURNS SETOF accs.claimed LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_until timestamptz := v_now + accs.waited() + p_lease;
BEGIN
  IF session_user <> current_user OR (p_lease > '0' AND p_lease <= '1 day') IS NOT TRUE THEN
    PERFORM accs.check_attempt(p_node, 0, p_lease);
  END IF;
  RETURN QUERY
  WITH mine AS (
    SELECT task_id FROM accs.live WHERE node = p_node AND owner = p_owner AND lease_until > v_now ORDER BY task_id
  ), kept AS (
    UPDATE public.job_tasks t SET lease_until = v_until, updated_at = v_now FROM mine
     WHERE t.id = mine.task_id AND t.lease_owner = p_owner AND t.lease_until > v_now
    RETURNING t.*
  ), extended AS (
    UPDATE accs.live SET lease_until = v_until WHERE task_id = ANY (ARRAY(SELECT id FROM kept))
  )
  SELECT k.id, k.job_id, k.task_key, k.service_name, k.attempt_id, k.attempt, k.max_attempts, k.status,
         CASE WHEN k.given ? 'with' THEN k.params || (k.given -> 'with') ELSE k.params END, j.options, k.given,
         k.timeout_sec, k.lease_until, j.trace_id, j.trigger,
         CASE WHEN k.given ? 'tool' THEN (accs.tool_named(k.given ->> 'tool')).output_schema END
    FROM kept k JOIN public.jobs j ON j.id = k.job_id ORDER BY k.id;
END $$;
SELECT accs.is_verb('adopt_tasks', pinned => true, may => '{agent,scheduler}');

-- What a claim would find now, in its order, without taking it: for people and for select_runnable of the library.
CREATE FUNCTION accs.select_runnable(p_service text, p_limit int DEFAULT 100, p_node text DEFAULT NULL) RETURNS SETOF public.job_tasks
LANGUAGE sql STABLE AS $$
  SELECT t.* FROM accs.lanes l
    LEFT JOIN public.nodes n ON n.name = p_node,
    LATERAL (SELECT * FROM accs.waiting w
              WHERE w.lane = l.id AND (w.hold IS NULL OR w.hold = 'backoff' AND w.due_at <= accs.clock() AND w.key IS NULL)
              ORDER BY w.rank, w.order_seq, w.created_at, w.task_id LIMIT p_limit) w
    JOIN public.job_tasks t ON t.id = w.task_id
   WHERE l.service = p_service AND (p_node IS NULL OR (l.node IS NULL OR l.node = p_node) AND l.requires <@ n.labels)
   ORDER BY w.rank, w.order_seq, w.created_at, w.task_id LIMIT p_limit
$$;
SELECT accs.is_verb('select_runnable', may => '{agent,scheduler,api}');

-- What an agent asks between its passes. Times are distances from this clock: a node's own does not matter.
-- One question for all services of a node: is there something that it could claim now, and when does the next retry come
-- due. Goes to the head of each lane and no further. What a key or a pause turns out to hold is claimable only once: the
-- claim that meets it holds it.
CREATE FUNCTION accs.agent_outlook(p_node text, p_services text[]) RETURNS TABLE (service text, claimable boolean, next_due interval)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  v_now  timestamptz := accs.clock();
  v_node record;
BEGIN
  SELECT n.labels, n.max_concurrency, EXISTS (SELECT FROM accs.pauses p WHERE p.kind = 'node' AND p.name = p_node) AS paused
    INTO v_node FROM public.nodes n WHERE n.name = p_node;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'node "%" is not registered', p_node USING ERRCODE = 'AC004', HINT = 'Call accs.register_node first.';
  END IF;
  RETURN QUERY
  SELECT s.name, coalesce(bool_or(h.ready) AND bool_and(s.has_room), false), min(h.due) - v_now
    FROM (SELECT u.name, coalesce((SELECT count(*) FROM accs.live l WHERE l.node = p_node AND l.service = u.name)
                                  < least((v_node.max_concurrency ->> u.name)::int, CASE WHEN q.state = 'trial' THEN 1 END), true)
                         AND q.state IS DISTINCT FROM 'shut' AS has_room
            FROM unnest(p_services) AS u (name) LEFT JOIN accs.quarantines q ON q.node = p_node AND q.service = u.name) s
    LEFT JOIN LATERAL (
      -- scalar subqueries with a LIMIT: an EXISTS could be planned as a hash of all that waits
      SELECT coalesce((SELECT true FROM accs.waiting w WHERE w.lane = l.id AND w.hold IS NULL LIMIT 1),
                      (SELECT true FROM accs.waiting w WHERE w.lane = l.id AND w.hold = 'backoff' AND w.due_at <= v_now LIMIT 1)) AS ready,
             (SELECT w.due_at FROM accs.waiting w
               WHERE w.lane = l.id AND w.hold = 'backoff' AND w.due_at > v_now AND w.due_at < 'infinity' ORDER BY w.due_at LIMIT 1) AS due
        FROM accs.lanes l
       WHERE l.service = s.name AND (l.node IS NULL OR l.node = p_node) AND l.requires <@ v_node.labels AND NOT v_node.paused
         AND NOT EXISTS (SELECT FROM accs.pauses p WHERE p.kind = 'service' AND p.name = s.name)) h ON true
   GROUP BY s.name;
END $$;
SELECT accs.is_verb('agent_outlook', pinned => true, may => '{agent,scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- While an attempt holds its lease: start, heartbeat, progress
-- ---------------------------------------------------------------------------------------------------------------

-- Why a fenced write did not happen, or that it happened before. p_outcome is what the caller says now: the same said
-- again for the same attempt is a repetition.
CREATE FUNCTION accs.explain(p_task_ids uuid[], p_attempt_ids int[], p_owner text, p_outcomes text[])
RETURNS SETOF accs.answer LANGUAGE sql STABLE AS $$
  SELECT s.id,
         CASE WHEN t.outcome_attempt_id = s.attempt_id AND t.outcome = s.outcome THEN 'repeated' ELSE 'refused' END,
         CASE WHEN t.outcome_attempt_id = s.attempt_id AND t.outcome = s.outcome THEN NULL
              WHEN t.id IS NULL THEN 'not_found'
              WHEN t.attempt_id > s.attempt_id THEN 'stale_attempt'
              WHEN t.status IN ('done', 'error', 'skipped', 'cancelled') THEN 'already_finished'
              WHEN t.status NOT IN ('starting', 'running') OR t.attempt_id < s.attempt_id THEN 'not_in_expected_state'
              WHEN t.lease_owner <> p_owner OR t.lease_until <= accs.clock() THEN 'lease_lost_or_owner_mismatch'
              ELSE 'not_in_expected_state' END,
         t.status, t.attempt_id, t.lease_owner, t.lease_until
    FROM unnest(p_task_ids, p_attempt_ids, p_outcomes) AS s (id, attempt_id, outcome)
    LEFT JOIN public.job_tasks t ON t.id = s.id
$$;

CREATE FUNCTION accs.start_tasks(p_task_ids uuid[], p_attempt_ids int[], p_owner text) RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_moved uuid[];
BEGIN
  IF session_user <> current_user OR cardinality(p_task_ids) > 10000 THEN
    PERFORM accs.check_attempt(p_owner, cardinality(p_task_ids));
  END IF;
  WITH said AS (
    SELECT id, attempt_id FROM unnest(p_task_ids, p_attempt_ids) AS s (id, attempt_id) ORDER BY id
  ), moved AS (
    UPDATE public.job_tasks t SET status = 'running', started_at = v_now, updated_at = v_now FROM said s
     WHERE t.id = s.id AND t.attempt_id = s.attempt_id AND t.lease_owner = p_owner AND t.lease_until > v_now AND t.status = 'starting'
    RETURNING t.id, t.job_id, t.attempt_id, t.service_name
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
    SELECT job_id, id, v_now, 'agent:' || service_name, 'info', 'status', 'starting → running',
           '{"from": "starting", "to": "running"}', attempt_id FROM moved
  )
  SELECT coalesce(array_agg(id), '{}') INTO v_moved FROM moved;
  RETURN QUERY SELECT * FROM accs.accepted(v_moved);
  IF cardinality(v_moved) < cardinality(p_task_ids) THEN
    RETURN QUERY
    SELECT e.id, CASE WHEN again THEN 'repeated' ELSE 'refused' END, CASE WHEN NOT again THEN e.reason END,
           e.db_status, e.db_attempt_id, e.db_lease_owner, e.db_lease_until
      FROM (SELECT e.*, coalesce(e.db_status = 'running' AND e.db_attempt_id = s.attempt_id AND e.db_lease_owner = p_owner
                                 AND e.db_lease_until > v_now, false) AS again
              FROM unnest(p_task_ids, p_attempt_ids) AS s (id, attempt_id),
                   LATERAL accs.explain(ARRAY[s.id], ARRAY[s.attempt_id], p_owner, ARRAY[NULL::text]) e
             WHERE s.id <> ALL (v_moved)) e;
  END IF;
END $$;
SELECT accs.is_verb('start_tasks', pinned => true, may => '{agent,scheduler}');

-- Keeps the leases of an owner's tasks and says that its node is there: one round trip for all of them. A row that is
-- refused is lost: stop the work and write nothing. p_instance is the process that registered the node: once another machine has
-- taken the name over, it is told so.
CREATE FUNCTION accs.heartbeat(p_node text, p_owner text, p_task_ids uuid[], p_attempt_ids int[], p_lease interval,
                               p_instance text DEFAULT NULL)
RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_until timestamptz;
  v_kept  uuid[];
BEGIN
  IF session_user <> current_user OR (cardinality(p_task_ids) <= 10000 AND p_lease > '0' AND p_lease <= '1 day') IS NOT TRUE THEN
    PERFORM accs.check_attempt(p_node, cardinality(p_task_ids), p_lease);
    IF p_owner IS DISTINCT FROM p_node THEN
      PERFORM accs.check_attempt(p_owner);
    END IF;
  END IF;
  UPDATE public.nodes SET last_seen = v_now, awake_state = 'awake' WHERE name = p_node AND coalesce(instance = p_instance, true);
  IF NOT FOUND AND p_instance IS NOT NULL THEN
    PERFORM accs.refuse_instance(p_node);
  END IF;
  PERFORM accs.node_seen(p_node);
  v_until := v_now + accs.waited() + p_lease;
  WITH said AS (
    SELECT id, attempt_id FROM unnest(p_task_ids, p_attempt_ids) AS s (id, attempt_id) ORDER BY id
  ), kept AS (
    UPDATE public.job_tasks t SET lease_until = v_until, updated_at = v_now FROM said s
     WHERE t.id = s.id AND t.attempt_id = s.attempt_id AND t.lease_owner = p_owner AND t.lease_until > v_now
       AND t.status IN ('starting', 'running')
    RETURNING t.id
  ), extended AS (
    UPDATE accs.live SET lease_until = v_until WHERE task_id = ANY (ARRAY(SELECT id FROM kept))
  )
  SELECT coalesce(array_agg(id), '{}') INTO v_kept FROM kept;
  RETURN QUERY SELECT * FROM accs.accepted(v_kept, v_until);
  IF cardinality(v_kept) < cardinality(p_task_ids) THEN
    RETURN QUERY
    SELECT e.* FROM unnest(p_task_ids, p_attempt_ids) AS s (id, attempt_id),
                    LATERAL accs.explain(ARRAY[s.id], ARRAY[s.attempt_id], p_owner, ARRAY[NULL::text]) e
     WHERE s.id <> ALL (v_kept);
  END IF;
END $$;
SELECT accs.is_verb('heartbeat', pinned => true, may => '{agent,scheduler}');

-- Progress (0 to 1), a word about it, and results so far. The job's progress follows exactly: it is the sum over its tasks.
CREATE FUNCTION accs.report_progress(p_task_ids uuid[], p_attempt_ids int[], p_owner text, p_progress numeric[],
                                     p_messages text[] DEFAULT NULL, p_results jsonb[] DEFAULT NULL)
RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now  timestamptz := accs.clock();
  v_kept uuid[];
BEGIN
  IF session_user <> current_user OR cardinality(p_task_ids) > 10000 THEN
    PERFORM accs.check_attempt(p_owner, cardinality(p_task_ids));
  END IF;
  PERFORM accs.lock_jobs_of(p_task_ids);
  WITH said AS MATERIALIZED (
    SELECT s.id, s.attempt_id, round(greatest(0, least(1, coalesce(s.progress, l.progress))), 4) AS progress, s.message, s.results,
           l.progress AS before
      FROM unnest(p_task_ids, p_attempt_ids, p_progress, p_messages, p_results) AS s (id, attempt_id, progress, message, results)
      JOIN accs.live l ON l.task_id = s.id ORDER BY s.id
  ), kept AS (
    UPDATE public.job_tasks t SET progress = s.progress, results = coalesce(s.results, t.results), updated_at = v_now FROM said s
     WHERE t.id = s.id AND t.attempt_id = s.attempt_id AND t.lease_owner = p_owner AND t.lease_until > v_now AND t.status = 'running'
       AND coalesce(pg_column_size(s.results), 0) <= accs.max_result_bytes()
    RETURNING t.id, t.job_id, t.service_name, t.attempt_id, s.progress, s.before, s.message
  ), moved AS (
    UPDATE accs.live l SET progress = k.progress FROM kept k WHERE l.task_id = k.id
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
    SELECT job_id, id, v_now, 'service:' || service_name, 'info', 'progress', left(message, 65536),
           jsonb_build_object('progress', progress), attempt_id FROM kept
  ), gained AS (
    UPDATE public.jobs j SET task_progress = j.task_progress + g.n, progress = (j.task_progress + g.n) / j.task_count, updated_at = v_now
      FROM (SELECT job_id, sum(progress - before) AS n FROM kept GROUP BY job_id) g WHERE j.id = g.job_id
  )
  SELECT coalesce(array_agg(id), '{}') INTO v_kept FROM kept;
  RETURN QUERY SELECT * FROM accs.accepted(v_kept);
  IF cardinality(v_kept) < cardinality(p_task_ids) THEN
    RETURN QUERY
    SELECT e.id, e.answer, CASE WHEN pg_column_size(s.results) > accs.max_result_bytes()
                                     AND e.db_status = 'running' AND e.db_attempt_id = s.attempt_id
                                     AND e.db_lease_owner = p_owner AND e.db_lease_until > v_now THEN 'result_too_large' ELSE e.reason END,
           e.db_status, e.db_attempt_id, e.db_lease_owner, e.db_lease_until
      FROM unnest(p_task_ids, p_attempt_ids, p_results) AS s (id, attempt_id, results),
           LATERAL accs.explain(ARRAY[s.id], ARRAY[s.attempt_id], p_owner, ARRAY[NULL::text]) e
     WHERE s.id <> ALL (v_kept);
  END IF;
END $$;
SELECT accs.is_verb('report_progress', pinned => true, may => '{agent,scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- The end of an attempt
-- ---------------------------------------------------------------------------------------------------------------

-- The strategies of the backoff. What grows is capped at an hour where the step gives no cap; attempt counts from 1.
CREATE FUNCTION accs.backoff_seconds(p_spec jsonb, p_attempt int, p_base double precision DEFAULT NULL)
RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE jsonb_typeof(p_spec)
    WHEN 'array' THEN (p_spec ->> (least(p_attempt, jsonb_array_length(p_spec)) - 1))::double precision
    ELSE least(
      coalesce((p_spec ->> 'cap')::double precision,
               CASE WHEN p_spec ->> 'strategy' = 'fixed' THEN 'infinity'::double precision ELSE 3600 END),
      coalesce((p_spec ->> 'base')::double precision, p_base, accs.backoff_base())
        * CASE p_spec ->> 'strategy' WHEN 'fixed' THEN 1
                                     WHEN 'linear' THEN p_attempt
                                     ELSE power(2::double precision, least(p_attempt, 901) - 1) END)
    END
$$;

-- Exponential delays get up to a tenth more, so that what failed together does not come back together. Derived from the
-- task and its attempt: the same call gives the same time.
CREATE FUNCTION accs.retry_delay(p_spec jsonb, p_attempt int, p_task uuid, p_base double precision) RETURNS interval
LANGUAGE sql IMMUTABLE AS $$
  SELECT make_interval(secs => accs.backoff_seconds(p_spec, p_attempt, p_base)
    * CASE WHEN jsonb_typeof(p_spec) = 'array' OR p_spec ->> 'strategy' IN ('fixed', 'linear') THEN 1
           ELSE 1 + 0.1 * (hashtextextended(p_task::text, p_attempt) & 1023) / 1024.0 END)
$$;

-- Takes ended tasks off their jobs' counts and closes the jobs that have no open task left; the caller holds the jobs'
-- locks. One element for each change; a job may come several times. What a task adds to its job's progress: 1 when done,
-- skipped or error, what it last reported while live or after a cancel, else 0.
CREATE FUNCTION accs.count_down(p_job_ids uuid[], p_ended int[], p_progress numeric[], p_current text[] DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now  timestamptz := accs.clock();
  v_runs uuid[];
BEGIN
  WITH change AS (
    SELECT c.id, sum(c.ended)::int AS ended, sum(c.progress) AS progress, max(c.current) AS current
      FROM unnest(p_job_ids, p_ended, p_progress, p_current) AS c (id, ended, progress, current) GROUP BY c.id ORDER BY c.id
  ), counted AS (
    UPDATE public.jobs j SET open_tasks = j.open_tasks - c.ended, task_progress = j.task_progress + c.progress,
           progress = (j.task_progress + c.progress) / j.task_count, current_task_key = coalesce(c.current, j.current_task_key),
           updated_at = v_now,
           status = CASE WHEN j.open_tasks > c.ended THEN j.status WHEN j.error_code IS NULL THEN 'done' ELSE 'error' END,
           finished_at = CASE WHEN j.open_tasks = c.ended THEN v_now END
      FROM change c WHERE j.id = c.id
    RETURNING j.id, j.status, j.error_code, j.schedule_id, j.run_key
  ), logged AS (
    INSERT INTO public.task_events (job_id, ts, source, level, type, message, data)
    SELECT id, v_now, 'builder', CASE status WHEN 'done' THEN 'info' ELSE 'error' END, 'status', 'running → ' || status,
           CASE status WHEN 'done' THEN '{"from": "running", "to": "done"}'
                       ELSE jsonb_build_object('from', 'running', 'to', status, 'error_code', error_code) END
      FROM counted WHERE status <> 'running'
  )
  SELECT array_agg(id) INTO v_runs FROM counted WHERE status <> 'running' AND (schedule_id IS NOT NULL OR run_key IS NOT NULL);
  IF v_runs IS NOT NULL THEN
    PERFORM accs.end_runs(v_runs);
  END IF;
END $$;

-- The dependants of satisfied tasks have that many dependencies less; those that have none left wait for a claim. What has ended
-- stays as it is: its dependencies are counted when it is reopened. (The condition is not in WHERE, where the planner would read
-- all tasks to find the queued ones.) Two parents in one call touch their child once. Returns, for each job, the first step that
-- became runnable, and on every row all the keys that the caller has to admit.
CREATE FUNCTION accs.unblock(p_dependants uuid[]) RETURNS TABLE (job_id uuid, task_key text, keys text[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH freed AS (
    UPDATE public.job_tasks t SET remaining = t.remaining - CASE t.status WHEN 'queued' THEN d.n ELSE 0 END, updated_at = accs.clock()
      FROM (SELECT u.id, count(*)::int AS n FROM unnest(p_dependants) AS u (id) GROUP BY u.id ORDER BY u.id) d
     WHERE t.id = ANY (p_dependants) AND t.id = d.id
    RETURNING t.id, t.job_id, t.step_no, t.task_key, t.lane, t.created_at, t.next_attempt_at, t.concurrency_key, t.resolve,
              t.remaining = 0 AND t.status = 'queued' AS runnable
  ), queued AS (   -- as in enqueue
    INSERT INTO accs.waiting (task_id, lane, rank, order_seq, created_at, hold, due_at, key)
    SELECT f.id, f.lane, -j.priority, j.order_seq, f.created_at,
           CASE WHEN f.next_attempt_at > accs.clock() THEN 'backoff'
                WHEN j.workflow_id = ANY ((SELECT accs.paused_workflows())::uuid[]) THEN 'paused'
                WHEN f.resolve THEN 'resolve'
                WHEN f.concurrency_key IS NOT NULL THEN 'key' END,
           CASE WHEN f.next_attempt_at > accs.clock() THEN f.next_attempt_at END,
           f.concurrency_key
      FROM freed f JOIN public.jobs j ON j.id = f.job_id
     WHERE f.runnable AND j.id = ANY (ARRAY(SELECT job_id FROM freed WHERE runnable))
    RETURNING key, hold
  )
  SELECT DISTINCT ON (f.job_id) f.job_id, f.task_key, (SELECT array_agg(DISTINCT key) FROM queued WHERE hold = 'key')
    FROM freed f WHERE f.runnable ORDER BY f.job_id, f.step_no;
END $$;
SELECT accs.pin('unblock', p_hashes => true);   -- its conditions are quadratic in nested loops

-- Everything below these tasks that is still queued is skipped: it can't run any more. Not through a step that was skipped
-- before: what depends on that one has been satisfied, and may be waiting for a claim or live.
CREATE FUNCTION accs.skip_downstream(p_task_ids uuid[]) RETURNS TABLE (job_id uuid, skipped int) LANGUAGE sql AS $$
  WITH RECURSIVE below AS (
    SELECT d.id FROM public.job_tasks t, unnest(t.dependants) AS d (id) WHERE t.id = ANY (p_task_ids)
    UNION
    SELECT d.id FROM below b, LATERAL (   -- one look-up for each, as in claim_tasks
             SELECT dependants FROM public.job_tasks WHERE id = b.id AND status = 'queued' OFFSET 0) t, unnest(t.dependants) AS d (id)
  ), moved AS (
    UPDATE public.job_tasks t SET status = 'skipped', finished_at = accs.clock(), updated_at = accs.clock(),
           error_code = 'upstream_failed', error_message = 'a step that it depends on has failed'
     WHERE t.id = ANY (ARRAY(SELECT id FROM below ORDER BY id)) AND t.status = 'queued'
    RETURNING t.id, t.job_id
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data)
    SELECT job_id, id, accs.clock(), 'builder', 'warn', 'status', 'queued → skipped',
           '{"from": "queued", "to": "skipped", "reason": "upstream_failed"}' FROM moved
  )
  SELECT job_id, count(*)::int FROM moved GROUP BY job_id
$$;

-- Ends attempts without success. The caller holds the jobs' locks and has checked the fence. p_outcome:
--   error     spends an attempt: retry after the backoff, or error for good (attempts exhausted, or permanent)
--   released  given back: spends nothing
--   lost      the owner is gone: spends no attempt, but accs.max_lost() owners are enough
-- The caller admits the keys it returns.
CREATE FUNCTION accs.end_attempts(
  p_task_ids uuid[], p_outcome text, p_codes text[], p_messages text[], p_permanent boolean[], p_source text,
  p_delay interval DEFAULT NULL, p_base double precision DEFAULT NULL
) RETURNS text[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now    timestamptz := accs.clock();
  v_again  uuid[];
  v_dead   uuid[];
  v_borne  uuid[];           -- of those that fail for good, the ones that their step tolerates
  v_keys   text[];
  v_freed  text[];
  v_jobs   uuid[];
  v_ended  int[];
  v_gain   numeric[];
BEGIN
  WITH ended AS (
    SELECT s.id, t.parent, left(s.code, 200) AS code, left(s.message, 65536) AS message, t.status AS from_status,
           t.attempt + (p_outcome = 'error')::int AS attempt, t.lost + (p_outcome = 'lost')::int AS lost,
           CASE p_outcome WHEN 'error' THEN coalesce(s.permanent, false) OR t.attempt + 1 >= t.max_attempts
                          -- nobody but the process that is gone could carry out a one-off (accsd run)
                          WHEN 'lost' THEN t.lost + 1 >= accs.max_lost() OR t.service_name = 'accs.run' ELSE false END AS final,
           CASE p_outcome WHEN 'lost' THEN 'lost_too_often'
                          WHEN 'error' THEN CASE WHEN s.permanent THEN 'permanent_error' ELSE 'attempts_exhausted' END END AS why,
           CASE p_outcome WHEN 'error' THEN v_now + accs.retry_delay(t.backoff, t.attempt + 1, t.id, p_base) ELSE v_now + p_delay END AS due
      FROM unnest(p_task_ids, p_codes, p_messages, p_permanent) AS s (id, code, message, permanent) JOIN public.job_tasks t ON t.id = s.id
  ), said AS MATERIALIZED (
    SELECT e.*, e.final AND e.parent IS NOT NULL
                AND row_number() OVER (PARTITION BY e.parent, e.final ORDER BY e.id) <= coalesce(
                  (SELECT m.tolerate - (SELECT count(*) FROM public.job_tasks c WHERE c.parent = m.id AND c.tolerated)
                     FROM public.job_tasks m WHERE m.id = e.parent AND m.tolerate > 0), 0) AS borne
      FROM ended e ORDER BY e.id
  ), moved AS (
    UPDATE public.job_tasks t SET status = CASE WHEN s.final THEN 'error' ELSE 'queued' END, attempt = s.attempt, lost = s.lost,
           next_attempt_at = CASE WHEN NOT s.final THEN s.due END, finished_at = CASE WHEN s.final THEN v_now END,
           progress = CASE WHEN s.final THEN t.progress ELSE 0 END, updated_at = v_now, lease_owner = NULL, lease_until = NULL,
           error_code = CASE WHEN p_outcome = 'released' THEN t.error_code ELSE s.code END,
           error_message = CASE WHEN p_outcome = 'released' THEN t.error_message ELSE s.message END,
           outcome = p_outcome, outcome_attempt_id = t.attempt_id, tolerated = nullif(s.borne, false)
      FROM said s WHERE t.id = s.id
    RETURNING t.id, t.job_id, t.task_key, t.service_name, t.generation, t.attempt_id, t.attempt, t.lost, t.next_attempt_at,
              t.error_code, t.error_message, s.final, s.borne, s.why, s.from_status, s.code, s.message
  ), freed AS (
    DELETE FROM accs.live WHERE task_id = ANY (ARRAY(SELECT id FROM moved)) RETURNING task_id, job_id, progress, key, node
  ), concluded AS (   -- an agent that went away says nothing about its services
    INSERT INTO accs.conclusions (ts, node, service, workflow_id, task_key, task_id, passed, lost, permanent, code, message)
    SELECT v_now, f.node, m.service_name, j.workflow_id, m.task_key, m.id, false, p_outcome = 'lost',
           coalesce(m.why = 'permanent_error', false), m.code, left(m.message, 500)
      FROM moved m JOIN freed f ON f.task_id = m.id JOIN public.jobs j ON j.id = m.job_id
     WHERE p_outcome = 'error' OR p_outcome = 'lost' AND m.code <> 'worker_lost'
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
    SELECT job_id, id, v_now, coalesce(p_source, 'agent:' || service_name),
           CASE WHEN borne THEN 'warn' WHEN final THEN 'error' WHEN p_outcome = 'released' THEN 'info' ELSE 'warn' END,
           CASE WHEN final OR p_outcome <> 'error' THEN 'status' ELSE 'retry' END,
           coalesce(message, from_status || ' → ' || CASE WHEN final THEN 'error' ELSE 'queued' END),
           jsonb_strip_nulls(jsonb_build_object('from', from_status, 'to', CASE WHEN final THEN 'error' ELSE 'queued' END,
             'outcome', p_outcome, 'error_code', code, 'attempt', attempt, 'lost', nullif(lost, 0), 'next_attempt_at', next_attempt_at,
             'tolerated', nullif(borne, false))), attempt_id FROM moved
  ), buried AS (
    INSERT INTO public.dead_letters (job_id, job_task_id, generation, service_name, reason, error_code, error_message, created_at)
    SELECT job_id, id, generation, service_name, why, code, message, v_now FROM moved WHERE final
  ), blamed AS (   -- the job keeps its first failure
    UPDATE public.jobs j SET error_code = coalesce(f.code, 'error'), error_message = f.message
      FROM (SELECT DISTINCT ON (job_id) job_id, code, message FROM moved WHERE final AND NOT borne ORDER BY job_id, id) f
     WHERE j.id = f.job_id AND j.error_code IS NULL
  )
  SELECT array_agg(m.id) FILTER (WHERE NOT final), array_agg(m.id) FILTER (WHERE final), array_agg(m.id) FILTER (WHERE borne),
         (SELECT array_agg(DISTINCT key) FILTER (WHERE key IS NOT NULL) FROM freed),
         (SELECT array_agg(job_id ORDER BY task_id) FROM freed), (SELECT array_agg(-progress ORDER BY task_id) FROM freed)
    INTO v_again, v_dead, v_borne, v_freed, v_jobs, v_gain FROM moved m;

  IF p_outcome <> 'released' THEN
    PERFORM pg_notify(accs.channel_prefix() || '_health', '');
  END IF;
  v_ended := array_fill(0, ARRAY[coalesce(cardinality(v_jobs), 0)]);   -- none was live where the resolver speaks
  IF v_again IS NOT NULL THEN
    v_keys := accs.enqueue(v_again);
  END IF;
  IF v_dead IS NOT NULL THEN
    -- counted once for the task itself and once for what is skipped below it
    SELECT v_jobs || array_agg(c.job_id), v_ended || array_agg(c.n), v_gain || array_agg(c.n::numeric) INTO v_jobs, v_ended, v_gain
      FROM (SELECT t.job_id, 1 AS n FROM public.job_tasks t WHERE t.id = ANY (v_dead)
            UNION ALL SELECT s.job_id, s.skipped
              FROM accs.skip_downstream(ARRAY(SELECT unnest(v_dead) EXCEPT SELECT unnest(v_borne))) s) c;
  END IF;
  IF v_borne IS NOT NULL THEN
    SELECT v_keys || max(u.keys) INTO v_keys
      FROM accs.unblock(ARRAY(SELECT unnest(dependants) FROM public.job_tasks WHERE id = ANY (v_borne))) u;
  END IF;
  IF v_dead IS NOT NULL OR 0 <> ANY (v_gain) THEN
    PERFORM accs.count_down(v_jobs, v_ended, v_gain);
  END IF;
  RETURN v_keys || v_freed;
END $$;
SELECT accs.pin('end_attempts');

-- Ends attempts, done or error, fenced. Outcomes default to done. A row that is refused says why and what the
-- database holds, and leaves an event; a row said before is repeated and changes nothing. With p_quiet only what was not accepted
-- is answered.
CREATE FUNCTION accs.finish_tasks(
  p_task_ids uuid[], p_attempt_ids int[], p_owner text, p_outcomes text[] DEFAULT NULL, p_results jsonb[] DEFAULT NULL,
  p_error_codes text[] DEFAULT NULL, p_error_messages text[] DEFAULT NULL, p_permanent boolean[] DEFAULT NULL,
  p_backoff_base double precision DEFAULT NULL, p_quiet boolean DEFAULT false
) RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now        timestamptz := accs.clock();
  v_jobs       tid[];
  v_moved      uuid[];
  v_dependants uuid[];
  v_failed     record;
  v_keys       text[];
  v_passed     accs.live[];
  v_runs       uuid[];
BEGIN
  IF session_user <> current_user OR cardinality(p_task_ids) > 10000 THEN
    PERFORM accs.check_attempt(p_owner, cardinality(p_task_ids));
  END IF;
  v_jobs := accs.lock_jobs_of(p_task_ids);
  IF p_outcomes IS NOT NULL AND 'error' = ANY (p_outcomes) OR pg_column_size(p_results) > 16777216 THEN
    -- what is done and what failed are written one after the other, and a hash that is split has another order: the rows are locked
    -- by id first, as a heartbeat does
    PERFORM FROM public.job_tasks WHERE id = ANY (p_task_ids) AND lease_owner = p_owner ORDER BY id FOR NO KEY UPDATE;
  END IF;

  WITH said AS (
    SELECT s.id, s.attempt_id, s.results
      FROM unnest(p_task_ids, p_attempt_ids, p_outcomes, p_results) AS s (id, attempt_id, outcome, results)
     WHERE coalesce(s.outcome, 'done') = 'done' AND coalesce(pg_column_size(s.results), 0) <= accs.max_result_bytes()
  ), moved AS (
    UPDATE public.job_tasks t SET status = 'done', results = coalesce(s.results, t.results, '{}'), progress = 1, finished_at = v_now,
           updated_at = v_now, lease_owner = NULL, lease_until = NULL, error_code = NULL, error_message = NULL,
           outcome = 'done', outcome_attempt_id = t.attempt_id
      FROM said s
     WHERE t.id = ANY (p_task_ids)
       AND t.id = s.id AND t.attempt_id = s.attempt_id AND t.lease_owner = p_owner AND t.lease_until > v_now AND t.status = 'running'
    RETURNING t.id, t.job_id, t.attempt_id, t.service_name, t.dependants
  ), freed AS (
    DELETE FROM accs.live l WHERE l.task_id = ANY (ARRAY(SELECT id FROM moved)) RETURNING l
  ), waiting AS (
    SELECT u.id, count(*)::int AS n FROM (SELECT unnest(dependants) AS id FROM moved WHERE dependants IS NOT NULL) u GROUP BY u.id
  ), next AS (   -- the first step of each job that unblock will find runnable
    SELECT DISTINCT ON (t.job_id) t.job_id, t.task_key FROM public.job_tasks t JOIN waiting w ON w.id = t.id
     WHERE t.id = ANY (ARRAY(SELECT id FROM waiting)) AND t.remaining = w.n AND t.status = 'queued' ORDER BY t.job_id, t.step_no
  ), counted AS (   -- as in count_down
    UPDATE public.jobs j SET open_tasks = j.open_tasks - c.ended, task_progress = j.task_progress + c.gain,
           progress = (j.task_progress + c.gain) / j.task_count, updated_at = v_now,
           current_task_key = coalesce(n.task_key, j.current_task_key),
           status = CASE WHEN j.open_tasks > c.ended THEN j.status WHEN j.error_code IS NULL THEN 'done' ELSE 'error' END,
           finished_at = CASE WHEN j.open_tasks = c.ended THEN v_now END
      FROM (SELECT (f.l).job_id, count(*)::int AS ended, sum(1 - (f.l).progress) AS gain FROM freed f GROUP BY (f.l).job_id) c
      LEFT JOIN next n ON n.job_id = c.job_id
     WHERE j.ctid = ANY (v_jobs) AND j.id = c.job_id
    RETURNING j.id, j.status, j.error_code, j.schedule_id, j.run_key
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
    SELECT job_id, id, v_now, 'agent:' || service_name, 'info', 'status', 'running → done',
           '{"from": "running", "to": "done"}'::jsonb, attempt_id FROM moved
    UNION ALL
    SELECT id, NULL, v_now, 'builder', CASE status WHEN 'done' THEN 'info' ELSE 'error' END, 'status', 'running → ' || status,
           CASE status WHEN 'done' THEN '{"from": "running", "to": "done"}'
                       ELSE jsonb_build_object('from', 'running', 'to', status, 'error_code', error_code) END, NULL
      FROM counted WHERE status <> 'running'
  )
  SELECT (SELECT coalesce(array_agg(id), '{}') FROM moved),
         (SELECT array_agg(u.id) FROM (SELECT unnest(dependants) AS id FROM moved WHERE dependants IS NOT NULL) u),
         (SELECT array_agg(DISTINCT (f.l).key) FROM freed f WHERE (f.l).key IS NOT NULL),
         -- something has failed lately, or a node is on trial: it must be noted which nodes pass
         CASE WHEN EXISTS (SELECT FROM accs.conclusions WHERE NOT passed) OR EXISTS (SELECT FROM accs.quarantines)
              THEN (SELECT array_agg(f.l) FROM freed f) END,
         (SELECT array_agg(id) FROM counted WHERE status <> 'running' AND (schedule_id IS NOT NULL OR run_key IS NOT NULL))
    INTO v_moved, v_dependants, v_keys, v_passed, v_runs;
  IF 1 < ANY (p_attempt_ids) THEN   -- the outputs of an earlier attempt are not results
    DELETE FROM public.task_artifacts a USING public.job_tasks t
     WHERE t.id = ANY (v_moved) AND a.job_task_id = ANY (v_moved) AND a.job_task_id = t.id AND a.kind = 'output'
       AND a.attempt_id < t.outcome_attempt_id;
  END IF;
  IF v_dependants IS NOT NULL OR p_task_ids = '{}' THEN   -- a call for nothing has it planned
    SELECT v_keys || max(u.keys) INTO v_keys FROM accs.unblock(v_dependants) u;
  END IF;
  IF v_runs IS NOT NULL THEN
    PERFORM accs.end_runs(v_runs);
  END IF;
  IF v_passed IS NOT NULL THEN
    PERFORM accs.note_passes(v_passed);
  END IF;

  IF p_outcomes IS NOT NULL AND 'error' = ANY (p_outcomes) THEN
    SELECT array_agg(s.id ORDER BY s.id) AS ids, array_agg(s.code ORDER BY s.id) AS codes, array_agg(s.message ORDER BY s.id) AS messages,
           array_agg(s.permanent ORDER BY s.id) AS permanent INTO v_failed
      FROM (SELECT DISTINCT ON (s.id) s.* FROM unnest(p_task_ids, p_attempt_ids, p_outcomes, p_error_codes, p_error_messages, p_permanent)
              AS s (id, attempt_id, outcome, code, message, permanent) WHERE s.outcome = 'error' ORDER BY s.id) s
      JOIN public.job_tasks t   -- locked above: start_tasks takes no job lock
        ON t.id = ANY (p_task_ids) AND t.id = s.id AND t.attempt_id = s.attempt_id AND t.lease_owner = p_owner
           AND t.lease_until > v_now AND t.status IN ('starting', 'running');
    IF v_failed.ids IS NOT NULL THEN
      v_keys := v_keys || accs.end_attempts(v_failed.ids, 'error', v_failed.codes, v_failed.messages, v_failed.permanent, NULL, NULL,
                                            p_backoff_base);
      v_moved := v_moved || v_failed.ids;
    END IF;
  END IF;
  IF v_keys IS NOT NULL THEN   -- asked here, because a call costs as much as a small statement
    PERFORM accs.admit(v_keys);
  END IF;

  IF p_quiet IS NOT TRUE THEN
    RETURN QUERY SELECT * FROM accs.accepted(v_moved);
  END IF;
  IF cardinality(v_moved) < cardinality(p_task_ids) THEN
    RETURN QUERY SELECT * FROM accs.refusals(p_task_ids, p_attempt_ids, p_owner, p_outcomes, 'done', v_moved, p_results);
  END IF;
END $$;
SELECT accs.is_verb('finish_tasks', hashes => true, may => '{agent,scheduler}');

-- Explains what a fenced write did not do, row by row, and leaves an event for each refusal.
CREATE FUNCTION accs.refusals(p_task_ids uuid[], p_attempt_ids int[], p_owner text, p_outcomes text[], p_outcome text, p_except uuid[],
                              p_results jsonb[] DEFAULT NULL)
RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH said AS (
    SELECT s.id, s.attempt_id, coalesce(s.outcome, p_outcome) AS outcome,
           pg_column_size(s.results) > accs.max_result_bytes() AS too_large
      FROM unnest(p_task_ids, p_attempt_ids, p_outcomes, p_results) AS s (id, attempt_id, outcome, results) WHERE s.id <> ALL (p_except)
  ), told AS MATERIALIZED (
    SELECT s.attempt_id, s.outcome, e.id, e.answer,
           CASE WHEN e.answer = 'refused' AND s.too_large AND e.db_status = 'running' AND e.db_attempt_id = s.attempt_id
                     AND e.db_lease_owner = p_owner
                THEN 'result_too_large' ELSE e.reason END AS reason,
           e.db_status, e.db_attempt_id, e.db_lease_owner, e.db_lease_until
      FROM said s, LATERAL accs.explain(ARRAY[s.id], ARRAY[s.attempt_id], p_owner, ARRAY[s.outcome]) e
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
    SELECT t.job_id, t.id, accs.clock(), 'agent:' || t.service_name, 'warn', 'refused', format('%s refused: %s', o.outcome, o.reason),
           jsonb_build_object('reason', o.reason, 'said', o.outcome, 'owner', p_owner, 'db_status', o.db_status,
             'db_attempt_id', o.db_attempt_id, 'db_lease_owner', o.db_lease_owner, 'db_lease_until', o.db_lease_until), o.attempt_id
      FROM told o JOIN public.job_tasks t ON t.id = o.id WHERE o.answer = 'refused'
  )
  SELECT o.id, o.answer, o.reason, o.db_status, o.db_attempt_id, o.db_lease_owner, o.db_lease_until FROM told o;
END $$;
SELECT accs.pin('refusals');

-- Gives tasks back without spending an attempt (the agent drains, or its machine can't do the work now). p_lost counts it
-- among the owners lost, which are bounded; p_code and p_reason say what was lost, and stay with the task.
CREATE FUNCTION accs.release_tasks(p_task_ids uuid[], p_attempt_ids int[], p_owner text, p_reason text DEFAULT NULL,
                                   p_lost boolean DEFAULT false, p_delay interval DEFAULT NULL, p_code text DEFAULT 'worker_lost')
RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_outcome text := CASE WHEN p_lost THEN 'lost' ELSE 'released' END;
  v_ids  uuid[];
  v_keys text[];
BEGIN
  IF session_user <> current_user OR cardinality(p_task_ids) > 10000 THEN
    PERFORM accs.check_attempt(p_owner, cardinality(p_task_ids));
  END IF;
  PERFORM accs.lock_jobs_of(p_task_ids);
  SELECT coalesce(array_agg(DISTINCT t.id), '{}') INTO v_ids FROM unnest(p_task_ids, p_attempt_ids) AS s (id, attempt_id)
    JOIN (SELECT * FROM public.job_tasks WHERE id = ANY (p_task_ids) ORDER BY id FOR NO KEY UPDATE) t
      ON t.id = s.id AND t.attempt_id = s.attempt_id AND t.lease_owner = p_owner AND t.lease_until > accs.clock()
         AND t.status IN ('starting', 'running');
  IF v_ids <> '{}' THEN
    v_keys := accs.end_attempts(v_ids, v_outcome,
                                array_fill(CASE WHEN p_lost THEN coalesce(p_code, 'worker_lost') END, ARRAY[cardinality(v_ids)]),
                                array_fill(p_reason, ARRAY[cardinality(v_ids)]), NULL, NULL, p_delay);
    PERFORM accs.admit(v_keys);
  END IF;
  RETURN QUERY SELECT * FROM accs.accepted(v_ids);
  IF cardinality(v_ids) < cardinality(p_task_ids) THEN
    RETURN QUERY SELECT * FROM accs.refusals(p_task_ids, p_attempt_ids, p_owner, NULL, v_outcome, v_ids);
  END IF;
END $$;
SELECT accs.is_verb('release_tasks', pinned => true, may => '{agent,scheduler}');

-- Takes back what its owner has not kept: leases that ran out more than p_grace ago, the oldest first. The rows are read
-- without a lock and looked at again under their jobs' locks: a heartbeat or a finish in between wins.
CREATE FUNCTION accs.reclaim_tasks(p_limit int DEFAULT 100, p_grace interval DEFAULT '1 s') RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now  timestamptz := accs.clock();
  v_want uuid[];
  v_ids  uuid[];
  v_keys text[];
BEGIN
  v_want := ARRAY(SELECT task_id FROM accs.live WHERE lease_until <= v_now - p_grace ORDER BY lease_until LIMIT p_limit);
  IF v_want = '{}' THEN
    RETURN;
  END IF;
  PERFORM accs.lock_jobs_of(v_want);
  -- the task's row is locked too: a heartbeat takes no job lock
  v_ids := ARRAY(SELECT id FROM public.job_tasks
                  WHERE id = ANY (v_want) AND status IN ('starting', 'running') AND lease_until <= v_now - p_grace
                  ORDER BY id FOR NO KEY UPDATE);
  IF v_ids <> '{}' THEN
    v_keys := accs.end_attempts(v_ids, 'lost', array_fill('worker_lost'::text, ARRAY[cardinality(v_ids)]),
      ARRAY(SELECT format('%s did not keep its lease', lease_owner) FROM public.job_tasks WHERE id = ANY (v_ids) ORDER BY id),
      NULL, 'builder');
    PERFORM accs.admit(v_keys);
  END IF;
  RETURN QUERY
  SELECT u.id, CASE WHEN u.id = ANY (v_ids) THEN 'accepted' ELSE 'refused' END,
         CASE WHEN u.id = ANY (v_ids) THEN NULL WHEN t.id IS NULL THEN 'not_found'
              WHEN t.status IN ('starting', 'running') THEN 'lease_still_valid' ELSE 'done_or_stale' END,
         t.status, t.attempt_id, t.lease_owner, t.lease_until
    FROM unnest(v_want) AS u (id) LEFT JOIN public.job_tasks t ON t.id = u.id;
END $$;
SELECT accs.is_verb('reclaim_tasks', pinned => true, may => '{scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- Skip, cancel, close
-- ---------------------------------------------------------------------------------------------------------------

-- Skips those of these tasks that are queued, which satisfies the steps that depend on them; the caller holds their jobs' locks and admits
-- the keys. A message says more than the reason where there is more to say.
CREATE FUNCTION accs.skip(p_task_ids uuid[], p_reasons text[], p_source text, p_messages text[] DEFAULT NULL,
                          OUT ids uuid[], OUT keys text[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_ids   uuid[];
  v_keys  text[];
  v_current text[];
  v_moved record;
BEGIN
  v_keys := accs.drop_items(p_task_ids, p_source);
  v_ids := ARRAY(SELECT id FROM public.job_tasks WHERE id = ANY (p_task_ids) AND status = 'queued');
  PERFORM accs.unqueue(v_ids);   -- waits for a claim under way; what it took is not queued any more
  WITH moved AS (
    UPDATE public.job_tasks t SET status = 'skipped', finished_at = v_now, updated_at = v_now, error_code = s.reason,
           error_message = s.message, next_attempt_at = NULL
      FROM (SELECT u.* FROM unnest(p_task_ids, p_reasons, p_messages) AS u (id, reason, message) WHERE u.id = ANY (v_ids) ORDER BY u.id) s
     WHERE t.id = s.id AND t.status = 'queued'
    RETURNING t.id, t.job_id, t.dependants, t.concurrency_key, s.reason, s.message
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data)
    SELECT job_id, id, v_now, p_source, 'info', 'status', coalesce(message, 'queued → skipped'),
           jsonb_build_object('from', 'queued', 'to', 'skipped', 'reason', reason) FROM moved
  )
  SELECT coalesce(array_agg(id), '{}') AS ids, array_agg(job_id) AS jobs, array_agg(1) AS ended, array_agg(1::numeric) AS gain,
         (SELECT array_agg(d.id) FROM moved m, unnest(m.dependants) AS d (id)) AS dependants,
         array_agg(DISTINCT concurrency_key) FILTER (WHERE concurrency_key IS NOT NULL) AS keys
    INTO v_moved FROM moved;
  IF v_moved.ids <> '{}' THEN
    SELECT v_moved.keys || max(u.keys), v_moved.jobs || array_agg(u.job_id), v_moved.ended || array_fill(0, ARRAY[count(*)::int]),
           v_moved.gain || array_fill(0::numeric, ARRAY[count(*)::int]),
           array_fill(NULL::text, ARRAY[cardinality(v_moved.ids)]) || array_agg(u.task_key)
      INTO keys, v_moved.jobs, v_moved.ended, v_moved.gain, v_current FROM accs.unblock(v_moved.dependants) u;
    PERFORM accs.count_down(v_moved.jobs, v_moved.ended, v_moved.gain, v_current);
  END IF;
  ids := v_moved.ids;
  keys := v_keys || keys;
END $$;

-- Steps that were multiplied before a retry and are not multiplied this time: the tasks of their items, which wait for them, have no item
-- any more. As in skip, the caller holds the locks and admits the keys.
CREATE FUNCTION accs.drop_items(p_task_ids uuid[], p_source text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  v_steps uuid[] := ARRAY(SELECT id FROM public.job_tasks WHERE id = ANY (p_task_ids) AND status = 'queued' AND items IS NOT NULL);
  v_left  uuid[];
BEGIN
  IF v_steps = '{}' THEN
    RETURN NULL;
  END IF;
  v_left := ARRAY(SELECT id FROM public.job_tasks WHERE parent = ANY (v_steps) AND status = 'queued');
  UPDATE public.job_tasks t SET items = NULL, tolerate = NULL
    FROM (SELECT u.id FROM unnest(v_steps) AS u (id) ORDER BY u.id) s WHERE t.id = s.id;
  RETURN (SELECT k.keys FROM accs.skip(v_left, array_fill('not_in_list'::text, ARRAY[cardinality(v_left)]), p_source) k);
END $$;

-- Some reasons to skip a task say more than that it is skipped; only the verbs that mean it give them.
CREATE FUNCTION accs.check_reason(p_reason text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_reason IN ('upstream_failed', 'not_in_list') THEN
    RAISE EXCEPTION '"%" is no reason that anybody can give: it follows from another step', p_reason
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
END $$;

-- Skips steps by hand.
CREATE FUNCTION accs.skip_tasks(p_task_ids uuid[], p_reason text DEFAULT 'condition_false', p_source text DEFAULT 'builder',
                                p_by text DEFAULT NULL)
RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_skipped record;
BEGIN
  PERFORM accs.check_reason(p_reason);
  PERFORM accs.lock_jobs_of(p_task_ids);
  SELECT * INTO v_skipped FROM accs.skip(p_task_ids, array_fill(p_reason, ARRAY[coalesce(cardinality(p_task_ids), 0)]), p_source);
  PERFORM accs.admit(v_skipped.keys);
  RETURN QUERY
  SELECT * FROM accs.audit_answers('skip_tasks', 'task', ARRAY(
  SELECT ROW(u.id, CASE WHEN u.id = ANY (v_skipped.ids) THEN 'accepted'
                    WHEN t.status = 'skipped' AND t.error_code = p_reason THEN 'repeated' ELSE 'refused' END,
         CASE WHEN t.id IS NULL THEN 'not_found' WHEN t.status = 'skipped' AND t.error_code = p_reason THEN NULL
              WHEN t.status IN ('done', 'error', 'skipped', 'cancelled') THEN 'already_finished' ELSE 'not_in_expected_state' END,
         t.status, t.attempt_id, t.lease_owner, t.lease_until)::accs.answer
    FROM unnest(p_task_ids) AS u (id) LEFT JOIN public.job_tasks t ON t.id = u.id), p_by, p_reason);
END $$;
SELECT accs.is_verb('skip_tasks', pinned => true, may => '{scheduler}');

-- Cancels jobs with all that is open in them. Running tasks lose their lease at once, and their services are told to look
-- at their leases now. Called where a schedule cancels its own runs, too.
CREATE FUNCTION accs.cancel(p_job_ids uuid[], p_reason text, p_by text) RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_jobs  uuid[];
  v_tasks uuid[];
  v_keys  text[];
BEGIN
  v_jobs := ARRAY(SELECT id FROM public.jobs WHERE id = ANY (p_job_ids) AND status IN ('queued', 'running') ORDER BY id FOR NO KEY UPDATE);
  IF v_jobs <> '{}' THEN
    DELETE FROM accs.pending_jobs WHERE job_id = ANY (v_jobs);
    v_tasks := ARRAY(SELECT id FROM public.job_tasks WHERE job_id = ANY (v_jobs) AND status IN ('queued', 'starting', 'running'));
    PERFORM accs.unqueue(v_tasks);   -- waits for a claim under way, whose task is then cancelled as a live one
    PERFORM FROM public.job_tasks WHERE id = ANY (v_tasks) ORDER BY id FOR NO KEY UPDATE;
    WITH before AS MATERIALIZED (
      SELECT id, status FROM public.job_tasks WHERE id = ANY (v_tasks)
    ), moved AS (
      UPDATE public.job_tasks t SET status = 'cancelled', finished_at = v_now, updated_at = v_now, lease_owner = NULL, lease_until = NULL,
             next_attempt_at = NULL, error_code = 'cancelled', error_message = p_reason, outcome = 'cancelled',
             outcome_attempt_id = t.attempt_id
        FROM before b WHERE t.id = b.id
      RETURNING t.id, t.job_id, t.attempt_id, b.status AS from_status
    ), freed AS (
      DELETE FROM accs.live WHERE task_id = ANY (v_tasks) RETURNING service, key
    ), logged AS (
      INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
      SELECT job_id, id, v_now, coalesce(p_by, 'operator'), 'warn', 'status', from_status || ' → cancelled',
             jsonb_strip_nulls(jsonb_build_object('from', from_status, 'to', 'cancelled', 'reason', p_reason)), nullif(attempt_id, 0)
        FROM moved
    ), told AS (
      SELECT pg_notify(accs.channel_prefix() || service, 'cancel') FROM (SELECT DISTINCT service FROM freed) s
    )
    SELECT array_agg(DISTINCT key) FILTER (WHERE key IS NOT NULL) INTO v_keys FROM freed WHERE (SELECT count(*) FROM told) >= 0;
    WITH before AS MATERIALIZED (
      SELECT id, status FROM public.jobs WHERE id = ANY (v_jobs)
    ), moved AS (
      UPDATE public.jobs j SET status = 'cancelled', open_tasks = 0, finished_at = v_now, updated_at = v_now,
             error_code = 'cancelled', error_message = p_reason
        FROM before b WHERE j.id = b.id RETURNING j.id, b.status AS from_status)
    INSERT INTO public.task_events (job_id, ts, source, level, type, message, data)
    SELECT id, v_now, coalesce(p_by, 'operator'), 'warn', 'status', from_status || ' → cancelled',
           jsonb_strip_nulls(jsonb_build_object('from', from_status, 'to', 'cancelled', 'reason', p_reason)) FROM moved;
    IF EXISTS (SELECT FROM public.jobs WHERE id = ANY (v_jobs) AND (schedule_id IS NOT NULL OR run_key IS NOT NULL)) THEN
      PERFORM accs.end_runs(v_jobs);
    END IF;
    -- what these tasks held of their keys is free, and so is what they were waiting for
    v_keys := v_keys || ARRAY(SELECT DISTINCT concurrency_key FROM public.job_tasks
                               WHERE id = ANY (v_tasks) AND concurrency_key IS NOT NULL);
    PERFORM accs.admit(v_keys);
  END IF;
  RETURN QUERY
  SELECT u.id, CASE WHEN u.id = ANY (v_jobs) THEN 'accepted' WHEN j.status = 'cancelled' THEN 'repeated' ELSE 'refused' END,
         CASE WHEN j.id IS NULL THEN 'not_found' WHEN j.status <> 'cancelled' THEN 'already_finished' END,
         j.status, NULL::int, NULL::text, NULL::timestamptz
    FROM unnest(p_job_ids) AS u (id) LEFT JOIN public.jobs j ON j.id = u.id;
END $$;

CREATE FUNCTION accs.cancel_jobs(p_job_ids uuid[], p_reason text DEFAULT NULL, p_by text DEFAULT NULL) RETURNS SETOF accs.answer
LANGUAGE sql AS $$
  SELECT * FROM accs.audit_answers('cancel_jobs', 'job', ARRAY(SELECT c FROM accs.cancel(p_job_ids, p_reason, p_by) c), p_by, p_reason)
$$;
SELECT accs.is_verb('cancel_jobs', may => '{scheduler,api}');

-- Closes jobs whose tasks are all terminal. The last finish does it by itself; this is the net (and maybe_finish_job).
CREATE FUNCTION accs.close_jobs(p_job_ids uuid[]) RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := accs.clock();
  v_ids uuid[];
BEGIN
  PERFORM FROM public.jobs WHERE id = ANY (p_job_ids) ORDER BY id FOR NO KEY UPDATE;
  WITH moved AS (
    UPDATE public.jobs j SET status = CASE WHEN j.error_code IS NULL THEN 'done' ELSE 'error' END, open_tasks = 0, finished_at = v_now,
           updated_at = v_now, task_progress = j.task_count, progress = 1
     WHERE j.id = ANY (p_job_ids) AND j.status = 'running' AND j.task_count > 0
       AND NOT EXISTS (SELECT FROM public.job_tasks t WHERE t.job_id = j.id AND t.status IN ('queued', 'starting', 'running'))
    RETURNING j.id, j.status
  ), logged AS (
    INSERT INTO public.task_events (job_id, ts, source, level, type, message, data)
    SELECT id, v_now, 'builder', 'warn', 'status', 'running → ' || status, jsonb_build_object('from', 'running', 'to', status) FROM moved
  )
  SELECT coalesce(array_agg(id), '{}') INTO v_ids FROM moved;
  IF v_ids <> '{}' THEN
    PERFORM accs.end_runs(v_ids);
  END IF;
  RETURN QUERY
  SELECT u.id, CASE WHEN u.id = ANY (v_ids) THEN 'accepted'
                    WHEN j.status IN ('done', 'error', 'cancelled') THEN 'repeated' ELSE 'refused' END,
         CASE WHEN j.id IS NULL THEN 'not_found' WHEN j.status = 'running' AND u.id <> ALL (v_ids) THEN 'tasks_open'
              WHEN j.status = 'queued' THEN 'not_in_expected_state' END,
         j.status, NULL::int, NULL::text, NULL::timestamptz
    FROM unnest(p_job_ids) AS u (id) LEFT JOIN public.jobs j ON j.id = u.id;
END $$;
SELECT accs.is_verb('close_jobs', may => '{scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- Resolve: steps with expressions, between their last dependency and their claim
-- ---------------------------------------------------------------------------------------------------------------

-- A step with a condition, a templated input, a delay or a list to go through waits with hold = 'resolve' when all that it depends on is
-- there. A resolver reads what its expressions refer to, evaluates them outside of any transaction and says here what follows. Whoever is
-- killed before has changed nothing; of two who say the same, one is first. Nothing is evaluated in SQL, in a claim or on a node, and what
-- waits to be resolved wakes no node.

-- What waits to be resolved, in the order of the claims. The workflow's steps are named by its id and the time of its last change, so that
-- a resolver reads them once.
CREATE FUNCTION accs.tasks_to_resolve(p_limit int DEFAULT 100) RETURNS TABLE (
  task_id uuid, job_id uuid, task_key text, generation int, workflow_id uuid, workflow_changed_at timestamptz, options jsonb, trigger jsonb,
  job_created_at timestamptz, now timestamptz
) LANGUAGE sql STABLE AS $$
  SELECT t.id, t.job_id, t.task_key, t.generation, j.workflow_id, f.updated_at, j.options, j.trigger, j.created_at, accs.clock()
    FROM (SELECT * FROM accs.waiting WHERE hold = 'resolve' ORDER BY rank, order_seq, created_at, task_id LIMIT p_limit) w
    JOIN public.job_tasks t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id JOIN public.workflows f ON f.id = j.workflow_id
   ORDER BY w.rank, w.order_seq, w.created_at, w.task_id
$$;
SELECT accs.is_verb('tasks_to_resolve', pinned => true, may => '{scheduler}');

-- The results of the items of a step, in their order; null if they are larger than so many bytes. Reads no more of them than that: ten
-- thousand results may be larger than one value can be.
CREATE FUNCTION accs.results_of_items(p_parent uuid, p_bytes bigint) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN NOT EXISTS (
      SELECT FROM (SELECT sum(octet_length(c.results::text)) OVER (ORDER BY c.item_no ROWS UNBOUNDED PRECEDING) AS so_far
                     FROM public.job_tasks c WHERE c.parent = p_parent) r WHERE r.so_far > p_bytes) THEN (
      SELECT coalesce(jsonb_agg(CASE WHEN c.status = 'done' THEN coalesce(c.results, '{}') END ORDER BY c.item_no), '[]')
        FROM public.job_tasks c WHERE c.parent = p_parent AND c.error_code IS DISTINCT FROM 'not_in_list') END
$$;

-- The results of earlier steps that expressions refer to; of a step that was multiplied the list of its tasks' results, null where one was
-- skipped or failed. size is that of the JSON; what does not fit into p_bytes together with those before it is left out, and comes
-- without results. So does a list of more than 4 MiB, whose size nobody counts: no expression may use it.
CREATE FUNCTION accs.step_results(p_job_ids uuid[], p_task_keys text[], p_bytes bigint DEFAULT 33554432)
RETURNS TABLE (job_id uuid, task_key text, status text, results jsonb, size bigint) LANGUAGE sql STABLE AS $$
  SELECT r.job_id, r.task_key, r.status, CASE WHEN sum(r.size) OVER (ORDER BY r.n) <= p_bytes THEN r.results END, r.size
    FROM (SELECT a.n, t.job_id, t.task_key, t.status, v.results, octet_length(v.results::text)::bigint AS size
            FROM unnest(p_job_ids, p_task_keys) WITH ORDINALITY AS a (job_id, task_key, n), LATERAL (
              SELECT * FROM public.job_tasks t WHERE t.job_id = a.job_id AND t.task_key = a.task_key OFFSET 0) t, LATERAL (
              SELECT CASE WHEN t.items IS NULL THEN t.results ELSE accs.results_of_items(t.id, 4194304) END AS results OFFSET 0) v
           WHERE t.status IN ('done', 'skipped')) r
$$;
SELECT accs.is_verb('step_results', pinned => true, may => '{scheduler}');

-- What a resolver has found of one task.
CREATE TYPE accs.resolved AS (
  task_id     uuid,
  generation  int,
  verdict     text,              -- run | skip | error | done
  given       jsonb,             -- run: with, now
  delay       double precision,  -- run: so many seconds later
  reason      text,              -- skip: condition_false, input_skipped; error: its code
  message     text,
  results     jsonb,             -- done: without a node
  cache_for   double precision,  -- run: unless there is a result of the same input that is not older than so many seconds
  salt        text               -- and of the same salt
);

-- The tasks of these verdicts that still wait to be resolved, in the same generation; locked with their jobs.
CREATE FUNCTION accs.lock_unresolved(p_task_ids uuid[], p_generations int[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
BEGIN
  PERFORM accs.lock_jobs_of(p_task_ids);
  RETURN ARRAY(
    SELECT t.id FROM (SELECT w.task_id FROM accs.waiting w WHERE w.task_id = ANY (p_task_ids) AND w.hold = 'resolve'
                       ORDER BY w.task_id FOR UPDATE) w
      JOIN public.job_tasks t ON t.id = w.task_id
      JOIN unnest(p_task_ids, p_generations) AS u (id, generation) ON u.id = t.id AND u.generation = t.generation
     WHERE t.status = 'queued' AND t.resolve AND t.remaining = 0 ORDER BY t.id);
END $$;

-- What a task can be given: an object, whose "with" is one.
CREATE FUNCTION accs.check_given(p_given jsonb[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM unnest(p_given) AS u (given)
              WHERE jsonb_typeof(u.given) <> 'object' OR jsonb_typeof(u.given -> 'with') <> 'object') THEN
    RAISE EXCEPTION 'what a task is given must be an object, and so must be its "with"' USING ERRCODE = 'invalid_parameter_value';
  END IF;
END $$;

-- So many seconds from now, at most a leap year; null: at once.
CREATE FUNCTION accs.later(p_seconds double precision) RETURNS timestamptz LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p_seconds > 0 THEN accs.clock() + make_interval(secs => least(p_seconds, 31622400)) END
$$;

-- Says what follows for tasks that wait to be resolved. Each is answered: accepted, repeated (somebody said it before), or refused because
-- it does not wait any more, or waits in another generation. Of several verdicts on one task the first counts.
CREATE FUNCTION accs.resolve_tasks(p_verdicts jsonb) RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_said  accs.resolved[];
  v_asked uuid[];
  v_generations int[];
  v_ids   uuid[];
  v_keys  text[];
  v_held  text[];
  v_hits  uuid[] := '{}';   -- done, with the result of an earlier task
  v_some  record;
BEGIN
  v_said := ARRAY(SELECT v FROM jsonb_populate_recordset(NULL::accs.resolved, p_verdicts) v);
  PERFORM accs.check_size(cardinality(v_said)), accs.check_given(ARRAY(SELECT s.given FROM unnest(v_said) s));
  FOR v_some IN SELECT s.* FROM unnest(v_said) s LOOP
    IF (v_some.verdict IN ('run', 'skip', 'error', 'done')) IS NOT TRUE OR pg_column_size(v_some.results) > accs.max_result_bytes() THEN
      RAISE EXCEPTION 'a verdict is run, skip, error or done, with results of at most % bytes', accs.max_result_bytes()
        USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM accs.check_reason(v_some.reason), accs.check_cache(v_some.cache_for, v_some.salt);
  END LOOP;
  v_asked := ARRAY(SELECT s.task_id FROM unnest(v_said) s);
  v_generations := ARRAY(SELECT s.generation FROM unnest(v_said) s);
  v_ids := accs.lock_unresolved(v_asked, v_generations);
  v_said := ARRAY(SELECT s.said FROM (SELECT DISTINCT ON (u.task_id) u.task_id, u.n, v_said[u.n::int] AS said
                    FROM unnest(v_said) WITH ORDINALITY AS u (task_id, generation, verdict, given, delay, reason, message, results,
                                                                    cache_for, salt, n)
                    JOIN public.job_tasks t ON t.id = u.task_id AND t.generation = u.generation
                   WHERE u.task_id = ANY (v_ids) ORDER BY u.task_id, u.n) s);
  v_keys := accs.drop_items(ARRAY(SELECT s.task_id FROM unnest(v_said) s WHERE s.verdict <> 'error'), 'resolver');

  SELECT array_agg(s.task_id) AS ids, array_agg(accs.cache_key(accs.cache_base(t, s.salt), s.given)) AS keys,
         array_agg(s.cache_for) AS seconds, array_agg(accs.why_not_cached(t)) AS reasons INTO v_some
    FROM unnest(v_said) s JOIN public.job_tasks t ON t.id = s.task_id WHERE s.verdict = 'run' AND s.cache_for IS NOT NULL;
  IF v_some.ids IS NOT NULL THEN
    SELECT c.hits, v_keys || c.keys INTO v_hits, v_keys FROM accs.use_cache(v_some.ids, v_some.keys, v_some.seconds, v_some.reasons) c;
  END IF;

  WITH said AS (
    SELECT s.task_id, accs.inputs_of_items(t) || coalesce(s.given, '{}') AS given,
           accs.later(s.delay) AS due
      FROM unnest(v_said) s JOIN public.job_tasks t ON t.id = s.task_id
     WHERE s.verdict = 'run' AND s.task_id <> ALL (v_hits) ORDER BY s.task_id
  ), told AS (
    UPDATE public.job_tasks t SET resolve = false, given = s.given, next_attempt_at = s.due, updated_at = v_now
      FROM said s WHERE t.id = s.task_id RETURNING t.id, t.job_id, t.next_attempt_at
  ), freed AS (
    UPDATE accs.waiting w SET due_at = t.next_attempt_at,
           hold = CASE WHEN t.next_attempt_at IS NOT NULL THEN 'backoff'
                       WHEN j.workflow_id = ANY ((SELECT accs.paused_workflows())::uuid[]) THEN 'paused'
                       WHEN w.key IS NOT NULL THEN 'key' END
      FROM told t JOIN public.jobs j ON j.id = t.job_id WHERE w.task_id = t.id
    RETURNING w.key, w.hold)
  SELECT array_agg(DISTINCT key) INTO v_held FROM freed WHERE hold = 'key';
  v_keys := v_keys || v_held;

  SELECT array_agg(s.task_id) AS ids, array_agg(s.reason) AS reasons, array_agg(left(s.message, 2000)) AS messages INTO v_some
    FROM unnest(v_said) s WHERE s.verdict = 'skip';
  IF v_some.ids IS NOT NULL THEN
    v_keys := v_keys || (SELECT k.keys FROM accs.skip(v_some.ids, v_some.reasons, 'resolver', v_some.messages) k);
  END IF;

  SELECT array_agg(s.task_id ORDER BY s.task_id) AS ids, array_agg(s.results ORDER BY s.task_id) AS results INTO v_some
    FROM unnest(v_said) s WHERE s.verdict = 'done';
  IF v_some.ids IS NOT NULL THEN
    v_keys := v_keys || accs.conclude(v_some.ids, v_some.results);
  END IF;

  SELECT array_agg(s.task_id ORDER BY s.task_id) AS ids, array_agg(s.reason ORDER BY s.task_id) AS codes,
         array_agg(s.message ORDER BY s.task_id) AS messages INTO v_some
    FROM unnest(v_said) s WHERE s.verdict = 'error';
  IF v_some.ids IS NOT NULL THEN
    PERFORM accs.begin_without_node(v_some.ids, 'starting');
    v_keys := v_keys || accs.end_attempts(v_some.ids, 'error', v_some.codes, v_some.messages,
                                          array_fill(true, ARRAY[cardinality(v_some.ids)]), 'resolver');
  END IF;

  PERFORM accs.admit(v_keys);
  RETURN QUERY SELECT * FROM accs.unresolved_answers(v_asked, v_generations, v_ids);
END $$;
SELECT accs.is_verb('resolve_tasks', pinned => true, may => '{scheduler}');

CREATE FUNCTION accs.unresolved_answers(p_task_ids uuid[], p_generations int[], p_moved uuid[]) RETURNS SETOF accs.answer
LANGUAGE sql STABLE AS $$
  SELECT u.id, CASE WHEN r.reason IS NOT NULL THEN 'refused' WHEN u.id = ANY (p_moved) THEN 'accepted' ELSE 'repeated' END, r.reason,
         t.status, t.attempt_id, t.lease_owner, t.lease_until
    FROM unnest(p_task_ids, p_generations) AS u (id, generation) LEFT JOIN public.job_tasks t ON t.id = u.id,
         LATERAL (SELECT CASE WHEN t.id IS NULL THEN 'not_found' WHEN t.generation IS DISTINCT FROM u.generation THEN 'stale_generation'
                              WHEN t.resolve IS NULL OR t.status = 'cancelled' OR t.resolve AND t.status = 'queued'
                                THEN 'not_in_expected_state' END AS reason) r
$$;

-- The lists of results of the steps that a task depends on and that were multiplied, by key, as a part of what it is given. What is too
-- large to hand over is left out, as in claim_tasks.
CREATE FUNCTION accs.inputs_of_items(p_task public.job_tasks) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN count(*) = 0 THEN '{}'
              WHEN sum(pg_column_size(v.results)) > 16777216 OR bool_or(v.results IS NULL)
                THEN jsonb_build_object('omitted', jsonb_agg(m.task_key))
              ELSE jsonb_build_object('inputs', jsonb_object_agg(m.task_key, v.results)) END
    FROM unnest(p_task.depends_on) AS k (key), LATERAL (
      SELECT t.id, t.task_key FROM public.job_tasks t
       WHERE t.job_id = p_task.job_id AND t.task_key = k.key AND t.items IS NOT NULL OFFSET 0) m, LATERAL (
      SELECT accs.results_of_items(m.id, 16777216) AS results OFFSET 0) v
$$;

-- Takes tasks that no node takes out of waiting and moves them to where an attempt of theirs can end: its events are those of any attempt.
-- They are live for nobody, because they end in the same transaction.
CREATE FUNCTION accs.begin_without_node(p_task_ids uuid[], p_status text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  PERFORM accs.unqueue(p_task_ids);
  WITH moved AS (
    UPDATE public.job_tasks t SET status = p_status,
           resolve = CASE WHEN t.resolve IS NOT NULL THEN false END,   -- an item has been resolved
           attempt_id = t.attempt_id + 1, claimed_by = NULL, claimed_at = v_now,
           started_at = CASE p_status WHEN 'running' THEN v_now END, lease_owner = 'resolver', lease_until = v_now, updated_at = v_now
      FROM (SELECT u.id FROM unnest(p_task_ids) AS u (id) ORDER BY u.id) s WHERE t.id = s.id
    RETURNING t.id, t.job_id, t.attempt_id)
  INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
  SELECT m.job_id, m.id, v_now, 'resolver', 'info', 'status', e.f || ' → ' || e.t, jsonb_strip_nulls(jsonb_build_object(
           'from', e.f, 'to', e.t, 'owner', CASE e.t WHEN 'starting' THEN 'resolver' END)), m.attempt_id
    FROM moved m, (VALUES (1, 'queued', 'starting'), (2, 'starting', 'running')) AS e (n, f, t)
   WHERE e.n = 1 OR p_status = 'running' ORDER BY m.id, e.n;
END $$;

-- Ends tasks as done that needed no node; the caller holds their jobs' locks and admits the keys.
CREATE FUNCTION accs.conclude(p_task_ids uuid[], p_results jsonb[]) RETURNS text[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_jobs  uuid[];
  v_ended int[];
  v_gain  numeric[];
  v_current text[];
  v_keys  text[];
  v_dependants uuid[];
BEGIN
  PERFORM accs.begin_without_node(p_task_ids, 'running');
  WITH moved AS (
    UPDATE public.job_tasks t SET status = 'done', results = coalesce(s.results, '{}'), progress = 1, finished_at = v_now,
           updated_at = v_now, lease_owner = NULL, lease_until = NULL, error_code = NULL, error_message = NULL, outcome = 'done',
           outcome_attempt_id = t.attempt_id
      FROM (SELECT u.* FROM unnest(p_task_ids, p_results) AS u (id, results) ORDER BY u.id) s WHERE t.id = s.id
    RETURNING t.id, t.job_id, t.attempt_id, t.dependants, t.items, t.concurrency_key
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
    SELECT job_id, id, v_now, 'resolver', 'info', 'status', 'running → done',
           jsonb_strip_nulls(jsonb_build_object('from', 'running', 'to', 'done', 'items', items)), attempt_id FROM moved
  )
  SELECT array_agg(job_id), array_agg(1), array_agg(1::numeric),
         array_agg(DISTINCT concurrency_key) FILTER (WHERE concurrency_key IS NOT NULL),
         (SELECT array_agg(d.id) FROM moved m, unnest(m.dependants) AS d (id))
    INTO v_jobs, v_ended, v_gain, v_keys, v_dependants FROM moved;
  SELECT v_keys || max(u.keys), v_jobs || array_agg(u.job_id), v_ended || array_fill(0, ARRAY[count(*)::int]),
         v_gain || array_fill(0::numeric, ARRAY[count(*)::int]), array_fill(NULL::text, ARRAY[cardinality(v_jobs)]) || array_agg(u.task_key)
    INTO v_keys, v_jobs, v_ended, v_gain, v_current FROM accs.unblock(v_dependants) u;
  PERFORM accs.count_down(v_jobs, v_ended, v_gain, v_current);
  RETURN v_keys;
END $$;

-- Multiplies a step that waits to be resolved: it becomes one task for each item and is done itself, with their number. p_given is
-- what each task is given; null: the item is skipped. The tasks do what the step says, and wait for what it waited for and for the
-- step itself; the steps below wait for each of them by their own countdown, which is the join. p_parallel: how many may run at once.
-- p_tolerate: how many may fail for good without stopping what is below. p_delays: so many seconds later, task by task. p_cache_for:
-- an item of whose input there is a result that is not older than so many seconds, with the same p_salt, is done with it.
-- A step that is multiplied once more (after a retry) keeps the tasks that it has: each item goes to the task of its number, what is
-- too many is skipped, and what is missing is made.
CREATE FUNCTION accs.fan_out(p_task uuid, p_generation int, p_given jsonb[], p_parallel int DEFAULT NULL, p_tolerate int DEFAULT 0,
                             p_delays double precision[] DEFAULT NULL, p_cache_for double precision DEFAULT NULL, p_salt text DEFAULT NULL)
RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_n     int := coalesce(cardinality(p_given), 0);
  v_step  public.job_tasks;
  v_job   public.jobs;
  v_had   int;
  v_large jsonb;     -- the steps above whose results are too large for items
  v_below uuid[];    -- the steps below
  v_fresh uuid[];    -- tasks that are made
  v_again uuid[];    -- tasks of an earlier generation that had ended
  v_left  uuid[];    -- tasks without an item
  v_idle  uuid[];    -- tasks whose item is skipped
  v_keys  text[];
BEGIN
  IF v_n > 10000 THEN
    RAISE EXCEPTION 'a step becomes at most 10,000 tasks, not %', v_n USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_parallel < 1 OR p_tolerate < 0 THEN
    RAISE EXCEPTION 'at least one task runs at once, and no fewer than none may fail' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM accs.check_given(p_given), accs.check_cache(p_cache_for, p_salt);
  IF accs.lock_unresolved(ARRAY[p_task], ARRAY[p_generation]) = '{}' THEN
    RETURN QUERY SELECT * FROM accs.unresolved_answers(ARRAY[p_task], ARRAY[p_generation], '{}');
    RETURN;
  END IF;
  SELECT * INTO v_step FROM public.job_tasks WHERE id = p_task;
  SELECT * INTO v_job FROM public.jobs WHERE id = v_step.job_id;
  v_had := (SELECT count(*) FROM public.job_tasks WHERE parent = p_task);
  IF v_job.task_count + greatest(0, v_n - v_had) > 100000 THEN
    RETURN QUERY SELECT p_task, 'refused'::text, 'too_many_tasks'::text, v_step.status, v_step.attempt_id, NULL::text, NULL::timestamptz;
    RETURN;
  END IF;
  -- Each item would be handed the list that it was made from, and the cost of a list would grow with its square: what is large is left
  -- out for items. It is measured here, once, as JSON: PostgreSQL may have compressed it to a hundredth.
  v_large := (SELECT jsonb_build_object('omitted', jsonb_agg(k.key)) FROM unnest(v_step.depends_on) AS k (key), LATERAL (
                SELECT u.results FROM public.job_tasks u WHERE u.job_id = v_step.job_id AND u.task_key = k.key OFFSET 0) d
               WHERE octet_length(d.results::text) > 4096 HAVING count(*) > 0);
  -- from 1, and taken apart once: the items are looked up one by one
  p_given := ARRAY(SELECT CASE WHEN v_large IS NULL THEN u.given ELSE u.given || v_large END
                     FROM unnest(p_given) WITH ORDINALITY AS u (given, n) ORDER BY u.n);
  v_below := ARRAY(SELECT unnest(v_step.dependants) EXCEPT SELECT id FROM public.job_tasks WHERE parent = p_task);
  IF p_parallel IS NOT NULL THEN
    v_step.concurrency_key := 'map/' || p_task;
    INSERT INTO accs.concurrency_keys AS k (key, max_running) VALUES (v_step.concurrency_key, p_parallel)
    ON CONFLICT (key) DO UPDATE SET max_running = excluded.max_running;
  END IF;

  WITH made AS (
    INSERT INTO public.job_tasks (id, job_id, task_key, service_name, depends_on, max_attempts, priority, params, assigned_node, created_at,
                                  updated_at, step_no, lane, dependants, requires, concurrency_key, timeout_sec, backoff, notify, given,
                                  next_attempt_at, parent, item_no, files)
    SELECT accs.task_id(v_step.job_id, n), v_step.job_id, format('%s[%s]', v_step.task_key, i), v_step.service_name,
           v_step.depends_on || v_step.task_key, v_step.max_attempts, v_step.priority, v_step.params, v_step.assigned_node, v_now, v_now, n,
           v_step.lane, nullif(v_below, '{}'), v_step.requires, v_step.concurrency_key, v_step.timeout_sec, v_step.backoff, v_step.notify,
           p_given[i + 1], accs.later(p_delays[i + 1]), p_task, i, v_step.files
      FROM generate_series(v_had, v_n - 1) i, LATERAL (SELECT v_job.task_count + 1 + i - v_had AS n) s
    RETURNING id)
  SELECT coalesce(array_agg(id), '{}') INTO v_fresh FROM made;
  WITH before AS MATERIALIZED (
    SELECT id, item_no, status FROM public.job_tasks WHERE parent = p_task AND item_no < least(v_n, v_had) ORDER BY id FOR NO KEY UPDATE
  ), moved AS (
    UPDATE public.job_tasks t SET given = p_given[b.item_no + 1], concurrency_key = v_step.concurrency_key, updated_at = v_now,
           next_attempt_at = accs.later(p_delays[b.item_no + 1]), status = 'queued',
           generation = t.generation + (b.status <> 'queued')::int,
           remaining = CASE b.status WHEN 'queued' THEN t.remaining ELSE 1 END, finished_at = NULL, error_code = NULL, error_message = NULL
      FROM before b WHERE t.id = b.id
    RETURNING t.id, t.generation, b.status AS from_status
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data)
    SELECT v_step.job_id, id, v_now, 'resolver', 'info', 'retry', from_status || ' → queued: it has an item again',
           jsonb_build_object('from', from_status, 'to', 'queued', 'generation', generation) FROM moved WHERE from_status <> 'queued'
  )
  SELECT coalesce(array_agg(id) FILTER (WHERE from_status <> 'queued'), '{}') INTO v_again FROM moved;
  UPDATE public.job_tasks t SET remaining = t.remaining + cardinality(v_fresh || v_again), updated_at = v_now
    FROM (SELECT u.id FROM unnest(v_below) AS u (id) ORDER BY u.id) b WHERE t.id = b.id;
  UPDATE public.jobs SET task_count = task_count + cardinality(v_fresh), open_tasks = open_tasks + cardinality(v_fresh || v_again),
         task_progress = task_progress - cardinality(v_again) WHERE id = v_step.job_id;

  -- those that are skipped free what is below from them: not the last, since the step itself is still open
  v_left := ARRAY(SELECT id FROM public.job_tasks WHERE parent = p_task AND item_no >= v_n AND status = 'queued');
  v_idle := ARRAY(SELECT id FROM public.job_tasks WHERE parent = p_task AND item_no < v_n AND given IS NULL);
  IF v_left || v_idle <> '{}' THEN
    v_keys := (SELECT k.keys FROM accs.skip(v_left || v_idle, array_fill('not_in_list'::text, ARRAY[cardinality(v_left)])
                                            || array_fill('condition_false'::text, ARRAY[cardinality(v_idle)]), 'resolver') k);
  END IF;
  UPDATE public.job_tasks SET items = v_n, tolerate = nullif(p_tolerate, 0), dependants = nullif(v_below || ARRAY(
         SELECT id FROM public.job_tasks WHERE parent = p_task AND item_no < least(v_n, v_had) ORDER BY id), '{}') WHERE id = p_task;
  v_keys := v_keys || accs.conclude(ARRAY[p_task], ARRAY[jsonb_build_object('count', v_n)]);
  -- the new ones were made with nothing to wait for, so that each is written once; the step has counted down those that it had
  UPDATE public.job_tasks SET dependants = nullif(v_below || ARRAY(SELECT id FROM public.job_tasks WHERE parent = p_task ORDER BY id), '{}')
   WHERE id = p_task;
  IF p_cache_for IS NOT NULL THEN   -- v_step is as it was before: it tells whether this is a retry
    SELECT v_keys || c.keys INTO v_keys
      FROM (SELECT array_agg(t.id) AS ids, array_agg(accs.cache_key(b.base, t.given)) AS keys, array_agg(p_cache_for) AS seconds,
                   array_agg(accs.why_not_cached(v_step)) AS reasons
              FROM (SELECT accs.cache_base(v_step, p_salt) AS base OFFSET 0) b, public.job_tasks t
             WHERE t.parent = p_task AND t.item_no < v_n AND t.status = 'queued') i,
           LATERAL accs.use_cache(i.ids, i.keys, i.seconds, i.reasons) c;
  END IF;
  v_keys := v_keys || accs.enqueue(v_fresh);
  PERFORM accs.admit(v_keys);
  RETURN QUERY SELECT * FROM accs.accepted(ARRAY[p_task]);
END $$;
SELECT accs.is_verb('fan_out', may => '{scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- Redrive and retry: terminal is final but for these, and each opens a new generation
-- ---------------------------------------------------------------------------------------------------------------

-- Every task that ended in error, until it is redriven or dismissed.
CREATE TABLE public.dead_letters (
  id             bigserial PRIMARY KEY,
  job_id         uuid NOT NULL,
  job_task_id    uuid NOT NULL,
  generation     int NOT NULL,
  service_name   text NOT NULL,
  reason         text NOT NULL CHECK (reason IN ('attempts_exhausted', 'permanent_error', 'lost_too_often', 'poison')),
  error_code     text,
  error_message  text,
  created_at     timestamptz NOT NULL DEFAULT accs.clock(),
  redriven_at    timestamptz,
  dismissed_at   timestamptz,
  UNIQUE (job_task_id, generation)
);

CREATE INDEX dead_letters_open ON public.dead_letters (id) WHERE redriven_at IS NULL AND dismissed_at IS NULL;

-- Reopens terminal tasks of one job, whose lock the caller holds. What the tasks still depend on is counted anew. The caller
-- admits the keys it returns.
CREATE FUNCTION accs.reopen(p_job uuid, p_task_ids uuid[], p_source text, p_why text) RETURNS text[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_ready uuid[];
BEGIN
  PERFORM FROM public.job_tasks WHERE id = ANY (p_task_ids) ORDER BY id FOR NO KEY UPDATE;
  PERFORM accs.return_files(p_task_ids);
  WITH before AS MATERIALIZED (
    SELECT t.id, t.status, (SELECT count(*)::int FROM accs.unsatisfied(p_job, t.depends_on, t.parent, p_task_ids)) AS remaining,
           CASE t.status WHEN 'cancelled' THEN t.progress ELSE 1 END AS counted
      FROM public.job_tasks t WHERE t.id = ANY (p_task_ids)
  ), moved AS (
    UPDATE public.job_tasks t SET status = 'queued', generation = t.generation + 1, attempt = 0, lost = 0, remaining = b.remaining,
           progress = 0, next_attempt_at = NULL, started_at = NULL, finished_at = NULL, error_code = NULL, error_message = NULL,
           results = NULL, updated_at = v_now, tolerated = NULL, resolve = CASE WHEN t.resolve IS NOT NULL THEN true END,
           -- what its item gave it stays until its step is multiplied anew
           given = CASE WHEN t.parent IS NOT NULL THEN t.given - 'cached' END
      FROM before b WHERE t.id = b.id
    RETURNING t.id, t.task_key, t.step_no, t.generation, t.remaining, b.status AS from_status, b.counted
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data)
    SELECT p_job, id, v_now, p_source, 'warn', 'retry', from_status || ' → queued: ' || p_why,
           jsonb_build_object('from', from_status, 'to', 'queued', 'generation', generation) FROM moved
  ), settled AS (
    UPDATE public.dead_letters d SET redriven_at = v_now WHERE d.job_task_id = ANY (p_task_ids) AND d.redriven_at IS NULL
  ), failure AS (   -- what still stands in error, or cancelled, keeps the job from ending as done
    SELECT error_code, error_message FROM public.job_tasks
     WHERE job_id = p_job AND status IN ('error', 'cancelled') AND tolerated IS NULL AND id NOT IN (SELECT unnest(p_task_ids))
     ORDER BY finished_at, id LIMIT 1
  ), job AS (
    SELECT id, status FROM public.jobs WHERE id = p_job
  ), reopened AS (
    UPDATE public.jobs j SET status = 'running', generation = j.generation + 1, open_tasks = j.open_tasks + m.n, finished_at = NULL,
           updated_at = v_now, task_progress = j.task_progress - m.counted, progress = (j.task_progress - m.counted) / j.task_count,
           current_task_key = coalesce(m.first, j.current_task_key),
           error_code = (SELECT coalesce(error_code, 'error') FROM failure), error_message = (SELECT error_message FROM failure)
      FROM (SELECT count(*)::int AS n, sum(counted) AS counted,
                   (array_agg(task_key ORDER BY step_no) FILTER (WHERE remaining = 0))[1] AS first FROM moved) m
     WHERE j.id = p_job
    RETURNING j.id, j.generation, j.schedule_id, j.run_key
  ), run AS (   -- whoever runs it again does not ask whether its run key has room
    INSERT INTO accs.open_runs (job_id, key, schedule_id, waits, forced)
    SELECT id, run_key, schedule_id, false, true FROM reopened WHERE run_key IS NOT NULL ON CONFLICT DO NOTHING
  ), announced AS (
    INSERT INTO public.task_events (job_id, ts, source, level, type, message, data)
    SELECT r.id, v_now, p_source, 'warn', 'retry', job.status || ' → running: ' || p_why,
           jsonb_build_object('from', job.status, 'to', 'running', 'generation', r.generation)
      FROM reopened r, job WHERE job.status <> 'running'
  )
  SELECT array_agg(id) FILTER (WHERE remaining = 0) INTO v_ready FROM moved;
  RETURN accs.enqueue(v_ready);
END $$;

-- The tasks below these, all the way down.
CREATE FUNCTION accs.downstream(p_task_ids uuid[]) RETURNS uuid[] LANGUAGE sql STABLE AS $$
  WITH RECURSIVE below AS (
    SELECT d.id FROM public.job_tasks t, unnest(t.dependants) AS d (id) WHERE t.id = ANY (p_task_ids)
    UNION
    SELECT d.id FROM below b JOIN public.job_tasks t ON t.id = b.id, unnest(t.dependants) AS d (id)
  ) SELECT coalesce(array_agg(id), '{}') FROM below
$$;

-- What can't run while the failures of a job stand that are not about to be reopened. A step that is done or was skipped for
-- a reason of its own satisfies what is below it.
CREATE FUNCTION accs.blocked(p_job uuid, p_reopened uuid[]) RETURNS uuid[] LANGUAGE sql STABLE AS $$
  WITH RECURSIVE below AS (
    SELECT c.id, c.dependants, accs.satisfies(c.status, c.error_code, c.tolerated) AS satisfies
      FROM public.job_tasks t, unnest(t.dependants) AS d (id) JOIN public.job_tasks c ON c.id = d.id
     WHERE t.job_id = p_job AND t.status IN ('error', 'cancelled') AND t.tolerated IS NULL AND t.id NOT IN (SELECT unnest(p_reopened))
    UNION
    SELECT c.id, c.dependants, accs.satisfies(c.status, c.error_code, c.tolerated)
      FROM below b, unnest(b.dependants) AS d (id) JOIN public.job_tasks c ON c.id = d.id WHERE NOT b.satisfies
  ) SELECT coalesce(array_agg(id), '{}') FROM below
$$;

-- Sends dead letters back to work, with what was skipped because of them, unless another failure still stands above it.
CREATE FUNCTION accs.send_back(p_dead_letter_ids bigint[], p_by text)
RETURNS TABLE (dead_letter_id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row   record;
  v_below uuid[];
  v_keys  text[];
BEGIN
  PERFORM FROM public.jobs WHERE id = ANY (ARRAY(SELECT d.job_id FROM public.dead_letters d WHERE d.id = ANY (p_dead_letter_ids)))
    ORDER BY id FOR NO KEY UPDATE;
  RETURN QUERY SELECT u.id, 'refused'::text, 'not_found'::text FROM unnest(p_dead_letter_ids) AS u (id)
                WHERE NOT EXISTS (SELECT FROM public.dead_letters d WHERE d.id = u.id);
  FOR v_row IN
    SELECT d.job_id, array_agg(d.id) AS letters,
           array_agg(d.job_task_id) FILTER (WHERE t.status = 'error' AND t.generation = d.generation AND d.redriven_at IS NULL
             -- the steps below go on without what is tolerated: it can be redriven when they have ended, and they with it
             AND NOT (t.tolerated IS TRUE AND EXISTS (SELECT FROM public.job_tasks b
                        WHERE b.id = ANY (accs.downstream(ARRAY[t.id])) AND b.status IN ('queued', 'starting', 'running')))) AS tasks
      FROM public.dead_letters d JOIN public.job_tasks t ON t.id = d.job_task_id
     WHERE d.id = ANY (p_dead_letter_ids) GROUP BY d.job_id ORDER BY d.job_id
  LOOP
    RETURN QUERY
    SELECT d.id, CASE WHEN d.redriven_at IS NOT NULL THEN 'repeated' WHEN d.job_task_id = ANY (v_row.tasks) THEN 'accepted'
                      ELSE 'refused' END,
           CASE WHEN d.job_task_id = ANY (v_row.tasks) OR d.redriven_at IS NOT NULL THEN NULL ELSE 'not_in_expected_state' END
      FROM public.dead_letters d WHERE d.id = ANY (v_row.letters);
    IF v_row.tasks IS NOT NULL THEN
      v_below := accs.downstream(v_row.tasks);   -- read once; what stands in a sub-select is hashed
      v_keys := v_keys || accs.reopen(v_row.job_id, v_row.tasks || ARRAY(
        SELECT t.id FROM public.job_tasks t
         WHERE t.id = ANY (v_below)
           AND (t.status = 'skipped' AND t.error_code = 'upstream_failed' OR t.id IN (SELECT unnest(accs.downstream(ARRAY(
                  SELECT b.id FROM public.job_tasks b WHERE b.id = ANY (v_row.tasks) AND b.tolerated)))))
           AND t.id NOT IN (SELECT unnest(accs.blocked(v_row.job_id, v_row.tasks)))),
        coalesce(p_by, 'operator'), 'redriven');
    END IF;
  END LOOP;
  PERFORM accs.admit(v_keys);
END $$;

CREATE FUNCTION accs.redrive(p_dead_letter_ids bigint[], p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (dead_letter_id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
DECLARE
  v_sent record;
BEGIN
  SELECT array_agg(s.dead_letter_id) AS ids, array_agg(s.answer) AS answers, array_agg(s.reason) AS reasons INTO v_sent
    FROM accs.send_back(p_dead_letter_ids, p_by) s;
  PERFORM accs.audit_each('redrive', 'dead_letter', v_sent.ids::text[], v_sent.answers, v_sent.reasons, p_by, p_reason);
  RETURN QUERY SELECT * FROM unnest(v_sent.ids, v_sent.answers, v_sent.reasons);
END $$;
SELECT accs.is_verb('redrive', may => '{scheduler,api}');

CREATE FUNCTION accs.dismiss(p_dead_letter_ids bigint[], p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (dead_letter_id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
DECLARE
  v_said record;
BEGIN
  WITH done AS (
    UPDATE public.dead_letters SET dismissed_at = accs.clock()
     WHERE id = ANY (p_dead_letter_ids) AND dismissed_at IS NULL AND redriven_at IS NULL RETURNING id
  )
  SELECT array_agg(s.id) AS ids, array_agg(s.answer) AS answers, array_agg(s.reason) AS reasons INTO v_said FROM (
    SELECT u.id, CASE WHEN done.id IS NOT NULL THEN 'accepted' WHEN d.dismissed_at IS NOT NULL THEN 'repeated' ELSE 'refused' END AS answer,
           CASE WHEN d.id IS NULL THEN 'not_found' WHEN done.id IS NULL AND d.dismissed_at IS NULL THEN 'already_redriven' END AS reason
      FROM unnest(p_dead_letter_ids) AS u (id) LEFT JOIN done ON done.id = u.id LEFT JOIN public.dead_letters d ON d.id = u.id) s;
  PERFORM accs.audit_each('dismiss', 'dead_letter', v_said.ids::text[], v_said.answers, v_said.reasons, p_by, p_reason);
  RETURN QUERY SELECT * FROM unnest(v_said.ids, v_said.answers, v_said.reasons);
END $$;
SELECT accs.is_verb('dismiss', may => '{scheduler,api}');

-- Runs finished jobs again: what has not succeeded, or, with a step named, that step and everything below it. A job that is
-- running again already because of the same call is repeated.
CREATE FUNCTION accs.run_again(p_job_ids uuid[], p_from_steps text[], p_by text) RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_said  record;
  v_row   record;
  v_step  uuid;
  v_tasks uuid[];
  v_keys  text[];
  v_no    text;
BEGIN
  PERFORM FROM public.jobs WHERE id = ANY (p_job_ids) ORDER BY id FOR NO KEY UPDATE;
  FOR v_said IN SELECT u.id, u.step FROM unnest(p_job_ids, p_from_steps) AS u (id, step) ORDER BY u.id LOOP
    -- read one by one: the same job may have been named before
    SELECT v_said.id, v_said.step, j.id AS found, j.status, j.task_count, j.generation INTO v_row
      FROM (SELECT) one LEFT JOIN public.jobs j ON j.id = v_said.id;
    v_no := NULL;
    v_tasks := NULL;
    IF v_row.found IS NULL THEN
      v_no := 'not_found';
    ELSIF v_row.status IN ('queued', 'running') THEN
      IF v_row.status = 'running' AND v_row.generation > 0 THEN
        RETURN QUERY SELECT v_row.id, 'repeated'::text, NULL::text, v_row.status, NULL::int, NULL::text, NULL::timestamptz;
        CONTINUE;
      END IF;
      v_no := 'not_in_expected_state';
    ELSIF v_row.task_count = 0 THEN
      v_no := 'never_instantiated';
    ELSIF v_row.step IS NULL THEN
      v_tasks := ARRAY(SELECT id FROM public.job_tasks WHERE job_id = v_row.id
                          AND (status IN ('error', 'cancelled') OR status = 'skipped' AND error_code = 'upstream_failed'));
      -- what went on without a task that is retried now goes on again with it
      v_tasks := ARRAY(SELECT unnest(v_tasks) UNION SELECT unnest(accs.downstream(ARRAY(
        SELECT id FROM public.job_tasks WHERE id = ANY (v_tasks) AND tolerated))));
      IF v_tasks = '{}' THEN
        v_no := 'nothing_to_retry';
      END IF;
    ELSE
      -- a task of a step that was multiplied, but without an item, could do nothing
      SELECT id INTO v_step FROM public.job_tasks
       WHERE job_id = v_row.id AND task_key = v_row.step
         AND (parent IS NULL OR given IS NOT NULL AND error_code IS DISTINCT FROM 'not_in_list');
      IF NOT FOUND THEN
        v_no := 'step_not_found';
      ELSIF EXISTS (SELECT FROM public.job_tasks t, accs.unsatisfied(t.job_id, t.depends_on, t.parent) WHERE t.id = v_step) THEN
        v_no := 'earlier_step_unfinished';
      ELSE
        v_tasks := v_step || accs.downstream(ARRAY[v_step]);
        -- what stands below another failure could not run: it stays as it is
        v_tasks := ARRAY(SELECT unnest(v_tasks) EXCEPT SELECT unnest(accs.blocked(v_row.id, v_tasks)));
      END IF;
    END IF;
    IF v_no IS NULL THEN
      v_keys := v_keys || accs.reopen(v_row.id, v_tasks, coalesce(p_by, 'operator'),
                                      CASE WHEN v_row.step IS NULL THEN 'retried' ELSE 'retried from ' || v_row.step END);
      RETURN QUERY SELECT v_row.id, 'accepted'::text, NULL::text, v_row.status, NULL::int, NULL::text, NULL::timestamptz;
    ELSE
      RETURN QUERY SELECT v_row.id, 'refused'::text, v_no, v_row.status, NULL::int, NULL::text, NULL::timestamptz;
    END IF;
  END LOOP;
  PERFORM accs.admit(v_keys);
END $$;

CREATE FUNCTION accs.retry_jobs(p_job_ids uuid[], p_from_steps text[] DEFAULT NULL, p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS SETOF accs.answer LANGUAGE sql AS $$
  SELECT * FROM accs.audit_answers('retry_jobs', 'job', ARRAY(SELECT r FROM accs.run_again(p_job_ids, p_from_steps, p_by) r),
    p_by, p_reason,
    jsonb_strip_nulls(jsonb_build_object('from_steps', nullif(ARRAY(SELECT DISTINCT s FROM unnest(p_from_steps[1:20]) s WHERE s IS NOT NULL
                                                                     ORDER BY s), '{}'))))
$$;
SELECT accs.is_verb('retry_jobs', may => '{scheduler,api}');

-- ---------------------------------------------------------------------------------------------------------------
-- Pauses of services, workflows and nodes; limits of concurrency keys; the net under both
-- ---------------------------------------------------------------------------------------------------------------

-- What takes nothing new: a service, a workflow (by name, all its versions), a node (a drain).
CREATE TABLE accs.pauses (
  kind    text NOT NULL CHECK (kind IN ('service', 'workflow', 'node')),
  name    text NOT NULL CHECK (length(name) BETWEEN 1 AND CASE kind WHEN 'service' THEN 40 ELSE 200 END),
  since   timestamptz NOT NULL DEFAULT accs.clock(),
  reason  text,
  by      text,
  PRIMARY KEY (kind, name)
);

-- The ids of the paused workflows. KEY SHARE makes resume wait for whoever is about to hold a task because of the pause:
-- otherwise that task would be held for ever.
CREATE FUNCTION accs.paused_workflows() RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
  v_names text[];
BEGIN
  SELECT array_agg(name) INTO v_names FROM (SELECT name FROM accs.pauses WHERE kind = 'workflow' FOR KEY SHARE) p;
  IF v_names IS NULL THEN
    RETURN '{}';
  END IF;
  RETURN ARRAY(SELECT id FROM public.workflows WHERE name = ANY (v_names));
END $$;

-- Stops new claims of a service, of a workflow (by name) or by a node (drain). What runs goes on.
CREATE FUNCTION accs.pause(p_kind text, p_name text, p_reason text DEFAULT NULL, p_by text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_keys text[];
BEGIN
  IF (length(p_name) BETWEEN 1 AND CASE p_kind WHEN 'service' THEN 40 ELSE 200 END) IS NOT TRUE THEN
    RAISE EXCEPTION '"%" can''t be paused: no % has such a name', left(p_name, 60), p_kind USING ERRCODE = 'invalid_parameter_value';
  END IF;
  INSERT INTO accs.pauses (kind, name, reason, by) VALUES (p_kind, p_name, p_reason, p_by) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN accs.audited('pause', p_kind, p_name, 'repeated', p_by, p_reason);
  END IF;
  IF p_kind = 'workflow' THEN
    -- A task that becomes claimable at this very moment may be missed: the claim that meets it holds it.
    WITH ours AS (
      SELECT w.task_id FROM accs.waiting w JOIN public.job_tasks t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id
        JOIN public.workflows f ON f.id = j.workflow_id WHERE f.name = p_name AND (w.hold IS NULL OR w.hold IN ('key', 'resolve'))
         FOR UPDATE OF w SKIP LOCKED
    ), held AS (
      UPDATE accs.waiting w SET hold = 'paused' FROM ours WHERE w.task_id = ours.task_id RETURNING w.key
    )
    SELECT array_agg(DISTINCT key) FILTER (WHERE key IS NOT NULL) INTO v_keys FROM held;
    PERFORM accs.admit(v_keys);   -- their places are the next ones'
  END IF;
  RETURN accs.audited('pause', p_kind, p_name, 'accepted', p_by, p_reason);
END $$;
SELECT accs.is_verb('pause', may => '{scheduler,api}');

CREATE FUNCTION accs.resume(p_kind text, p_name text, p_reason text DEFAULT NULL, p_by text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_keys text[];
BEGIN
  DELETE FROM accs.pauses WHERE kind = p_kind AND name = p_name;   -- waits for whoever holds a task because of it right now
  IF NOT FOUND THEN
    RETURN accs.audited('resume', p_kind, p_name, 'repeated', p_by, p_reason);
  END IF;
  IF p_kind = 'workflow' THEN
    WITH ours AS (
      SELECT w.task_id, t.resolve FROM accs.waiting w JOIN public.job_tasks t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id
        JOIN public.workflows f ON f.id = j.workflow_id WHERE f.name = p_name AND w.hold = 'paused' FOR UPDATE OF w SKIP LOCKED
    ), freed AS (
      UPDATE accs.waiting w SET hold = CASE WHEN ours.resolve THEN 'resolve' WHEN w.key IS NOT NULL THEN 'key' END FROM ours
       WHERE w.task_id = ours.task_id RETURNING w.key
    )
    SELECT array_agg(DISTINCT key) FILTER (WHERE key IS NOT NULL) INTO v_keys FROM freed;
    PERFORM accs.admit(v_keys);
  ELSIF p_kind = 'service' THEN
    PERFORM pg_notify(accs.channel_prefix() || p_name, '');
  ELSE
    PERFORM pg_notify(accs.channel_prefix() || s.service, '') FROM (
      SELECT DISTINCT jsonb_object_keys(max_concurrency) AS service FROM public.nodes WHERE name = p_name) s;
  END IF;
  RETURN accs.audited('resume', p_kind, p_name, 'accepted', p_by, p_reason);
END $$;
SELECT accs.is_verb('resume', may => '{scheduler,api}');

-- The net under SKIP LOCKED: whoever frees a held task passes over a row that somebody is about to cancel or skip, and that
-- one may yet roll back. Frees what is held without a reason; returns how many keys and tasks of no key that were.
CREATE FUNCTION accs.recheck_holds() RETURNS int LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_keys  text[];
  v_freed text[];
BEGIN
  WITH ours AS (
    SELECT w.task_id, t.resolve FROM accs.waiting w JOIN public.job_tasks t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id
      JOIN public.workflows f ON f.id = j.workflow_id
     WHERE w.hold = 'paused' AND NOT EXISTS (SELECT FROM accs.pauses p WHERE p.kind = 'workflow' AND p.name = f.name)
       FOR UPDATE OF w SKIP LOCKED
  ), freed AS (
    UPDATE accs.waiting w SET hold = CASE WHEN ours.resolve THEN 'resolve' WHEN w.key IS NOT NULL THEN 'key' END FROM ours
       WHERE w.task_id = ours.task_id RETURNING w.key
  )
  SELECT array_agg(key) INTO v_freed FROM freed;
  SELECT array_agg(DISTINCT h.key) INTO v_keys
    FROM (SELECT key, lane, count(*) FILTER (WHERE hold IS NULL) AS claimable FROM accs.waiting
           WHERE key IS NOT NULL AND (hold IS NULL OR hold = 'key') GROUP BY key, lane HAVING bool_or(hold = 'key')) h
    JOIN accs.concurrency_keys k ON k.key = h.key
   WHERE h.claimable < k.max_running - (SELECT count(*) FROM accs.live l WHERE l.key = h.key);
  PERFORM accs.admit(v_keys);
  RETURN coalesce(cardinality(v_keys), 0) + coalesce(cardinality(v_freed) - cardinality(array_remove(v_freed, NULL)), 0);
END $$;
SELECT accs.is_verb('recheck_holds', may => '{scheduler}');

CREATE FUNCTION accs.set_concurrency_limit(p_key text, p_limit int, p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  v_said jsonb := jsonb_build_object('limit', p_limit);
BEGIN
  INSERT INTO accs.concurrency_keys AS k (key, max_running) VALUES (p_key, p_limit)
  ON CONFLICT (key) DO UPDATE SET max_running = excluded.max_running WHERE k.max_running <> excluded.max_running;
  IF NOT FOUND THEN
    RETURN accs.audited('set_concurrency_limit', 'concurrency_key', p_key, 'repeated', p_by, p_reason, NULL, v_said);
  END IF;
  PERFORM accs.admit(ARRAY[p_key]);
  RETURN accs.audited('set_concurrency_limit', 'concurrency_key', p_key, 'accepted', p_by, p_reason, NULL, v_said);
END $$;
SELECT accs.is_verb('set_concurrency_limit', may => '{scheduler,api}');

-- ---------------------------------------------------------------------------------------------------------------
-- Operations: one action on many jobs or dead letters, done in chunks, each of which is answered once
-- ---------------------------------------------------------------------------------------------------------------

-- Whoever has the lease reads the next items and calls advance_operation, which calls the verb for them and notes the answers and the
-- position in one transaction: a chunk is done and counted, or neither. What is newer than the bound in the filter is never met.
CREATE TABLE accs.operations (
  id           uuid PRIMARY KEY DEFAULT accs.new_id(),
  action       text NOT NULL CHECK (action IN ('cancel', 'retry', 'redrive', 'dismiss', 'set_priority')),
  filter       jsonb CHECK (jsonb_typeof(filter) = 'object'),   -- all that pass it, or
  ids          text[] CHECK (cardinality(ids) BETWEEN 1 AND 100000),
  arguments    jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(arguments) = 'object'),
  reason       text,
  by           text NOT NULL,
  key          text UNIQUE,                     -- the same key again is the same operation
  state        text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'stopped', 'failed')),
  expected     bigint,                          -- how many items there were when it began, where that was counted
  chunks       int NOT NULL DEFAULT 0,          -- how many are done: a caller names the next one
  position     jsonb,                           -- behind the last item that was looked at; null: nothing was
  looked_at    bigint NOT NULL DEFAULT 0,
  accepted     bigint NOT NULL DEFAULT 0,
  repeated     bigint NOT NULL DEFAULT 0,
  refused      bigint NOT NULL DEFAULT 0,
  reasons      jsonb NOT NULL DEFAULT '{}',     -- how many were refused, by reason
  refusals     jsonb NOT NULL DEFAULT '[]',     -- the first of them: id, reason
  owner        text,
  lease_until  timestamptz,
  failures     int NOT NULL DEFAULT 0,          -- of the next chunk
  error        text,
  created_at   timestamptz NOT NULL DEFAULT accs.clock(),
  ended_at     timestamptz,
  ended_by     text,                            -- who stopped it
  CHECK ((filter IS NULL) <> (ids IS NULL)),
  CHECK ((state = 'running') = (ended_at IS NULL))
);

CREATE INDEX operations_open ON accs.operations (id) WHERE state = 'running';   -- take_operation

CREATE TYPE accs.said AS (id text, answer text, reason text);

-- An operation for whoever takes it, or of this owner. The same key again is the same operation.
CREATE FUNCTION accs.start_operation(
  p_action text, p_filter jsonb, p_ids text[], p_arguments jsonb, p_by text, p_reason text DEFAULT NULL, p_key text DEFAULT NULL,
  p_expected bigint DEFAULT NULL, p_owner text DEFAULT NULL, p_lease interval DEFAULT NULL
) RETURNS TABLE (id uuid, answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_id  uuid;
  v_op  accs.operations;
  v_ids text[];
BEGIN
  IF p_ids IS NOT NULL THEN   -- each once, in the order given, and written in one way
    IF p_action IN ('redrive', 'dismiss') THEN
      v_ids := ARRAY(SELECT u.id::text FROM unnest(p_ids::bigint[]) WITH ORDINALITY AS u (id, n) GROUP BY u.id ORDER BY min(n));
    ELSE
      v_ids := ARRAY(SELECT u.id::text FROM unnest(p_ids::uuid[]) WITH ORDINALITY AS u (id, n) GROUP BY u.id ORDER BY min(n));
    END IF;
  END IF;
  IF p_action = 'set_priority' AND (p_arguments ->> 'priority')::int IS NULL THEN
    RAISE EXCEPTION 'set_priority needs a priority' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  DELETE FROM accs.operations WHERE ended_at < accs.clock() - interval '400 days';
  INSERT INTO accs.operations (action, filter, ids, arguments, reason, by, key, expected, owner, lease_until)
  VALUES (p_action, p_filter, v_ids, coalesce(p_arguments, '{}'), p_reason, p_by, p_key, coalesce(cardinality(v_ids), p_expected), p_owner,
          CASE WHEN p_owner IS NOT NULL THEN accs.clock() + accs.waited() + p_lease END)
  ON CONFLICT (key) DO NOTHING RETURNING id INTO v_id;
  IF v_id IS NOT NULL THEN
    PERFORM pg_notify(accs.channel_prefix() || '_operations', v_id::text);
    PERFORM accs.audited('start_operation', 'operation', v_id::text, 'accepted', p_by, p_reason,
                         p_detail => jsonb_build_object('action', p_action));
    RETURN QUERY SELECT v_id, 'accepted', NULL::text;
    RETURN;
  END IF;
  SELECT * INTO v_op FROM accs.operations WHERE key = p_key;
  RETURN QUERY SELECT v_op.id, CASE WHEN same THEN 'repeated' ELSE 'refused' END, CASE WHEN NOT same THEN 'idempotency_mismatch' END
    FROM (SELECT v_op.action = p_action AND v_op.ids IS NOT DISTINCT FROM v_ids AND v_op.arguments = coalesce(p_arguments, '{}')
                 AND v_op.filter - '{until_order_seq,until_id,since,until}'::text[]
                     IS NOT DISTINCT FROM p_filter - '{until_order_seq,until_id,since,until}'::text[] AS same) c;
END $$;
SELECT accs.is_verb('start_operation', may => '{api}');

-- An operation that nobody works on, or that this owner works on already: the one that has waited longest, so that a large one does not
-- keep the others waiting.
CREATE FUNCTION accs.take_operation(p_owner text, p_lease interval) RETURNS SETOF accs.operations LANGUAGE sql AS $$
  UPDATE accs.operations o SET owner = p_owner, lease_until = accs.clock() + accs.waited() + p_lease
    FROM (SELECT id FROM accs.operations
           WHERE state = 'running' AND (owner IS NOT DISTINCT FROM p_owner OR coalesce(lease_until <= accs.clock(), true))
           ORDER BY lease_until NULLS FIRST, id LIMIT 1 FOR UPDATE SKIP LOCKED) t
   WHERE o.id = t.id RETURNING o.*
$$;
SELECT accs.is_verb('take_operation', may => '{api}');

-- Does the next chunk: the verb for these items, the answers and the position, all at once. Refused to whoever has lost the lease;
-- a chunk that is done already is repeated. p_last: nothing is left behind the position.
CREATE FUNCTION accs.advance_operation(p_id uuid, p_owner text, p_chunk int, p_ids text[], p_position jsonb, p_looked bigint,
                                       p_last boolean, p_lease interval)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_op   accs.operations;
  v_said accs.said[];
BEGIN
  SELECT * INTO v_op FROM accs.operations WHERE id = p_id FOR UPDATE;
  IF v_op.id IS NULL OR v_op.state <> 'running' OR v_op.owner IS DISTINCT FROM p_owner OR v_op.chunks <> p_chunk THEN
    RETURN QUERY SELECT CASE WHEN v_op.chunks > p_chunk AND v_op.owner = p_owner THEN 'repeated' ELSE 'refused' END,
                        CASE WHEN v_op.id IS NULL THEN 'not_found' WHEN v_op.chunks > p_chunk AND v_op.owner = p_owner THEN NULL
                             WHEN v_op.state <> 'running' THEN 'already_ended' WHEN v_op.owner IS DISTINCT FROM p_owner THEN 'lease_lost'
                             ELSE 'not_in_expected_state' END;
    RETURN;
  END IF;
  IF cardinality(p_ids) > 1000 THEN
    RAISE EXCEPTION 'a chunk has at most 1000 items' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_ids <> '{}' THEN
    CASE v_op.action
      WHEN 'cancel' THEN
        v_said := ARRAY(SELECT ROW(id::text, answer, reason)::accs.said FROM accs.cancel_jobs(p_ids::uuid[],
          p_by => v_op."by", p_reason => v_op.reason));
      WHEN 'retry' THEN
        v_said := ARRAY(SELECT ROW(id::text, answer, reason)::accs.said FROM accs.retry_jobs(p_ids::uuid[],
          CASE WHEN v_op.arguments ? 'from_step' THEN array_fill(v_op.arguments ->> 'from_step', ARRAY[cardinality(p_ids)]) END,
          p_by => v_op."by", p_reason => v_op.reason));
      WHEN 'set_priority' THEN
        v_said := ARRAY(SELECT ROW(id::text, answer, reason)::accs.said FROM accs.change_jobs(p_ids::uuid[],
          p_priority => (v_op.arguments ->> 'priority')::int, p_by => v_op."by", p_reason => v_op.reason));
      WHEN 'redrive' THEN
        v_said := ARRAY(SELECT ROW(dead_letter_id::text, answer, reason)::accs.said FROM accs.redrive(p_ids::bigint[],
          p_by => v_op."by", p_reason => v_op.reason));
      WHEN 'dismiss' THEN
        v_said := ARRAY(SELECT ROW(dead_letter_id::text, answer, reason)::accs.said FROM accs.dismiss(p_ids::bigint[],
          p_by => v_op."by", p_reason => v_op.reason));
    END CASE;
  END IF;
  UPDATE accs.operations o SET
         chunks = o.chunks + 1, position = p_position, looked_at = o.looked_at + p_looked, failures = 0, error = NULL,
         accepted = o.accepted + s.accepted, repeated = o.repeated + s.repeated, refused = o.refused + s.refused,
         reasons = o.reasons || s.reasons,
         refusals = CASE WHEN s.refused = 0 THEN o.refusals ELSE (
           SELECT jsonb_agg(e.each ORDER BY e.n) FROM jsonb_array_elements(o.refusals || s.refusals) WITH ORDINALITY AS e (each, n)
            WHERE e.n <= 100) END,
         state = CASE WHEN p_last THEN 'done' ELSE 'running' END, ended_at = CASE WHEN p_last THEN accs.clock() END,
         lease_until = accs.clock() + accs.waited() + p_lease
    FROM (SELECT count(*) FILTER (WHERE u.answer = 'accepted') AS accepted, count(*) FILTER (WHERE u.answer = 'repeated') AS repeated,
                 count(*) FILTER (WHERE u.answer = 'refused') AS refused,
                 coalesce(jsonb_agg(jsonb_build_object('id', u.id, 'reason', u.reason)) FILTER (WHERE u.answer = 'refused'), '[]')
                   AS refusals,
                 coalesce((SELECT jsonb_object_agg(r.reason, r.n + coalesce((v_op.reasons ->> r.reason)::bigint, 0)) FROM (
                   SELECT reason, count(*) AS n FROM unnest(v_said) WHERE answer = 'refused' GROUP BY reason) r), '{}') AS reasons
            FROM unnest(v_said) AS u) s
   WHERE o.id = p_id;
  PERFORM pg_notify(accs.channel_prefix() || '_operations', p_id::text);
  RETURN QUERY SELECT 'accepted', NULL::text;
END $$;
SELECT accs.is_verb('advance_operation', may => '{api}');

-- Gives an operation back whose next chunk failed: somebody tries it again after the pause. After the fifth time it has failed.
CREATE FUNCTION accs.leave_operation(p_id uuid, p_owner text, p_error text, p_pause interval) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_state text;
BEGIN
  UPDATE accs.operations SET owner = NULL, lease_until = accs.clock() + p_pause, failures = failures + 1, error = left(p_error, 2000),
         state = CASE WHEN failures >= 4 THEN 'failed' ELSE 'running' END, ended_at = CASE WHEN failures >= 4 THEN accs.clock() END
   WHERE id = p_id AND owner = p_owner AND state = 'running' RETURNING state INTO v_state;
  PERFORM pg_notify(accs.channel_prefix() || '_operations', p_id::text) WHERE v_state = 'failed';
  RETURN CASE WHEN v_state IS NULL THEN 'refused' ELSE 'accepted' END;
END $$;
SELECT accs.is_verb('leave_operation', may => '{api}');

-- Ends an operation after the chunk that it is in; what is done stays done.
CREATE FUNCTION accs.stop_operation(p_id uuid, p_by text, p_reason text DEFAULT NULL)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_state text;
BEGIN
  SELECT state INTO v_state FROM accs.operations WHERE id = p_id FOR UPDATE;
  IF v_state = 'running' THEN
    UPDATE accs.operations SET state = 'stopped', ended_at = accs.clock(), ended_by = p_by WHERE id = p_id;
    PERFORM accs.audited('stop_operation', 'operation', p_id::text, 'accepted', p_by, p_reason);
    PERFORM pg_notify(accs.channel_prefix() || '_operations', p_id::text);
  END IF;
  RETURN QUERY SELECT CASE v_state WHEN 'running' THEN 'accepted' WHEN 'stopped' THEN 'repeated' ELSE 'refused' END,
                      CASE WHEN v_state IS NULL THEN 'not_found' WHEN v_state IN ('done', 'failed') THEN 'already_ended' END;
END $$;
SELECT accs.is_verb('stop_operation', may => '{api}');

-- ---------------------------------------------------------------------------------------------------------------
-- Lists that people page through: the key of their cursors, and views that somebody has saved
-- ---------------------------------------------------------------------------------------------------------------

-- What the gateways of this installation seal cursors with. Only the verb reads it.
CREATE TABLE accs.cursor_keys (
  one  boolean PRIMARY KEY DEFAULT true CHECK (one),
  key  bytea NOT NULL CHECK (length(key) = 32)
);
INSERT INTO accs.cursor_keys (key) VALUES (sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())));

CREATE FUNCTION accs.cursor_key() RETURNS bytea LANGUAGE sql STABLE AS $$ SELECT key FROM accs.cursor_keys $$;
SELECT accs.is_verb('cursor_key', may => '{api}');

-- A query under a name: of one actor, or shared by all, where owner is null.
CREATE TABLE accs.views (
  name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  owner       text CHECK (length(owner) BETWEEN 1 AND 200),
  query       jsonb NOT NULL CHECK (jsonb_typeof(query) = 'object' AND pg_column_size(query) <= 16384),
  revision    int NOT NULL DEFAULT 1,
  saved_by    text NOT NULL,
  saved_at    timestamptz NOT NULL DEFAULT accs.clock(),
  UNIQUE NULLS NOT DISTINCT (owner, name)
);

-- Saves a view. With a revision only if the view is still that one (0: there is none yet); the answer has the revision that stands.
CREATE FUNCTION accs.save_view(p_name text, p_query jsonb, p_owner text, p_by text, p_if_revision int DEFAULT NULL)
RETURNS TABLE (answer text, reason text, revision int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_found accs.views;
BEGIN
  INSERT INTO accs.views (name, owner, query, saved_by) SELECT p_name, p_owner, p_query, p_by
   WHERE coalesce(p_if_revision, 0) = 0 ON CONFLICT DO NOTHING;
  IF FOUND THEN
    PERFORM accs.audited('save_view', 'view', p_name, 'accepted', p_by, NULL);
    RETURN QUERY SELECT 'accepted', NULL::text, 1;
    RETURN;
  END IF;
  SELECT * INTO v_found FROM accs.views WHERE name = p_name AND owner IS NOT DISTINCT FROM p_owner FOR UPDATE;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'refused', 'not_found'::text, 0;
  ELSIF v_found.query = p_query THEN
    RETURN QUERY SELECT 'repeated', NULL::text, v_found.revision;
  ELSIF p_if_revision <> v_found.revision THEN
    RETURN QUERY SELECT 'refused', 'revised'::text, v_found.revision;
  ELSE
    UPDATE accs.views SET query = p_query, revision = v_found.revision + 1, saved_by = p_by, saved_at = accs.clock()
     WHERE name = p_name AND owner IS NOT DISTINCT FROM p_owner;
    PERFORM accs.audited('save_view', 'view', p_name, 'accepted', p_by, NULL);
    RETURN QUERY SELECT 'accepted', NULL::text, v_found.revision + 1;
  END IF;
END $$;
SELECT accs.is_verb('save_view', may => '{api}');

CREATE FUNCTION accs.drop_view(p_name text, p_owner text, p_by text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM accs.views WHERE name = p_name AND owner IS NOT DISTINCT FROM p_owner;
  RETURN accs.audited('drop_view', 'view', p_name, CASE WHEN FOUND THEN 'accepted' ELSE 'repeated' END, p_by, NULL);
END $$;
SELECT accs.is_verb('drop_view', may => '{api}');

-- ---------------------------------------------------------------------------------------------------------------
-- Schedules: what starts jobs by itself, the plan of each, and everything that waits for a time
-- ---------------------------------------------------------------------------------------------------------------

-- Any client may INSERT one, and UPDATE its definition: triggers check it, count the revision and ask for a plan. What stands
-- under "state" belongs to the verbs. Times are instants but for nominal ones, which are local to the zone: SQL never converts
-- between zones.
CREATE TABLE public.schedules (
  id               uuid PRIMARY KEY DEFAULT accs.new_id(),
  name             text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 200),
  title            text,
  description      text,
  schedule_kind    text NOT NULL CHECK (schedule_kind = ANY ('{cron,rrule,once,interval,event,condition}')),
  schedule_expr    text NOT NULL CHECK (length(schedule_expr) BETWEEN 1 AND 20000),
  timezone         text NOT NULL DEFAULT 'UTC' CHECK (length(timezone) BETWEEN 1 AND 100),
  workflow         text NOT NULL CHECK (length(workflow) BETWEEN 1 AND 200),
  version          int CHECK (version >= 1),                              -- null: the newest active one, when it fires
  options          jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(options) = 'object' AND pg_column_size(options) <= 262144),
  priority         int NOT NULL DEFAULT 0,
  -- policies
  missed           text NOT NULL DEFAULT 'one' CHECK (missed IN ('skip', 'one', 'all')),
  grace            interval NOT NULL DEFAULT '60 s' CHECK (grace BETWEEN '0' AND '366 days'),
  catch_up         interval CHECK (catch_up BETWEEN '0' AND '3660 days'),   -- null: no limit for 'one', a day for 'all'
  catch_up_max     int NOT NULL DEFAULT 100 CHECK (catch_up_max BETWEEN 1 AND 1000),
  overlap          text NOT NULL DEFAULT 'skip' CHECK (overlap IN ('allow', 'skip', 'queue', 'queue_all', 'cancel')),
  run_key          text CHECK (length(run_key) BETWEEN 1 AND 200 AND run_key NOT LIKE 'schedule:%'),   -- null: one of its own
  spread           interval CHECK (spread BETWEEN '0' AND '366 days'),
  exclude          text[] NOT NULL DEFAULT '{}',                          -- calendars
  only_on          text[] NOT NULL DEFAULT '{}',
  start_at         timestamptz,
  end_at           timestamptz,
  max_runs         int CHECK (max_runs >= 1),
  pause_after      int CHECK (pause_after BETWEEN 1 AND 100),             -- failed jobs in a row that pause it
  pause_for        interval CHECK (pause_for > '0'),                      -- null: until somebody resumes it
  anchor           timestamp,                                             -- the phase of a rule; the planner sets it where nobody did
  -- of events and conditions
  filter           text CHECK (length(filter) <= 4096),
  gather           jsonb CHECK (jsonb_typeof(gather) = 'object'),
  cooldown         interval CHECK (cooldown > '0'),
  cooldown_trailing boolean NOT NULL DEFAULT false,
  reenter          boolean NOT NULL DEFAULT false,
  condition        jsonb CHECK (jsonb_typeof(condition) = 'object'),
  -- who wrote it
  created_by       text,
  created_at       timestamptz NOT NULL DEFAULT accs.clock(),
  updated_at       timestamptz NOT NULL DEFAULT accs.clock(),
  changed_by       text,                                                  -- who changes it, and why: for its history
  change_reason    text,
  -- state
  state            text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'ended', 'broken')),
  state_reason     text,
  state_since      timestamptz NOT NULL DEFAULT accs.clock(),
  paused_until     timestamptz,
  revision         int NOT NULL DEFAULT 1,
  runs             int NOT NULL DEFAULT 0,                                -- fired and caught up; not run_now, not backfilled
  refused_in_row   int NOT NULL DEFAULT 0,                                -- firings that raised: three make it broken
  failures_in_row  int NOT NULL DEFAULT 0,                                -- of its jobs, as last looked at for pause_after
  last_nominal     timestamp,
  last_job_id      uuid,
  settled_until    timestamptz NOT NULL DEFAULT accs.clock(),             -- what was due until then is settled
  CONSTRAINT times CHECK (coalesce(start_at, '2000-01-01Z') BETWEEN '0001-01-02Z' AND '9999-12-30Z'
    AND coalesce(end_at, '2000-01-01Z') BETWEEN '0001-01-02Z' AND '9999-12-30Z'),
  CONSTRAINT overlap_with_key CHECK (overlap <> 'allow' OR run_key IS NULL)   -- a key limits how many run at once
) WITH (fillfactor = 60);

-- The next occurrences of a schedule, as the planner has found them: data, so that SQL alone can fire. gap: the oldest ones of a
-- long outage, as one.
CREATE TABLE accs.plan_of (
  schedule_id   uuid PRIMARY KEY,
  revision      int NOT NULL,
  zone_version  text NOT NULL,
  planned_at    timestamptz NOT NULL DEFAULT accs.clock(),
  nominals      timestamp[] NOT NULL,
  folds         int[] NOT NULL,
  dues          timestamptz[] NOT NULL,
  notes         jsonb,                 -- by place, from 1: {"merged": {"into": …}} or {"excluded": {"calendar": …, "label": …}}
  options       jsonb,                 -- by place, where they are templated over the occurrence
  gap           jsonb,                 -- first, last, times
  exhausted     text                   -- why nothing follows these
);

-- Everything that waits for a time: one index says what is due next. key tells several of one kind apart.
--   occurrence  the next planned one, at place pos of the plan     snoozed     one whose due time was moved; key is its nominal time and
-- fold
--   resume      the end of a pause                                 review      a job failed: is the schedule to be paused?
--   release     a run key became free while somebody held it       gather      a window of events that closes
--   backfill    the next page of one                               replan      the planner has to look (Python)
--   probe       a condition is to be measured (Python)             judge       a condition may be stale, or has samples from a hold
CREATE TABLE accs.agenda (
  schedule_id  uuid NOT NULL,
  what         text NOT NULL CHECK (what = ANY ('{occurrence,snoozed,resume,review,release,gather,backfill,replan,probe,judge}')),
  key          text NOT NULL DEFAULT '',
  due_at       timestamptz NOT NULL,
  pos          int NOT NULL DEFAULT 1,
  PRIMARY KEY (schedule_id, what, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX agenda_due ON accs.agenda (due_at) WHERE what <> ALL ('{replan,probe}');    -- settle_due
CREATE INDEX agenda_work ON accs.agenda (what, due_at) WHERE what = ANY ('{replan,probe}');   -- the planner, the probes

-- Occurrences that are not to run. (A snoozed one has its row in firings and in the agenda.)
CREATE TABLE accs.schedule_marks (
  schedule_id  uuid NOT NULL,
  nominal      timestamp NOT NULL,
  fold         int NOT NULL DEFAULT 0,
  by           text,
  reason       text,
  at           timestamptz NOT NULL DEFAULT accs.clock(),
  PRIMARY KEY (schedule_id, nominal, fold)
);

-- Who did what to a schedule, when and why; before and after hold what has changed. Append-only.
CREATE TABLE accs.schedule_history (
  id           bigint PRIMARY KEY DEFAULT nextval('accs.audit_seq'),
  schedule_id  uuid NOT NULL,
  ts           timestamptz NOT NULL DEFAULT accs.clock(),
  what         text NOT NULL,
  by           text,
  reason       text,
  revision     int,
  before       jsonb,
  after        jsonb,
  via          text NOT NULL DEFAULT accs.via(),
  request_id   text DEFAULT left(nullif(current_setting('accs.request_id', true), ''), 200)
);

CREATE INDEX schedule_history_of ON accs.schedule_history (schedule_id, id);

-- The audit with what was done to schedules: one list, in the order of its ids. (What a schedule's history tells of the schedulers
-- themselves is in it too: they have names.)
CREATE VIEW accs.audit_trail AS
  SELECT a.id, a.ts, a.actor, a.via, a.action, a.kind, a.target, a.reason, a.answer, a.detail, a.request_id FROM accs.audit a
  UNION ALL
  SELECT h.id, h.ts, h.by, h.via, h.what, 'schedule', coalesce((SELECT s.name FROM public.schedules s WHERE s.id = h.schedule_id),
         h.schedule_id::text), h.reason, 'accepted', nullif(jsonb_strip_nulls(jsonb_build_object('revision', h.revision, 'before', h.before,
         'after', h.after)), '{}'), h.request_id
    FROM accs.schedule_history h;

-- While there is a row, nothing is settled: it is as if all schedulers were down.
CREATE TABLE accs.schedule_hold (
  only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  since     timestamptz NOT NULL DEFAULT accs.clock(),
  by        text,
  reason    text
);

-- Days on which schedules do not fire (schedules.exclude), or on which alone they do (only_on). entries: [{"from", "to",
-- "label"}], local dates.
CREATE TABLE public.calendars (
  name        text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
  timezone    text,               -- whose dates they are; null: those of each schedule's own zone
  entries     jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(entries) = 'array' AND pg_column_size(entries) <= 1048576),
  created_by  text,
  created_at  timestamptz NOT NULL DEFAULT accs.clock(),
  updated_at  timestamptz NOT NULL DEFAULT accs.clock()
);

-- With which rules of each zone plans were last made: a planner whose rules are older plans nothing in that zone.
CREATE TABLE accs.zones (
  name     text PRIMARY KEY,
  version  text NOT NULL,
  digest   text NOT NULL,
  since    timestamptz NOT NULL DEFAULT accs.clock(),
  by       text
);

-- p_what 'event': only whoever settles events has to look.
CREATE FUNCTION accs.tell_schedulers(p_what text DEFAULT '') RETURNS void LANGUAGE sql AS $$
  SELECT pg_notify(accs.channel_prefix() || '_schedule', p_what)
$$;

CREATE FUNCTION accs.note_schedule(p_schedule uuid, p_what text, p_by text, p_reason text, p_before jsonb DEFAULT NULL,
  p_after jsonb DEFAULT NULL,
                                   p_revision int DEFAULT NULL)
RETURNS void LANGUAGE sql AS $$
  INSERT INTO accs.schedule_history (schedule_id, what, by, reason, revision, before, after)
  VALUES (p_schedule, p_what, coalesce(p_by, session_user), left(p_reason, 2000), p_revision, p_before, p_after)
$$;

-- Lets the planner look at schedules now.
CREATE FUNCTION accs.ask_for_plans(p_ids uuid[]) RETURNS void LANGUAGE sql AS $$
  INSERT INTO accs.agenda AS a (schedule_id, what, due_at) SELECT u.id, 'replan', accs.clock()
    FROM (SELECT DISTINCT unnest(p_ids) AS id ORDER BY 1) u
  ON CONFLICT (schedule_id, what, key) DO UPDATE SET due_at = least(a.due_at, excluded.due_at);
  SELECT accs.tell_schedulers()
$$;

-- What a writer may not give: it belongs to the state machine.
CREATE FUNCTION accs.refuse_schedule_state() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    RAISE EXCEPTION 'schedule "%": a schedule is ended, and stays with its ledger', OLD.name
      USING ERRCODE = 'AC002', HINT = format('SELECT accs.end_schedule(%L)', OLD.name);
  END IF;
  RAISE EXCEPTION 'schedule "%": its state is not written by hand', NEW.name
    USING ERRCODE = 'AC002', HINT = 'Call accs.pause_schedule, resume_schedule or end_schedule; a new one begins as active.';
END $$;
CREATE TRIGGER guard_insert BEFORE INSERT ON public.schedules FOR EACH ROW
  WHEN (NOT accs.in_verb() AND (NEW.state <> 'active' OR NEW.revision <> 1 OR NEW.runs <> 0 OR NEW.last_nominal IS NOT NULL
                                OR NEW.last_job_id IS NOT NULL OR NEW.paused_until IS NOT NULL OR NEW.settled_until <> accs.clock()))
  EXECUTE FUNCTION accs.refuse_schedule_state();
CREATE TRIGGER guard_state BEFORE UPDATE OF id, state, state_reason, state_since, paused_until, revision, runs, refused_in_row,
  failures_in_row,
  last_nominal, last_job_id, settled_until, created_at ON public.schedules
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_schedule_state();
CREATE TRIGGER guard_delete BEFORE DELETE ON public.schedules FOR EACH ROW WHEN (NOT accs.in_verb())
  EXECUTE FUNCTION accs.refuse_schedule_state();

-- The definition of a schedule, as its history shows it. (The first: what its plan is made from.)
CREATE FUNCTION accs.timing_of(s public.schedules) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT jsonb_build_object('schedule_kind', s.schedule_kind, 'schedule_expr', s.schedule_expr, 'timezone', s.timezone, 'spread', s.spread,
                            'exclude', s.exclude, 'only_on', s.only_on, 'start_at', s.start_at, 'end_at', s.end_at, 'anchor', s.anchor,
                            'condition', s.condition)
$$;
CREATE FUNCTION accs.definition_of(s public.schedules) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT accs.timing_of(s) || jsonb_build_object('name', s.name, 'title', s.title, 'description', s.description, 'workflow', s.workflow,
    'version', s.version, 'options', s.options, 'priority', s.priority, 'missed', s.missed, 'grace', s.grace, 'catch_up', s.catch_up,
    'catch_up_max', s.catch_up_max, 'overlap', s.overlap, 'run_key', s.run_key, 'max_runs', s.max_runs, 'pause_after', s.pause_after,
    'pause_for', s.pause_for, 'filter', s.filter, 'gather', s.gather, 'cooldown', s.cooldown, 'cooldown_trailing', s.cooldown_trailing,
      'reenter', s.reenter,
    'created_by', s.created_by)
$$;

-- The members of p_to that differ from p_from.
CREATE FUNCTION accs.differences(p_from jsonb, p_to jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(p_to) WHERE value IS DISTINCT FROM p_from -> key
$$;

-- What its owner may, as far as the database can tell. (The least interval is the planner's to check.)
CREATE FUNCTION accs.check_owner(s public.schedules, p_new boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_actor accs.actors;
BEGIN
  SELECT * INTO v_actor FROM accs.actors WHERE name = s.created_by;
  IF (v_actor.limits ->> 'max_priority')::int < s.priority THEN
    RAISE EXCEPTION 'schedule "%": % may give a priority of % at most', s.name, s.created_by, v_actor.limits ->> 'max_priority'
      USING ERRCODE = 'AC006';
  ELSIF p_new AND (v_actor.limits ->> 'schedules')::int <= (
      SELECT count(*) FROM public.schedules o WHERE o.created_by = s.created_by AND o.state <> 'ended') THEN
    RAISE EXCEPTION 'schedule "%": % has % schedules already, which is the limit', s.name, s.created_by, v_actor.limits ->> 'schedules'
      USING ERRCODE = 'AC006', HINT = 'End one of them first.';
  END IF;
END $$;

-- Verbs and addresses take a name or an id: no name may be taken for the id of another schedule.
CREATE FUNCTION accs.check_name(p_name text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF p_name ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN
    RAISE EXCEPTION 'a schedule can''t be called "%", which looks like the id of one', p_name
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give it a name that is no UUID.';
  END IF;
END $$;

CREATE FUNCTION accs.begin_schedule() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  NEW.created_by := coalesce(NEW.created_by, session_user);
  NEW.settled_until := accs.clock();
  PERFORM accs.check_owner(NEW, true);
  PERFORM accs.check_name(NEW.name);
  RETURN NEW;
END $$;
CREATE TRIGGER begin_schedule BEFORE INSERT ON public.schedules FOR EACH ROW EXECUTE FUNCTION accs.begin_schedule();

CREATE FUNCTION accs.note_new_schedules() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs,
  pg_temp AS $$
BEGIN
  INSERT INTO accs.schedule_history (schedule_id, what, by, reason, revision, after)
  SELECT f.id, 'created', coalesce(f.changed_by, f.created_by), f.change_reason, 1,
         jsonb_strip_nulls(accs.definition_of(f::public.schedules))
    FROM fresh f ORDER BY f.id;
  IF FOUND THEN
    PERFORM accs.ask_for_plans(ARRAY(SELECT id FROM fresh));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER note_new_schedules AFTER INSERT ON public.schedules REFERENCING NEW TABLE AS fresh
  FOR EACH STATEMENT EXECUTE FUNCTION accs.note_new_schedules();

-- An edit, by whichever way it comes. What is due is settled under the old definition first; what follows is planned anew from now
-- on if the times have changed. The same definition again changes nothing.
CREATE FUNCTION accs.change_schedule() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
DECLARE
  v_old    jsonb := accs.definition_of(OLD);
  v_new    jsonb := accs.definition_of(NEW);
  v_retime boolean := accs.timing_of(OLD) IS DISTINCT FROM accs.timing_of(NEW);
  v_done   record;
BEGIN
  IF v_old = v_new OR OLD.anchor IS NULL AND v_old - 'anchor' = v_new - 'anchor' THEN
    RETURN NEW;   -- or the planner has set the anchor
  END IF;
  PERFORM accs.check_owner(NEW, false);
  PERFORM accs.check_name(NEW.name);
  FOR v_done IN SELECT * FROM accs.settle(ARRAY[OLD.id], NEW.changed_by) LOOP
    NEW.runs := v_done.runs;
    NEW.last_nominal := v_done.last_nominal;
    NEW.last_job_id := v_done.last_job_id;
    NEW.settled_until := v_done.settled_until;
    NEW.state := v_done.state;
    NEW.state_reason := v_done.state_reason;
  END LOOP;
  NEW.revision := OLD.revision + 1;
  NEW.updated_at := accs.clock();
  IF v_retime OR NEW.state = 'broken' OR NEW.state = 'ended' AND NEW.max_runs IS DISTINCT FROM OLD.max_runs THEN
    IF NEW.state IN ('ended', 'broken') THEN
      NEW.state := 'active';
      NEW.state_reason := NULL;
      NEW.state_since := accs.clock();
      NEW.refused_in_row := 0;
    END IF;
    NEW.settled_until := greatest(NEW.settled_until, accs.clock());
    DELETE FROM accs.agenda WHERE schedule_id = OLD.id AND what IN ('occurrence', 'probe');
    DELETE FROM accs.plan_of WHERE schedule_id = OLD.id;
    PERFORM accs.ask_for_plans(ARRAY[OLD.id]);
  ELSIF v_old -> 'options' <> v_new -> 'options'
        OR (v_old -> 'filter', v_old -> 'gather') IS DISTINCT FROM (v_new -> 'filter', v_new -> 'gather') THEN
    PERFORM accs.ask_for_plans(ARRAY[OLD.id]);   -- they may be templated over the occurrence; an expression is to be checked
  END IF;
  PERFORM accs.note_schedule(OLD.id, 'edited', NEW.changed_by, NEW.change_reason, accs.differences(v_new, v_old),
    accs.differences(v_old, v_new),
                             NEW.revision);
  RETURN NEW;
END $$;
CREATE TRIGGER change_schedule BEFORE UPDATE OF name, title, description, schedule_kind, schedule_expr, timezone, workflow, version,
  options,
  priority, missed, grace, catch_up, catch_up_max, overlap, run_key, spread, exclude, only_on, start_at, end_at, max_runs, pause_after,
    pause_for,
  anchor, filter, gather, cooldown, cooldown_trailing, reenter, condition, created_by ON public.schedules
  FOR EACH ROW EXECUTE FUNCTION accs.change_schedule();

-- A calendar that changes replans the schedules that name it; what is settled stays as it is.
CREATE FUNCTION accs.note_calendar() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  IF TG_OP <> 'UPDATE' OR (OLD.entries, OLD.name, OLD.timezone) IS DISTINCT FROM (NEW.entries, NEW.name, NEW.timezone) THEN
    PERFORM accs.ask_for_plans(ARRAY(
      SELECT id FROM public.schedules
       WHERE state <> 'ended' AND (exclude || only_on) && ARRAY[CASE WHEN TG_OP <> 'INSERT' THEN OLD.name END, CASE
         WHEN TG_OP <> 'DELETE' THEN NEW.name END]));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER note_calendar AFTER INSERT OR UPDATE OR DELETE ON public.calendars FOR EACH ROW EXECUTE FUNCTION accs.note_calendar();
CREATE TRIGGER touch BEFORE UPDATE ON public.calendars FOR EACH ROW EXECUTE FUNCTION accs.touch();

-- The schedule of this name or id, locked. AC004 if there is none.
CREATE FUNCTION accs.lock_schedule(p_which text) RETURNS public.schedules LANGUAGE plpgsql AS $$
DECLARE
  v_found public.schedules;
BEGIN
  SELECT * INTO v_found FROM public.schedules WHERE name = p_which OR id::text = p_which ORDER BY name = p_which DESC
         LIMIT 1 FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no schedule "%"', left(p_which, 200) USING ERRCODE = 'AC004', HINT = 'accsd schedules list shows them.';
  END IF;
  RETURN v_found;
END $$;

-- Writes a schedule by its name, given as JSON with the columns of its definition; what is not given is the default, or stays as
-- it is. The same definition again is repeated. p_if_revision refuses an edit of what somebody else has changed meanwhile.
CREATE FUNCTION accs.put_schedule(p_definition jsonb, p_by text DEFAULT NULL, p_reason text DEFAULT NULL, p_if_revision int DEFAULT NULL)
RETURNS TABLE (id uuid, answer text, reason text, revision int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_known   text[] := ARRAY(SELECT jsonb_object_keys(accs.definition_of(NULL::public.schedules)));
  v_unknown text;
  v_row     public.schedules;
  v_new     public.schedules;
BEGIN
  IF jsonb_typeof(p_definition) IS DISTINCT FROM 'object' OR p_definition ->> 'name' IS NULL THEN
    RAISE EXCEPTION 'a schedule is a JSON object with a name' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT k INTO v_unknown FROM jsonb_object_keys(p_definition) k WHERE k <> ALL (v_known) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'a schedule has no "%"', v_unknown USING ERRCODE = 'invalid_parameter_value', HINT = array_to_string(v_known, ', ');
  END IF;
  SELECT * INTO v_row FROM public.schedules s WHERE s.name = p_definition ->> 'name' FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    IF p_if_revision > 0 THEN
      RETURN QUERY SELECT NULL::uuid, 'refused'::text, 'not_found'::text, NULL::int;
      RETURN;
    END IF;
    IF p_definition ->> 'schedule_kind' = 'event' THEN   -- each event has its run, unless somebody says otherwise
      p_definition := '{"overlap": "allow"}' || p_definition;
    END IF;
    EXECUTE format('INSERT INTO public.schedules (%1$s, created_by, changed_by, change_reason)
                    SELECT %1$s, coalesce(created_by, $2), $2, $3 FROM jsonb_populate_record(NULL::public.schedules, $1)
                    ON CONFLICT (name) DO NOTHING RETURNING *',
                   (SELECT string_agg(quote_ident(k), ', ') FROM jsonb_object_keys(p_definition - 'created_by') k))
      INTO v_new USING p_definition, p_by, p_reason;
    IF v_new.id IS NULL THEN   -- somebody else has made it at this moment
      RETURN QUERY SELECT NULL::uuid, 'refused'::text, 'conflict'::text, NULL::int;
    ELSE
      RETURN QUERY SELECT v_new.id, 'accepted'::text, NULL::text, v_new.revision;
    END IF;
    RETURN;
  END IF;
  IF p_if_revision IS NOT NULL AND p_if_revision <> v_row.revision THEN
    RETURN QUERY SELECT v_row.id, 'refused'::text, 'conflict'::text, v_row.revision;
    RETURN;
  END IF;
  v_new := jsonb_populate_record(v_row, p_definition - 'created_by');
  IF accs.definition_of(v_new) = accs.definition_of(v_row) THEN
    IF v_row.state = 'ended' AND v_row.state_reason = 'cancelled' THEN   -- somebody wants it again, from now on
      UPDATE public.schedules s SET state = 'active', state_reason = NULL, state_since = accs.clock(), settled_until = accs.clock()
       WHERE s.id = v_row.id;
      PERFORM accs.note_schedule(v_row.id, 'revived', p_by, p_reason);
      PERFORM accs.ask_for_plans(ARRAY[v_row.id]);
      RETURN QUERY SELECT v_row.id, 'accepted'::text, NULL::text, v_row.revision;
      RETURN;
    END IF;
    RETURN QUERY SELECT v_row.id, 'repeated'::text, NULL::text, v_row.revision;
    RETURN;
  END IF;
  EXECUTE format('UPDATE public.schedules SET (%1$s, changed_by, change_reason) = (SELECT %1$s, $2, $3 FROM jsonb_populate_record($4, $1))
                   WHERE id = $5 RETURNING *',
                 (SELECT string_agg(quote_ident(k), ', ') FROM jsonb_object_keys(p_definition - 'created_by') k))
    INTO v_new USING p_definition, p_by, p_reason, v_row, v_row.id;
  RETURN QUERY SELECT v_new.id, 'accepted'::text, NULL::text, v_new.revision;
END $$;
SELECT accs.is_verb('put_schedule', may => '{scheduler,api}');

CREATE FUNCTION accs.move_schedule(p_id uuid, p_state text, p_reason text, p_until timestamptz DEFAULT NULL) RETURNS void LANGUAGE sql AS $$
  UPDATE public.schedules SET state = p_state, state_reason = left(p_reason, 2000), state_since = accs.clock(),
    paused_until = p_until WHERE id = p_id
$$;

-- Ends a schedule: nothing follows. Its open jobs run on, unless they are to be cancelled.
CREATE FUNCTION accs.end_schedule(p_which text, p_by text DEFAULT NULL, p_reason text DEFAULT NULL, p_cancel boolean DEFAULT false)
RETURNS TABLE (answer text, reason text, cancelled int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row  public.schedules := accs.lock_schedule(p_which);
  v_jobs uuid[];
BEGIN
  IF v_row.state <> 'ended' THEN
    PERFORM accs.settle_one(v_row.id, p_by);
    PERFORM accs.settle_snoozed_away(v_row.id, p_by);   -- it finds them in the agenda
    DELETE FROM accs.agenda WHERE schedule_id = v_row.id;
    DELETE FROM accs.plan_of WHERE schedule_id = v_row.id;
    PERFORM accs.move_schedule(v_row.id, 'ended', 'cancelled');
    PERFORM accs.note_schedule(v_row.id, 'ended', p_by, p_reason);
  END IF;
  IF p_cancel THEN
    v_jobs := ARRAY(SELECT r.job_id FROM accs.open_runs r WHERE r.schedule_id = v_row.id);
    PERFORM accs.cancel(v_jobs, coalesce(p_reason, 'schedule ' || v_row.name || ' was ended'), p_by);
  END IF;
  RETURN QUERY SELECT CASE v_row.state WHEN 'ended' THEN 'repeated' ELSE 'accepted' END, NULL::text, coalesce(cardinality(v_jobs), 0);
END $$;
SELECT accs.is_verb('end_schedule', may => '{scheduler,api}');

-- Pauses a schedule, until p_until or until somebody resumes it. What is due before is settled first.
CREATE FUNCTION accs.pause_schedule(p_which text, p_reason text DEFAULT NULL, p_by text DEFAULT NULL, p_until timestamptz DEFAULT NULL)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row public.schedules := accs.lock_schedule(p_which);
BEGIN
  IF v_row.state IN ('ended', 'broken') THEN
    RETURN QUERY SELECT 'refused'::text, v_row.state;
  ELSIF v_row.state = 'paused' AND v_row.paused_until IS NOT DISTINCT FROM p_until THEN
    RETURN QUERY SELECT 'repeated'::text, NULL::text;
  ELSE
    PERFORM accs.settle_one(v_row.id, p_by);
    SELECT * INTO v_row FROM public.schedules s WHERE s.id = v_row.id;
    IF v_row.state = 'ended' THEN
      RETURN QUERY SELECT 'refused'::text, v_row.state;
      RETURN;
    END IF;
    PERFORM accs.move_schedule(v_row.id, 'paused', p_reason, p_until);
    IF v_row.state = 'paused' THEN   -- only its end has moved: it is the same pause
      UPDATE public.schedules s SET state_since = v_row.state_since WHERE s.id = v_row.id;
    END IF;
    PERFORM accs.note_schedule(v_row.id, 'paused', p_by, p_reason, NULL, jsonb_strip_nulls(jsonb_build_object('until', p_until)));
    DELETE FROM accs.agenda WHERE schedule_id = v_row.id AND what = 'resume';
    IF p_until IS NOT NULL THEN
      INSERT INTO accs.agenda (schedule_id, what, due_at) VALUES (v_row.id, 'resume', p_until);
      PERFORM accs.tell_schedulers();
    END IF;
    RETURN QUERY SELECT 'accepted'::text, NULL::text;
  END IF;
END $$;
SELECT accs.is_verb('pause_schedule', may => '{scheduler,api}');

-- Stops every schedule: nothing is settled until the hold is lifted, and then everything is as if all schedulers had been down.
CREATE FUNCTION accs.hold_schedules(p_reason text DEFAULT NULL, p_by text DEFAULT NULL,
  p_lift boolean DEFAULT false) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF p_lift THEN
    DELETE FROM accs.schedule_hold;
  ELSE
    INSERT INTO accs.schedule_hold (by, reason) VALUES (coalesce(p_by, session_user), p_reason) ON CONFLICT DO NOTHING;
  END IF;
  IF NOT FOUND THEN
    RETURN accs.audited(CASE WHEN p_lift THEN 'lift_hold' ELSE 'hold_schedules' END, 'schedules', NULL, 'repeated', p_by, p_reason);
  END IF;
  PERFORM accs.tell_schedulers();
  RETURN accs.audited(CASE WHEN p_lift THEN 'lift_hold' ELSE 'hold_schedules' END, 'schedules', NULL, 'accepted', p_by, p_reason);
END $$;
SELECT accs.is_verb('hold_schedules', may => '{scheduler,api}');

-- Newer rules of its zone have moved times of a schedule: its history says which is the first of them, in words.
CREATE FUNCTION accs.note_moved(p_row public.schedules, p_old accs.plan_of, p_by text) RETURNS void LANGUAGE sql AS $$
  WITH moved AS (
    SELECT o.nominal, o.due AS was, n.due AS is_now, p.zone_version
      FROM accs.plan_of p, unnest(p.nominals, p.folds, p.dues) AS n (nominal, fold, due)
      JOIN unnest(p_old.nominals, p_old.folds, p_old.dues) AS o (nominal, fold, due) ON (o.nominal, o.fold) = (n.nominal, n.fold)
     WHERE p.schedule_id = p_row.id AND o.due <> n.due AND n.due > accs.clock()
  )
  SELECT accs.note_schedule(p_row.id, 'moved', p_by,
           format('%s in %s is %s UTC now, was %s (time zone rules %s, before %s)',
                  to_char(m.nominal, 'YYYY-MM-DD HH24:MI'), p_row.timezone,
                  to_char(m.is_now AT TIME ZONE 'UTC', 'HH24:MI'), to_char(m.was AT TIME ZONE 'UTC', 'HH24:MI'), m.zone_version,
                  p_old.zone_version)
           || CASE WHEN count(*) OVER () > 1 THEN format('; %s planned times have moved', count(*) OVER ()) ELSE '' END,
           jsonb_build_object('due', m.was), jsonb_build_object('nominal', m.nominal, 'due', m.is_now))
    FROM moved m ORDER BY m.nominal LIMIT 1
$$;

-- Takes the plans that a planner has made: an array of {id, revision, zone, zone_version, zone_digest, anchor, nominals, folds,
-- dues, notes, options, gap, exhausted, problem, unnamed}. One that was made for another revision, or with older rules of its
-- zone, is refused. A problem leaves the schedule broken. unnamed: snoozed occurrences that the rule does not name any more.
CREATE FUNCTION accs.plan_schedules(p_plans jsonb, p_by text DEFAULT NULL) RETURNS TABLE (id uuid, answer text,
  reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now  timestamptz := accs.clock();
  v_plan record;
  v_row  public.schedules;
  v_old  accs.plan_of;
  v_dues timestamptz[];
  v_next timestamptz;
  v_gone jsonb;
BEGIN
  -- before anything else, and in the order of note_zones: nobody brings newer rules while these plans are written
  PERFORM FROM accs.zones z WHERE z.name IN (SELECT p ->> 'zone' FROM jsonb_array_elements(p_plans) p) ORDER BY z.name FOR SHARE;
  FOR v_plan IN SELECT (p ->> 'id')::uuid AS id, p FROM jsonb_array_elements(p_plans) p ORDER BY 1 LOOP
    SELECT * INTO v_row FROM public.schedules s WHERE s.id = v_plan.id FOR NO KEY UPDATE;
    IF NOT FOUND OR v_row.state = 'ended' THEN
      DELETE FROM accs.agenda WHERE schedule_id = v_plan.id AND what = 'replan';
      RETURN QUERY SELECT v_plan.id, 'refused'::text, 'ended'::text;
      CONTINUE;
    ELSIF v_row.revision <> (v_plan.p ->> 'revision')::int OR v_row.settled_until <> (v_plan.p ->> 'after')::timestamptz THEN
      RETURN QUERY SELECT v_plan.id, 'refused'::text, 'stale'::text;   -- the row that asks for a plan stays: it is made again
      CONTINUE;
    ELSIF EXISTS (SELECT FROM accs.zones z WHERE z.name = v_plan.p ->> 'zone' AND z.digest <> v_plan.p ->> 'zone_digest') THEN
      RETURN QUERY SELECT v_plan.id, 'refused'::text, 'other_rules'::text;   -- of its zone; whoever has the newer ones plans it
      CONTINUE;
    END IF;
    IF v_plan.p ? 'problem' THEN
      PERFORM accs.break_schedule(v_row, v_plan.p ->> 'problem', p_by);
      RETURN QUERY SELECT v_plan.id, 'accepted'::text, NULL::text;
      CONTINUE;
    ELSIF v_row.schedule_kind IN ('event', 'condition') THEN   -- it waits for no time of its own; a condition is probed from now on
      DELETE FROM accs.agenda a WHERE a.schedule_id = v_row.id AND a.what IN ('occurrence', 'replan');
      DELETE FROM accs.plan_of o WHERE o.schedule_id = v_row.id;
      PERFORM accs.plan_probe(v_row);
      RETURN QUERY SELECT v_plan.id, 'accepted'::text, NULL::text;
      CONTINUE;
    END IF;
    v_dues := ARRAY(SELECT d::timestamptz FROM jsonb_array_elements_text(v_plan.p -> 'dues') WITH ORDINALITY u (d, n) ORDER BY n);
    SELECT * INTO v_old FROM accs.plan_of o WHERE o.schedule_id = v_row.id;
    INSERT INTO accs.plan_of AS o (schedule_id, revision, zone_version, nominals, folds, dues, notes, options, gap, exhausted)
    SELECT v_row.id, v_row.revision, v_plan.p ->> 'zone_version',
           ARRAY(SELECT d::timestamp FROM jsonb_array_elements_text(v_plan.p -> 'nominals') WITH ORDINALITY u (d, n) ORDER BY n),
           ARRAY(SELECT d::int FROM jsonb_array_elements_text(v_plan.p -> 'folds') WITH ORDINALITY u (d, n) ORDER BY n),
           v_dues, nullif(v_plan.p -> 'notes', 'null'), nullif(v_plan.p -> 'options', 'null'), nullif(v_plan.p -> 'gap', 'null'),
             v_plan.p ->> 'exhausted'
    ON CONFLICT (schedule_id) DO UPDATE SET revision = excluded.revision, zone_version = excluded.zone_version,
           planned_at = excluded.planned_at, nominals = excluded.nominals, folds = excluded.folds, dues = excluded.dues,
             notes = excluded.notes,
           options = excluded.options, gap = excluded.gap, exhausted = excluded.exhausted;
    UPDATE public.schedules s SET anchor = (v_plan.p ->> 'anchor')::timestamp
     WHERE s.id = v_row.id AND s.anchor IS NULL AND v_plan.p ->> 'anchor' IS NOT NULL;
    IF v_old.revision = v_row.revision AND v_old.zone_version <> v_plan.p ->> 'zone_version' THEN
      PERFORM accs.note_moved(v_row, v_old, p_by);
    END IF;
    PERFORM accs.settle_snoozed_away(v_row.id, p_by, ARRAY(SELECT jsonb_array_elements_text(v_plan.p -> 'unnamed')));
    WITH gone AS (
    DELETE FROM accs.schedule_marks m   -- skips of what the rule does not name any more
     WHERE m.schedule_id = v_row.id AND m.nominal <= (SELECT max(n::timestamp) FROM jsonb_array_elements_text(v_plan.p -> 'nominals') n)
       AND NOT EXISTS (SELECT FROM jsonb_array_elements_text(v_plan.p -> 'nominals') WITH ORDINALITY AS n (at, i)
                         JOIN jsonb_array_elements_text(v_plan.p -> 'folds') WITH ORDINALITY AS f (fold, i) ON f.i = n.i
                        WHERE n.at::timestamp = m.nominal AND f.fold::int = m.fold)
    RETURNING m.nominal)
    SELECT nullif(jsonb_strip_nulls(jsonb_build_object('skips', (SELECT jsonb_agg(g.nominal ORDER BY 1) FROM gone g),
                                                       'snoozes', nullif(v_plan.p -> 'unnamed', '[]'))), '{}') INTO v_gone;
    IF v_gone IS NOT NULL THEN
      PERFORM accs.note_schedule(v_row.id, 'dropped', p_by, 'its rule does not name these times any more', v_gone);
    END IF;
    DELETE FROM accs.agenda a WHERE a.schedule_id = v_row.id AND a.what = 'replan';
    DELETE FROM accs.agenda a WHERE a.schedule_id = v_row.id AND a.what = 'occurrence';
    IF v_dues = '{}' THEN
      IF NOT EXISTS (SELECT FROM accs.agenda a WHERE a.schedule_id = v_row.id AND a.what = 'snoozed') THEN
        PERFORM accs.move_schedule(v_row.id, 'ended', coalesce(v_plan.p ->> 'exhausted', 'never'));
        PERFORM accs.note_schedule(v_row.id, 'ended', 'accsd', coalesce(v_plan.p ->> 'exhausted', 'never'));
      END IF;
    ELSE
      v_next := CASE WHEN v_row.state = 'paused' THEN v_dues[1] + interval '1 min' ELSE v_dues[1] END;
      INSERT INTO accs.agenda (schedule_id, what, due_at) VALUES (v_row.id, 'occurrence', v_next);
      IF v_next < v_now + interval '15 min' THEN   -- a machine may have to be woken for it
        PERFORM pg_notify(accs.channel_prefix() || 'builder', '');
      END IF;
    END IF;
    RETURN QUERY SELECT v_plan.id, 'accepted'::text, NULL::text;
  END LOOP;
  PERFORM accs.tell_schedulers();
END $$;
SELECT accs.is_verb('plan_schedules', may => '{scheduler}');

-- The schedule is broken: what it names can't be planned or started. Others go on; an edit mends it.
CREATE FUNCTION accs.break_schedule(s public.schedules, p_problem text, p_by text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM accs.agenda WHERE schedule_id = s.id AND what IN ('occurrence', 'replan', 'probe');
  DELETE FROM accs.plan_of WHERE schedule_id = s.id;
  IF s.state <> 'broken' OR s.state_reason IS DISTINCT FROM left(p_problem, 2000) THEN
    PERFORM accs.move_schedule(s.id, 'broken', p_problem);
    PERFORM accs.note_schedule(s.id, 'broken', coalesce(p_by, 'accsd'), p_problem);
  END IF;
END $$;

-- With which rules of a zone this planner plans. Answers older where newer ones are on record: it must not plan there. Where the
-- rules have changed, the schedules of the zone are planned anew.
CREATE FUNCTION accs.note_zones(p_zones text[], p_version text, p_digests text[], p_by text DEFAULT NULL)
RETURNS TABLE (name text, answer text, recorded text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_zone record;
  v_old  accs.zones;
BEGIN
  FOR v_zone IN SELECT u.name, u.digest FROM unnest(p_zones, p_digests) AS u (name, digest) ORDER BY 1 LOOP
    INSERT INTO accs.zones (name, version, digest, by) VALUES (v_zone.name, p_version, v_zone.digest, p_by) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      RETURN QUERY SELECT v_zone.name, 'accepted'::text, p_version;
      CONTINUE;
    END IF;
    SELECT * INTO v_old FROM accs.zones z WHERE z.name = v_zone.name FOR UPDATE;
    IF v_old.version = p_version THEN   -- a digest begins with the present year: in the next one it is another, of the same rules
      UPDATE accs.zones z SET digest = v_zone.digest, by = p_by WHERE z.name = v_zone.name AND z.digest <> v_zone.digest;
      RETURN QUERY SELECT v_zone.name, 'repeated'::text, v_old.version;
    ELSIF v_old.digest = v_zone.digest THEN
      UPDATE accs.zones z SET version = p_version, by = p_by WHERE z.name = v_zone.name AND z.version COLLATE "C" < p_version COLLATE "C";
      RETURN QUERY SELECT v_zone.name, 'repeated'::text, v_old.version;
    ELSIF v_old.version COLLATE "C" > p_version COLLATE "C" THEN
      RETURN QUERY SELECT v_zone.name, 'older'::text, v_old.version;
    ELSE
      UPDATE accs.zones z SET version = p_version, digest = v_zone.digest, since = accs.clock(), by = p_by WHERE z.name = v_zone.name;
      PERFORM accs.ask_for_plans(ARRAY(SELECT s.id FROM public.schedules s WHERE s.timezone = v_zone.name AND s.state <> 'ended'));
      RETURN QUERY SELECT v_zone.name, 'accepted'::text, p_version;
    END IF;
  END LOOP;
END $$;
SELECT accs.is_verb('note_zones', may => '{scheduler}');

-- What the planner has before it: schedules whose plan is short, outdated or absent. Several planners may take the same one: the
-- first that writes wins.
CREATE FUNCTION accs.schedules_to_plan(p_limit int DEFAULT 100, p_except_zones text[] DEFAULT '{}') RETURNS TABLE (
  id uuid, name text, revision int, schedule_kind text, schedule_expr text, timezone text, spread interval, exclude text[], only_on text[],
  start_at timestamptz, end_at timestamptz, anchor timestamp, options jsonb, condition jsonb, filter text,
    gather jsonb, created_at timestamptz, settled_until timestamptz,
  state text, least_interval_sec double precision, calendars jsonb, snoozed text[], planned timestamptz, now timestamptz
) LANGUAGE sql STABLE AS $$
  SELECT s.id, s.name, s.revision, s.schedule_kind, s.schedule_expr, s.timezone, s.spread, s.exclude, s.only_on, s.start_at, s.end_at,
         s.anchor,
         s.options, s.condition, s.filter, s.gather, s.created_at, s.settled_until, s.state,
         (c.limits ->> 'least_interval_sec')::double precision,
         (SELECT jsonb_object_agg(k.name, jsonb_build_object('entries', k.entries, 'timezone', k.timezone)) FROM public.calendars k
           WHERE k.name = ANY (s.exclude || s.only_on)),
         ARRAY(SELECT a.key FROM accs.agenda a WHERE a.schedule_id = s.id AND a.what = 'snoozed'),
         (SELECT p.dues[1] FROM accs.plan_of p WHERE p.schedule_id = s.id), accs.clock()
    FROM accs.agenda a JOIN public.schedules s ON s.id = a.schedule_id LEFT JOIN accs.actors c ON c.name = s.created_by
   WHERE a.what = ANY ('{replan,probe}') AND a.what = 'replan' AND a.due_at <= accs.clock() AND s.timezone <> ALL (p_except_zones)
   ORDER BY a.due_at LIMIT p_limit
$$;
SELECT accs.is_verb('schedules_to_plan', may => '{scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- Firings: the ledger of every due time, run keys, and the verbs that settle what is due
-- ---------------------------------------------------------------------------------------------------------------

-- One row for each due time of a schedule, whatever became of it. The nominal time is that of the wall clock in the schedule's
-- zone, and the row's identity: an instant may move (summer time, new zone rules, a snooze), a nominal time does not. cause_id is
-- 0 for times, else the event, sample or number of the call that caused it (and nominal is then the moment, in UTC).
CREATE TABLE public.firings (
  schedule_id    uuid NOT NULL,
  nominal        timestamp NOT NULL,
  fold           int NOT NULL DEFAULT 0,     -- 1: the second pass of a repeated hour
  cause_id       bigint NOT NULL DEFAULT 0,
  outcome        text NOT NULL,
  reason         text NOT NULL,
  due_at         timestamptz NOT NULL,
  settled_at     timestamptz NOT NULL,
  late           interval NOT NULL,
  job_id         uuid,
  revision       int NOT NULL,
  settled_by     text,
  merged_into    timestamp,                  -- the nominal time of the firing that stands for this one
  until_nominal  timestamp,                  -- this row stands for all from nominal to here
  times          int,                        -- how many those are
  detail         jsonb,
  PRIMARY KEY (schedule_id, nominal, fold, cause_id),
  CONSTRAINT known_outcome CHECK (CASE outcome
    WHEN 'fired' THEN reason = ANY ('{on_time,released,run_now,backfill,event,condition}')
    WHEN 'caught_up' THEN reason = ANY ('{late,resumed,backfill}')
    WHEN 'skipped' THEN reason = ANY ('{overlap,paused,excluded,requested,cooldown,workflow_inactive,refused,owner_disabled,loop}')
                        OR reason = ANY ('{quota,filter_error,broken}')
    WHEN 'missed' THEN reason = ANY ('{down,too_old,over_limit}')
    WHEN 'merged' THEN reason = ANY ('{dst_gap,catch_up,overlap_queue,gathered}')
    WHEN 'snoozed' THEN reason = 'requested'
    ELSE false END)
) PARTITION BY RANGE (nominal);

CREATE TABLE public.firings_default PARTITION OF public.firings DEFAULT;
CREATE SEQUENCE accs.cause_seq;

CREATE FUNCTION accs.refuse_firing_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'firings is the record of what was due: % is refused', TG_OP
    USING ERRCODE = 'AC005', HINT = 'A settled occurrence is run again by accs.start_backfill or accs.run_now.';
END $$;
CREATE TRIGGER append_only BEFORE INSERT OR UPDATE OR DELETE ON public.firings
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_firing_change();
-- what is final stays, but for what a resume or a backfill makes up for
CREATE TRIGGER guard_outcome BEFORE UPDATE ON public.firings FOR EACH ROW
  WHEN (OLD.outcome <> NEW.outcome AND OLD.outcome <> 'snoozed'
        AND NOT ((OLD.outcome = 'missed' OR OLD.outcome = 'skipped') AND NEW.outcome = 'caught_up'))
  EXECUTE FUNCTION accs.refuse_firing_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.firings FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_firing_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.firings_default
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_firing_change();

-- A row changes when a resume or a backfill makes up for it: its mark covers all of it. Rows of years ago, by a backfill, are as new as
-- their backfill. A snooze has not ended.
CREATE FUNCTION accs.mark_of(e public.firings) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT hash_record_extended(e, 0) $$;
INSERT INTO accs.monthly (name, at, refuse, aged_by, stays)
VALUES ('firings', 'nominal', 'refuse_firing_change', 'settled_at', $$e.outcome = 'snoozed'$$);

-- How many jobs of a key may be open at once, and those that are, or wait for it. A key is locked to start a run. The end of a job
-- never waits for it: what it can't release at once, because a scheduler has the key, the scheduler releases next (agenda,
-- release).
CREATE TABLE accs.run_keys (
  key       text PRIMARY KEY,
  max_open  int NOT NULL DEFAULT 1 CHECK (max_open >= 1)
) WITH (fillfactor = 70);

CREATE TABLE accs.open_runs (
  job_id       uuid PRIMARY KEY,
  key          text NOT NULL,
  schedule_id  uuid,
  nominal      timestamp,
  waits        boolean NOT NULL,                 -- its job is queued until the key has room
  forced       boolean NOT NULL DEFAULT false,   -- it runs whether the key has room or not
  order_seq    bigint GENERATED ALWAYS AS IDENTITY
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX open_runs_key ON accs.open_runs (key, waits, order_seq);       -- start_runs, end_runs
CREATE INDEX open_runs_schedule ON accs.open_runs (schedule_id);            -- accsd schedules show; the queue policy

-- A due time, event or sample on its way into the ledger.
CREATE TYPE accs.occasion AS (
  schedule_id    uuid,
  nominal        timestamp,
  fold           int,
  cause_id       bigint,
  due_at         timestamptz,
  outcome        text,
  reason         text,
  merged_into    timestamp,
  until_nominal  timestamp,
  times          int,
  detail         jsonb,
  options        jsonb,        -- null: the schedule's
  trigger        jsonb,        -- what is known of the cause beside the time
  forced         boolean,
  run_key        text,         -- null: the schedule's
  job_id         uuid
);

-- Lets waiting runs of these keys start, as many as there is room for. With p_wait it waits for whoever has a key.
CREATE FUNCTION accs.release_runs(p_keys text[], p_wait boolean) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  v_keys text[];
  v_jobs uuid[];
BEGIN
  IF p_wait THEN
    v_keys := ARRAY(SELECT key FROM accs.run_keys WHERE key = ANY (p_keys) ORDER BY key FOR NO KEY UPDATE);
  ELSE
    v_keys := ARRAY(SELECT key FROM accs.run_keys WHERE key = ANY (p_keys) ORDER BY key FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
  -- a run that somebody is about to cancel is passed over: the next one may start
  v_jobs := ARRAY(SELECT n.job_id FROM (
    SELECT k.key, k.max_open - (SELECT count(*) FROM accs.open_runs o WHERE o.key = k.key AND NOT o.waits AND NOT o.forced) AS room
      FROM accs.run_keys k WHERE k.key = ANY (v_keys)) k, LATERAL (
    SELECT o.job_id FROM accs.open_runs o WHERE o.key = k.key AND o.waits AND k.room > 0 ORDER BY o.order_seq LIMIT greatest(k.room, 0)
       FOR UPDATE SKIP LOCKED) n);
  IF v_jobs <> '{}' THEN
    UPDATE accs.open_runs SET waits = false WHERE job_id = ANY (v_jobs);
    UPDATE accs.pending_jobs p SET due_at = coalesce(j.scheduled_at, j.created_at) FROM public.jobs j WHERE j.id = p.job_id
      AND p.job_id = ANY (v_jobs);
    PERFORM pg_notify(accs.channel_prefix() || 'builder', '');
  END IF;
  RETURN v_keys;
END $$;

-- Jobs of schedules have ended: their keys have room. Called by the verbs that end jobs, in their transaction, for jobs with a
-- schedule or a run key.
CREATE FUNCTION accs.end_runs(p_job_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_keys text[];
  v_free text[];
BEGIN
  WITH gone AS (DELETE FROM accs.open_runs WHERE job_id = ANY (p_job_ids) RETURNING key)
  SELECT array_agg(DISTINCT key) INTO v_keys FROM gone;
  v_keys := ARRAY(SELECT k FROM unnest(v_keys) k WHERE EXISTS (SELECT FROM accs.open_runs o WHERE o.key = k AND o.waits));
  IF v_keys <> '{}' THEN
    v_free := accs.release_runs(v_keys, false);
    IF cardinality(v_free) < cardinality(v_keys) THEN   -- a row of its own for each job: it meets nobody else's
      INSERT INTO accs.agenda (schedule_id, what, key, due_at)
      SELECT j.schedule_id, 'release', j.run_key || '/' || j.id, accs.clock() FROM public.jobs j
       WHERE j.id = ANY (p_job_ids) AND j.run_key = ANY (v_keys) AND j.run_key <> ALL (v_free) AND j.schedule_id IS NOT NULL
      ON CONFLICT DO NOTHING;
      PERFORM accs.tell_schedulers();
    END IF;
  END IF;
  INSERT INTO accs.agenda (schedule_id, what, key, due_at)
  SELECT s.id, 'review', j.id::text, accs.clock() FROM public.jobs j JOIN public.schedules s ON s.id = j.schedule_id
   WHERE j.id = ANY (p_job_ids) AND j.status = 'error' AND s.pause_after IS NOT NULL AND s.state = 'active'
  ON CONFLICT DO NOTHING;
  IF FOUND THEN
    PERFORM accs.tell_schedulers();
  END IF;
END $$;
SELECT accs.pin('end_runs');

-- For who starts runs of several schedules one after the other, in one transaction: the jobs that they may overtake are locked before any
-- run key is, and then the keys of all. Otherwise it would have the key of one while it waits for a job of the next, and whoever
-- has that job may wait for the key.
CREATE FUNCTION accs.lock_runs(p_schedules uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_cancel text[];
  v_keys   text[];
  v_jobs   uuid[];
BEGIN
  SELECT array_agg(DISTINCT k.key) FILTER (WHERE k.overlap = 'cancel'), array_agg(DISTINCT k.key) INTO v_cancel, v_keys
    FROM (SELECT coalesce(s.run_key, 'schedule:' || s.id) AS key, s.overlap FROM public.schedules s
           WHERE s.id = ANY (p_schedules) AND s.overlap <> 'allow') k;
  IF v_cancel IS NULL OR cardinality(v_keys) < 2 THEN
    RETURN;   -- nothing is overtaken, or there is no second key
  END IF;
  LOOP
    v_jobs := ARRAY(SELECT j.id FROM public.jobs j WHERE j.id IN (SELECT o.job_id FROM accs.open_runs o WHERE o.key = ANY (v_cancel))
                     ORDER BY j.id FOR NO KEY UPDATE);
    BEGIN
      INSERT INTO accs.run_keys (key) SELECT k FROM unnest(v_keys) k ORDER BY k ON CONFLICT DO NOTHING;
      PERFORM FROM accs.run_keys WHERE key = ANY (v_keys) ORDER BY key FOR NO KEY UPDATE;
      IF EXISTS (SELECT FROM accs.open_runs o WHERE o.key = ANY (v_cancel) AND o.job_id <> ALL (v_jobs)) THEN
        RAISE EXCEPTION 'a run has started meanwhile' USING ERRCODE = 'AC005';
      END IF;
      RETURN;
    EXCEPTION WHEN SQLSTATE 'AC005' THEN
      NULL;   -- the keys are free again, and it looks again: from now on with that job, too
    END;
  END LOOP;
END $$;

-- Starts the runs of these occasions, in their order; the caller has locked their schedules. What may not start now, by the
-- schedule's overlap, is skipped, merged or waits. Returns the occasions with what became of them.
CREATE FUNCTION accs.start_runs(p_occasions accs.occasion[], p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now    timestamptz := accs.clock();
  v_cancel text[];
  v_keys   text[];
BEGIN
  -- what an overlap of cancel overtakes ends first: jobs come before run keys in the lock order
  SELECT array_agg(DISTINCT coalesce(o.run_key, s.run_key, 'schedule:' || s.id)) INTO v_cancel FROM unnest(p_occasions) o
    JOIN public.schedules s ON s.id = o.schedule_id WHERE s.overlap = 'cancel' AND o.forced IS NOT TRUE;
  IF v_cancel IS NOT NULL THEN
    PERFORM accs.cancel(ARRAY(SELECT job_id FROM accs.open_runs WHERE key = ANY (v_cancel)),
                             'overtaken by the next run of its schedule', coalesce(p_by, 'scheduler'));
  END IF;
  SELECT array_agg(DISTINCT coalesce(o.run_key, s.run_key, 'schedule:' || s.id)) INTO v_keys FROM unnest(p_occasions) o
    JOIN public.schedules s ON s.id = o.schedule_id WHERE s.overlap <> 'allow' OR o.run_key IS NOT NULL;
  IF v_keys IS NOT NULL THEN
    INSERT INTO accs.run_keys (key) SELECT k FROM unnest(v_keys) k ORDER BY k ON CONFLICT DO NOTHING;
    PERFORM FROM accs.run_keys WHERE key = ANY (v_keys) ORDER BY key FOR NO KEY UPDATE;
  END IF;

  RETURN QUERY
  WITH asked AS MATERIALIZED (
    SELECT u.*, accs.new_id() AS new_job, s.overlap, s.name, s.created_by, s.revision, s.timezone, s.priority, s.last_job_id,
           w.id AS workflow_id,
           coalesce(u.options, s.options) AS job_options,
           CASE WHEN s.overlap <> 'allow' OR u.run_key IS NOT NULL THEN coalesce(u.run_key, s.run_key, 'schedule:' || s.id) END AS key,
           CASE WHEN u.outcome = 'caught_up' AND s.overlap = 'skip' AND s.missed = 'all' OR u.run_key IS NOT NULL THEN 'queue_all'
             ELSE s.overlap END AS policy
      FROM unnest(p_occasions) WITH ORDINALITY AS u (schedule_id, nominal, fold, cause_id, due_at, outcome, reason, merged_into,
        until_nominal, times,
                                                     detail, options, trigger, forced, run_key, job_id, n),
           LATERAL (SELECT * FROM public.schedules WHERE id = u.schedule_id OFFSET 0) s
      LEFT JOIN LATERAL (SELECT w.id FROM public.workflows w
                          WHERE w.name = s.workflow AND w.is_active AND (s.version IS NULL OR w.version = s.version)
                          ORDER BY w.version DESC LIMIT 1) w ON true
  ), room AS (
    SELECT k.key, k.max_open - (SELECT count(*) FROM accs.open_runs o WHERE o.key = k.key AND NOT o.waits AND NOT o.forced) AS n
      FROM accs.run_keys k WHERE k.key = ANY (v_keys)
  ), placed AS (
    SELECT a.*, r.n AS room, count(*) FILTER (WHERE a.forced IS NOT TRUE) OVER (PARTITION BY a.key ORDER BY a.n) AS place,
           row_number() OVER (PARTITION BY a.schedule_id ORDER BY a.n DESC) AS from_last
      FROM asked a LEFT JOIN room r ON r.key = a.key WHERE a.workflow_id IS NOT NULL
  ), decided AS (
    SELECT p.*,
           CASE WHEN p.key IS NULL OR p.forced THEN 'open'
                WHEN p.policy = 'cancel' AND p.from_last > 1 THEN 'merge'   -- the next one of this batch would overtake it at once
                WHEN p.policy = 'cancel' THEN CASE WHEN p.room > 0 THEN 'open' ELSE 'wait' END
                WHEN p.place <= p.room THEN 'open'
                WHEN p.policy = 'queue_all' THEN 'wait'
                WHEN p.policy = 'skip' THEN 'skip'
                WHEN p.policy = 'queue' AND first_value(p.n) OVER behind = p.n
                     AND NOT EXISTS (SELECT FROM accs.open_runs o WHERE o.schedule_id = p.schedule_id AND o.waits) THEN 'wait'
                ELSE 'merge' END AS start,
           coalesce((SELECT o.nominal FROM accs.open_runs o WHERE o.schedule_id = p.schedule_id AND o.waits ORDER BY o.order_seq LIMIT 1),
                    CASE WHEN p.policy = 'cancel' THEN last_value(p.nominal) OVER whole
                      ELSE first_value(p.nominal) OVER behind END) AS merge_into
      FROM placed p
    WINDOW behind AS (PARTITION BY p.schedule_id, p.key IS NOT NULL AND p.place > p.room ORDER BY p.n),
           whole AS (PARTITION BY p.schedule_id ORDER BY p.n ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
  ), given AS (
    SELECT array_agg(d.workflow_id ORDER BY d.n) AS workflows, array_agg(d.job_options ORDER BY d.n) AS options,
           array_agg(coalesce((d.trigger ->> 'priority')::int, d.priority) ORDER BY d.n) AS priorities,
             array_agg(d.new_job ORDER BY d.n) AS jobs,
           -- the second net under the ledger; a run that is asked for by name has its own key
           array_agg(CASE WHEN d.trigger ? 'key' THEN d.trigger ->> 'key'
                          ELSE format('schedule/%s/%s/%s/%s', d.schedule_id, to_char(d.nominal, 'YYYY-MM-DD"T"HH24:MI:SS.US'), d.fold,
                            d.cause_id) END
                     ORDER BY d.n) AS keys,
           array_agg(jsonb_strip_nulls(coalesce(d.trigger, '{}') - 'key' - 'priority' || jsonb_build_object(
             'cause', coalesce(d.trigger ->> 'cause', 'schedule'), 'schedule', d.name, 'schedule_id', d.schedule_id, 'revision', d.revision,
             'nominal', to_char(d.nominal, 'YYYY-MM-DD"T"HH24:MI:SS'), 'fold', nullif(d.fold, 0), 'timezone',
               CASE WHEN d.cause_id = 0 THEN d.timezone ELSE 'UTC' END, 'due_at',
               d.due_at,
             'fired_at', v_now, 'late_sec', round(extract(epoch FROM v_now - d.due_at), 3), 'outcome', d.outcome, 'reason', d.reason,
             'previous', CASE WHEN d.last_job_id IS NOT NULL THEN (
               SELECT jsonb_build_object('job_id', j.id, 'status', j.status, 'finished_at', j.finished_at)
                 FROM public.jobs j WHERE j.id = d.last_job_id) END)) ORDER BY d.n) AS triggers,
           array_agg(ROW(d.schedule_id, d.key, d.start = 'wait', d.created_by)::accs.run ORDER BY d.n) AS runs
      FROM decided d WHERE d.start IN ('open', 'wait')
  ), submitted AS MATERIALIZED (
    SELECT s.* FROM given g, LATERAL accs.submit_jobs(g.workflows, g.options, g.priorities, NULL, g.keys, g.jobs, NULL, NULL, g.triggers,
           g.runs)
           WITH ORDINALITY AS s (job_id, answer, reason, status, n) WHERE g.workflows IS NOT NULL
  ), begun AS MATERIALIZED (
    SELECT d.*, s.job_id AS made, s.answer, s.reason AS refusal
      FROM (SELECT d.*, row_number() OVER (ORDER BY d.n) AS i FROM decided d WHERE d.start IN ('open', 'wait')) d JOIN submitted s
        ON s.n = d.i
  ), noted AS (
    INSERT INTO accs.open_runs (job_id, key, schedule_id, nominal, waits, forced)
    SELECT made, key, schedule_id, nominal, start = 'wait', coalesce(forced, false) FROM begun WHERE answer = 'accepted'
           AND key IS NOT NULL ORDER BY n
    ON CONFLICT DO NOTHING
  )
  SELECT a.schedule_id, a.nominal, a.fold, a.cause_id, a.due_at,
         CASE WHEN a.workflow_id IS NULL OR b.answer = 'refused' OR d.start = 'skip' THEN 'skipped'
           WHEN d.start = 'merge' THEN 'merged' ELSE a.outcome END,
         CASE WHEN a.workflow_id IS NULL OR b.refusal = 'workflow_inactive' THEN 'workflow_inactive'
           WHEN b.answer = 'refused' THEN 'refused'
              WHEN d.start = 'skip' THEN 'overlap' WHEN d.start = 'merge' THEN 'overlap_queue' ELSE a.reason END,
         CASE WHEN d.start = 'merge' THEN d.merge_into ELSE a.merged_into END, a.until_nominal, a.times,
         CASE WHEN d.start = 'skip' THEN coalesce(a.detail, '{}') || jsonb_build_object('run_key', a.key, 'blocked_by', (
                SELECT o.job_id FROM accs.open_runs o WHERE o.key = a.key ORDER BY o.waits, o.order_seq LIMIT 1))
              WHEN b.refusal IS NOT NULL THEN coalesce(a.detail, '{}') || jsonb_build_object('refusal', b.refusal) ELSE a.detail END,
         a.options, a.trigger, a.forced, a.run_key, CASE WHEN b.answer <> 'refused' THEN b.made END
    FROM asked a LEFT JOIN decided d ON d.n = a.n LEFT JOIN begun b ON b.n = a.n ORDER BY a.n;
  -- what waits must not be due before its key has room; its row was made by the job's own trigger, which the statement above could not see
  UPDATE accs.pending_jobs p SET due_at = 'infinity' FROM accs.open_runs o
   WHERE o.job_id = p.job_id AND o.waits AND o.key = ANY (v_keys) AND p.due_at < 'infinity';
END $$;

-- Writes occasions into the ledger. One that was snoozed, or skipped or missed and made up for, has its row already.
CREATE FUNCTION accs.record_firings(p_occasions accs.occasion[], p_by text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.firings AS f (schedule_id, nominal, fold, cause_id, outcome, reason, due_at, settled_at, late, job_id, revision,
    settled_by,
                                   merged_into, until_nominal, times, detail)
  SELECT o.schedule_id, o.nominal, o.fold, o.cause_id, o.outcome, o.reason, o.due_at, accs.clock(), greatest(accs.clock() - o.due_at,
         '0'), o.job_id,
         s.revision, p_by, o.merged_into, o.until_nominal, o.times, o.detail
    FROM unnest(p_occasions) o JOIN public.schedules s ON s.id = o.schedule_id
  ON CONFLICT (schedule_id, nominal, fold, cause_id) DO UPDATE SET outcome = excluded.outcome, reason = excluded.reason,
    due_at = excluded.due_at,
         settled_at = excluded.settled_at, late = excluded.late, job_id = coalesce(excluded.job_id, f.job_id), revision = excluded.revision,
         settled_by = excluded.settled_by, merged_into = excluded.merged_into, detail = coalesce(f.detail, '{}')
           || coalesce(excluded.detail, '{}');
END $$;

-- What is due of these schedules, classified. The caller has locked them and their rows in the agenda. A long outage is settled at
-- most 100 firings a schedule and pass; the rest follows.
CREATE FUNCTION accs.due_occasions(p_ids uuid[]) RETURNS TABLE (occasion accs.occasion, places int) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH due AS (   -- places: how many of the plan's occurrences are due
    SELECT s.*, a.pos, p.notes, p.options AS planned_options, p.gap, p.nominals, p.folds, p.dues, ac.disabled_at IS NOT NULL AS is_disabled,
           (ac.limits ->> 'runs_per_hour')::int - CASE WHEN ac.limits ? 'runs_per_hour' THEN (
             SELECT count(*) FROM public.schedules o JOIN public.firings f ON f.schedule_id = o.id
              WHERE o.created_by = ac.name AND f.outcome IN ('fired', 'caught_up')
                AND f.settled_at > accs.clock() - interval '1 hour') END AS quota,
           (SELECT count(*) FROM unnest(p.dues[a.pos:]) d WHERE d <= accs.clock())::int AS n_due,
           p.exhausted IS NOT NULL OR p.dues[cardinality(p.dues)] > accs.clock() AS covered,
           w.id IS NOT NULL AS can_start
      FROM unnest(p_ids) AS u (id), LATERAL (SELECT * FROM public.schedules WHERE id = u.id OFFSET 0) s
      JOIN LATERAL (SELECT * FROM accs.agenda WHERE schedule_id = s.id AND what = 'occurrence' AND key = ''
        AND due_at <= accs.clock() OFFSET 0) a ON true
      JOIN LATERAL (SELECT * FROM accs.plan_of WHERE schedule_id = s.id OFFSET 0) p ON true
      LEFT JOIN LATERAL (SELECT * FROM accs.actors WHERE name = s.created_by OFFSET 0) ac ON true
      LEFT JOIN LATERAL (SELECT w.id FROM public.workflows w WHERE w.name = s.workflow AND w.is_active
        AND (s.version IS NULL OR w.version = s.version)
                          LIMIT 1) w ON true
  ), each AS (
    SELECT d.*, o.nominal AS o_nominal, o.fold AS o_fold, o.due AS o_due, d.pos + o.i::int - 1 AS place, o.i::int AS i,
           d.notes -> (d.pos + o.i::int - 1)::text AS note, d.planned_options -> (d.pos + o.i::int - 1)::text AS o_options,
           d.state = 'active' AND accs.clock() - o.due > d.grace AS is_late,
           EXISTS (SELECT FROM accs.schedule_marks m WHERE m.schedule_id = d.id AND m.nominal = o.nominal AND m.fold = o.fold) AS is_marked
      FROM due d, LATERAL unnest(d.nominals[d.pos:d.pos + d.n_due - 1], d.folds[d.pos:d.pos + d.n_due - 1],
        d.dues[d.pos:d.pos + d.n_due - 1])
                    WITH ORDINALITY AS o (nominal, fold, due, i)
  ), classed AS (
    SELECT e.*, CASE WHEN e.note ? 'merged' THEN 'merged' WHEN e.note ? 'excluded' THEN 'excluded' WHEN e.is_marked THEN 'requested'
                     WHEN e.state <> 'active' THEN 'paused' WHEN e.is_disabled THEN 'owner_disabled'
                       WHEN NOT e.can_start THEN 'workflow_inactive'
                     WHEN e.is_late THEN 'late' ELSE 'on_time' END AS class,
           bool_or(e.is_late) OVER (PARTITION BY e.id) AND NOT e.covered AND e.missed <> 'skip' AS must_wait
      FROM each e
  ), judged AS (
    SELECT c.*, CASE WHEN c.class = 'late' THEN row_number() OVER late END AS from_newest,
           CASE WHEN c.class = 'late' THEN first_value(c.o_due) OVER late END AS newest_due,
           CASE WHEN c.class = 'late' THEN first_value(c.o_nominal) OVER late END AS newest,
           CASE WHEN c.class = 'late' THEN count(*) OVER (PARTITION BY c.id, c.class) END AS late_ones
      FROM classed c WHERE NOT c.must_wait
    WINDOW late AS (PARTITION BY c.id, c.class ORDER BY c.i DESC)
  ), told AS (
    SELECT j.*, CASE j.class WHEN 'merged' THEN 'merged' WHEN 'on_time' THEN 'fired'
                  WHEN 'late' THEN CASE
                    WHEN j.missed = 'skip' THEN 'missed'
                    WHEN j.missed = 'one' THEN CASE WHEN accs.clock() - j.newest_due > j.catch_up THEN 'missed'
                                                    WHEN j.from_newest = 1 THEN 'caught_up' ELSE 'merged' END
                    WHEN accs.clock() - j.o_due > coalesce(j.catch_up, '1 day') OR j.from_newest > j.catch_up_max THEN 'missed'
                      ELSE 'caught_up' END
                  ELSE 'skipped' END AS says,
                CASE j.class WHEN 'merged' THEN 'dst_gap'
                  WHEN 'late' THEN CASE
                    WHEN j.missed = 'skip' THEN 'down'
                    WHEN j.missed = 'one' THEN CASE WHEN accs.clock() - j.newest_due > j.catch_up THEN 'too_old'
                                                    WHEN j.from_newest = 1 THEN 'late' ELSE 'catch_up' END
                    WHEN accs.clock() - j.o_due > coalesce(j.catch_up, '1 day') THEN 'too_old'
                    WHEN j.from_newest > j.catch_up_max THEN 'over_limit' ELSE 'late' END
                  ELSE j.class END AS because
      FROM judged j
  ), counted AS (
    SELECT t.*, count(*) FILTER (WHERE t.says IN ('fired', 'caught_up')) OVER (PARTITION BY t.id ORDER BY t.i) AS starts,
           count(*) FILTER (WHERE t.says IN ('fired', 'caught_up')) OVER (PARTITION BY t.created_by ORDER BY t.o_due, t.id, t.i) > t.quota
             AND t.says IN ('fired', 'caught_up') AS is_too_much,
           count(*) FILTER (WHERE t.says = 'merged'
             AND t.because = 'catch_up') OVER (PARTITION BY t.id) + coalesce((t.gap ->> 'times')::int, 0) AS merged_ones
      FROM told t
  ), kept AS (   -- a pass's share, and no more than max_runs
    SELECT c.* FROM counted c WHERE c.starts <= 100 AND c.starts <= coalesce(c.max_runs - c.runs, 1000000)
  )
  SELECT ROW(k.id, k.o_nominal, k.o_fold, 0, k.o_due, CASE WHEN k.is_too_much THEN 'skipped' ELSE k.says END,
             CASE WHEN k.is_too_much THEN 'quota' ELSE k.because END,
             CASE WHEN k.because = 'catch_up' THEN k.newest WHEN k.class = 'merged' THEN (k.note #>> '{merged,into}')::timestamp END,
               NULL, NULL,
             CASE WHEN k.class = 'excluded' THEN k.note -> 'excluded'
                  WHEN k.is_marked THEN (SELECT jsonb_strip_nulls(jsonb_build_object('by', m.by, 'reason', m.reason, 'at', m.at))
                    FROM accs.schedule_marks m
                                          WHERE m.schedule_id = k.id AND m.nominal = k.o_nominal AND m.fold = k.o_fold) END,
             k.o_options,
             CASE WHEN k.says = 'caught_up' AND k.missed = 'one' AND k.merged_ones > 0 THEN jsonb_build_object('merged',
               jsonb_build_object('count', k.merged_ones)) END,
             false, NULL, NULL)::accs.occasion, k.place
    FROM kept k
  UNION ALL   -- the oldest ones of a long outage are one row
  SELECT ROW(j.id, (j.gap ->> 'first')::timestamp, 0, 0, j.o_due,
             CASE WHEN j.state <> 'active' THEN 'skipped' WHEN j.missed = 'one' AND coalesce(accs.clock() - j.newest_due <= j.catch_up,
               true) THEN 'merged' ELSE 'missed' END,
             CASE WHEN j.state <> 'active' THEN 'paused' WHEN j.missed = 'skip' THEN 'down' WHEN j.missed = 'all' THEN 'over_limit'
                  WHEN coalesce(accs.clock() - j.newest_due <= j.catch_up, true) THEN 'catch_up' ELSE 'too_old' END,
             CASE WHEN j.state = 'active' AND j.missed = 'one' THEN j.newest END, (j.gap ->> 'last')::timestamp, (j.gap ->> 'times')::int,
             NULL, NULL, NULL, false, NULL, NULL)::accs.occasion, 0
    FROM judged j WHERE j.gap IS NOT NULL AND j.i = 1;
END $$;

-- Settles what is due of these schedules now, all in one go, and moves the agenda on. The caller has locked them, and writes what
-- is returned into their rows (a trigger that changes a schedule could not update it).
CREATE FUNCTION accs.settle(p_ids uuid[], p_by text) RETURNS TABLE (
  id uuid, runs int, last_nominal timestamp, last_job_id uuid, settled_until timestamptz, state text, state_reason text,
    settled accs.occasion[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_due   accs.occasion[];
  v_start accs.occasion[];
  v_done  accs.occasion[];
  v_upto  jsonb;
BEGIN
  SELECT array_agg(d.occasion ORDER BY (d.occasion).due_at, (d.occasion).nominal), jsonb_object_agg((d.occasion).schedule_id, d.upto)
    INTO v_due, v_upto
    FROM (SELECT d.occasion, max(d.places) OVER (PARTITION BY (d.occasion).schedule_id) AS upto FROM accs.due_occasions(p_ids) d) d;
  -- an occurrence that has its row already is settled, wherever its instant lies now
  v_due := ARRAY(SELECT d FROM unnest(v_due) d
                  WHERE NOT EXISTS (SELECT FROM public.firings f WHERE f.schedule_id = d.schedule_id AND f.nominal = d.nominal
                    AND f.fold = d.fold
                                       AND f.cause_id = 0)
                  ORDER BY d.due_at, d.nominal);
  v_start := ARRAY(SELECT d FROM unnest(v_due) d WHERE d.outcome IN ('fired', 'caught_up') ORDER BY d.due_at, d.nominal);
  v_done := ARRAY(SELECT d FROM unnest(v_due) d WHERE d.outcome NOT IN ('fired', 'caught_up'));
  IF v_start <> '{}' THEN
    v_done := v_done || ARRAY(SELECT r FROM accs.start_runs(v_start, p_by) r);
  END IF;
  IF v_done <> '{}' THEN
    PERFORM accs.record_firings(v_done, p_by);
    DELETE FROM accs.schedule_marks WHERE ctid = ANY (ARRAY(
      SELECT m.ctid FROM unnest(v_done) d, LATERAL (SELECT m.ctid FROM accs.schedule_marks m
        WHERE m.schedule_id = d.schedule_id AND m.nominal = d.nominal AND m.fold = d.fold OFFSET 0) m));
  END IF;

  RETURN QUERY
  WITH was AS MATERIALIZED (
    SELECT s.id, s.runs, s.last_nominal, s.last_job_id, s.settled_until, s.state, s.state_reason, s.max_runs, a.pos, p.dues, p.exhausted,
           p.gap,
           coalesce((v_upto ->> s.id::text)::int, 0) AS upto
      FROM unnest(p_ids) AS u (id), LATERAL (SELECT * FROM public.schedules WHERE id = u.id OFFSET 0) s
      JOIN LATERAL (SELECT * FROM accs.agenda WHERE schedule_id = s.id AND what = 'occurrence' AND key = ''
        AND due_at <= v_now OFFSET 0) a ON true
      LEFT JOIN LATERAL (SELECT * FROM accs.plan_of WHERE schedule_id = s.id OFFSET 0) p ON true
  ), done AS (
    SELECT d.schedule_id, count(*) FILTER (WHERE d.job_id IS NOT NULL) AS started,
           max(d.nominal) FILTER (WHERE d.until_nominal IS NULL) AS last_nominal,
           (array_agg(d.job_id ORDER BY d.due_at DESC, d.nominal DESC) FILTER (WHERE d.job_id IS NOT NULL))[1] AS last_job,
             array_agg(d) AS all
      FROM unnest(v_done) d GROUP BY d.schedule_id
  ), now AS (
    SELECT w.*, w.runs + coalesce(d.started, 0)::int AS new_runs, d.last_nominal AS new_nominal, d.last_job, d.all,
           greatest(w.pos, w.upto + 1) AS next_pos,
           CASE WHEN w.upto > 0 THEN w.dues[w.upto] END AS new_until
      FROM was w LEFT JOIN done d ON d.schedule_id = w.id
  ), next AS (
    SELECT n.*, n.dues[n.next_pos] AS next_due,
           CASE WHEN n.max_runs <= n.new_runs THEN 'max_runs' WHEN n.next_pos > coalesce(cardinality(n.dues),
             0) THEN n.exhausted END AS ends,
           -- what is left of the plan, or nothing was settled because the plan does not reach the present
           n.exhausted IS NULL AND (coalesce(cardinality(n.dues), 0) - n.next_pos < 8 OR n.upto = 0 AND n.dues[n.pos] <= v_now) AS short
      FROM now n
  ), moved AS (
    UPDATE accs.agenda a SET pos = n.next_pos, due_at = CASE WHEN n.upto = 0 OR n.next_due IS NULL THEN 'infinity'
             WHEN n.state = 'paused' THEN n.next_due + interval '1 min' ELSE n.next_due END
      FROM next n WHERE a.schedule_id = n.id AND a.what = 'occurrence' AND a.key = '' AND n.ends IS NULL
  ), gone AS (
    DELETE FROM accs.agenda a USING next n WHERE a.schedule_id = n.id AND a.what IN ('occurrence', 'replan') AND n.ends IS NOT NULL
  ), filled AS (
    UPDATE accs.plan_of p SET gap = NULL FROM next n WHERE p.schedule_id = n.id AND n.gap IS NOT NULL AND n.upto > 0
  ), noted AS (
    INSERT INTO accs.schedule_history (schedule_id, what, by, reason) SELECT n.id, 'ended', 'accsd', n.ends FROM next n
     WHERE n.ends IS NOT NULL AND NOT EXISTS (SELECT FROM accs.agenda a WHERE a.schedule_id = n.id AND a.what = 'snoozed')
  ), asked AS (
    INSERT INTO accs.agenda AS a (schedule_id, what, due_at) SELECT n.id, 'replan', v_now FROM next n WHERE n.short
      AND n.ends IS NULL ORDER BY n.id
    ON CONFLICT (schedule_id, what, key) DO UPDATE SET due_at = least(a.due_at, excluded.due_at)
    RETURNING a.schedule_id
  )
  SELECT n.id, n.new_runs, coalesce(n.new_nominal, n.last_nominal), coalesce(n.last_job, n.last_job_id),
         greatest(n.settled_until, n.new_until),
         CASE WHEN n.ends IS NULL OR EXISTS (SELECT FROM accs.agenda a WHERE a.schedule_id = n.id
           AND a.what = 'snoozed') THEN n.state ELSE 'ended' END,
         coalesce(n.ends, n.state_reason), coalesce(n.all, '{}')
    FROM next n WHERE (SELECT count(*) FROM asked) >= 0;
  IF EXISTS (SELECT FROM accs.agenda a WHERE a.what = ANY ('{replan,probe}') AND a.what = 'replan' AND a.due_at <= v_now
    AND a.schedule_id = ANY (p_ids)) THEN
    PERFORM accs.tell_schedulers();
  END IF;
END $$;

-- Writes what settle has found into the schedules' rows, and returns what was settled.
CREATE FUNCTION accs.settle_many(p_ids uuid[], p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_done accs.occasion[];
BEGIN
  WITH found AS MATERIALIZED (
    SELECT * FROM accs.settle(p_ids, p_by)
  ), written AS (
    UPDATE public.schedules s SET runs = f.runs, last_nominal = f.last_nominal, last_job_id = f.last_job_id,
      settled_until = f.settled_until,
           state = f.state, state_reason = f.state_reason, state_since = CASE WHEN s.state = f.state THEN s.state_since
             ELSE accs.clock() END,
           refused_in_row = 0
      FROM found f WHERE s.id = f.id
  )
  SELECT array_agg(d) INTO v_done FROM found f, unnest(f.settled) d;
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

CREATE FUNCTION accs.settle_one(p_id uuid, p_by text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM accs.agenda WHERE schedule_id = p_id ORDER BY what, key FOR UPDATE;
  PERFORM accs.settle_many(ARRAY[p_id], p_by);
END $$;

-- A snoozed occurrence whose time has come: it runs, by whatever the overlap says.
CREATE FUNCTION accs.settle_snoozed(p_id uuid, p_key text, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row  public.schedules;
  v_occ  accs.occasion;
  v_done accs.occasion[];
BEGIN
  SELECT * INTO v_row FROM public.schedules WHERE id = p_id;
  SELECT f.schedule_id, f.nominal, f.fold, f.cause_id, a.due_at, CASE WHEN v_row.state = 'active' THEN 'fired' ELSE 'skipped' END,
         CASE WHEN v_row.state = 'active' THEN 'released' ELSE 'paused' END, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, NULL
    INTO v_occ FROM public.firings f JOIN accs.agenda a ON a.schedule_id = f.schedule_id AND a.what = 'snoozed' AND a.key = p_key
   WHERE f.schedule_id = p_id AND f.nominal = split_part(p_key, '/', 1)::timestamp AND f.fold = split_part(p_key, '/', 2)::int
     AND f.cause_id = 0
     AND f.outcome = 'snoozed';
  DELETE FROM accs.agenda WHERE schedule_id = p_id AND what = 'snoozed' AND key = p_key;
  IF v_occ.schedule_id IS NULL THEN
    RETURN;
  END IF;
  v_done := CASE WHEN v_occ.outcome = 'fired' THEN ARRAY(SELECT r FROM accs.start_runs(ARRAY[v_occ], p_by) r) ELSE ARRAY[v_occ] END;
  PERFORM accs.record_firings(v_done, p_by);
  UPDATE public.schedules s SET runs = s.runs + (v_done[1].job_id IS NOT NULL)::int, last_job_id = coalesce(v_done[1].job_id, s.last_job_id)
   WHERE s.id = p_id;
  IF v_row.state <> 'ended' AND NOT EXISTS (SELECT FROM accs.agenda WHERE schedule_id = p_id AND what IN ('occurrence', 'snoozed',
    'replan')) THEN
    PERFORM accs.move_schedule(p_id, 'ended', coalesce((SELECT exhausted FROM accs.plan_of WHERE schedule_id = p_id), 'once'));
    PERFORM accs.note_schedule(p_id, 'ended', 'accsd', 'nothing follows');
  END IF;
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

-- Snoozed occurrences that the schedule does not name any more (null: all of them) do not run.
CREATE FUNCTION accs.settle_snoozed_away(p_id uuid, p_by text, p_keys text[] DEFAULT NULL) RETURNS void LANGUAGE sql AS $$
  WITH gone AS (DELETE FROM accs.agenda WHERE schedule_id = p_id AND what = 'snoozed' AND (p_keys IS NULL OR key = ANY (p_keys))
    RETURNING key)
  UPDATE public.firings f SET outcome = 'skipped', reason = 'requested', settled_at = accs.clock(), settled_by = p_by,
         detail = coalesce(f.detail, '{}') || '{"dropped": "the schedule does not name it any more"}'
    FROM gone g WHERE f.schedule_id = p_id AND f.nominal = split_part(g.key, '/', 1)::timestamp AND f.fold = split_part(g.key, '/', 2)::int
     AND f.cause_id = 0 AND f.outcome = 'snoozed'
$$;

-- The end of a pause: nothing, the latest, or all of what was skipped during this pause runs now.
CREATE FUNCTION accs.resume_one(p_row public.schedules, p_recover text, p_by text,
  p_reason text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now  timestamptz := accs.clock();
  v_made accs.occasion[];
  v_done accs.occasion[];
BEGIN
  UPDATE accs.agenda SET due_at = least(due_at, v_now) WHERE schedule_id = p_row.id AND what = 'occurrence'
     AND (SELECT p.dues[pos] <= v_now FROM accs.plan_of p WHERE p.schedule_id = p_row.id);
  PERFORM accs.settle_many(ARRAY[p_row.id], p_by);   -- what came due during the pause is settled before the resume decides
  DELETE FROM accs.agenda WHERE schedule_id = p_row.id AND what = 'resume';
  IF (SELECT s.state FROM public.schedules s WHERE s.id = p_row.id) = 'paused' THEN
    PERFORM accs.move_schedule(p_row.id, 'active', NULL);
  END IF;
  UPDATE public.schedules s SET failures_in_row = 0 WHERE s.id = p_row.id;
  PERFORM accs.note_schedule(p_row.id, 'resumed', p_by, p_reason, NULL, jsonb_build_object('recover', p_recover));
  UPDATE accs.agenda a SET due_at = p.dues[a.pos] FROM accs.plan_of p
   WHERE a.schedule_id = p_row.id AND a.what = 'occurrence' AND p.schedule_id = a.schedule_id AND a.due_at < 'infinity';
  IF p_row.schedule_kind = 'event' THEN
    v_done := ARRAY(SELECT r FROM accs.recover_events(p_row, p_recover) r);   -- they are evaluated again
  ELSIF p_recover IN ('one', 'all') THEN
    v_made := ARRAY(
      SELECT ROW(f.schedule_id, f.nominal, f.fold, f.cause_id, f.due_at, 'caught_up', 'resumed', NULL, NULL, NULL, NULL, NULL,
             CASE WHEN p_row.schedule_kind = 'condition' THEN accs.sample_trigger(p_row, f.cause_id, f.due_at, f.detail) END, false, NULL,
                 NULL)::accs.occasion
        FROM (SELECT f.* FROM public.firings f
               WHERE f.schedule_id = p_row.id AND f.outcome = 'skipped' AND f.reason = 'paused' AND f.settled_at >= p_row.state_since
                 AND f.until_nominal IS NULL AND (p_recover = 'one' OR v_now - f.due_at <= coalesce(p_row.catch_up, '1 day'))
               ORDER BY f.nominal DESC, f.fold DESC LIMIT CASE p_recover WHEN 'one' THEN 1 ELSE p_row.catch_up_max END) f
       ORDER BY f.nominal, f.fold);
    IF v_made <> '{}' THEN
      v_done := ARRAY(SELECT r FROM accs.start_runs(v_made, p_by) r);
      v_done := ARRAY(SELECT r FROM unnest(v_done) r WHERE r.job_id IS NOT NULL);   -- what may not start stays skipped
      PERFORM accs.record_firings(v_done, p_by);
      UPDATE public.schedules s SET runs = s.runs + cardinality(v_done), last_job_id = coalesce(v_done[cardinality(v_done)].job_id,
        s.last_job_id)
       WHERE s.id = p_row.id;
    END IF;
  END IF;
  PERFORM accs.tell_schedulers();
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

CREATE FUNCTION accs.resume_schedule(p_which text, p_recover text DEFAULT 'none', p_reason text DEFAULT NULL, p_by text DEFAULT NULL)
RETURNS TABLE (answer text, reason text, recovered int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row public.schedules := accs.lock_schedule(p_which);
  v_n   int;
BEGIN
  IF p_recover NOT IN ('none', 'one', 'all') THEN
    RAISE EXCEPTION 'a resume recovers none, one or all, not "%"', p_recover USING ERRCODE = 'invalid_parameter_value';
  ELSIF v_row.state <> 'paused' THEN
    RETURN QUERY SELECT CASE v_row.state WHEN 'active' THEN 'repeated' ELSE 'refused' END, CASE
      WHEN v_row.state <> 'active' THEN v_row.state END, 0;
    RETURN;
  END IF;
  SELECT count(*) INTO v_n FROM accs.resume_one(v_row, p_recover, p_by, p_reason);
  RETURN QUERY SELECT 'accepted'::text, NULL::text, v_n;
END $$;
SELECT accs.is_verb('resume_schedule', may => '{scheduler,api}');

-- A job of this schedule failed: N in a row pause it.
CREATE FUNCTION accs.review_schedule(p_row public.schedules) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_failed uuid[];
BEGIN
  SELECT array_agg(l.id) INTO v_failed FROM (
    SELECT j.id, bool_and(j.status = 'error') OVER (ORDER BY f.settled_at DESC, f.nominal DESC) AS so
      FROM (SELECT job_id, settled_at, nominal FROM public.firings WHERE schedule_id = p_row.id AND job_id IS NOT NULL
             ORDER BY settled_at DESC, nominal DESC LIMIT 200) f
      JOIN public.jobs j ON j.id = f.job_id WHERE j.status IN ('done', 'error')) l WHERE l.so;
  UPDATE public.schedules SET failures_in_row = coalesce(cardinality(v_failed), 0) WHERE id = p_row.id;
  IF p_row.state = 'active' AND cardinality(v_failed) >= p_row.pause_after THEN
    PERFORM accs.move_schedule(p_row.id, 'paused', format('its last %s jobs failed', cardinality(v_failed)),
      accs.clock() + p_row.pause_for);
    PERFORM accs.note_schedule(p_row.id, 'paused', 'accsd', format('its last %s jobs failed', cardinality(v_failed)), NULL,
                               jsonb_build_object('jobs', to_jsonb(v_failed[1:20])));
    IF p_row.pause_for IS NOT NULL THEN
      INSERT INTO accs.agenda (schedule_id, what, due_at) VALUES (p_row.id, 'resume', accs.clock() + p_row.pause_for)
        ON CONFLICT DO NOTHING;
    END IF;
  END IF;
END $$;

-- What became of one row of the agenda that is no plain occurrence.
CREATE FUNCTION accs.settle_other(p_due accs.agenda, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_row public.schedules;
BEGIN
  SELECT * INTO v_row FROM public.schedules WHERE id = p_due.schedule_id;
  CASE p_due.what
    WHEN 'snoozed' THEN
      RETURN QUERY SELECT * FROM accs.settle_snoozed(p_due.schedule_id, p_due.key, p_by);
    WHEN 'resume' THEN
      IF v_row.state = 'paused' THEN
        RETURN QUERY SELECT * FROM accs.resume_one(v_row, 'none', 'accsd', 'its pause is over');
      END IF;
    WHEN 'review' THEN
      PERFORM accs.review_schedule(v_row);
    WHEN 'release' THEN
      PERFORM accs.release_runs(ARRAY[left(p_due.key, -37)], true);
    WHEN 'backfill' THEN
      RETURN QUERY SELECT * FROM accs.settle_backfill(p_due.key::uuid, p_by);
    WHEN 'gather' THEN
      RETURN QUERY SELECT * FROM accs.settle_gathered(v_row, p_due.key, p_by);
    WHEN 'judge' THEN
      RETURN QUERY SELECT * FROM accs.settle_condition(v_row, p_by);
    ELSE NULL;
  END CASE;
  IF p_due.what IN ('resume', 'review', 'release') THEN
    DELETE FROM accs.agenda WHERE schedule_id = p_due.schedule_id AND what = p_due.what AND key = p_due.key;
  END IF;
END $$;

-- A firing raised an error. It is recorded, and the schedule goes on; three in a row make it broken.
CREATE FUNCTION accs.record_broken(p_due accs.agenda, p_problem text, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_row public.schedules;
  v_occ accs.occasion[];
BEGIN
  SELECT * INTO v_row FROM public.schedules WHERE id = p_due.schedule_id;
  IF p_due.what <> 'occurrence' THEN
    DELETE FROM accs.agenda WHERE schedule_id = p_due.schedule_id AND what = p_due.what AND key = p_due.key;
    IF p_due.what = 'gather' THEN   -- its events are looked at again
      UPDATE accs.inbox SET gathering = NULL, options = NULL WHERE schedule_id = p_due.schedule_id AND gathering = p_due.key;
    END IF;
    PERFORM accs.note_schedule(v_row.id, 'failed', coalesce(p_by, 'accsd'), p_due.what || ': ' || p_problem);
    RETURN;
  END IF;
  v_occ := ARRAY(SELECT ROW(v_row.id, o.nominal, o.fold, 0, o.due, 'skipped', 'broken', NULL, NULL, NULL, jsonb_build_object('problem',
    left(p_problem, 2000)),
                            NULL, NULL, false, NULL, NULL)::accs.occasion
                   FROM accs.plan_of p, LATERAL unnest(p.nominals[p_due.pos:], p.folds[p_due.pos:], p.dues[p_due.pos:]) AS o (nominal,
                     fold, due)
                  WHERE p.schedule_id = v_row.id AND o.due <= accs.clock()
                    AND NOT EXISTS (SELECT FROM public.firings f WHERE f.schedule_id = v_row.id AND f.nominal = o.nominal
                      AND f.fold = o.fold AND f.cause_id = 0));
  PERFORM accs.record_firings(v_occ, p_by);
  UPDATE public.schedules SET refused_in_row = refused_in_row + 1, settled_until = greatest(settled_until,
    (SELECT max(o.due_at) FROM unnest(v_occ) o))
   WHERE id = v_row.id;
  IF v_row.refused_in_row >= 2 THEN
    PERFORM accs.break_schedule(v_row, p_problem, p_by);
  ELSE
    UPDATE accs.agenda a SET pos = a.pos + cardinality(v_occ), due_at = coalesce(p.dues[a.pos + cardinality(v_occ)], 'infinity')
      FROM accs.plan_of p
     WHERE a.schedule_id = v_row.id AND a.what = 'occurrence' AND p.schedule_id = v_row.id;
    PERFORM accs.ask_for_plans(ARRAY[v_row.id]);
  END IF;
  RETURN QUERY SELECT * FROM unnest(v_occ);
END $$;

-- Settles what is due, p_limit rows of the agenda at a time: what is due on time first, then what is late. Any number of
-- schedulers may call it at once: each takes what no other has. Nothing waits for anybody: a schedule that somebody is changing is
-- left for the next call. A row that raises an error does not stop the others.
CREATE FUNCTION accs.settle_due(p_limit int DEFAULT 200, p_by text DEFAULT NULL)
RETURNS TABLE (schedule_id uuid, nominal timestamp, outcome text, reason text, late interval, times int, job_id uuid) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now  timestamptz := accs.clock();
  v_rows accs.agenda[];
  v_row  accs.agenda;
  v_ids  uuid[];
  v_done accs.occasion[] := '{}';
BEGIN
  IF EXISTS (SELECT FROM accs.schedule_hold) THEN
    RETURN;
  END IF;
  v_rows := ARRAY(SELECT a FROM accs.agenda a JOIN public.schedules s ON s.id = a.schedule_id
                   WHERE a.what <> ALL ('{replan,probe}') AND a.due_at <= v_now AND a.due_at > v_now - interval '1 min'
                   ORDER BY a.due_at LIMIT p_limit FOR UPDATE OF a SKIP LOCKED FOR NO KEY UPDATE OF s SKIP LOCKED);
  IF cardinality(v_rows) < p_limit THEN
    v_rows := v_rows || ARRAY(SELECT a FROM accs.agenda a JOIN public.schedules s ON s.id = a.schedule_id
                   WHERE a.what <> ALL ('{replan,probe}') AND a.due_at <= v_now - interval '1 min'
                   ORDER BY a.due_at LIMIT p_limit - cardinality(v_rows) FOR UPDATE OF a SKIP LOCKED FOR NO KEY UPDATE OF s SKIP LOCKED);
  END IF;
  v_ids := ARRAY(SELECT DISTINCT r.schedule_id FROM unnest(v_rows) r WHERE r.what = 'occurrence');
  IF EXISTS (SELECT FROM unnest(v_rows) r WHERE r.what <> 'occurrence') THEN
    PERFORM accs.lock_runs(ARRAY(SELECT DISTINCT r.schedule_id FROM unnest(v_rows) r));   -- the others start theirs one by one
  END IF;
  IF v_ids <> '{}' THEN
    BEGIN
      v_done := ARRAY(SELECT d FROM accs.settle_many(v_ids, p_by) d);
      v_rows := ARRAY(SELECT r FROM unnest(v_rows) r WHERE r.what <> 'occurrence');
    EXCEPTION WHEN OTHERS THEN
      IF SQLSTATE LIKE ANY ('{40%,53%,55%,57%,58%}') THEN
        RAISE;   -- nobody's fault: tried again as a whole
      END IF;
      PERFORM accs.lock_runs(v_ids);   -- one by one
    END;
  END IF;
  FOREACH v_row IN ARRAY v_rows LOOP
    BEGIN
      v_done := v_done || CASE WHEN v_row.what = 'occurrence' THEN ARRAY(SELECT d FROM accs.settle_many(ARRAY[v_row.schedule_id], p_by) d)
                               ELSE ARRAY(SELECT d FROM accs.settle_other(v_row, p_by) d) END;
    EXCEPTION WHEN OTHERS THEN
      IF SQLSTATE LIKE ANY ('{40%,53%,55%,57%,58%}') THEN
        RAISE;
      END IF;
      v_done := v_done || ARRAY(SELECT d FROM accs.record_broken(v_row, SQLERRM, p_by) d);
    END;
  END LOOP;
  RETURN QUERY SELECT d.schedule_id, d.nominal, d.outcome, d.reason, greatest(v_now - d.due_at, '0'), coalesce(d.times, 1), d.job_id
    FROM unnest(v_done) d;
END $$;
SELECT accs.is_verb('settle_due', may => '{scheduler}');
-- Its statements are large: to plan one takes longer than to carry it out. Joins within a batch are free to be hash joins.
ALTER FUNCTION accs.settle_due SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off;

-- For a scheduler between its passes: how long until something is due (0: now), until a plan or a probe is wanted; why all is
-- held; the time.
CREATE FUNCTION accs.scheduler_outlook() RETURNS TABLE (next_due interval, next_plan interval, next_probe interval, hold text,
  now timestamptz)
LANGUAGE sql STABLE AS $$
  SELECT (SELECT greatest(a.due_at - accs.clock(), '0') FROM accs.agenda a
           WHERE a.what <> ALL ('{replan,probe}') AND a.due_at < 'infinity' ORDER BY a.due_at LIMIT 1),
         (SELECT greatest(a.due_at - accs.clock(), '0') FROM accs.agenda a
           WHERE a.what = ANY ('{replan,probe}') AND a.what = 'replan' AND a.due_at < 'infinity' ORDER BY a.due_at LIMIT 1),
         (SELECT greatest(a.due_at - accs.clock(), '0') FROM accs.agenda a
           WHERE a.what = ANY ('{replan,probe}') AND a.what = 'probe' AND a.due_at < 'infinity' ORDER BY a.due_at LIMIT 1),
         (SELECT concat_ws(', ', coalesce(h.reason, 'no reason given'), 'by ' || h.by) FROM accs.schedule_hold h), accs.clock()
$$;
SELECT accs.is_verb('scheduler_outlook', may => '{scheduler,api}');

-- The next occurrence that is not settled: a snoozed one, or the first of the plan.
CREATE FUNCTION accs.next_occurrence(p_id uuid) RETURNS TABLE (nominal timestamp, fold int, due_at timestamptz,
  is_snoozed boolean) LANGUAGE sql STABLE AS $$
  SELECT split_part(a.key, '/', 1)::timestamp, split_part(a.key, '/', 2)::int, a.due_at, true FROM accs.agenda a
   WHERE a.schedule_id = p_id AND a.what = 'snoozed'
  UNION ALL
  SELECT p.nominals[a.pos], p.folds[a.pos], p.dues[a.pos], false FROM accs.agenda a JOIN accs.plan_of p ON p.schedule_id = a.schedule_id
   WHERE a.schedule_id = p_id AND a.what = 'occurrence' AND p.nominals[a.pos] IS NOT NULL
  ORDER BY 3, 1 LIMIT 1
$$;
SELECT accs.is_verb('next_occurrence', may => '{scheduler,api,archive,reader}');

-- Moves the due time of the next occurrence, and of no other. Repeated, it counts from the due time that it has.
CREATE FUNCTION accs.snooze(p_which text, p_for interval DEFAULT NULL, p_until timestamptz DEFAULT NULL, p_reason text DEFAULT NULL,
  p_by text DEFAULT NULL)
RETURNS TABLE (answer text, reason text, nominal timestamp, due_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row  public.schedules := accs.lock_schedule(p_which);
  v_next record;
  v_due  timestamptz;
  v_key  text;
BEGIN
  IF (p_for IS NULL) = (p_until IS NULL) THEN
    RAISE EXCEPTION 'a snooze is for a time, or until a time' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM accs.settle_one(v_row.id, p_by);
  SELECT * INTO v_next FROM accs.next_occurrence(v_row.id);
  IF v_row.schedule_kind IN ('event', 'condition') OR NOT FOUND THEN
    RETURN QUERY SELECT 'refused'::text, CASE WHEN v_row.schedule_kind IN ('event', 'condition') THEN 'not_by_time'
      ELSE 'nothing_ahead' END, NULL::timestamp,
                        NULL::timestamptz;
    RETURN;
  END IF;
  v_due := coalesce(p_until, v_next.due_at + p_for);
  IF v_due <= v_next.due_at OR v_due > v_next.due_at + interval '31 days' THEN
    RETURN QUERY SELECT 'refused'::text, CASE WHEN v_due <= v_next.due_at THEN 'not_later' ELSE 'too_long' END, v_next.nominal,
      v_next.due_at;
    RETURN;
  END IF;
  v_key := to_char(v_next.nominal, 'YYYY-MM-DD"T"HH24:MI:SS.US') || '/' || v_next.fold;
  IF v_next.is_snoozed THEN
    UPDATE accs.agenda a SET due_at = v_due WHERE a.schedule_id = v_row.id AND a.what = 'snoozed' AND a.key = v_key;
  ELSE
    INSERT INTO accs.agenda (schedule_id, what, key, due_at) VALUES (v_row.id, 'snoozed', v_key, v_due);
    UPDATE accs.agenda a SET pos = a.pos + 1, due_at = coalesce(p.dues[a.pos + 1], 'infinity') FROM accs.plan_of p
     WHERE a.schedule_id = v_row.id AND a.what = 'occurrence' AND p.schedule_id = a.schedule_id;
    DELETE FROM accs.agenda a USING accs.plan_of p WHERE a.schedule_id = v_row.id AND a.what = 'occurrence'
      AND p.schedule_id = a.schedule_id
       AND p.exhausted IS NOT NULL AND a.pos > cardinality(p.dues);
    UPDATE public.schedules s SET settled_until = greatest(s.settled_until, v_next.due_at) WHERE s.id = v_row.id;
    PERFORM accs.ask_for_plans(ARRAY[v_row.id]) FROM accs.agenda a JOIN accs.plan_of p ON p.schedule_id = a.schedule_id
      WHERE a.schedule_id = v_row.id AND a.what = 'occurrence' AND cardinality(p.dues) - a.pos < 8 AND p.exhausted IS NULL;
  END IF;
  INSERT INTO public.firings AS f (schedule_id, nominal, fold, outcome, reason, due_at, settled_at, late, revision, settled_by, detail)
  VALUES (v_row.id, v_next.nominal, v_next.fold, 'snoozed', 'requested', v_due, accs.clock(), '0', v_row.revision,
    coalesce(p_by, session_user),
          jsonb_strip_nulls(jsonb_build_object('was_due', v_next.due_at, 'until', v_due, 'by', coalesce(p_by, session_user), 'reason',
            p_reason)))
  ON CONFLICT (schedule_id, nominal, fold, cause_id) DO UPDATE SET due_at = excluded.due_at, settled_at = excluded.settled_at,
         detail = f.detail || (excluded.detail - 'was_due');
  PERFORM accs.note_schedule(v_row.id, 'snoozed', p_by, p_reason, jsonb_build_object('due_at', v_next.due_at),
                             jsonb_build_object('nominal', v_next.nominal, 'due_at', v_due));
  PERFORM accs.tell_schedulers();
  RETURN QUERY SELECT 'accepted'::text, NULL::text, v_next.nominal, v_due;
END $$;
SELECT accs.is_verb('snooze', may => '{scheduler,api}');

-- Gives every snoozed occurrence its own due time back; one whose time has passed runs now.
CREATE FUNCTION accs.unsnooze(p_which text, p_reason text DEFAULT NULL, p_by text DEFAULT NULL) RETURNS TABLE (answer text,
  reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row public.schedules := accs.lock_schedule(p_which);
BEGIN
  UPDATE accs.agenda a SET due_at = greatest((f.detail ->> 'was_due')::timestamptz, accs.clock()) FROM public.firings f
   WHERE a.schedule_id = v_row.id AND a.what = 'snoozed' AND f.schedule_id = v_row.id AND f.nominal = split_part(a.key, '/', 1)::timestamp
     AND f.fold = split_part(a.key, '/', 2)::int AND f.cause_id = 0;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'repeated'::text, NULL::text;
    RETURN;
  END IF;
  PERFORM accs.note_schedule(v_row.id, 'unsnoozed', p_by, p_reason);
  PERFORM accs.tell_schedulers();
  RETURN QUERY SELECT 'accepted'::text, NULL::text;
END $$;
SELECT accs.is_verb('unsnooze', may => '{scheduler,api}');

-- Marks an occurrence that is ahead: it is skipped when it is due. Whether the rule names it, the caller knows
-- (planning/recurrence); one that is planned and not named is refused here too.
CREATE FUNCTION accs.skip_occurrence(p_which text, p_nominal timestamp, p_fold int DEFAULT 0, p_reason text DEFAULT NULL,
  p_by text DEFAULT NULL,
                                     p_skip boolean DEFAULT true)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row  public.schedules := accs.lock_schedule(p_which);
  v_plan accs.plan_of;
BEGIN
  SELECT * INTO v_plan FROM accs.plan_of p WHERE p.schedule_id = v_row.id;
  IF EXISTS (SELECT FROM public.firings f WHERE f.schedule_id = v_row.id AND f.nominal = p_nominal AND f.fold = p_fold AND f.cause_id = 0
                AND f.outcome <> 'snoozed') THEN
    RETURN QUERY SELECT 'refused'::text, 'already_settled'::text;
    RETURN;
  ELSIF p_nominal <> ALL (v_plan.nominals) AND p_nominal <= (SELECT max(n) FROM unnest(v_plan.nominals) n) THEN
    RETURN QUERY SELECT 'refused'::text, 'not_an_occurrence'::text;
    RETURN;
  END IF;
  IF p_skip THEN
    INSERT INTO accs.schedule_marks (schedule_id, nominal, fold, by, reason) VALUES (v_row.id, p_nominal, p_fold,
      coalesce(p_by, session_user), p_reason)
    ON CONFLICT DO NOTHING;
  ELSE
    DELETE FROM accs.schedule_marks m WHERE m.schedule_id = v_row.id AND m.nominal = p_nominal AND m.fold = p_fold;
  END IF;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'repeated'::text, NULL::text;
    RETURN;
  END IF;
  PERFORM accs.note_schedule(v_row.id, CASE WHEN p_skip THEN 'skip' ELSE 'unskip' END, p_by, p_reason, NULL,
                             jsonb_build_object('nominal', p_nominal, 'fold', p_fold));
  RETURN QUERY SELECT 'accepted'::text, NULL::text;
END $$;
SELECT accs.is_verb('skip_occurrence', may => '{scheduler,api}');

-- A run at once, whatever the schedule's state; it moves no due time. With a key the same call again is the same job.
CREATE FUNCTION accs.run_now(p_which text, p_options jsonb DEFAULT NULL, p_key text DEFAULT NULL, p_force boolean DEFAULT false,
                             p_reason text DEFAULT NULL, p_by text DEFAULT NULL)
RETURNS TABLE (answer text, reason text, job_id uuid, state text, detail jsonb) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row  public.schedules := accs.lock_schedule(p_which);
  v_key  text := CASE WHEN p_key IS NOT NULL THEN format('run_now/%s/%s', v_row.id, p_key) END;
  v_occ  accs.occasion;
  v_done accs.occasion[];
  v_job  uuid;
BEGIN
  IF v_key IS NOT NULL THEN
    SELECT j.id INTO v_job FROM public.jobs j WHERE j.idempotency_key = v_key;
    IF FOUND THEN
      RETURN QUERY SELECT 'repeated'::text, NULL::text, v_job, v_row.state, NULL::jsonb;
      RETURN;
    END IF;
  END IF;
  v_occ := ROW(v_row.id, accs.clock() AT TIME ZONE 'UTC', 0, nextval('accs.cause_seq'), accs.clock(), 'fired', 'run_now', NULL, NULL, NULL,
               jsonb_strip_nulls(jsonb_build_object('by', coalesce(p_by, session_user), 'reason', p_reason)), v_row.options
                 || coalesce(p_options, '{}'),
               jsonb_strip_nulls(jsonb_build_object('cause', 'run_now', 'by', coalesce(p_by, session_user), 'key', v_key)), p_force, NULL,
                 NULL)::accs.occasion;
  v_done := ARRAY(SELECT r FROM accs.start_runs(ARRAY[v_occ], p_by) r);
  PERFORM accs.record_firings(v_done, p_by);
  UPDATE public.schedules s SET last_job_id = coalesce(v_done[1].job_id, s.last_job_id) WHERE s.id = v_row.id;
  PERFORM accs.note_schedule(v_row.id, 'run_now', p_by, p_reason, NULL, jsonb_strip_nulls(jsonb_build_object('job_id', v_done[1].job_id,
    'outcome', v_done[1].outcome)));
  RETURN QUERY SELECT CASE WHEN v_done[1].job_id IS NULL THEN 'refused' ELSE 'accepted' END, CASE
    WHEN v_done[1].job_id IS NULL THEN v_done[1].reason END,
                      v_done[1].job_id, v_row.state, v_done[1].detail;
END $$;
SELECT accs.is_verb('run_now', may => '{scheduler,api}');

-- How many jobs of a run key may be open at once.
CREATE FUNCTION accs.set_run_limit(p_key text, p_max_open int, p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  v_said jsonb := jsonb_build_object('max_open', p_max_open);
BEGIN
  INSERT INTO accs.run_keys AS k (key, max_open) VALUES (p_key, p_max_open)
  ON CONFLICT (key) DO UPDATE SET max_open = excluded.max_open WHERE k.max_open <> excluded.max_open;
  IF NOT FOUND THEN
    RETURN accs.audited('set_run_limit', 'run_key', p_key, 'repeated', p_by, p_reason, NULL, v_said);
  END IF;
  PERFORM accs.release_runs(ARRAY[p_key], true);
  RETURN accs.audited('set_run_limit', 'run_key', p_key, 'accepted', p_by, p_reason, NULL, v_said);
END $$;
SELECT accs.is_verb('set_run_limit', may => '{scheduler,api}');

-- Runs for times that lie behind: the occurrences that the caller has found by the present rule, worked off page by page.
CREATE TABLE accs.backfills (
  id           uuid PRIMARY KEY DEFAULT accs.new_id(),
  schedule_id  uuid NOT NULL,
  revision     int NOT NULL,
  nominals     timestamp[] NOT NULL,      -- in the order in which they are to run
  folds        int[] NOT NULL,
  dues         timestamptz[] NOT NULL,
  pos          int NOT NULL DEFAULT 1,
  parallel     int NOT NULL DEFAULT 1 CHECK (parallel BETWEEN 1 AND 1000),
  existing     text NOT NULL DEFAULT 'none' CHECK (existing IN ('none', 'failed', 'all')),
  forced       boolean NOT NULL DEFAULT false,
  options      jsonb,
  priority     int,
  by           text,
  reason       text,
  created_at   timestamptz NOT NULL DEFAULT accs.clock(),
  ended_at     timestamptz,
  state        text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'cancelled')),
  key          text UNIQUE,               -- the same key again, with the same that was asked, is the same backfill
  asked        jsonb,
  started      int NOT NULL DEFAULT 0,
  left_alone   int NOT NULL DEFAULT 0,    -- they had run already
  refused      int NOT NULL DEFAULT 0
);

CREATE INDEX backfills_of ON accs.backfills (schedule_id, id);

-- What a backfill would do to each occurrence: run, or leave it because of what the ledger says.
CREATE FUNCTION accs.preview_backfill(p_schedule uuid, p_nominals timestamp[], p_folds int[], p_existing text)
RETURNS TABLE (nominal timestamp, fold int, would text, outcome text, job_id uuid) LANGUAGE sql STABLE AS $$
  SELECT u.nominal, u.fold,
         CASE WHEN f.outcome IN ('fired', 'caught_up') AND NOT (p_existing = 'all' OR p_existing = 'failed' AND j.status IN ('error',
           'cancelled'))
                OR f.outcome IN ('snoozed', 'merged') THEN 'leave' ELSE 'run' END,
         f.outcome, f.job_id
    FROM unnest(p_nominals, p_folds) WITH ORDINALITY AS u (nominal, fold, n)
    LEFT JOIN public.firings f ON f.schedule_id = p_schedule AND f.nominal = u.nominal AND f.fold = u.fold AND f.cause_id = 0
    LEFT JOIN public.jobs j ON j.id = f.job_id ORDER BY u.n
$$;
SELECT accs.is_verb('preview_backfill', may => '{scheduler,api}');

-- The token of a dry run: a backfill that was started with it is refused if it would do something else by now.
CREATE FUNCTION accs.backfill_token(p_schedule uuid, p_revision int, p_nominals timestamp[], p_folds int[],
  p_existing text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT encode(sha256(convert_to(concat_ws('/', p_schedule, p_revision, p_existing,
           (SELECT string_agg(concat_ws(',', p.nominal, p.fold, p.would, p.outcome), ';') FROM accs.preview_backfill(p_schedule,
             p_nominals, p_folds, p_existing) p)), 'UTF8')), 'hex')
$$;

-- With a key the same again (p_asked, in the caller's own words) is the same backfill, whatever has become of its times since.
CREATE FUNCTION accs.start_backfill(p_which text, p_revision int, p_nominals timestamp[], p_folds int[], p_dues timestamptz[],
                                    p_parallel int DEFAULT 1, p_existing text DEFAULT 'none', p_options jsonb DEFAULT NULL,
                                    p_priority int DEFAULT NULL, p_force boolean DEFAULT false, p_dry_run boolean DEFAULT false,
                                    p_token text DEFAULT NULL, p_reason text DEFAULT NULL, p_by text DEFAULT NULL,
                                    p_key text DEFAULT NULL, p_asked jsonb DEFAULT NULL)
RETURNS TABLE (answer text, reason text, id uuid, token text, would_run int, would_leave int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row   public.schedules := accs.lock_schedule(p_which);
  v_known accs.backfills;
  v_token text;
  v_n     record;
  v_id    uuid;
BEGIN
  SELECT * INTO v_known FROM accs.backfills b WHERE b.key = p_key;
  IF FOUND THEN
    RETURN QUERY SELECT CASE WHEN same THEN 'repeated' ELSE 'refused' END, CASE WHEN NOT same THEN 'idempotency_mismatch' END, v_known.id,
                        NULL::text, NULL::int, NULL::int
      FROM (SELECT v_known.schedule_id = v_row.id AND v_known.asked IS NOT DISTINCT FROM p_asked AS same) c;
    RETURN;
  ELSIF cardinality(p_nominals) = 0 THEN
    RETURN QUERY SELECT 'refused'::text, 'not_an_occurrence'::text, NULL::uuid, NULL::text, NULL::int, NULL::int;
    RETURN;
  ELSIF v_row.revision <> p_revision THEN
    RETURN QUERY SELECT 'refused'::text, 'conflict'::text, NULL::uuid, NULL::text, NULL::int, NULL::int;
    RETURN;
  ELSIF cardinality(p_nominals) > 100000 THEN
    RAISE EXCEPTION 'a backfill has at most 100000 occurrences, not %', cardinality(p_nominals) USING ERRCODE = 'invalid_parameter_value';
  END IF;
  v_token := accs.backfill_token(v_row.id, v_row.revision, p_nominals, p_folds, p_existing);
  SELECT count(*) FILTER (WHERE would = 'run')::int AS run, count(*) FILTER (WHERE would = 'leave')::int AS leave INTO v_n
    FROM accs.preview_backfill(v_row.id, p_nominals, p_folds, p_existing);
  IF p_token IS NOT NULL AND p_token <> v_token THEN
    RETURN QUERY SELECT 'refused'::text, 'plan_changed'::text, NULL::uuid, v_token, v_n.run, v_n.leave;
    RETURN;
  ELSIF p_dry_run THEN
    RETURN QUERY SELECT 'accepted'::text, 'dry_run'::text, NULL::uuid, v_token, v_n.run, v_n.leave;
    RETURN;
  END IF;
  INSERT INTO accs.backfills (schedule_id, revision, nominals, folds, dues, parallel, existing, forced, options, priority, by, reason, key,
                              asked)
  VALUES (v_row.id, v_row.revision, p_nominals, p_folds, p_dues, p_parallel, p_existing, p_force, p_options,
    coalesce(p_priority, v_row.priority - 1),
          coalesce(p_by, session_user), p_reason, p_key, p_asked) ON CONFLICT (key) DO NOTHING RETURNING backfills.id INTO v_id;
  IF v_id IS NULL THEN   -- of another schedule: calls for one come one after the other
    RETURN QUERY SELECT 'refused'::text, 'idempotency_mismatch'::text, (SELECT b.id FROM accs.backfills b WHERE b.key = p_key), NULL::text,
                        NULL::int, NULL::int;
    RETURN;
  END IF;
  INSERT INTO accs.run_keys (key, max_open) VALUES ('backfill:' || v_id, p_parallel);
  INSERT INTO accs.agenda (schedule_id, what, key, due_at) VALUES (v_row.id, 'backfill', v_id::text, accs.clock());
  PERFORM accs.note_schedule(v_row.id, 'backfill', p_by, p_reason, NULL, jsonb_build_object('id', v_id, 'run', v_n.run, 'leave',
    v_n.leave));
  PERFORM accs.tell_schedulers();
  RETURN QUERY SELECT 'accepted'::text, NULL::text, v_id, v_token, v_n.run, v_n.leave;
END $$;
SELECT accs.is_verb('start_backfill', may => '{scheduler,api}');

-- The next page of a backfill: as many runs as its key has room for, so that what runs on time never stands behind it. Then it
-- looks again a little later.
CREATE FUNCTION accs.settle_backfill(p_id uuid, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_fill accs.backfills;
  v_row  public.schedules;
  v_key  text := 'backfill:' || p_id;
  v_room int;
  v_occ  accs.occasion[];
  v_done accs.occasion[];
  v_upto int;
BEGIN
  SELECT * INTO v_fill FROM accs.backfills WHERE id = p_id AND state = 'running' FOR UPDATE;
  IF NOT FOUND THEN
    DELETE FROM accs.agenda WHERE what = 'backfill' AND key = p_id::text;
    RETURN;
  END IF;
  SELECT * INTO v_row FROM public.schedules WHERE id = v_fill.schedule_id;
  v_room := least(v_fill.parallel - (SELECT count(*) FROM accs.open_runs o WHERE o.key = v_key), 100);
  -- it gives way to the schedule's own runs, unless it is forced
  IF NOT v_fill.forced AND v_row.overlap <> 'allow' AND EXISTS (
       SELECT FROM accs.open_runs o WHERE o.key = coalesce(v_row.run_key, 'schedule:' || v_row.id)) THEN
    v_room := 0;
  END IF;
  IF v_room > 0 THEN
    SELECT array_agg(ROW(v_row.id, w.nominal, w.fold, 0, w.due, CASE WHEN w.outcome IN ('missed', 'skipped') THEN 'caught_up'
           ELSE coalesce(w.outcome, 'fired') END,
                         'backfill', NULL, NULL, NULL, jsonb_build_object('backfill', p_id), v_row.options || coalesce(v_fill.options,
                           '{}'),
                         jsonb_build_object('cause', 'backfill', 'backfill', p_id, 'by', v_fill."by", 'priority', v_fill.priority,
                                            'key', format('backfill/%s/%s/%s', p_id, w.nominal, w.fold)), false, v_key,
                                              NULL)::accs.occasion ORDER BY w.n)
             FILTER (WHERE w.would = 'run'), max(w.n)
      INTO v_occ, v_upto
      FROM (SELECT p.*, v_fill.pos + p.i::int - 1 AS n, v_fill.dues[v_fill.pos + p.i::int - 1] AS due,
                   count(*) FILTER (WHERE p.would = 'run') OVER (ORDER BY p.i) AS runs
              FROM (SELECT p.*, row_number() OVER () AS i FROM accs.preview_backfill(v_row.id, v_fill.nominals[v_fill.pos:v_fill.pos + 999],
                           v_fill.folds[v_fill.pos:v_fill.pos + 999], v_fill.existing) p) p) w
     WHERE w.runs <= v_room;
    IF v_occ IS NOT NULL THEN
      v_done := ARRAY(SELECT r FROM accs.start_runs(v_occ, p_by) r);
      PERFORM accs.record_firings(ARRAY(SELECT r FROM unnest(v_done) r WHERE r.job_id IS NOT NULL), p_by);
    END IF;
    UPDATE accs.backfills SET pos = coalesce(v_upto, cardinality(nominals)) + 1, started = started + (SELECT count(*)
      FROM unnest(v_done) d WHERE d.job_id IS NOT NULL),
           refused = refused + (SELECT count(*) FROM unnest(v_done) d WHERE d.job_id IS NULL),
           left_alone = left_alone + coalesce(v_upto - v_fill.pos + 1, 0) - coalesce(cardinality(v_done), 0)
     WHERE id = p_id RETURNING * INTO v_fill;
  END IF;
  IF v_fill.pos > cardinality(v_fill.nominals) THEN
    UPDATE accs.backfills SET state = 'done', ended_at = accs.clock() WHERE id = p_id;
    DELETE FROM accs.agenda WHERE what = 'backfill' AND key = p_id::text AND schedule_id = v_row.id;
  ELSE
    UPDATE accs.agenda SET due_at = accs.clock() + interval '1 s' WHERE schedule_id = v_row.id AND what = 'backfill' AND key = p_id::text;
  END IF;
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

-- Ends a backfill; its open jobs run on, unless they are to be cancelled.
CREATE FUNCTION accs.cancel_backfill(p_id uuid, p_cancel boolean DEFAULT false, p_reason text DEFAULT NULL,
  p_by text DEFAULT NULL) RETURNS TABLE (answer text, reason text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_fill accs.backfills;
BEGIN
  SELECT * INTO v_fill FROM accs.backfills b WHERE b.id = p_id FOR UPDATE;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'refused'::text, 'not_found'::text;
    RETURN;
  ELSIF v_fill.state <> 'running' THEN
    RETURN QUERY SELECT CASE v_fill.state WHEN 'cancelled' THEN 'repeated' ELSE 'refused' END, CASE v_fill.state
      WHEN 'done' THEN 'already_finished' END;
    RETURN;
  END IF;
  -- its row in the agenda goes when it is due next
  UPDATE accs.backfills SET state = 'cancelled', ended_at = accs.clock() WHERE id = p_id;
  PERFORM accs.note_schedule(v_fill.schedule_id, 'backfill_cancelled', p_by, p_reason, NULL, jsonb_build_object('id', p_id));
  IF p_cancel THEN
    PERFORM accs.cancel(ARRAY(SELECT o.job_id FROM accs.open_runs o WHERE o.key = 'backfill:' || p_id),
      coalesce(p_reason, 'its backfill was cancelled'), p_by);
  END IF;
  RETURN QUERY SELECT 'accepted'::text, NULL::text;
END $$;
SELECT accs.is_verb('cancel_backfill', may => '{scheduler,api}');

-- The state of a schedule in one word, with what a person wants to know of it.
CREATE VIEW accs.schedule_states AS
  SELECT s.id, s.name,
         CASE WHEN s.state = 'active' AND h.only_row THEN 'held' WHEN s.state = 'active' AND n.is_snoozed THEN 'snoozed'
           ELSE s.state END AS state,
         CASE WHEN s.state = 'active' AND h.only_row THEN h.reason ELSE s.state_reason END AS reason,
         CASE WHEN s.state = 'active' AND h.only_row THEN h.since ELSE s.state_since END AS since, s.paused_until,
         n.nominal AS next_nominal, n.fold AS next_fold, n.due_at AS next_due,
         (SELECT count(*)::int FROM accs.open_runs o WHERE o.schedule_id = s.id AND NOT o.waits) AS open_jobs,
         (SELECT count(*)::int FROM accs.open_runs o WHERE o.schedule_id = s.id AND o.waits) AS waiting_jobs
    FROM public.schedules s LEFT JOIN accs.schedule_hold h ON true
    LEFT JOIN LATERAL accs.next_occurrence(s.id) n ON s.state <> 'ended';

-- ---------------------------------------------------------------------------------------------------------------
-- Topics: events of the outside world and of accsd's own, and the schedules of kind event that they start
-- ---------------------------------------------------------------------------------------------------------------

-- What happened, as somebody emitted it. An id is drawn from the sequence of all causes: no other cause of a firing has it.
CREATE TABLE public.events (
  id           bigint NOT NULL DEFAULT nextval('accs.cause_seq'),
  topic        text COLLATE "C" NOT NULL,             -- an archive is sorted by it
  payload      jsonb NOT NULL DEFAULT '{}',
  key          text,                                   -- the same (topic, key) again is the same event: accs.event_keys
  source       text,
  occurred_at  timestamptz,                            -- as the emitter says
  at           timestamptz NOT NULL DEFAULT accs.clock(),
  job_id       uuid,                                   -- the job that emitted it, or whose end it is
  depth        int NOT NULL DEFAULT 0,                 -- how many runs lie between this event and one that no run brought about
  chain        uuid[] NOT NULL DEFAULT '{}',           -- the schedules of those runs
  matched      int NOT NULL DEFAULT 0,                 -- how many subscriptions it met
  PRIMARY KEY (id, at)
) PARTITION BY RANGE (at);

CREATE TABLE public.events_default PARTITION OF public.events DEFAULT;
CREATE INDEX events_topic ON public.events (topic, id);   -- accsd events --topic

CREATE INDEX firings_cause ON public.firings (cause_id) WHERE cause_id <> 0;   -- what an event caused

CREATE FUNCTION accs.refuse_topic_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'events is the record of what was emitted: % is refused', TG_OP
    USING ERRCODE = 'AC005', HINT = 'Emit an event by accs.emit_event.';
END $$;
CREATE TRIGGER append_only BEFORE INSERT OR UPDATE OR DELETE ON public.events
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_topic_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.events FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_topic_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.events_default
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_topic_change();

CREATE FUNCTION accs.mark_of(e public.events) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT e.id $$;
INSERT INTO accs.monthly (name, at, refuse, aged_by, stays)
VALUES ('events', 'at', 'refuse_topic_change', 'at', 'EXISTS (SELECT FROM accs.inbox i WHERE i.event_id = e.id)');

-- The topic that each schedule of kind event listens to: literal, or with * (one more segment) or ** (one or more) as its last
-- segment. Derived from schedules by their triggers. plain: nothing of it is an expression, so SQL alone can settle its events.
CREATE TABLE accs.subscriptions (
  schedule_id  uuid PRIMARY KEY,
  topic        text COLLATE "C" NOT NULL,   -- whatever collation a caller brings (session_user has one), its index is used
  plain        boolean NOT NULL
);

CREATE INDEX subscriptions_topic ON accs.subscriptions (topic);   -- emit

-- One narrow row for each subscription and event that is not settled. Whoever deletes it, under the schedule's lock, decides.
-- gathering: it waits in the window of that key (agenda, gather) for others.
CREATE TABLE accs.inbox (
  schedule_id  uuid NOT NULL,
  event_id     bigint NOT NULL,
  at           timestamptz NOT NULL,      -- the event's moment; of a replay the moment of that
  plain        boolean NOT NULL,
  why          text CHECK (why = ANY ('{paused,resumed,replay}')),   -- null: it was emitted
  gathering    text,
  options      jsonb,                     -- while it is gathered: filled in for this event
  PRIMARY KEY (schedule_id, event_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX inbox_plain ON accs.inbox (event_id) WHERE plain AND gathering IS NULL;               -- settle_plain_events
CREATE INDEX inbox_work ON accs.inbox (event_id) WHERE NOT plain AND gathering IS NULL;            -- events_to_settle
CREATE INDEX inbox_gathered ON accs.inbox (schedule_id, gathering, event_id) WHERE gathering IS NOT NULL;   -- settle_gathered

-- Which event was the first of a key, and until when the key means that one.
CREATE TABLE accs.event_keys (
  topic     text COLLATE "C" NOT NULL,
  key       text COLLATE "C" NOT NULL,
  event_id  bigint NOT NULL,
  until     timestamptz NOT NULL,
  PRIMARY KEY (topic, key)
);

CREATE INDEX event_keys_until ON accs.event_keys (until);   -- forget_event_keys

-- What is known of a subscription beside its ledger: how many events its filter left out, and when it ran last.
CREATE TABLE accs.event_tallies (
  schedule_id    uuid PRIMARY KEY,
  filtered       bigint NOT NULL DEFAULT 0,
  last_filtered  jsonb,                    -- a sample: id, topic, at, payload
  ran_at         timestamptz               -- of the event that ran last: a cooldown counts from there
) WITH (fillfactor = 70);

CREATE FUNCTION accs.max_depth() RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT 16 $$;
CREATE FUNCTION accs.most_inbox() RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT 10000 $$;

CREATE FUNCTION accs.is_topic(p text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT length(p) <= 200 AND p ~ '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){0,9}$'
$$;
CREATE FUNCTION accs.is_topic_pattern(p text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT length(p) <= 200 AND p ~ '^([A-Za-z0-9_-]+\.){0,9}([A-Za-z0-9_-]+|\*\*?)$'
$$;

-- The subscriptions that a topic can meet, by equality: itself, * in the place of its last segment, ** after each of its
-- beginnings. For a topic of n segments these are n + 2, however many subscriptions there are.
CREATE FUNCTION accs.patterns_of(p_topic text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY[p_topic, regexp_replace(p_topic, '[^.]*$', '*')]
         || ARRAY(SELECT concat_ws('.', nullif(array_to_string(s[1:n], '.'), ''), '**') FROM generate_series(0, cardinality(s) - 1) n)
    FROM string_to_array(p_topic, '.') s
$$;

CREATE FUNCTION accs.is_plain(s public.schedules) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT s.filter IS NULL AND NOT coalesce(s.gather ? 'by', false) AND strpos(s.options::text, '${') = 0
$$;

-- A schedule was written: its subscription follows. What the end of one leaves in its windows is settled like the rest of its inbox.
CREATE FUNCTION accs.keep_subscription() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  IF NEW.schedule_kind = 'event' AND NEW.state <> 'ended' AND accs.is_topic_pattern(NEW.schedule_expr) THEN
    INSERT INTO accs.subscriptions AS k (schedule_id, topic, plain) VALUES (NEW.id, NEW.schedule_expr, accs.is_plain(NEW))
    ON CONFLICT (schedule_id) DO UPDATE SET topic = excluded.topic, plain = excluded.plain
     WHERE (k.topic, k.plain) <> (excluded.topic, excluded.plain);
  ELSE
    DELETE FROM accs.subscriptions WHERE schedule_id = NEW.id;
    UPDATE accs.inbox SET gathering = NULL, options = NULL WHERE schedule_id = NEW.id AND gathering IS NOT NULL;
    DELETE FROM accs.agenda WHERE schedule_id = NEW.id AND what = 'gather';
  END IF;
  PERFORM accs.tell_schedulers();   -- accsd's own events may be wanted now
  RETURN NULL;
END $$;
CREATE TRIGGER subscribe AFTER INSERT ON public.schedules FOR EACH ROW WHEN (NEW.schedule_kind = 'event')
  EXECUTE FUNCTION accs.keep_subscription();
CREATE TRIGGER resubscribe AFTER UPDATE ON public.schedules FOR EACH ROW
  WHEN ((NEW.schedule_kind = 'event' OR OLD.schedule_kind = 'event')
        AND (NEW.revision <> OLD.revision OR (NEW.state = 'ended') <> (OLD.state = 'ended')))
  EXECUTE FUNCTION accs.keep_subscription();

-- Stores an event and puts it into the inbox of every subscription that it meets. Only INSERTs: it waits for nobody but for
-- whoever is emitting the same topic and key at this moment.
CREATE FUNCTION accs.emit(p_topic text, p_payload jsonb, p_key text, p_occurred_at timestamptz, p_source text, p_job uuid,
                          p_window interval, p_depth int, p_chain uuid[])
RETURNS TABLE (event_id bigint, answer text, matched int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_id    bigint := nextval('accs.cause_seq');
  v_first bigint;
  v_met   int;
BEGIN
  IF p_key IS NOT NULL THEN
    INSERT INTO accs.event_keys AS k (topic, key, event_id, until) VALUES (p_topic, p_key, v_id, v_now + p_window)
    ON CONFLICT (topic, key) DO UPDATE SET event_id = excluded.event_id, until = excluded.until WHERE k.until <= v_now;
    IF NOT FOUND THEN
      SELECT k.event_id INTO v_first FROM accs.event_keys k WHERE k.topic = p_topic AND k.key = p_key;
      RETURN QUERY SELECT v_first, 'repeated'::text, coalesce((SELECT e.matched FROM public.events e WHERE e.id = v_first), 0);
      RETURN;
    END IF;
  END IF;
  INSERT INTO accs.inbox (schedule_id, event_id, at, plain)
  SELECT s.schedule_id, v_id, v_now, s.plain FROM unnest(accs.patterns_of(p_topic)) AS p (topic),
         LATERAL (SELECT * FROM accs.subscriptions k WHERE k.topic = p.topic OFFSET 0) s;   -- fenced: one look-up for each
  GET DIAGNOSTICS v_met = ROW_COUNT;
  INSERT INTO public.events (id, topic, payload, key, source, occurred_at, at, job_id, depth, chain, matched)
  VALUES (v_id, p_topic, p_payload, p_key, p_source, p_occurred_at, v_now, p_job, p_depth, p_chain, v_met);
  IF v_met > 0 THEN
    PERFORM accs.tell_schedulers('event');
  END IF;
  RETURN QUERY SELECT v_id, 'accepted'::text, v_met;
END $$;

-- How deep in a chain of runs a job is, and through which schedules.
CREATE FUNCTION accs.depth_of(p_trigger jsonb) RETURNS int LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN jsonb_typeof(p_trigger -> 'depth') = 'number' THEN (p_trigger ->> 'depth')::int ELSE 0 END
$$;
CREATE FUNCTION accs.chain_of(p_trigger jsonb) RETURNS uuid[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY(SELECT c::uuid FROM jsonb_array_elements_text(
    CASE WHEN jsonb_typeof(p_trigger -> 'chain') = 'array' THEN p_trigger -> 'chain' ELSE '[]' END) c)
$$;

-- Emits an event in the caller's own transaction: a rollback takes it back, and once that transaction is committed the event is
-- not lost. The same (topic, key) within p_window is repeated, with the first event's id. p_job: the job in which it happens.
CREATE FUNCTION accs.emit_event(p_topic text, p_payload jsonb DEFAULT '{}', p_key text DEFAULT NULL, p_occurred_at timestamptz DEFAULT NULL,
                                p_source text DEFAULT NULL, p_job uuid DEFAULT NULL, p_window interval DEFAULT '24 hours')
RETURNS TABLE (event_id bigint, answer text, matched int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_source  text := left(coalesce(p_source, session_user), 200);
  v_trigger jsonb;
BEGIN
  IF accs.is_topic(p_topic) IS NOT TRUE THEN
    RAISE EXCEPTION 'an event can''t have the topic "%"', left(p_topic, 200) USING ERRCODE = 'invalid_parameter_value',
      HINT = 'A topic is 1 to 10 segments of A-Z a-z 0-9 _ -, joined by dots, at most 200 characters.';
  ELSIF p_topic = 'accs' OR p_topic LIKE 'accs.%' THEN
    RAISE EXCEPTION 'topic "%": topics that begin with accs. are accsd''s own', p_topic USING ERRCODE = 'AC006';
  ELSIF jsonb_typeof(p_payload) IS DISTINCT FROM 'object' THEN
    RAISE EXCEPTION 'the payload of an event is a JSON object' USING ERRCODE = 'invalid_parameter_value';
  ELSIF octet_length(p_payload::text) > 262144 THEN
    RAISE EXCEPTION 'the payload of an event has at most 256 KiB, not % bytes', octet_length(p_payload::text)
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Put it into the object store, and its address into the event.';
  ELSIF length(p_key) NOT BETWEEN 1 AND 200 THEN
    RAISE EXCEPTION 'the key of an event has 1 to 200 characters' USING ERRCODE = 'invalid_parameter_value';
  ELSIF p_window IS NULL OR p_window NOT BETWEEN '0' AND '366 days' THEN
    RAISE EXCEPTION 'a key is kept for at most 366 days, not for %', p_window USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_job IS NOT NULL THEN
    SELECT j.trigger INTO v_trigger FROM public.jobs j WHERE j.id = p_job;
  END IF;
  RETURN QUERY SELECT * FROM accs.emit(p_topic, p_payload, p_key, p_occurred_at, v_source, p_job, p_window,
    accs.depth_of(v_trigger), accs.chain_of(v_trigger));
END $$;
SELECT accs.is_verb('emit_event', pinned => true, may => '{agent,scheduler,api}');

-- What an evaluator has found for one event and one subscription: run (with its options, where they are templated, and the key
-- under which it is gathered), filtered, filter_error or refused (with the message).
CREATE TYPE accs.event_verdict AS (
  schedule_id  uuid,
  revision     int,
  event_id     bigint,
  verdict      text,
  options      jsonb,
  gathering    text,
  message      text
);

-- An event as a job's trigger and a run's task have it. A payload above 64 KiB is left out: its id stands for it.
CREATE FUNCTION accs.about_event(e public.events) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT jsonb_strip_nulls(jsonb_build_object('id', e.id, 'topic', e.topic, 'key', e.key, 'source', e.source, 'occurred_at', e.occurred_at,
           'at', e.at, 'job_id', e.job_id))
         || CASE WHEN octet_length(e.payload::text) <= 65536 THEN jsonb_build_object('payload', e.payload)
                 ELSE '{"payload_omitted": true}' END
$$;

-- Starts runs; one that raises an error is skipped, and the others go on.
CREATE FUNCTION accs.start_each(p_occasions accs.occasion[], p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_done accs.occasion[];
  v_occ  accs.occasion;
BEGIN
  BEGIN
    v_done := ARRAY(SELECT r FROM accs.start_runs(p_occasions, p_by) r);
  EXCEPTION WHEN OTHERS THEN
    IF SQLSTATE LIKE ANY ('{40%,53%,55%,57%,58%}') THEN
      RAISE;   -- nobody's fault: tried again as a whole
    ELSIF cardinality(p_occasions) = 1 THEN
      v_occ := p_occasions[1];
      v_occ.outcome := 'skipped';
      v_occ.reason := 'broken';
      v_occ.detail := coalesce(v_occ.detail, '{}') || jsonb_build_object('problem', left(SQLERRM, 2000));
      v_done := ARRAY[v_occ];
    ELSE
      FOREACH v_occ IN ARRAY p_occasions LOOP
        v_done := v_done || ARRAY(SELECT r FROM accs.start_each(ARRAY[v_occ], p_by) r);
      END LOOP;
    END IF;
  END;
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

-- What the occasions of events that were settled leave in their schedules' rows. Three in a row that raise an error break a
-- schedule, and the last run that it may have ends it.
CREATE FUNCTION accs.note_event_runs(p_done accs.occasion[], p_by text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_row record;
  v_s   public.schedules;
BEGIN
  FOR v_row IN
      SELECT d.schedule_id, count(*) FILTER (WHERE d.job_id IS NOT NULL)::int AS started, max(d.nominal) AS last_nominal,
             (array_agg(d.job_id ORDER BY d.cause_id DESC) FILTER (WHERE d.job_id IS NOT NULL))[1] AS last_job,
             max(d.due_at) FILTER (WHERE d.job_id IS NOT NULL) AS ran_at,
             count(*) FILTER (WHERE d.reason = 'broken' AND d.detail ? 'problem')::int AS raised,
             (array_agg(d.detail ->> 'problem') FILTER (WHERE d.reason = 'broken'))[1] AS problem
        FROM unnest(p_done) d GROUP BY d.schedule_id ORDER BY d.schedule_id LOOP
    UPDATE public.schedules s SET runs = s.runs + v_row.started, last_nominal = greatest(s.last_nominal, v_row.last_nominal),
           last_job_id = coalesce(v_row.last_job, s.last_job_id),
           refused_in_row = CASE WHEN v_row.started > 0 THEN 0 ELSE s.refused_in_row + v_row.raised END
     WHERE s.id = v_row.schedule_id RETURNING s.* INTO v_s;
    IF v_row.ran_at IS NOT NULL THEN
      INSERT INTO accs.event_tallies AS t (schedule_id, ran_at) VALUES (v_row.schedule_id, v_row.ran_at)
      ON CONFLICT (schedule_id) DO UPDATE SET ran_at = greatest(t.ran_at, excluded.ran_at);
    END IF;
    IF v_s.refused_in_row >= 3 AND v_s.state = 'active' THEN
      PERFORM accs.break_schedule(v_s, v_row.problem, p_by);
    ELSIF v_s.runs >= v_s.max_runs AND v_s.state <> 'ended' THEN
      PERFORM accs.move_schedule(v_row.schedule_id, 'ended', 'max_runs');
      PERFORM accs.note_schedule(v_row.schedule_id, 'ended', 'accsd', 'max_runs');
    END IF;
  END LOOP;
END $$;

-- A length of time in JSON, as PostgreSQL reads it: "90s", "5m", or seconds. Null for what is none: the planner has told its author.
CREATE FUNCTION accs.length_of(p jsonb) RETURNS interval LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN CASE WHEN jsonb_typeof(p) IN ('string', 'number') THEN (p #>> '{}')::interval END;
EXCEPTION WHEN data_exception THEN
  RETURN NULL;
END $$;

-- When a window closes: quiet after its last event, at_most after its first, at once when it has its size. What a cooldown
-- gathers closes with that.
CREATE FUNCTION accs.window_ends(s public.schedules, p_window text, p_first timestamptz, p_last timestamptz, p_events bigint)
RETURNS timestamptz LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p_window = 'cooldown' THEN (SELECT t.ran_at + s.cooldown FROM accs.event_tallies t WHERE t.schedule_id = s.id)
              WHEN jsonb_typeof(s.gather -> 'size') = 'number' AND p_events >= (s.gather ->> 'size')::numeric THEN accs.clock()
              WHEN s.gather ?| '{quiet,at_most,size}'
                THEN least(p_last + accs.length_of(s.gather -> 'quiet'), p_first + accs.length_of(s.gather -> 'at_most'), 'infinity')
              ELSE accs.clock() END
$$;

-- Decides about events: who filtered and rendered them says what was found, and the rest is decided here, under the lock of their
-- schedules. One that somebody else is changing is refused (locked), one that was edited since (stale); both are asked again.
CREATE FUNCTION accs.decide_events(p_verdicts accs.event_verdict[], p_by text)
RETURNS TABLE (schedule_id uuid, event_id bigint, answer text, outcome text, reason text, late interval, job_id uuid) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now      timestamptz := accs.clock();
  v_locked   uuid[];
  v_row      record;
  v_s        public.schedules;
  v_e        public.events;
  v_occ      accs.occasion;
  v_ran      timestamptz;
  v_start    accs.occasion[] := '{}';
  v_done     accs.occasion[] := '{}';
  v_one      accs.occasion[];
  v_took     tid[] := '{}';    -- by place: where the inbox was empty when it was last looked over, a join would read all of it for each
  v_filtered uuid[] := '{}';
  v_left_out bigint[] := '{}';
  v_gathered accs.event_verdict[] := '{}';
  v_careful  boolean;
  v_window   text;
BEGIN
  IF EXISTS (SELECT FROM accs.schedule_hold) THEN
    RETURN QUERY SELECT v.schedule_id, v.event_id, 'refused'::text, NULL::text, 'held'::text, NULL::interval, NULL::uuid
      FROM unnest(p_verdicts) v;
    RETURN;
  END IF;
  v_locked := ARRAY(SELECT s.id FROM public.schedules s WHERE s.id = ANY (ARRAY(SELECT DISTINCT v.schedule_id FROM unnest(p_verdicts) v))
                     ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED);
  RETURN QUERY SELECT v.schedule_id, v.event_id, 'refused'::text, NULL::text, 'locked'::text, NULL::interval, NULL::uuid
    FROM unnest(p_verdicts) v WHERE v.schedule_id <> ALL (v_locked);
  -- nobody else takes from the inbox of a schedule that is locked here, so that what is read now is ours
  FOR v_row IN
    SELECT v.*, i.at, i.why, i.place, e.event, s.schedule, a.disabled_at
      FROM unnest(p_verdicts) v
      JOIN LATERAL (SELECT s AS schedule, s.created_by FROM public.schedules s WHERE s.id = v.schedule_id OFFSET 0) s ON true
      LEFT JOIN LATERAL (SELECT i.at, i.why, i.ctid AS place FROM accs.inbox i WHERE i.schedule_id = v.schedule_id
                           AND i.event_id = v.event_id AND i.gathering IS NULL OFFSET 0) i ON true
      LEFT JOIN LATERAL (SELECT e AS event FROM public.events e WHERE e.id = v.event_id LIMIT 1) e ON true
      LEFT JOIN LATERAL (SELECT * FROM accs.actors WHERE name = s.created_by OFFSET 0) a ON true
     WHERE v.schedule_id = ANY (v_locked) ORDER BY v.event_id, v.schedule_id LOOP
    v_s := v_row.schedule;
    v_e := v_row.event;
    v_ran := NULL;
    IF v_row.place IS NULL THEN
      RETURN QUERY SELECT v_row.schedule_id, v_row.event_id, 'repeated'::text, NULL::text, NULL::text, NULL::interval, NULL::uuid;
      CONTINUE;
    ELSIF v_row.revision <> v_s.revision THEN
      RETURN QUERY SELECT v_row.schedule_id, v_row.event_id, 'refused'::text, NULL::text, 'stale'::text, NULL::interval, NULL::uuid;
      CONTINUE;
    END IF;
    IF v_row.verdict = 'filtered' THEN
      v_took := v_took || v_row.place;
      v_filtered := v_filtered || v_row.schedule_id;
      v_left_out := v_left_out || v_row.event_id;
      RETURN QUERY SELECT v_row.schedule_id, v_row.event_id, 'accepted'::text, 'filtered'::text, NULL::text, NULL::interval, NULL::uuid;
      CONTINUE;
    END IF;
    -- what was settled in this very call counts for those that have a limit
    v_careful := v_s.cooldown IS NOT NULL OR v_s.max_runs IS NOT NULL;
    IF v_careful THEN
      SELECT * INTO v_s FROM public.schedules s WHERE s.id = v_row.schedule_id;
      SELECT t.ran_at INTO v_ran FROM accs.event_tallies t WHERE t.schedule_id = v_row.schedule_id;
    END IF;
    v_occ := ROW(v_row.schedule_id, v_row.at AT TIME ZONE 'UTC', 0, v_row.event_id, v_row.at, 'skipped', 'refused', NULL, NULL, NULL, NULL,
                 v_row.options, NULL, false, NULL, NULL)::accs.occasion;
    v_window := NULL;
    IF v_e.id IS NULL THEN
      v_occ.detail := '{"problem": "the event is not kept any more"}';
    ELSIF v_row.verdict = 'filter_error' THEN
      v_occ.reason := 'filter_error';
      v_occ.detail := jsonb_build_object('problem', left(v_row.message, 2000));
    ELSIF v_row.verdict <> 'run' THEN
      v_occ.detail := jsonb_build_object('problem', left(v_row.message, 2000));
    ELSIF v_s.state = 'ended' OR v_s.schedule_kind <> 'event' THEN
      v_occ.reason := 'requested';
      v_occ.detail := jsonb_build_object('ended', coalesce(v_s.state_reason, 'the schedule listens to no topic any more'));
    ELSIF v_e.depth >= accs.max_depth() OR NOT v_s.reenter AND v_s.id = ANY (v_e.chain) THEN
      v_occ.reason := 'loop';
      v_occ.detail := jsonb_build_object('depth', v_e.depth, 'chain', v_e.chain);
    ELSIF v_row.why = 'paused' OR v_s.state = 'paused' AND v_row.at >= v_s.state_since THEN
      v_occ.reason := 'paused';
    ELSIF v_s.state = 'broken' THEN
      v_occ.reason := 'broken';
    ELSIF v_row.disabled_at IS NOT NULL THEN
      v_occ.reason := 'owner_disabled';
    ELSIF v_row.at < v_s.start_at OR v_row.at >= v_s.end_at THEN
      v_occ.reason := 'excluded';
      v_occ.detail := jsonb_strip_nulls(jsonb_build_object('start_at', v_s.start_at, 'end_at', v_s.end_at));
    ELSIF v_row.why IS NULL AND v_row.at < v_ran + v_s.cooldown AND NOT (v_s.cooldown_trailing OR v_s.gather IS NOT NULL AND EXISTS (
            SELECT FROM accs.agenda a WHERE a.schedule_id = v_s.id AND a.what = 'gather' AND a.key = coalesce(v_row.gathering, ''))) THEN
      v_occ.reason := 'cooldown';
      v_occ.detail := jsonb_build_object('until', v_ran + v_s.cooldown);
    ELSE
      v_occ.outcome := CASE v_row.why WHEN 'resumed' THEN 'caught_up' ELSE 'fired' END;
      v_occ.reason := CASE v_row.why WHEN 'resumed' THEN 'resumed' WHEN 'replay' THEN 'backfill' ELSE 'event' END;
      IF v_row.why IS NULL AND v_s.gather IS NOT NULL THEN
        v_window := coalesce(v_row.gathering, '');
      ELSIF v_row.why IS NULL AND v_row.at < v_ran + v_s.cooldown THEN
        v_window := 'cooldown';
      END IF;
    END IF;
    IF v_window IS NOT NULL THEN   -- it stays, and waits for others
      UPDATE accs.inbox SET gathering = v_window, options = v_row.options WHERE ctid = v_row.place;
      v_gathered := v_gathered || ROW(v_row.schedule_id, NULL, v_row.event_id, NULL, NULL, v_window, NULL)::accs.event_verdict;
      RETURN QUERY SELECT v_row.schedule_id, v_row.event_id, 'accepted'::text, 'gathered'::text, NULL::text, NULL::interval, NULL::uuid;
      CONTINUE;
    END IF;
    v_took := v_took || v_row.place;
    IF v_occ.outcome = 'skipped' THEN
      v_done := v_done || v_occ;
      CONTINUE;
    END IF;
    v_occ.trigger := jsonb_build_object('cause', 'event', 'event', accs.about_event(v_e), 'depth', v_e.depth + 1,
                                        'chain', v_e.chain || v_s.id);
    IF v_careful THEN
      v_one := ARRAY(SELECT r FROM accs.start_each(ARRAY[v_occ], p_by) r);
      PERFORM accs.note_event_runs(v_one, p_by);
      v_done := v_done || v_one;
    ELSE
      v_start := v_start || v_occ;
    END IF;
  END LOOP;

  DELETE FROM accs.inbox WHERE ctid = ANY (v_took);
  IF v_start <> '{}' THEN
    v_one := ARRAY(SELECT r FROM accs.start_each(v_start, p_by) r);
    PERFORM accs.note_event_runs(v_one, p_by);
    v_done := v_done || v_one;
  END IF;
  -- one of a pause that may not start, because another waits already, stays skipped
  PERFORM accs.record_firings(ARRAY(SELECT d FROM unnest(v_done) d WHERE d.outcome <> 'merged' OR NOT EXISTS (
    SELECT FROM public.firings f WHERE f.schedule_id = d.schedule_id AND f.nominal = d.nominal AND f.fold = 0 AND f.cause_id = d.cause_id)),
    p_by);
  INSERT INTO accs.event_tallies AS t (schedule_id, filtered, last_filtered)
  SELECT u.schedule_id, u.n, (SELECT accs.about_event(e) FROM public.events e WHERE e.id = u.last)
    FROM (SELECT u.schedule_id, count(*) AS n, max(u.event_id) AS last FROM unnest(v_filtered, v_left_out) AS u (schedule_id, event_id)
           GROUP BY 1 ORDER BY 1) u
  ON CONFLICT (schedule_id) DO UPDATE SET filtered = t.filtered + excluded.filtered, last_filtered = excluded.last_filtered;
  IF v_gathered <> '{}' THEN
    INSERT INTO accs.agenda AS a (schedule_id, what, key, due_at)
    SELECT s.id, 'gather', w.gathering, accs.window_ends(s, w.gathering, i.first, i.last, i.n)
      FROM (SELECT DISTINCT g.schedule_id, g.gathering FROM unnest(v_gathered) g ORDER BY 1, 2) w
      JOIN public.schedules s ON s.id = w.schedule_id,
           LATERAL (SELECT min(i.at) AS first, max(i.at) AS last, count(*) AS n FROM accs.inbox i
                     WHERE i.schedule_id = w.schedule_id AND i.gathering = w.gathering) i
    ON CONFLICT (schedule_id, what, key) DO UPDATE SET due_at = excluded.due_at;
    PERFORM accs.tell_schedulers();
  END IF;
  RETURN QUERY SELECT d.schedule_id, d.cause_id, 'accepted'::text, d.outcome, d.reason, greatest(v_now - d.due_at, '0'), d.job_id
    FROM unnest(v_done) d;
END $$;


-- What evaluators have before them: events of subscriptions with a filter, a gathering expression or templated options, the oldest
-- first; no more than about 4 MiB of payloads at once. Several may take the same: the first that settles wins.
CREATE FUNCTION accs.events_to_settle(p_limit int DEFAULT 200, p_except uuid[] DEFAULT '{}') RETURNS TABLE (
  schedule_id uuid, revision int, event_id bigint, topic text, payload jsonb, key text, source text, occurred_at timestamptz,
  at timestamptz, job_id uuid, depth int
) LANGUAGE sql STABLE AS $$
  SELECT w.schedule_id, w.revision, w.event_id, w.topic, w.payload, w.key, w.source, w.occurred_at, w.at, w.job_id, w.depth
    FROM (SELECT i.schedule_id, s.revision, i.event_id, e.topic, e.payload, e.key, e.source, e.occurred_at, e.at, e.job_id, e.depth,
                 sum(octet_length(e.payload::text)) OVER (ORDER BY i.event_id, i.schedule_id) - octet_length(e.payload::text) AS before
            FROM (SELECT * FROM accs.inbox i WHERE NOT i.plain AND i.gathering IS NULL AND i.schedule_id <> ALL (p_except)
                   ORDER BY i.event_id LIMIT p_limit) i
            JOIN LATERAL (SELECT * FROM public.schedules WHERE id = i.schedule_id OFFSET 0) s ON true
            LEFT JOIN LATERAL (SELECT * FROM public.events e WHERE e.id = i.event_id LIMIT 1) e ON true) w
   WHERE w.before IS NULL OR w.before < 4194304
   ORDER BY w.event_id, w.schedule_id
$$;
SELECT accs.is_verb('events_to_settle', pinned => true, may => '{scheduler}');

-- Settles events by what an evaluator has found: an array of {schedule_id, revision, event_id, verdict, options, gathering, message}.
CREATE FUNCTION accs.settle_events(p_verdicts jsonb, p_by text DEFAULT NULL)
RETURNS TABLE (schedule_id uuid, event_id bigint, answer text, outcome text, reason text, late interval, job_id uuid) LANGUAGE sql AS $$
  SELECT * FROM accs.decide_events(ARRAY(SELECT v FROM jsonb_populate_recordset(NULL::accs.event_verdict, p_verdicts) v), p_by)
$$;
SELECT accs.is_verb('settle_events', pinned => true, may => '{scheduler}');

-- Settles events of subscriptions in which nothing is an expression: SQL alone, so that psql can do it. A schedule that somebody is
-- changing is left for the next call.
CREATE FUNCTION accs.settle_plain_events(p_limit int DEFAULT 200, p_by text DEFAULT NULL)
RETURNS TABLE (schedule_id uuid, event_id bigint, answer text, outcome text, reason text, late interval, job_id uuid) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_verdicts accs.event_verdict[];
  v_changed  uuid[];
BEGIN
  IF EXISTS (SELECT FROM accs.schedule_hold) THEN
    RETURN;
  END IF;
  SELECT array_agg(ROW(w.schedule_id, w.revision, w.event_id, 'run', NULL, NULL, NULL)::accs.event_verdict) FILTER (WHERE w.plain),
         array_agg(DISTINCT w.schedule_id) FILTER (WHERE NOT w.plain)
    INTO v_verdicts, v_changed
    FROM (SELECT i.schedule_id, s.revision, i.event_id, accs.is_plain(s) AS plain
            FROM (SELECT * FROM accs.inbox i WHERE i.plain AND i.gathering IS NULL ORDER BY i.event_id OFFSET 0) i,
                 LATERAL (SELECT * FROM public.schedules s WHERE s.id = i.schedule_id FOR NO KEY UPDATE SKIP LOCKED) s
           ORDER BY i.event_id LIMIT p_limit) w;
  IF v_changed IS NOT NULL THEN   -- since they came, the schedule was given a filter or the like: an evaluator has to look
    UPDATE accs.inbox i SET plain = false WHERE i.schedule_id = ANY (v_changed) AND i.plain AND i.gathering IS NULL;
  END IF;
  RETURN QUERY SELECT * FROM accs.decide_events(v_verdicts, p_by);
END $$;
SELECT accs.is_verb('settle_plain_events', pinned => true, may => '{scheduler}');

-- A window has closed: one run with all of its events. Where it can't start (a run is still going on, an error) the window stays
-- open, and is tried again.
CREATE FUNCTION accs.settle_gathered(p_row public.schedules, p_key text, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_ran   timestamptz := (SELECT t.ran_at FROM accs.event_tallies t WHERE t.schedule_id = p_row.id);
  v_due   timestamptz;
  v_skip  text;
  v_again timestamptz;
  v_in    record;
  v_occ   accs.occasion;
  v_done  accs.occasion[] := '{}';
BEGIN
  SELECT least(a.due_at, v_now) INTO v_due FROM accs.agenda a WHERE a.schedule_id = p_row.id AND a.what = 'gather' AND a.key = p_key;
  v_skip := CASE WHEN p_row.state = 'paused' THEN 'paused'
                 WHEN EXISTS (SELECT FROM accs.actors c WHERE c.name = p_row.created_by AND c.disabled_at IS NOT NULL) THEN 'owner_disabled'
                 WHEN NOT EXISTS (SELECT FROM public.workflows w WHERE w.name = p_row.workflow AND w.is_active
                                     AND (p_row.version IS NULL OR w.version = p_row.version)) THEN 'workflow_inactive'
                 WHEN v_now < v_ran + p_row.cooldown AND NOT p_row.cooldown_trailing THEN 'cooldown' END;
  IF v_skip IS NULL AND p_row.state = 'broken' THEN
    v_again := v_now + interval '1 min';
  ELSIF v_skip IS NULL AND v_now < v_ran + p_row.cooldown THEN
    v_again := v_ran + p_row.cooldown;
  ELSIF v_skip IS NULL THEN
    SELECT count(*) AS n, min(e.at) AS first, max(e.at) AS last, jsonb_agg(e.id ORDER BY e.id) AS ids, max(e.depth) AS depth,
           (array_agg(accs.about_event(e.event) ORDER BY e.id DESC))[1] AS newest, (array_agg(e.options ORDER BY e.id DESC))[1] AS options,
           jsonb_agg(accs.about_event(e.event) - CASE WHEN e.bytes > 1048576 THEN 'payload' ELSE '' END ORDER BY e.id)
             FILTER (WHERE e.nth <= 1000) AS events
      INTO v_in
      FROM (SELECT i.event_id AS id, i.at, i.options, e AS event, e.depth, row_number() OVER (ORDER BY i.event_id) AS nth,
                   sum(octet_length(e.payload::text)) OVER (ORDER BY i.event_id) AS bytes
              FROM accs.inbox i JOIN public.events e ON e.id = i.event_id WHERE i.schedule_id = p_row.id AND i.gathering = p_key) e;
    IF v_in.n = 0 THEN
      v_skip := 'refused';   -- none of them is kept any more
    ELSE
      v_occ := ROW(p_row.id, v_now AT TIME ZONE 'UTC', 0, nextval('accs.cause_seq'), v_due, 'fired', 'event', NULL, NULL, NULL,
                   jsonb_build_object('gathered', v_in.n, 'first', v_in.first, 'last', v_in.last), v_in.options,
                   jsonb_build_object('cause', 'event', 'event', v_in.newest, 'events', v_in.events, 'event_ids', v_in.ids, 'gathered',
                     jsonb_build_object('count', v_in.n, 'first', v_in.first, 'last', v_in.last, 'by', p_key), 'depth', v_in.depth + 1,
                     'chain', (SELECT to_jsonb(array_agg(DISTINCT c) || p_row.id) FROM accs.inbox i
                                 JOIN public.events e ON e.id = i.event_id LEFT JOIN LATERAL unnest(e.chain) c ON true
                                WHERE i.schedule_id = p_row.id AND i.gathering = p_key AND c IS NOT NULL)),
                   false, NULL, NULL)::accs.occasion;
      v_done := ARRAY(SELECT r FROM accs.start_each(ARRAY[v_occ], p_by) r);
      IF v_done[1].job_id IS NULL THEN
        v_again := v_now + least(greatest(coalesce(accs.length_of(p_row.gather -> 'quiet'), '5 s'), '1 s'), '1 min');
        IF v_done[1].reason = 'broken' THEN
          PERFORM accs.note_event_runs(v_done, p_by);
          PERFORM accs.note_schedule(p_row.id, 'failed', coalesce(p_by, 'accsd'), 'gather: ' || (v_done[1].detail ->> 'problem'));
        END IF;
        v_done := '{}';
      END IF;
    END IF;
  END IF;
  IF v_again IS NOT NULL THEN
    UPDATE accs.agenda a SET due_at = v_again WHERE a.schedule_id = p_row.id AND a.what = 'gather' AND a.key = p_key;
    RETURN;
  END IF;
  WITH gone AS (
    DELETE FROM accs.inbox i WHERE i.schedule_id = p_row.id AND i.gathering = p_key RETURNING i.event_id, i.at
  )
  SELECT v_done || array_agg(ROW(p_row.id, g.at AT TIME ZONE 'UTC', 0, g.event_id, g.at,
           CASE WHEN v_skip IS NULL THEN 'merged' ELSE 'skipped' END, coalesce(v_skip, 'gathered'),
           CASE WHEN v_skip IS NULL THEN v_done[1].nominal END, NULL, NULL,
           CASE WHEN v_skip IS NULL THEN jsonb_build_object('run', v_done[1].cause_id) END, NULL, NULL, false, NULL, NULL)::accs.occasion
           ORDER BY g.event_id)
    INTO v_done FROM gone g;
  DELETE FROM accs.agenda a WHERE a.schedule_id = p_row.id AND a.what = 'gather' AND a.key = p_key;
  PERFORM accs.record_firings(v_done, p_by);
  PERFORM accs.note_event_runs(v_done, p_by);
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

-- The end of a pause: none, the newest, or all of the events that came during it go back into the inbox, to run. What came and was
-- not looked at yet was paused all the same.
CREATE FUNCTION accs.recover_events(p_row public.schedules, p_recover text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_plain boolean := accs.is_plain(p_row);
  v_done  accs.occasion[];
BEGIN
  UPDATE accs.inbox i SET why = 'paused'
   WHERE i.schedule_id = p_row.id AND i.gathering IS NULL AND i.why IS NULL AND i.at >= p_row.state_since;
  IF p_recover NOT IN ('one', 'all') THEN
    RETURN;
  END IF;
  WITH wanted AS (
    SELECT f.nominal, f.cause_id, f.due_at FROM public.firings f
     WHERE f.schedule_id = p_row.id AND f.outcome = 'skipped' AND f.reason = 'paused' AND f.settled_at >= p_row.state_since
       AND EXISTS (SELECT FROM public.events e WHERE e.id = f.cause_id)
    UNION ALL
    SELECT i.at AT TIME ZONE 'UTC', i.event_id, i.at FROM accs.inbox i WHERE i.schedule_id = p_row.id AND i.why = 'paused'
  ), chosen AS (
    SELECT * FROM wanted w WHERE p_recover = 'one' OR accs.clock() - w.due_at <= coalesce(p_row.catch_up, '1 day')
     ORDER BY w.cause_id DESC LIMIT CASE p_recover WHEN 'one' THEN 1 ELSE p_row.catch_up_max END
  ), back AS (
    INSERT INTO accs.inbox AS i (schedule_id, event_id, at, plain, why)
    SELECT p_row.id, c.cause_id, c.due_at, v_plain, 'resumed' FROM chosen c
    ON CONFLICT (schedule_id, event_id) DO UPDATE SET why = 'resumed'
  )
  SELECT array_agg(ROW(p_row.id, c.nominal, 0, c.cause_id, c.due_at, 'caught_up', 'resumed', NULL, NULL, NULL, NULL, NULL, NULL, false,
                       NULL, NULL)::accs.occasion) INTO v_done FROM chosen c;
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

-- Gives events to one subscription again, whatever became of them there; gathering and cooldown do not count.
CREATE FUNCTION accs.replay_events(p_event_ids bigint[], p_which text, p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (event_id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row  public.schedules := accs.lock_schedule(p_which);
  v_made bigint[];
BEGIN
  PERFORM accs.check_size(cardinality(p_event_ids));
  IF v_row.schedule_kind <> 'event' OR v_row.state = 'ended' THEN
    RETURN QUERY SELECT u.id, 'refused'::text, CASE WHEN v_row.state = 'ended' THEN 'ended' ELSE 'not_by_event' END
      FROM unnest(p_event_ids) AS u (id);
    RETURN;
  END IF;
  WITH made AS (
    INSERT INTO accs.inbox AS i (schedule_id, event_id, at, plain, why)
    SELECT v_row.id, e.id, accs.clock(), accs.is_plain(v_row), 'replay' FROM public.events e WHERE e.id = ANY (p_event_ids) ORDER BY e.id
    ON CONFLICT DO NOTHING RETURNING i.event_id
  )
  SELECT array_agg(m.event_id ORDER BY m.event_id) INTO v_made FROM made m;
  IF v_made IS NOT NULL THEN
    PERFORM accs.note_schedule(v_row.id, 'replay', p_by, p_reason, NULL, jsonb_build_object('events', to_jsonb(v_made[1:100]), 'count',
      cardinality(v_made)));
    PERFORM accs.tell_schedulers();
  END IF;
  RETURN QUERY SELECT u.id, CASE WHEN u.id = ANY (v_made) THEN 'accepted' WHEN e.id IS NOT NULL THEN 'repeated' ELSE 'refused' END,
                      CASE WHEN e.id IS NULL THEN 'not_found' END
    FROM unnest(p_event_ids) WITH ORDINALITY AS u (id, n)
    LEFT JOIN LATERAL (SELECT e.id FROM public.events e WHERE e.id = u.id LIMIT 1) e ON true ORDER BY u.n;
END $$;
SELECT accs.is_verb('replay_events', may => '{scheduler,api}');

-- While all schedules are held, events wait; of one subscription no more than so many, and later ones are missed. Returns how many.
CREATE FUNCTION accs.trim_inbox(p_by text DEFAULT NULL) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_id   uuid;
  v_done accs.occasion[];
  v_n    int := 0;
BEGIN
  FOR v_id IN SELECT schedule_id FROM accs.inbox GROUP BY schedule_id HAVING count(*) > accs.most_inbox() ORDER BY schedule_id LOOP
    CONTINUE WHEN NOT EXISTS (SELECT FROM public.schedules WHERE id = v_id FOR NO KEY UPDATE SKIP LOCKED);
    WITH gone AS (
      DELETE FROM accs.inbox i WHERE i.schedule_id = v_id AND i.gathering IS NULL AND i.event_id > (
        SELECT b.event_id FROM accs.inbox b WHERE b.schedule_id = v_id ORDER BY b.event_id OFFSET accs.most_inbox() - 1 LIMIT 1)
      RETURNING i.event_id, i.at
    )
    SELECT array_agg(ROW(v_id, g.at AT TIME ZONE 'UTC', 0, g.event_id, g.at, 'missed', 'over_limit', NULL, NULL, NULL, NULL, NULL, NULL,
                         false, NULL, NULL)::accs.occasion) INTO v_done FROM gone g;
    PERFORM accs.record_firings(v_done, p_by);
    v_n := v_n + coalesce(cardinality(v_done), 0);
  END LOOP;
  RETURN v_n;
END $$;
SELECT accs.is_verb('trim_inbox', may => '{scheduler}');

-- Keys whose time is over are forgotten.
CREATE FUNCTION accs.forget_event_keys() RETURNS bigint LANGUAGE sql AS $$
  WITH gone AS (DELETE FROM accs.event_keys WHERE until <= accs.clock() RETURNING 1) SELECT count(*) FROM gone
$$;
SELECT accs.is_verb('forget_event_keys', may => '{scheduler}');

-- accsd's own events. Whoever listens hears of them in the transaction in which they happen; nobody does, nothing is stored.
CREATE FUNCTION accs.emit_own(p_topic text, p_payload jsonb, p_job uuid, p_trigger jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM unnest(accs.patterns_of(p_topic)) AS p (topic),
                         LATERAL (SELECT FROM accs.subscriptions k WHERE k.topic = p.topic OFFSET 0) s) THEN
    PERFORM accs.emit(p_topic, jsonb_strip_nulls(p_payload), NULL, NULL, 'accsd', p_job, NULL, accs.depth_of(p_trigger),
      accs.chain_of(p_trigger));
  END IF;
END $$;

-- The results of a job's last steps, those that no other waits for, by step; nothing where they are above 64 KiB.
CREATE FUNCTION accs.last_results(p_job uuid) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN octet_length(r.results::text) <= 65536 THEN r.results END
    FROM (SELECT jsonb_object_agg(t.task_key, t.results) AS results FROM public.job_tasks t
           WHERE t.job_id = p_job AND t.dependants IS NULL AND t.results IS NOT NULL) r
$$;

CREATE FUNCTION accs.emit_job_outcome() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  PERFORM accs.emit_own('accs.job.' || NEW.status, jsonb_build_object('workflow', w.name, 'version', w.version, 'job_id', NEW.id,
            'status', NEW.status, 'error_code', NEW.error_code, 'error_message', NEW.error_message, 'results', accs.last_results(NEW.id),
            'trigger', NEW.trigger - 'event' - 'events' - 'event_ids', 'finished_at', NEW.finished_at), NEW.id, NEW.trigger)
     FROM public.workflows w WHERE w.id = NEW.workflow_id;
  RETURN NULL;
END $$;

CREATE FUNCTION accs.emit_dead_task() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  PERFORM accs.emit_own('accs.task.dead', jsonb_build_object('workflow', w.name, 'version', w.version, 'job_id', NEW.job_id,
            'task_id', NEW.job_task_id, 'step', t.task_key, 'service', NEW.service_name, 'reason', NEW.reason, 'error_code', NEW.error_code,
            'error_message', NEW.error_message, 'dead_letter', NEW.id), NEW.job_id, j.trigger)
     FROM public.jobs j JOIN public.workflows w ON w.id = j.workflow_id LEFT JOIN public.job_tasks t ON t.id = NEW.job_task_id
    WHERE j.id = NEW.job_id;
  RETURN NULL;
END $$;

-- A due time that was missed. (One of an event is not told: what listens to that could feed itself.)
CREATE FUNCTION accs.emit_missed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  PERFORM accs.emit_own('accs.schedule.missed', jsonb_build_object('schedule', s.name, 'schedule_id', s.id, 'workflow', s.workflow,
            'nominal', to_char(NEW.nominal, 'YYYY-MM-DD"T"HH24:MI:SS'), 'timezone', s.timezone, 'reason', NEW.reason, 'times', NEW.times),
            NULL, NULL)
     FROM public.schedules s WHERE s.id = NEW.schedule_id;
  RETURN NULL;
END $$;

CREATE FUNCTION accs.emit_broken() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  PERFORM accs.emit_own('accs.schedule.broken', jsonb_build_object('schedule', NEW.name, 'schedule_id', NEW.id, 'workflow', NEW.workflow,
                          'problem', NEW.state_reason), NULL, jsonb_build_object('chain', jsonb_build_array(NEW.id)));
  RETURN NULL;
END $$;

CREATE FUNCTION accs.emit_failed_node() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  PERFORM accs.emit_own('accs.node.failed', jsonb_build_object('node', NEW.node, 'because', NEW.because), NULL, NULL);
  RETURN NULL;
END $$;

-- Disabled, so that they cost nothing, until somebody subscribes to what they tell: choose_outcomes.
CREATE TRIGGER emit_outcome AFTER UPDATE OF status ON public.jobs
  FOR EACH ROW WHEN (OLD.status <> NEW.status AND NEW.status IN ('done', 'error', 'cancelled')) EXECUTE FUNCTION accs.emit_job_outcome();
ALTER TABLE public.jobs DISABLE TRIGGER emit_outcome;
CREATE TRIGGER emit_dead AFTER INSERT ON public.dead_letters FOR EACH ROW EXECUTE FUNCTION accs.emit_dead_task();
ALTER TABLE public.dead_letters DISABLE TRIGGER emit_dead;
CREATE TRIGGER emit_missed AFTER INSERT ON public.firings FOR EACH ROW WHEN (NEW.outcome = 'missed' AND NEW.cause_id = 0)
  EXECUTE FUNCTION accs.emit_missed();
ALTER TABLE public.firings DISABLE TRIGGER emit_missed;
CREATE TRIGGER emit_broken AFTER UPDATE OF state ON public.schedules FOR EACH ROW WHEN (NEW.state = 'broken' AND OLD.state <> 'broken')
  EXECUTE FUNCTION accs.emit_broken();
ALTER TABLE public.schedules DISABLE TRIGGER emit_broken;
CREATE TRIGGER emit_failed AFTER UPDATE OF state ON accs.power FOR EACH ROW WHEN (NEW.state = 'failed' AND OLD.state <> 'failed')
  EXECUTE FUNCTION accs.emit_failed_node();
ALTER TABLE accs.power DISABLE TRIGGER emit_failed;

INSERT INTO accs.locks VALUES ('outcomes');

-- Which triggers of accsd's own events are wanted, or not wanted any more.
CREATE FUNCTION accs.outcomes_to_choose() RETURNS TABLE (relation regclass, name name, wanted boolean) LANGUAGE sql STABLE AS $$
  SELECT t.tgrelid::regclass, t.tgname, w.wanted
    FROM (VALUES ('public.jobs'::regclass, 'emit_outcome', '{accs.job.done,accs.job.error,accs.job.cancelled}'::text[]),
                 ('public.dead_letters', 'emit_dead', '{accs.task.dead}'), ('public.firings', 'emit_missed', '{accs.schedule.missed}'),
                 ('public.schedules', 'emit_broken', '{accs.schedule.broken}'),
                 ('accs.power', 'emit_failed', '{accs.node.failed}')) AS k (relation, name, topics)
    JOIN pg_trigger t ON t.tgrelid = k.relation AND t.tgname = k.name,
         LATERAL (SELECT EXISTS (SELECT FROM accs.subscriptions s, unnest(k.topics) p
                                  WHERE s.topic = ANY (accs.patterns_of(p))) AS wanted) w
   WHERE (t.tgenabled <> 'D') <> w.wanted ORDER BY 1, 2
$$;

-- Enables the triggers that some subscription needs and disables the others: from then on they are told. In a transaction of its
-- own and not for long, because to change a trigger waits for the writers of its table, and everybody waits behind it.
CREATE FUNCTION accs.choose_outcomes() RETURNS text[] LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
DECLARE
  v_row  record;
  v_done text[] := '{}';
BEGIN
  PERFORM accs.lock('outcomes');
  FOR v_row IN SELECT * FROM accs.outcomes_to_choose() LOOP
    EXECUTE format('ALTER TABLE %s %s TRIGGER %I', v_row.relation, CASE WHEN v_row.wanted THEN 'ENABLE' ELSE 'DISABLE' END, v_row.name);
    v_done := v_done || (CASE WHEN v_row.wanted THEN '+' ELSE '-' END || v_row.name);
  END LOOP;
  RETURN v_done;
END $$;
SELECT accs.is_verb('choose_outcomes', may => '{scheduler}');

-- For an evaluator between its passes: are there events that SQL alone can settle, events to evaluate, triggers to choose; why all
-- is held.
CREATE FUNCTION accs.events_outlook() RETURNS TABLE (plain boolean, work boolean, choose boolean, hold text) LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT FROM accs.inbox i WHERE i.plain AND i.gathering IS NULL),
         EXISTS (SELECT FROM accs.inbox i WHERE NOT i.plain AND i.gathering IS NULL),
         EXISTS (SELECT FROM accs.outcomes_to_choose()),
         (SELECT concat_ws(', ', coalesce(h.reason, 'no reason given'), 'by ' || h.by) FROM accs.schedule_hold h)
$$;
SELECT accs.is_verb('events_outlook', may => '{scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- Conditions: samples that are judged, and start a job when a value crosses its threshold
-- ---------------------------------------------------------------------------------------------------------------

-- The state of each schedule of kind condition. level is what was last decided, and what it goes back to: the state is rising or
-- falling while a streak of samples speaks for the other level, and unknown while no value is known.
CREATE TABLE accs.conditions (
  schedule_id    uuid PRIMARY KEY,
  state          text NOT NULL DEFAULT 'unknown' CHECK (state IN ('clear', 'rising', 'raised', 'falling', 'unknown')),
  since          timestamptz NOT NULL DEFAULT accs.clock(),   -- of the state
  level          text CHECK (level IN ('clear', 'raised')),   -- null: nothing was decided yet
  streak         int NOT NULL DEFAULT 0,                      -- so many samples in a row speak for the other level
  streak_since   timestamptz,
  last_value     jsonb,
  last_at        timestamptz,
  last_error     text,                                        -- why the last sample had no value; null: it had one
  begun_at       timestamptz NOT NULL DEFAULT accs.clock(),   -- since when samples are awaited
  raised_at      timestamptz,                                 -- raised, or repeated, last
  last_fired_at  timestamptz
) WITH (fillfactor = 50);

-- The last 200 samples of each condition. verdict: judged; unknown (it has no value); ignored (an older one than the last); held
-- (it waits for the end of the hold); stale (no sample came for too long).
CREATE TABLE accs.condition_samples (
  id           bigint PRIMARY KEY DEFAULT nextval('accs.cause_seq'),
  schedule_id  uuid NOT NULL,
  at           timestamptz NOT NULL,
  received_at  timestamptz NOT NULL DEFAULT accs.clock(),
  key          text CHECK (length(key) BETWEEN 1 AND 200),
  value        jsonb,
  error        text,
  by           text,
  verdict      text NOT NULL CHECK (verdict IN ('judged', 'unknown', 'ignored', 'held', 'stale'))
);

CREATE INDEX condition_samples_of ON accs.condition_samples (schedule_id, id);
CREATE UNIQUE INDEX condition_samples_key ON accs.condition_samples (schedule_id, key) WHERE key IS NOT NULL;
CREATE INDEX condition_samples_held ON accs.condition_samples (schedule_id, id) WHERE verdict = 'held';
CREATE INDEX schedules_condition ON public.schedules (schedule_expr) WHERE schedule_kind = 'condition';   -- report_sample

-- What a schedule's condition says, read: one threshold, and how it is applied.
CREATE TYPE accs.judgement AS (
  above           numeric,
  below           numeric,
  equals          jsonb,       -- "is"
  clears          numeric,     -- clear_above or clear_below; null: where it is not raised
  samples         int,
  lasts           interval,    -- "for"
  clear_samples   int,
  repeat          interval,
  every           interval,
  stale           interval,
  on_unknown      text,
  fire_initially  boolean,
  is_probed       boolean
);

-- A number is seconds; a text is 90s, 10m or 1h30m.
CREATE FUNCTION accs.duration_of(p_written jsonb) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE jsonb_typeof(p_written) WHEN 'number' THEN make_interval(secs => p_written::double precision)
                                      WHEN 'string' THEN (p_written #>> '{}')::interval END
$$;

CREATE FUNCTION accs.judgement_of(p_condition jsonb) RETURNS accs.judgement LANGUAGE sql IMMUTABLE AS $$
  SELECT ROW((c -> 'above')::numeric, (c -> 'below')::numeric, c -> 'is',
             coalesce(c -> 'clear_below', c -> 'clear_above')::numeric,
             coalesce((c -> 'samples')::int, 1), coalesce(accs.duration_of(c -> 'for'), '0'), coalesce((c -> 'clear_samples')::int, 1),
             accs.duration_of(c -> 'repeat'), accs.duration_of(c -> 'every'),
             coalesce(accs.duration_of(c -> 'stale'), 3 * accs.duration_of(c -> 'every')),
             coalesce(c ->> 'on_unknown', 'keep'), coalesce((c -> 'fire_initially')::boolean, false),
             coalesce(jsonb_typeof(c -> 'source') = 'object', false))::accs.judgement
    FROM jsonb_strip_nulls(p_condition) c
$$;

-- A condition begins, or is another one now: its first sample decides the state. What can't be judged is refused; the planner
-- finds the other mistakes.
CREATE FUNCTION accs.begin_condition() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
DECLARE
  v_how accs.judgement;
BEGIN
  IF TG_OP = 'UPDATE' AND (OLD.schedule_kind, OLD.schedule_expr, OLD.condition)
                          IS NOT DISTINCT FROM (NEW.schedule_kind, NEW.schedule_expr, NEW.condition) THEN
    RETURN NULL;
  END IF;
  DELETE FROM accs.agenda WHERE schedule_id = NEW.id AND what = 'judge';
  DELETE FROM accs.conditions WHERE schedule_id = NEW.id;
  DELETE FROM accs.condition_samples WHERE schedule_id = NEW.id AND verdict = 'held';
  IF NEW.schedule_kind = 'condition' THEN
    BEGIN
      v_how := accs.judgement_of(NEW.condition);
    EXCEPTION WHEN data_exception OR feature_not_supported THEN
      RAISE EXCEPTION 'schedule "%": its condition can''t be read: %', NEW.name, SQLERRM USING ERRCODE = 'invalid_parameter_value',
        HINT = 'A threshold is a number, a duration is a number of seconds or a text such as 90s, 10m or 1h30m.';
    END;
    IF num_nonnulls(v_how.above, v_how.below, v_how.equals) <> 1 THEN
      RAISE EXCEPTION 'schedule "%": a condition says when it is raised: above, below or is, and one of them', NEW.name
        USING ERRCODE = 'invalid_parameter_value', HINT = '{"above": 100, "clear_below": 80, "for": "5m"}';
    END IF;
    INSERT INTO accs.conditions (schedule_id) VALUES (NEW.id);
    IF v_how.stale IS NOT NULL THEN
      INSERT INTO accs.agenda (schedule_id, what, due_at) VALUES (NEW.id, 'judge', accs.clock() + v_how.stale);
      PERFORM accs.tell_schedulers();
    END IF;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER begin_condition AFTER INSERT ON public.schedules
  FOR EACH ROW WHEN (NEW.schedule_kind = 'condition') EXECUTE FUNCTION accs.begin_condition();
CREATE TRIGGER change_condition AFTER UPDATE OF schedule_kind, schedule_expr, condition ON public.schedules
  FOR EACH ROW WHEN (OLD.schedule_kind = 'condition' OR NEW.schedule_kind = 'condition') EXECUTE FUNCTION accs.begin_condition();

-- The planner has found the condition to be sound: its probe has its place in the agenda from now on. The phase is the schedule's own.
-- So has its staleness, which a schedule that was broken has lost.
CREATE FUNCTION accs.plan_probe(p_row public.schedules) RETURNS void LANGUAGE sql AS $$
  INSERT INTO accs.agenda (schedule_id, what, due_at)
  SELECT p_row.id, 'judge', accs.clock() + j.stale FROM accs.judgement_of(p_row.condition) j
   WHERE p_row.schedule_kind = 'condition' AND j.stale IS NOT NULL
  ON CONFLICT DO NOTHING;
  INSERT INTO accs.agenda (schedule_id, what, due_at)
  SELECT p_row.id, 'probe', accs.clock() + j.every * ((hashtextextended(p_row.id::text, 0) & 65535) / 65536.0)
    FROM accs.judgement_of(p_row.condition) j WHERE p_row.schedule_kind = 'condition' AND j.is_probed AND j.every > '0'
  ON CONFLICT DO NOTHING
$$;

-- What the job that a sample starts is told of it.
CREATE FUNCTION accs.sample_trigger(p_row public.schedules, p_cause bigint, p_at timestamptz, p_detail jsonb) RETURNS jsonb
LANGUAGE sql STABLE AS $$
  SELECT jsonb_build_object('cause', 'condition', 'condition', p_row.schedule_expr, 'sample',
                            p_detail || jsonb_build_object('id', p_cause, 'at', p_at))
$$;

-- A crossing (or a repetition) on its way into the ledger. The caller has locked the schedule, and its agenda is in order: jobs come
-- after it.
CREATE FUNCTION accs.fire_condition(p_row public.schedules, p_cause bigint, p_at timestamptz, p_detail jsonb, p_by text)
RETURNS accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
  v_why text;
  v_occ accs.occasion;
BEGIN
  v_why := CASE WHEN p_row.state = 'paused' THEN 'paused'
                WHEN EXISTS (SELECT FROM accs.actors a WHERE a.name = p_row.created_by AND a.disabled_at IS NOT NULL) THEN 'owner_disabled'
                WHEN v_now < p_row.start_at THEN 'excluded'
                WHEN v_now < (SELECT c.last_fired_at FROM accs.conditions c WHERE c.schedule_id = p_row.id) + p_row.cooldown
                  THEN 'cooldown' END;
  v_occ := ROW(p_row.id, p_at AT TIME ZONE 'UTC', 0, p_cause, p_at, CASE WHEN v_why IS NULL THEN 'fired' ELSE 'skipped' END,
               coalesce(v_why, 'condition'), NULL, NULL, NULL, p_detail, NULL,
               accs.sample_trigger(p_row, p_cause, p_at, p_detail), false, NULL, NULL)::accs.occasion;
  BEGIN
    IF v_why IS NULL THEN
      SELECT * INTO v_occ FROM accs.start_runs(ARRAY[v_occ], p_by);
    END IF;
    PERFORM accs.record_firings(ARRAY[v_occ], p_by);
    UPDATE public.schedules s SET runs = s.runs + (v_occ.job_id IS NOT NULL)::int, last_job_id = coalesce(v_occ.job_id, s.last_job_id),
           last_nominal = v_occ.nominal, refused_in_row = 0 WHERE s.id = p_row.id;
  EXCEPTION WHEN OTHERS THEN
    IF SQLSTATE LIKE ANY ('{40%,53%,55%,57%,58%}') THEN
      RAISE;   -- nobody's fault: tried again as a whole
    END IF;
    v_occ.outcome := 'skipped';
    v_occ.reason := 'broken';
    v_occ.detail := p_detail || jsonb_build_object('problem', left(SQLERRM, 2000));
    PERFORM accs.record_firings(ARRAY[v_occ], p_by);
    UPDATE public.schedules s SET refused_in_row = s.refused_in_row + 1 WHERE s.id = p_row.id;
    IF p_row.refused_in_row >= 2 THEN
      PERFORM accs.break_schedule(p_row, v_occ.detail ->> 'problem', p_by);
    END IF;
  END;
  IF v_occ.outcome = 'fired' THEN
    UPDATE accs.conditions c SET last_fired_at = v_now WHERE c.schedule_id = p_row.id;
  END IF;
  IF v_occ.job_id IS NOT NULL AND p_row.max_runs <= p_row.runs + 1 THEN
    DELETE FROM accs.agenda WHERE schedule_id = p_row.id AND what IN ('probe', 'judge');
    PERFORM accs.move_schedule(p_row.id, 'ended', 'max_runs');
    PERFORM accs.note_schedule(p_row.id, 'ended', 'accsd', 'max_runs');
  END IF;
  RETURN v_occ;
END $$;

-- One sample with a value: moves the state, and fires where the value has crossed its threshold. The caller has locked the schedule.
-- Between the thresholds the level stays what it was, and a streak towards the other one ends.
CREATE FUNCTION accs.judge_sample(p_row public.schedules, p_id bigint, p_value jsonb, p_at timestamptz, p_by text)
RETURNS accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_how   accs.judgement := accs.judgement_of(p_row.condition);
  v_was   accs.conditions;
  v_now   accs.conditions;
  v_high  boolean;
  v_low   boolean;
  v_fires jsonb;
BEGIN
  SELECT * INTO STRICT v_was FROM accs.conditions WHERE schedule_id = p_row.id;
  v_now := v_was;
  IF p_at - v_was.last_at > v_how.stale THEN   -- the streak is of another time
    v_now.streak := 0;
    v_now.streak_since := NULL;
  END IF;
  v_high := CASE WHEN v_how.above IS NOT NULL THEN p_value::numeric > v_how.above
                 WHEN v_how.below IS NOT NULL THEN p_value::numeric < v_how.below ELSE p_value = v_how.equals END;
  v_low := NOT v_high AND CASE WHEN v_how.clears IS NULL THEN true
                               WHEN v_how.above IS NOT NULL THEN p_value::numeric < v_how.clears ELSE p_value::numeric > v_how.clears END;
  IF v_was.level IS NULL AND NOT v_how.fire_initially THEN
    v_now.level := CASE WHEN v_high THEN 'raised' ELSE 'clear' END;
  ELSE
    v_now.level := coalesce(v_was.level, 'clear');
    IF v_now.level = 'clear' AND v_high OR v_now.level = 'raised' AND v_low THEN
      v_now.streak := v_now.streak + 1;
      v_now.streak_since := coalesce(v_now.streak_since, p_at);
    ELSE
      v_now.streak := 0;
      v_now.streak_since := NULL;
    END IF;
    IF v_now.level = 'clear' AND v_high AND v_now.streak >= v_how.samples AND p_at - v_now.streak_since >= v_how.lasts THEN
      v_now.level := 'raised';
      v_fires := jsonb_build_object('value', p_value, 'streak', v_now.streak, 'streak_since', v_now.streak_since);
    ELSIF v_now.level = 'raised' AND v_low AND v_now.streak >= v_how.clear_samples THEN
      v_now.level := 'clear';
    ELSIF v_now.level = 'raised' AND v_now.streak = 0 AND p_at - v_was.raised_at >= v_how.repeat THEN
      v_fires := jsonb_build_object('value', p_value, 'streak', 0, 'repeat', true);
    END IF;
  END IF;
  IF v_now.level <> coalesce(v_was.level, 'clear') THEN
    v_now.streak := 0;
    v_now.streak_since := NULL;
  END IF;
  v_now.state := CASE WHEN v_now.streak = 0 THEN v_now.level WHEN v_now.level = 'clear' THEN 'rising' ELSE 'falling' END;
  IF v_fires IS NOT NULL OR v_now.level = 'raised' AND v_was.level IS NULL THEN
    v_now.raised_at := p_at;
  END IF;
  UPDATE accs.conditions c SET state = v_now.state, since = CASE WHEN c.state = v_now.state THEN c.since ELSE p_at END,
         level = v_now.level, streak = v_now.streak, streak_since = v_now.streak_since, last_value = p_value, last_at = p_at,
         last_error = NULL, raised_at = v_now.raised_at WHERE c.schedule_id = p_row.id;
  UPDATE accs.condition_samples SET verdict = 'judged' WHERE id = p_id AND verdict <> 'judged';
  IF v_how.stale IS NOT NULL THEN   -- a row that is there moves on by itself when it is due
    INSERT INTO accs.agenda (schedule_id, what, due_at) VALUES (p_row.id, 'judge', p_at + v_how.stale) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      PERFORM accs.tell_schedulers();
    END IF;
  END IF;
  IF v_fires IS NULL THEN
    RETURN NULL;
  END IF;
  RETURN accs.fire_condition(p_row, p_id, p_at, v_fires, p_by);
END $$;

-- Nothing is known of the condition any more: it is unknown, which is not false. A pause that stopped its probe is no reason to act.
CREATE FUNCTION accs.judge_stale(p_row public.schedules, p_by text) RETURNS accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_how accs.judgement := accs.judgement_of(p_row.condition);
  v_was accs.conditions;
  v_act text := CASE WHEN v_how.is_probed AND p_row.state = 'paused' THEN 'keep' ELSE v_how.on_unknown END;
  v_at  timestamptz;
  v_id  bigint;
BEGIN
  SELECT * INTO STRICT v_was FROM accs.conditions WHERE schedule_id = p_row.id;
  v_at := coalesce(v_was.last_at, v_was.begun_at) + v_how.stale;
  INSERT INTO accs.condition_samples (schedule_id, at, error, by, verdict)
  VALUES (p_row.id, v_at, 'no sample with a value for ' || v_how.stale, p_by, 'stale') RETURNING id INTO v_id;
  UPDATE accs.conditions c SET streak = 0, streak_since = NULL, level = CASE v_act WHEN 'raise' THEN 'raised' WHEN 'clear' THEN 'clear'
           ELSE c.level END,
         state = CASE v_act WHEN 'raise' THEN 'raised' WHEN 'clear' THEN 'clear' ELSE 'unknown' END,
         since = CASE WHEN c.state = CASE v_act WHEN 'raise' THEN 'raised' WHEN 'clear' THEN 'clear' ELSE 'unknown' END
                   THEN c.since ELSE v_at END,
         raised_at = CASE WHEN v_act = 'raise' AND c.level IS DISTINCT FROM 'raised' THEN v_at ELSE c.raised_at END
   WHERE c.schedule_id = p_row.id;
  IF v_act = 'raise' AND v_was.level IS DISTINCT FROM 'raised' THEN
    RETURN accs.fire_condition(p_row, v_id, v_at, jsonb_build_object('value', NULL, 'streak', 0, 'unknown', true), p_by);
  END IF;
  RETURN NULL;
END $$;

-- Judges the samples that a hold kept waiting, in their order. The caller has locked the schedule.
CREATE FUNCTION accs.judge_held(p_row public.schedules, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_row    public.schedules := p_row;
  v_sample accs.condition_samples;
  v_fired  accs.occasion;
BEGIN
  FOR v_sample IN SELECT * FROM accs.condition_samples WHERE schedule_id = p_row.id AND verdict = 'held' ORDER BY at, id LOOP
    IF v_row.state IN ('ended', 'broken') OR v_sample.at < (SELECT c.last_at FROM accs.conditions c WHERE c.schedule_id = p_row.id) THEN
      UPDATE accs.condition_samples SET verdict = 'ignored' WHERE id = v_sample.id;
      CONTINUE;
    END IF;
    v_fired := accs.judge_sample(v_row, v_sample.id, v_sample.value, v_sample.at, p_by);
    IF v_fired.schedule_id IS NOT NULL THEN
      RETURN NEXT v_fired;
      SELECT * INTO v_row FROM public.schedules WHERE id = p_row.id;
    END IF;
  END LOOP;
END $$;

-- A row 'judge' of the agenda is due: samples waited for the end of a hold, or perhaps the condition is stale.
CREATE FUNCTION accs.settle_condition(p_row public.schedules, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_row   public.schedules;
  v_until timestamptz;
  v_fired accs.occasion;
BEGIN
  RETURN QUERY SELECT * FROM accs.judge_held(p_row, p_by);
  SELECT * INTO v_row FROM public.schedules WHERE id = p_row.id;
  SELECT coalesce(c.last_at, c.begun_at) + (accs.judgement_of(v_row.condition)).stale INTO v_until
    FROM accs.conditions c WHERE c.schedule_id = p_row.id;
  IF v_row.state IN ('active', 'paused') AND v_until > accs.clock() THEN
    UPDATE accs.agenda SET due_at = v_until WHERE schedule_id = p_row.id AND what = 'judge';
    RETURN;
  END IF;
  DELETE FROM accs.agenda WHERE schedule_id = p_row.id AND what = 'judge';
  IF v_row.state IN ('active', 'paused') AND v_until IS NOT NULL THEN
    v_fired := accs.judge_stale(v_row, p_by);
    IF v_fired.schedule_id IS NOT NULL THEN
      RETURN NEXT v_fired;
    END IF;
  END IF;
END $$;

-- Records a sample of one condition and judges it. The caller has locked the schedule. Without a value it is unknown: it neither
-- feeds nor breaks a streak.
CREATE FUNCTION accs.take_sample(p_row public.schedules, p_value jsonb, p_error text, p_at timestamptz, p_key text, p_by text)
RETURNS TABLE (answer text, reason text, sample_id bigint, state text, outcome text, outcome_reason text, job_id uuid)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row   public.schedules := p_row;
  v_how   accs.judgement := accs.judgement_of(p_row.condition);
  v_now   timestamptz := accs.clock();
  v_at    timestamptz := least(coalesce(p_at, v_now), v_now);
  v_last  timestamptz;
  v_id    bigint;
  v_is    text;
  v_fired accs.occasion;
BEGIN
  IF v_row.end_at <= v_now AND v_row.state IN ('active', 'paused') THEN
    DELETE FROM accs.agenda WHERE schedule_id = v_row.id;
    PERFORM accs.move_schedule(v_row.id, 'ended', 'end_at');
    PERFORM accs.note_schedule(v_row.id, 'ended', 'accsd', 'end_at');
    v_row.state := 'ended';
  END IF;
  SELECT s.id INTO v_id FROM accs.condition_samples s WHERE s.schedule_id = v_row.id AND s.key = p_key;
  v_is := CASE WHEN v_id IS NOT NULL THEN 'repeated'
               WHEN v_row.state IN ('ended', 'broken') THEN v_row.state
               WHEN p_at > v_now + interval '1 min' THEN 'in_the_future'
               WHEN jsonb_typeof(p_value) NOT IN ('number', 'boolean') THEN 'not_a_value'
               WHEN jsonb_typeof(p_value) = 'boolean' AND v_how.equals IS NULL THEN 'not_a_number'
               WHEN length(p_value::text) > 100 THEN 'too_long' END;
  IF v_is IS NULL AND EXISTS (SELECT FROM accs.schedule_hold) THEN
    v_is := CASE WHEN (SELECT count(*) FROM accs.condition_samples s WHERE s.schedule_id = v_row.id AND s.verdict = 'held') >= 1000
                 THEN 'over_limit' ELSE 'held' END;
  ELSIF v_is IS NULL THEN
    FOR v_fired IN SELECT * FROM accs.judge_held(v_row, p_by) LOOP
      SELECT * INTO v_row FROM public.schedules s WHERE s.id = p_row.id;
    END LOOP;
    v_fired := NULL;
    IF v_row.state IN ('ended', 'broken') THEN
      v_is := v_row.state;
    END IF;
  END IF;
  IF v_is IS NOT NULL AND v_is <> 'held' THEN
    RETURN QUERY SELECT CASE v_is WHEN 'repeated' THEN v_is ELSE 'refused' END, nullif(v_is, 'repeated'), v_id, c.state, NULL::text,
      NULL::text, NULL::uuid FROM accs.conditions c WHERE c.schedule_id = v_row.id;
    RETURN;
  END IF;
  SELECT c.last_at INTO v_last FROM accs.conditions c WHERE c.schedule_id = v_row.id;
  INSERT INTO accs.condition_samples (schedule_id, at, key, value, error, by, verdict)
  VALUES (v_row.id, v_at, p_key, p_value, left(coalesce(p_error, CASE WHEN p_value IS NULL THEN 'it has no value' END), 2000), p_by,
          CASE WHEN p_value IS NULL THEN 'unknown' WHEN v_is = 'held' THEN v_is WHEN v_at < v_last THEN 'ignored' ELSE 'judged' END)
  RETURNING id INTO v_id;
  DELETE FROM accs.condition_samples s WHERE s.schedule_id = v_row.id AND s.verdict <> 'held' AND s.id <= (
    SELECT o.id FROM accs.condition_samples o WHERE o.schedule_id = v_row.id ORDER BY o.id DESC OFFSET 200 LIMIT 1);
  IF p_value IS NULL THEN
    UPDATE accs.conditions c SET last_error = left(coalesce(p_error, 'it has no value'), 2000) WHERE c.schedule_id = v_row.id;
  ELSIF v_is = 'held' THEN
    INSERT INTO accs.agenda AS a (schedule_id, what, due_at) VALUES (v_row.id, 'judge', v_now)
    ON CONFLICT (schedule_id, what, key) DO UPDATE SET due_at = least(a.due_at, excluded.due_at);
  ELSIF v_at >= v_last OR v_last IS NULL THEN
    v_fired := accs.judge_sample(v_row, v_id, p_value, v_at, p_by);
  END IF;
  RETURN QUERY SELECT CASE WHEN v_is IS NULL AND p_value IS NOT NULL AND v_at < v_last THEN 'refused' ELSE 'accepted' END,
    CASE WHEN v_is = 'held' THEN v_is WHEN p_value IS NOT NULL AND v_at < v_last THEN 'older' END,
    v_id, c.state, v_fired.outcome, v_fired.reason, v_fired.job_id FROM accs.conditions c WHERE c.schedule_id = v_row.id;
END $$;

-- A sample from outside: a number, true or false, or null where it could not be measured. It goes to every schedule that has this
-- condition and no probe of its own. With a key the same call again is repeated; one that is older than the last is only recorded.
CREATE FUNCTION accs.report_sample(p_name text, p_value jsonb, p_at timestamptz DEFAULT NULL, p_key text DEFAULT NULL,
  p_by text DEFAULT NULL)
RETURNS TABLE (schedule text, answer text, reason text, sample_id bigint, state text, outcome text, outcome_reason text, job_id uuid)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_ids uuid[] := ARRAY(SELECT s.id FROM public.schedules s WHERE s.schedule_kind = 'condition' AND s.schedule_expr = p_name
                         ORDER BY s.id FOR NO KEY UPDATE);
  v_row public.schedules;
BEGIN
  PERFORM accs.lock_runs(v_ids);
  FOR v_row IN SELECT * FROM public.schedules s WHERE s.id = ANY (v_ids) ORDER BY s.id LOOP
    IF (accs.judgement_of(v_row.condition)).is_probed THEN
      RETURN QUERY SELECT v_row.name, 'refused'::text, 'has_a_probe'::text, NULL::bigint, c.state, NULL::text, NULL::text, NULL::uuid
        FROM accs.conditions c WHERE c.schedule_id = v_row.id;
    ELSE
      RETURN QUERY SELECT v_row.name, t.* FROM accs.take_sample(v_row, nullif(p_value, 'null'), NULL, p_at, p_key,
        coalesce(p_by, session_user)) t;
    END IF;
  END LOOP;
  IF v_ids = '{}' THEN
    RAISE EXCEPTION 'there is no condition "%"', left(p_name, 200) USING ERRCODE = 'AC004', HINT = 'accsd conditions list shows them.';
  END IF;
END $$;
SELECT accs.is_verb('report_sample', may => '{scheduler,api}');

-- Probes that are due, for whoever runs them now: each is moved on first, so that no other one takes it. A paused schedule is not
-- probed, and nothing is while all schedules are held.
CREATE FUNCTION accs.take_probes(p_limit int DEFAULT 16) RETURNS TABLE (
  schedule_id uuid, schedule text, name text, revision int, condition jsonb, every interval, begun_at timestamptz, taken_at timestamptz
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  IF EXISTS (SELECT FROM accs.schedule_hold) THEN
    RETURN;
  END IF;
  RETURN QUERY
  WITH due AS MATERIALIZED (
    SELECT a.schedule_id, a.due_at FROM accs.agenda a
     WHERE a.what = ANY ('{replan,probe}') AND a.what = 'probe' AND a.due_at <= accs.clock()
     ORDER BY a.due_at LIMIT p_limit FOR UPDATE SKIP LOCKED
  ), each AS MATERIALIZED (
    SELECT d.due_at, s.*, (accs.judgement_of(s.condition)).every AS apart
      FROM due d, LATERAL (SELECT * FROM public.schedules WHERE id = d.schedule_id OFFSET 0) s
  ), moved AS (
    UPDATE accs.agenda a SET due_at = e.due_at + e.apart * (floor(extract(epoch FROM accs.clock() - e.due_at)
                                                                    / extract(epoch FROM e.apart)) + 1)::double precision
      FROM each e WHERE a.schedule_id = e.id AND a.what = 'probe'
  )
  SELECT e.id, e.name, e.schedule_expr, e.revision, e.condition, e.apart, c.begun_at, accs.clock()
    FROM each e JOIN accs.conditions c ON c.schedule_id = e.id WHERE e.state = 'active' ORDER BY e.due_at;
END $$;
SELECT accs.is_verb('take_probes', may => '{scheduler}');

-- What a probe has found, as of the time at which it was taken: a value, or why there is none. One that was made for another revision
-- is refused.
CREATE FUNCTION accs.record_probe(p_schedule uuid, p_revision int, p_value jsonb, p_error text, p_at timestamptz, p_by text DEFAULT NULL)
RETURNS TABLE (answer text, reason text, sample_id bigint, state text, outcome text, outcome_reason text, job_id uuid)
LANGUAGE plpgsql AS $$
DECLARE
  v_row public.schedules;
BEGIN
  SELECT * INTO v_row FROM public.schedules s WHERE s.id = p_schedule FOR NO KEY UPDATE;
  IF NOT FOUND OR v_row.revision <> p_revision OR v_row.schedule_kind <> 'condition' OR v_row.state = 'paused' THEN
    RETURN QUERY SELECT 'refused'::text, CASE WHEN v_row.state = 'paused' THEN 'paused' ELSE 'stale' END, NULL::bigint, NULL::text,
      NULL::text, NULL::text, NULL::uuid;
    RETURN;
  END IF;
  RETURN QUERY SELECT * FROM accs.take_sample(v_row, nullif(p_value, 'null'), p_error, p_at, 'probe/' || p_at, p_by);
END $$;
SELECT accs.is_verb('record_probe', may => '{scheduler}');

-- When the last event of a topic came since then; null: none did. A pattern has no index: it is looked for from the newest event back.
CREATE FUNCTION accs.last_event_at(p_topic text, p_since timestamptz) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_since timestamptz := coalesce(p_since, '-infinity');
BEGIN
  IF accs.is_topic(p_topic) THEN
    RETURN (SELECT e.at FROM public.events e WHERE e.topic = p_topic AND e.at >= v_since ORDER BY e.id DESC LIMIT 1);
  END IF;
  RETURN (SELECT e.at FROM public.events e WHERE p_topic = ANY (accs.patterns_of(e.topic)) AND e.at >= v_since ORDER BY e.id DESC LIMIT 1);
END $$;

-- What accsd knows by itself, as a value: waiting (tasks of a service that could be claimed or are held), oldest_wait (in seconds),
-- dead_letters (open ones, of a service or of all), node_away (p_silent: unseen for so long), silence (seconds since the last event
-- of a topic, or since p_since where none came).
CREATE FUNCTION accs.measure(p_what text, p_of text DEFAULT NULL, p_silent interval DEFAULT '60 s', p_since timestamptz DEFAULT NULL)
RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_found jsonb;
BEGIN
  CASE p_what
    WHEN 'waiting' THEN
      SELECT to_jsonb(count(*)) INTO v_found FROM accs.lanes l JOIN accs.waiting w ON w.lane = l.id WHERE l.service = p_of;
    WHEN 'oldest_wait' THEN
      SELECT to_jsonb(coalesce(round(extract(epoch FROM accs.clock() - min(w.created_at)), 3), 0)) INTO v_found
        FROM accs.lanes l JOIN accs.waiting w ON w.lane = l.id WHERE l.service = p_of AND w.hold IS NULL;
    WHEN 'dead_letters' THEN
      SELECT to_jsonb(count(*)) INTO v_found FROM public.dead_letters d
       WHERE d.redriven_at IS NULL AND d.dismissed_at IS NULL AND (p_of IS NULL OR d.service_name = p_of);
    WHEN 'node_away' THEN
      SELECT to_jsonb(n.awake_state <> 'sleep' AND coalesce(p.state, 'unknown') <> ALL ('{asleep,waking,booting}')
                      AND (n.awake_state <> 'awake' OR coalesce(n.last_seen <= accs.clock() - p_silent, true))) INTO v_found
        FROM public.nodes n LEFT JOIN accs.power p ON p.node = n.name WHERE n.name = p_of;
      IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no node "%"', left(p_of, 200) USING ERRCODE = 'AC004';
      END IF;
    WHEN 'silence' THEN
      v_found := to_jsonb(round(extract(epoch FROM accs.clock() - coalesce(accs.last_event_at(p_of, p_since), p_since, accs.clock())), 3));
    ELSE
      RAISE EXCEPTION 'accsd does not measure "%"', p_what USING ERRCODE = 'invalid_parameter_value';
  END CASE;
  RETURN v_found;
END $$;
SELECT accs.is_verb('measure', may => '{scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- Quarantine: a node on which a service fails, a step that fails everywhere
-- ---------------------------------------------------------------------------------------------------------------

-- How attempts ended, as long as it matters: every failure, and of the steps that failed what passed since then. Empty
-- while nothing fails.
CREATE TABLE accs.conclusions (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ts           timestamptz NOT NULL,
  node         text NOT NULL,
  service      text NOT NULL,
  workflow_id  uuid NOT NULL,
  task_key     text NOT NULL,
  task_id      uuid NOT NULL,
  passed       boolean NOT NULL,
  lost         boolean NOT NULL DEFAULT false,   -- for a reason that is not the task's
  permanent    boolean NOT NULL DEFAULT false,
  code         text,
  message      text
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX conclusions_failed ON accs.conclusions (workflow_id, task_key, id) WHERE NOT passed;        -- finish_tasks, note_passes
CREATE INDEX conclusions_passed ON accs.conclusions (workflow_id, task_key, node, id) WHERE passed;      -- note_passes

-- A service that a node must not take tasks of: 'shut' until a probe passes, then on 'trial' with one task at a time.
CREATE TABLE accs.quarantines (
  node         text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  service      text NOT NULL,
  state        text NOT NULL DEFAULT 'shut' CHECK (state IN ('shut', 'trial')),
  since        timestamptz NOT NULL DEFAULT accs.clock(),
  reason       text NOT NULL,
  detail       jsonb NOT NULL DEFAULT '{}',
  times        int NOT NULL DEFAULT 1,        -- how often it was shut: +1 when a trial fails
  probes       int NOT NULL DEFAULT 0,        -- those that failed since it was shut
  probe_at     timestamptz NOT NULL,
  probe_error  text,
  trial_at     timestamptz,
  PRIMARY KEY (node, service),
  CHECK ((state = 'trial') = (trial_at IS NOT NULL))
);

-- The steps that fail wherever they run.
CREATE TABLE accs.step_health (
  workflow_id  uuid NOT NULL REFERENCES public.workflows (id) ON DELETE CASCADE,
  task_key     text NOT NULL,
  since        timestamptz NOT NULL DEFAULT accs.clock(),
  reason       text NOT NULL,
  PRIMARY KEY (workflow_id, task_key)
);

-- Of what has just passed (p_was: while it was live) that which tells something: its step has failed lately, or this service
-- is on trial here. Of each node no more than 20 since the step's last failure, or the trial began: they would tell nothing new.
CREATE FUNCTION accs.note_passes(p_was accs.live[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO accs.conclusions (ts, node, service, workflow_id, task_key, task_id, passed)
  WITH done AS MATERIALIZED (
    SELECT l.node, l.service, j.workflow_id, t.task_key, l.task_id,
           row_number() OVER (PARTITION BY l.node, j.workflow_id, t.task_key) AS nth
      FROM unnest(p_was) l JOIN public.job_tasks t ON t.id = l.task_id JOIN public.jobs j ON j.id = l.job_id
  ), room AS MATERIALIZED (   -- once for each node and step
    SELECT d.node, d.workflow_id, d.task_key, (SELECT count(*) FROM (
             SELECT FROM accs.conclusions c WHERE c.workflow_id = d.workflow_id AND c.task_key = d.task_key AND c.node = d.node
                AND c.passed AND c.id > coalesce(f.id, 0) AND (q.trial_at IS NULL OR c.ts > q.trial_at) LIMIT 20) n) AS kept
      FROM done d
      LEFT JOIN accs.quarantines q ON q.node = d.node AND q.service = d.service AND q.state = 'trial'
      LEFT JOIN LATERAL (SELECT c.id FROM accs.conclusions c
                          WHERE c.workflow_id = d.workflow_id AND c.task_key = d.task_key AND NOT c.passed
                          ORDER BY c.id DESC LIMIT 1) f ON true
     WHERE d.nth = 1 AND (f.id IS NOT NULL OR q.node IS NOT NULL)
  )
  SELECT accs.clock(), d.node, d.service, d.workflow_id, d.task_key, d.task_id, true
    FROM room r JOIN done d ON d.node = r.node AND d.workflow_id = r.workflow_id AND d.task_key = r.task_key WHERE d.nth <= 20 - r.kept;
  IF FOUND THEN
    PERFORM pg_notify(accs.channel_prefix() || '_health', '');
  END IF;
END $$;
SELECT accs.pin('note_passes');

-- Another one after each decision about the place; null where it is not in quarantine.
CREATE FUNCTION accs.quarantine_version(p accs.quarantines) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p.node IS NOT NULL THEN concat_ws('/', extract(epoch FROM p.since), p.times, extract(epoch FROM p.trial_at)) END
$$;

-- What is known about nodes and steps that fail, the oldest first. is_trial: it ended after its node's service was let in on
-- trial. offered: how many nodes offer the service.
CREATE FUNCTION accs.health_evidence(p_window interval) RETURNS TABLE (
  id bigint, node text, service text, workflow_id uuid, workflow text, task_key text, task_id uuid, passed boolean, lost boolean,
  permanent boolean, code text, message text, quarantine text, version text, times int, is_trial boolean, offered int
) LANGUAGE sql STABLE AS $$
  SELECT c.id, c.node, c.service, c.workflow_id, w.name, c.task_key, c.task_id, c.passed, c.lost, c.permanent, c.code, c.message,
         q.state, accs.quarantine_version(q), coalesce(q.times, 0), coalesce(c.ts > q.trial_at, false), coalesce(o.nodes, 0)
    FROM accs.conclusions c JOIN public.workflows w ON w.id = c.workflow_id
    LEFT JOIN (SELECT s.name, count(*)::int AS nodes FROM public.nodes n, LATERAL jsonb_each_text(n.max_concurrency) AS s (name, slots)
                WHERE s.slots::int > 0 GROUP BY s.name) o ON o.name = c.service
    LEFT JOIN accs.quarantines q ON q.node = c.node AND q.service = c.service
   WHERE c.ts > accs.clock() - p_window OR q.node IS NOT NULL
   ORDER BY c.id
$$;
SELECT accs.is_verb('health_evidence', may => '{scheduler}');

-- Shuts a node's service, or shuts it again: its trial failed. What runs goes on. p_probe_in: when the node may look whether it
-- is well again. Who has judged says by what: p_seen is the last conclusion that he knew of the place, p_version that of its
-- quarantine. He is refused where somebody has decided since then, what he held against it was forgiven, or something has passed.
-- (More failures change nothing: a place that fails all the time could never be shut.)
CREATE FUNCTION accs.quarantine(p_node text, p_service text, p_reason text, p_detail jsonb, p_probe_in interval,
                                p_version text DEFAULT NULL, p_seen bigint DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  -- what follows sees all that others have decided; there may be no row to lock
  PERFORM accs.lock('quarantines');
  IF p_seen IS NOT NULL AND (
       p_version IS DISTINCT FROM (SELECT accs.quarantine_version(q) FROM accs.quarantines q
                                    WHERE q.node = p_node AND q.service = p_service)
       OR NOT EXISTS (SELECT FROM accs.conclusions c WHERE c.node = p_node AND c.service = p_service AND NOT c.passed AND c.id <= p_seen)
       OR EXISTS (SELECT FROM accs.conclusions c WHERE c.node = p_node AND c.service = p_service AND c.passed AND c.id > p_seen)) THEN
    RETURN 'refused';
  END IF;
  INSERT INTO accs.quarantines AS q (node, service, reason, detail, since, probe_at)
  SELECT n.name, p_service, p_reason, p_detail, v_now, v_now + p_probe_in FROM public.nodes n WHERE n.name = p_node
  ON CONFLICT (node, service) DO UPDATE SET state = 'shut', reason = excluded.reason, detail = excluded.detail, times = q.times + 1,
         probes = 0, probe_at = excluded.probe_at, probe_error = NULL, trial_at = NULL
   WHERE q.state = 'trial';
  IF NOT FOUND THEN
    RETURN 'repeated';   -- or the node is not registered any more
  END IF;
  PERFORM accs.note_node(p_node, 'quarantined', format('%s is in quarantine: %s', p_service, p_reason), p_detail);
  PERFORM pg_notify(accs.channel_prefix() || '_quarantines', p_node);
  RETURN 'accepted';
END $$;
SELECT accs.is_verb('quarantine', may => '{scheduler}');

-- Lets a service work again on a node (null: all of them), and forgets what was held against it. Answers how many. p_version and
-- p_seen as above, for who has judged that a trial passed: none, where somebody has decided since, or something has failed.
CREATE FUNCTION accs.lift_quarantine(p_node text, p_service text, p_because text, p_by text DEFAULT NULL,
                                     p_version text DEFAULT NULL, p_seen bigint DEFAULT NULL)
RETURNS TABLE (node text, service text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_nodes    text[];
  v_services text[];
BEGIN
  PERFORM accs.lock('quarantines');
  WITH lifted AS (
    DELETE FROM accs.quarantines q WHERE (p_node IS NULL OR q.node = p_node) AND (p_service IS NULL OR q.service = p_service)
       AND (p_seen IS NULL OR accs.quarantine_version(q) = p_version AND NOT EXISTS (
             SELECT FROM accs.conclusions c WHERE c.node = q.node AND c.service = q.service AND NOT c.passed AND c.id > p_seen))
    RETURNING q.node, q.service
  ), forgotten AS (
    DELETE FROM accs.conclusions c USING lifted l WHERE c.node = l.node AND c.service = l.service AND NOT c.passed
  )
  SELECT array_agg(l.node), array_agg(l.service) INTO v_nodes, v_services FROM lifted l,
         LATERAL accs.note_node(l.node, 'resumed', format('%s is out of quarantine: %s', l.service, p_because),
                                jsonb_build_object('by', p_by)),
         LATERAL pg_notify(accs.channel_prefix() || l.service, '');
  IF p_seen IS NULL THEN   -- somebody wants it; it was not earned by a trial
    PERFORM accs.audit_each('lift_quarantine', 'quarantine', ARRAY(SELECT u.node || '/' || u.service FROM unnest(v_nodes, v_services)
      AS u (node, service)), array_fill('accepted'::text, ARRAY[coalesce(cardinality(v_nodes), 0)]), NULL, p_by, p_because);
  END IF;
  RETURN QUERY SELECT * FROM unnest(v_nodes, v_services);
END $$;
SELECT accs.is_verb('lift_quarantine', may => '{scheduler,api}');

-- For a node: what it is to probe, and in what time.
CREATE FUNCTION accs.node_quarantines(p_node text)
RETURNS TABLE (service text, state text, reason text, times int, probes int, probe_in interval)
LANGUAGE sql STABLE AS $$
  SELECT q.service, q.state, q.reason, q.times, q.probes, greatest(q.probe_at - accs.clock(), '0') FROM accs.quarantines q
   WHERE q.node = p_node ORDER BY q.service
$$;
SELECT accs.is_verb('node_quarantines', may => '{agent}');

-- What a probe of its own says: well, so that the next task is a trial; or not, and when it looks again.
CREATE FUNCTION accs.note_probe(p_node text, p_service text, p_problem text, p_again interval) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  UPDATE accs.quarantines q SET state = CASE WHEN p_problem IS NULL THEN 'trial' ELSE 'shut' END,
         probes = q.probes + (p_problem IS NOT NULL)::int, probe_error = left(p_problem, 2000), probe_at = v_now + p_again,
         trial_at = CASE WHEN p_problem IS NULL THEN v_now END
   WHERE q.node = p_node AND q.service = p_service AND q.state = 'shut' AND q.probe_at <= v_now;
  IF NOT FOUND THEN
    RETURN 'repeated';
  ELSIF p_problem IS NULL THEN
    PERFORM accs.note_node(p_node, 'trial', format('%s is let in on trial: its probe passed', p_service), '{}');
    PERFORM pg_notify(accs.channel_prefix() || p_service, '');
  END IF;
  RETURN 'accepted';
END $$;
SELECT accs.is_verb('note_probe', may => '{agent}');

-- The steps that fail everywhere are these, and no others. Answers those that are news: found failing, or not any more.
CREATE FUNCTION accs.mark_steps(p_workflows uuid[], p_keys text[], p_reasons text[])
RETURNS TABLE (workflow_id uuid, task_key text, failing boolean)
LANGUAGE sql AS $$
  WITH said AS MATERIALIZED (
    SELECT DISTINCT ON (s.workflow_id, s.task_key) s.* FROM unnest(p_workflows, p_keys, p_reasons) AS s (workflow_id, task_key, reason)
      JOIN public.workflows w ON w.id = s.workflow_id ORDER BY s.workflow_id, s.task_key
  ), well AS (
    DELETE FROM accs.step_health h WHERE NOT EXISTS (SELECT FROM said s WHERE s.workflow_id = h.workflow_id AND s.task_key = h.task_key)
    RETURNING h.workflow_id, h.task_key
  ), ill AS (
    INSERT INTO accs.step_health AS h (workflow_id, task_key, reason) SELECT workflow_id, task_key, reason FROM said ORDER BY 1, 2
    ON CONFLICT (workflow_id, task_key) DO UPDATE SET reason = excluded.reason WHERE h.reason <> excluded.reason
    RETURNING h.workflow_id, h.task_key
  )
  SELECT workflow_id, task_key, false FROM well
  UNION ALL   -- step_health as it was before: another reason is no news
  SELECT workflow_id, task_key, true FROM ill i
   WHERE NOT EXISTS (SELECT FROM accs.step_health h WHERE h.workflow_id = i.workflow_id AND h.task_key = i.task_key)
$$;
SELECT accs.is_verb('mark_steps', may => '{scheduler}');

-- Forgets what is older than p_window, unless it keeps a service in quarantine, and of each step on each node all but the last p_keep.
CREATE FUNCTION accs.prune_conclusions(p_window interval, p_keep int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_gone int;
BEGIN
  DELETE FROM accs.conclusions WHERE id IN (
    SELECT c.id FROM (SELECT c.*, row_number() OVER (PARTITION BY c.node, c.workflow_id, c.task_key ORDER BY c.id DESC) AS nth
                        FROM accs.conclusions c) c
     WHERE c.nth > p_keep OR c.ts <= accs.clock() - p_window
       AND NOT EXISTS (SELECT FROM accs.quarantines q WHERE q.node = c.node AND q.service = c.service));
  GET DIAGNOSTICS v_gone = ROW_COUNT;
  RETURN v_gone;
END $$;
SELECT accs.is_verb('prune_conclusions', may => '{scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- Waking: what wants nodes, which nodes there are, and each call to wake one
-- ---------------------------------------------------------------------------------------------------------------

-- What is due together, as far as a machine's start is concerned: 0 is now, then by the half minute.
CREATE FUNCTION accs.soon(p_due_at timestamptz) RETURNS int LANGUAGE sql STABLE AS $$
  SELECT greatest(0, ceil(extract(epoch FROM p_due_at - accs.clock()) / 30))::int
$$;

-- What wants a node within p_ahead, by service, labels, named node and time: tasks that are claimable or will be when
-- their backoff ends, and the first steps of jobs that will be due or that a schedule will start; of a concurrency key as many
-- as may run at once. Looks at
-- no more than 1,000 jobs ahead, 1,000 tasks of a lane and 1,000 first steps of a workflow: more would wake nobody else.
CREATE FUNCTION accs.wake_demand(p_ahead interval DEFAULT '5 min')
RETURNS TABLE (service text, requires jsonb, node text, tasks int, due_in interval, job_id uuid, schedule text) LANGUAGE sql STABLE AS $$
  WITH paused AS MATERIALIZED (
    SELECT f.id FROM accs.pauses p JOIN public.workflows f ON f.name = p.name WHERE p.kind = 'workflow'
  ), lane AS MATERIALIZED (
    SELECT * FROM accs.lanes l WHERE NOT EXISTS (SELECT FROM accs.pauses p WHERE p.kind = 'service' AND p.name = l.service)
  ), near AS MATERIALIZED (
    SELECT l.id AS lane, w.* FROM lane l, LATERAL (
      (SELECT w.task_id, w.key, accs.clock() AS due_at, w.rank, w.order_seq FROM accs.waiting w
        WHERE w.lane = l.id AND w.hold IS NULL ORDER BY w.rank, w.order_seq, w.created_at, w.task_id LIMIT 1000)
      UNION ALL
      (SELECT w.task_id, w.key, w.due_at, w.rank, w.order_seq FROM accs.waiting w
        WHERE w.lane = l.id AND w.hold = 'backoff' AND w.due_at <= accs.clock() + p_ahead ORDER BY w.due_at LIMIT 1000)) w
  ), due AS (
    SELECT j.workflow_id, count(*) AS jobs, min(p.due_at) AS due_at, (array_agg(p.job_id ORDER BY p.due_at, j.order_seq))[1] AS first,
           NULL::text AS schedule
      FROM (SELECT * FROM accs.pending_jobs WHERE due_at <= accs.clock() + p_ahead ORDER BY due_at LIMIT 1000) p
      JOIN public.jobs j ON j.id = p.job_id JOIN public.workflows f ON f.id = j.workflow_id
     WHERE f.is_active AND j.workflow_id NOT IN (SELECT id FROM paused) GROUP BY j.workflow_id, accs.soon(p.due_at)
    UNION ALL   -- what a schedule will start: no job of it exists yet
    SELECT w.id, count(*), min(a.due_at), NULL, (array_agg(s.name ORDER BY a.due_at, s.name))[1]
      FROM (SELECT * FROM accs.agenda
             WHERE what <> ALL ('{replan,probe}') AND due_at <= accs.clock() + p_ahead ORDER BY due_at LIMIT 1000) a
      JOIN public.schedules s ON s.id = a.schedule_id AND s.state = 'active'
      LEFT JOIN accs.plan_of p ON p.schedule_id = s.id AND a.what = 'occurrence'
      CROSS JOIN LATERAL (SELECT w.id FROM public.workflows w
                           WHERE w.name = s.workflow AND w.is_active AND (s.version IS NULL OR w.version = s.version)
                           ORDER BY w.version DESC LIMIT 1) w
     WHERE (a.what = 'snoozed' OR a.what = 'occurrence' AND p.notes -> a.pos::text IS NULL AND NOT EXISTS (
             SELECT FROM accs.schedule_marks m WHERE m.schedule_id = s.id AND m.nominal = p.nominals[a.pos] AND m.fold = p.folds[a.pos]))
       AND w.id NOT IN (SELECT id FROM paused) AND NOT EXISTS (SELECT FROM accs.schedule_hold)
     GROUP BY w.id, accs.soon(a.due_at)
  ), wanted AS (
    SELECT n.lane, n.key, accs.soon(n.due_at) AS soon, count(*) AS tasks, min(n.due_at) AS due_at,
           (array_agg(n.task_id ORDER BY n.due_at, n.rank, n.order_seq))[1] AS first_task, NULL::uuid AS first_job, NULL::text AS schedule
      FROM near n
     WHERE NOT EXISTS (SELECT FROM paused)   -- a retry of a paused workflow is held only when it is due
        OR NOT EXISTS (SELECT FROM public.job_tasks t JOIN public.jobs j ON j.id = t.job_id
                        WHERE t.id = n.task_id AND j.workflow_id IN (SELECT id FROM paused))
     GROUP BY n.lane, n.key, accs.soon(n.due_at)
    UNION ALL
    SELECT s.lane, s.concurrency_key, accs.soon(d.due_at), d.jobs * s.steps, d.due_at, NULL, d.first, d.schedule
      FROM due d, LATERAL (
        SELECT r.lane, r.concurrency_key, count(*) AS steps
          FROM (SELECT lane, concurrency_key FROM accs.steps
                 WHERE workflow_id = d.workflow_id AND depends_on = '{}' AND resolve IS NULL LIMIT 1000) r
         GROUP BY 1, 2) s
  ), bounded AS (   -- of a key as many as may run at once, the earliest ones
    SELECT w.lane, w.soon, least(w.tasks, k.max_running - coalesce(sum(w.tasks) OVER earlier, 0)) AS tasks, w.due_at,
           coalesce(w.first_job, t.job_id) AS job_id, w.schedule
      FROM wanted w LEFT JOIN public.job_tasks t ON t.id = w.first_task LEFT JOIN accs.concurrency_keys k ON k.key = w.key
    WINDOW earlier AS (PARTITION BY w.lane, w.key ORDER BY w.due_at, w.first_task, w.first_job, w.schedule
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
  )
  SELECT l.service, l.requires, l.node, sum(b.tasks)::int, greatest(min(b.due_at) - accs.clock(), '0'),
         (array_agg(b.job_id ORDER BY b.due_at, b.job_id))[1], (array_agg(b.schedule ORDER BY b.due_at, b.job_id))[1]
    FROM bounded b JOIN lane l ON l.id = b.lane WHERE (b.job_id IS NOT NULL OR b.schedule IS NOT NULL) AND b.tasks > 0
   GROUP BY l.id, l.service, l.requires, l.node, b.soon
$$;
SELECT accs.is_verb('wake_demand', pinned => true, may => '{agent,scheduler,api}');

-- What is left of a node's slots of services in quarantine: none, or one for a trial. A node that is not awake is worth waking
-- for the probe that is due.
CREATE FUNCTION accs.quarantined_slots(p_node text, p_slots jsonb, p_absent boolean) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT coalesce(jsonb_object_agg(q.service, CASE WHEN q.state = 'trial' OR p_absent AND q.probe_at <= accs.clock()
                                                   THEN least(1, (p_slots ->> q.service)::int) ELSE 0 END), '{}')
    FROM accs.quarantines q WHERE q.node = p_node AND p_slots ? q.service
$$;

-- The nodes with what decides about waking them. Ages, not times: only the database's clock is right. relays are neighbours in
-- one of its segments, seen within p_silent.
CREATE FUNCTION accs.wake_nodes(p_silent interval DEFAULT '2 min') RETURNS TABLE (
  name text, labels jsonb, last_seen timestamptz, awake_state text, wake_method text, mac text, provider_ref text, script text,
  max_concurrency jsonb, unseen_for interval, live jsonb, is_drained boolean,
  power text, because text, try_id uuid, tried_at timestamptz, tried_ago interval, method text, ok boolean, error text, tries int,
  brought_by text, latency interval, networks cidr[], relays text[]
) LANGUAGE sql STABLE AS $$
  SELECT n.name, n.labels, n.last_seen, n.awake_state, n.wake_method, n.mac, n.provider_ref, n.script,
         n.max_concurrency || accs.quarantined_slots(n.name, n.max_concurrency, n.awake_state <> 'awake'),
         accs.clock() - n.last_seen, coalesce(l.live, '{}'), p.name IS NOT NULL,
         coalesce(w.state, 'unknown'), w.because, w.try_id, w.tried_at, accs.clock() - w.tried_at, w.method, w.ok, w.error,
         coalesce(w.tries, 0), w.brought_by, w.latency, coalesce(w.networks, '{}'),
         ARRAY(SELECT o.node FROM accs.power o JOIN public.nodes m ON m.name = o.node
                WHERE o.networks && w.networks AND o.node <> n.name AND m.awake_state = 'awake' AND m.last_seen > accs.clock() - p_silent
                ORDER BY m.last_seen DESC)
    FROM public.nodes n
    LEFT JOIN (SELECT node, jsonb_object_agg(service, tasks) AS live
                 FROM (SELECT node, service, count(*) AS tasks FROM accs.live GROUP BY node, service) c GROUP BY node) l ON l.node = n.name
    LEFT JOIN accs.pauses p ON p.kind = 'node' AND p.name = n.name
    LEFT JOIN accs.power w ON w.node = n.name
   ORDER BY n.name
$$;
SELECT accs.is_verb('wake_nodes', may => '{agent,scheduler,api}');

-- Before a call: of several builders one makes it. The caller says which call and which sight of the node were the last ones
-- that he knew when he decided; had there been another since, he would have decided otherwise. The same call again is repeated.
CREATE FUNCTION accs.claim_wake(p_node text, p_try uuid, p_method text, p_after uuid, p_last_seen timestamptz) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO accs.power AS w (node, state, try_id, tried_at, method, tries)
  SELECT n.name, 'waking', p_try, accs.clock(), p_method, 1 FROM public.nodes n
   WHERE n.name = p_node AND n.last_seen IS NOT DISTINCT FROM p_last_seen FOR SHARE   -- a heartbeat that is under way is waited for
  ON CONFLICT (node) DO UPDATE SET try_id = p_try, tried_at = excluded.tried_at, method = p_method, ok = NULL, error = NULL,
         tries = w.tries + 1
    WHERE w.try_id IS NOT DISTINCT FROM p_after;
  IF NOT FOUND THEN
    RETURN CASE WHEN EXISTS (SELECT FROM accs.power WHERE node = p_node AND try_id = p_try) THEN 'repeated' ELSE 'refused' END;
  END IF;
  UPDATE accs.power SET state = 'waking', since = accs.clock() WHERE node = p_node AND state <> 'waking';
  PERFORM accs.log_power(p_node, 'waking', NULL, p_method);
  RETURN 'accepted';
END $$;
SELECT accs.is_verb('claim_wake', may => '{scheduler,api}');

-- After a call: whether it got through, in the node's history and as an event of the job that wanted the node. A call that is
-- not the node's last one any more, or whose node was seen meanwhile, is recorded too. p_by: the person who wanted it.
CREATE FUNCTION accs.record_wake(p_node text, p_try uuid, p_ok boolean, p_job uuid, p_message text, p_data jsonb, p_by text DEFAULT NULL,
                                 p_reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  v_state text;
BEGIN
  UPDATE accs.power SET ok = p_ok, because = p_message, error = CASE WHEN NOT p_ok THEN p_data ->> 'error' END,
    called_at = CASE WHEN p_ok THEN tried_at ELSE called_at END, called_by = CASE WHEN p_ok THEN method ELSE called_by END
   WHERE node = p_node AND try_id = p_try AND ok IS NULL;
  IF FOUND THEN
    SELECT CASE WHEN p_ok THEN 'booting' WHEN awake_state = 'sleep' THEN 'asleep' ELSE 'unknown' END INTO v_state
      FROM public.nodes WHERE name = p_node;
  ELSIF EXISTS (SELECT FROM accs.power WHERE node = p_node AND try_id = p_try) THEN
    RETURN 'repeated';
  ELSE
    SELECT state INTO v_state FROM accs.power WHERE node = p_node;
  END IF;
  IF v_state IS NOT NULL THEN
    PERFORM accs.note_power(p_node, v_state, p_message, p_data);
  END IF;
  IF p_job IS NOT NULL THEN   -- a person may wake a node for no job at all
    INSERT INTO public.task_events (job_id, ts, source, level, type, message, data)
    VALUES (p_job, accs.clock(), 'builder', CASE WHEN p_ok THEN 'info' ELSE 'warn' END, 'wake', p_message, p_data);
  END IF;
  IF p_by IS NOT NULL THEN
    PERFORM accs.audited('wake', 'node', p_node, 'accepted', p_by, p_reason, NULL,
                         jsonb_build_object('ok', p_ok, 'message', left(p_message, 500)));
  END IF;
  RETURN 'accepted';
END $$;
SELECT accs.is_verb('record_wake', may => '{scheduler,api}');

-- Why each of these nodes is not woken, as the builder last planned. One that was called or seen since is left alone: p_tries
-- are the last calls that the builder knew, p_silent is how long a node may be unseen before it counts as away.
CREATE FUNCTION accs.note_not_woken(p_nodes text[], p_tries uuid[], p_failed boolean[], p_because text[], p_silent interval) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
  v_node  record;
  v_noted int := 0;
BEGIN
  INSERT INTO accs.power (node, state)
  SELECT name, 'unknown' FROM public.nodes WHERE name = ANY (p_nodes) ORDER BY name
  ON CONFLICT DO NOTHING;
  FOR v_node IN
    SELECT w.node, w.state, s.because,
           CASE WHEN s.failed THEN 'failed' WHEN n.awake_state = 'sleep' THEN 'asleep' ELSE 'unknown' END AS becomes
      FROM unnest(p_nodes, p_tries, p_failed, p_because) AS s (node, try_id, failed, because)
      JOIN accs.power w ON w.node = s.node AND w.try_id IS NOT DISTINCT FROM s.try_id JOIN public.nodes n ON n.name = s.node
     WHERE (w.state <> 'ready' OR n.awake_state <> 'awake' OR n.last_seen <= accs.clock() - p_silent)
       AND w.because IS DISTINCT FROM s.because
     ORDER BY w.node FOR UPDATE OF w
  LOOP
    v_noted := v_noted + 1;
    UPDATE accs.power SET because = v_node.because WHERE node = v_node.node;
    IF v_node.becomes <> v_node.state THEN
      PERFORM accs.note_power(v_node.node, v_node.becomes, v_node.because);
    END IF;
  END LOOP;
  RETURN v_noted;
END $$;
SELECT accs.is_verb('note_not_woken', may => '{scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- Orders: what a node is asked to do by somebody who can't do it for it
-- ---------------------------------------------------------------------------------------------------------------

-- One row for each order. It is given out once, while it is good.
CREATE TABLE accs.node_orders (
  id           uuid PRIMARY KEY,
  node         text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,   -- who is asked
  kind         text NOT NULL CHECK (kind IN ('relay', 'sleep')),
  target       text REFERENCES public.nodes (name) ON DELETE CASCADE,            -- relay: who is to be woken
  asked_by     text,
  asked_at     timestamptz NOT NULL DEFAULT accs.clock(),
  good_until   timestamptz NOT NULL,
  taken_at     timestamptz,
  answered_at  timestamptz,
  ok           boolean,
  output       text,
  CHECK ((kind = 'relay') = (target IS NOT NULL))
);

CREATE INDEX node_orders_open ON accs.node_orders (node) WHERE taken_at IS NULL;   -- take_orders

-- Asks a node to do something soon: 'relay' sends a magic packet for p_target, 'sleep' goes to sleep. Orders of yesterday go.
CREATE FUNCTION accs.ask_node(p_id uuid, p_node text, p_kind text, p_target text, p_by text, p_within interval, p_reason text DEFAULT NULL)
RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM accs.node_orders WHERE asked_at < accs.clock() - interval '1 day';
  INSERT INTO accs.node_orders (id, node, kind, target, asked_by, good_until)
  VALUES (p_id, p_node, p_kind, p_target, p_by, accs.clock() + p_within)
  ON CONFLICT (id) DO NOTHING;
  IF NOT FOUND THEN
    RETURN 'repeated';
  END IF;
  PERFORM pg_notify(accs.channel_prefix() || 'orders', p_node);
  IF p_kind = 'sleep' THEN   -- a person asks for it; a relay is part of a wake call
    PERFORM accs.audited('sleep', 'node', p_node, 'accepted', p_by, p_reason);
  END IF;
  RETURN 'accepted';
END $$;
SELECT accs.is_verb('ask_node', may => '{scheduler,api}');

-- What a node is asked to do; each order is given out once.
CREATE FUNCTION accs.take_orders(p_node text) RETURNS TABLE (id uuid, kind text, target text, mac text, asked_by text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  RETURN QUERY
  WITH taken AS (
    UPDATE accs.node_orders SET taken_at = accs.clock() WHERE node = p_node AND taken_at IS NULL AND good_until > accs.clock() RETURNING *
  )
  SELECT t.id, t.kind, t.target, n.mac, t.asked_by FROM taken t LEFT JOIN public.nodes n ON n.name = t.target ORDER BY t.asked_at;
END $$;
SELECT accs.is_verb('take_orders', may => '{agent}');

CREATE FUNCTION accs.answer_order(p_id uuid, p_node text, p_ok boolean, p_output text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  UPDATE accs.node_orders SET answered_at = accs.clock(), ok = p_ok, output = left(p_output, 2000)
   WHERE id = p_id AND node = p_node AND answered_at IS NULL;
  IF FOUND THEN
    RETURN 'accepted';
  END IF;
  RETURN CASE WHEN EXISTS (SELECT FROM accs.node_orders WHERE id = p_id AND node = p_node) THEN 'repeated' ELSE 'refused' END;
END $$;
SELECT accs.is_verb('answer_order', may => '{agent}');

-- ---------------------------------------------------------------------------------------------------------------
-- Artifacts: the objects that attempts leave in storage and are given from there
-- ---------------------------------------------------------------------------------------------------------------

CREATE TABLE public.task_artifacts (
  id            bigserial PRIMARY KEY,
  job_id        uuid NOT NULL REFERENCES public.jobs (id),
  job_task_id   uuid REFERENCES public.job_tasks (id),
  kind          text NOT NULL CHECK (kind IN ('input', 'output', 'log')),
  bucket        text NOT NULL,
  key           text NOT NULL,
  size_bytes    bigint CHECK (size_bytes >= 0),
  content_type  text,
  checksum      text,
  created_at    timestamptz NOT NULL DEFAULT accs.clock(),
  -- addition: which attempt made it
  attempt_id    int,
  -- addition, of a part of a log: how many lines it has, of which levels, from when to when
  facts         jsonb,
  UNIQUE (bucket, key)
);

CREATE INDEX task_artifacts_job ON public.task_artifacts (job_id);
CREATE INDEX task_artifacts_task ON public.task_artifacts (job_task_id);
CREATE INDEX task_artifacts_input ON public.task_artifacts (job_id) WHERE kind = 'input' AND job_task_id IS NULL;   -- task_inputs

CREATE FUNCTION accs.refuse_stray_artifacts() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_bad record;
BEGIN
  SELECT f.id, f.job_id, f.job_task_id INTO v_bad FROM fresh f
    LEFT JOIN public.jobs j ON j.id = f.job_id LEFT JOIN public.job_tasks t ON t.id = f.job_task_id
   WHERE j.id IS NULL OR t.id IS NULL AND f.job_task_id IS NOT NULL LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'artifact %: there is no job %, or it has no task %', v_bad.id, v_bad.job_id, v_bad.job_task_id
      USING ERRCODE = 'foreign_key_violation';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER refuse_stray AFTER INSERT ON public.task_artifacts REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT
  EXECUTE FUNCTION accs.refuse_stray_artifacts();
CREATE TRIGGER refuse_stray_again AFTER UPDATE ON public.task_artifacts REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT
  EXECUTE FUNCTION accs.refuse_stray_artifacts();

-- Records an object that exists in storage already, for a running attempt: fenced like its other writes. The same object
-- again is repeated.
CREATE FUNCTION accs.record_artifact(
  p_task uuid, p_attempt_id int, p_owner text, p_kind text, p_bucket text, p_key text, p_size_bytes bigint DEFAULT NULL,
  p_content_type text DEFAULT NULL, p_checksum text DEFAULT NULL, p_facts jsonb DEFAULT NULL
) RETURNS TABLE (artifact_id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_job uuid;
  v_service text;
  v_id  bigint;
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_owner);
  END IF;
  -- the lock keeps the attempt from ending between the check and the row
  SELECT job_id, service_name INTO v_job, v_service FROM public.job_tasks
   WHERE id = p_task AND attempt_id = p_attempt_id AND lease_owner = p_owner AND lease_until > accs.clock()
     AND status IN ('starting', 'running') FOR SHARE;
  IF NOT FOUND THEN
    SELECT id INTO v_id FROM public.task_artifacts
     WHERE bucket = p_bucket AND key = p_key AND job_task_id = p_task AND attempt_id = p_attempt_id;
    IF FOUND THEN
      RETURN QUERY SELECT v_id, 'repeated'::text, NULL::text;
    ELSE
      RETURN QUERY SELECT NULL::bigint, e.answer, e.reason
        FROM accs.explain(ARRAY[p_task], ARRAY[p_attempt_id], p_owner, ARRAY[NULL::text]) e;
    END IF;
    RETURN;
  END IF;
  INSERT INTO public.task_artifacts (job_id, job_task_id, kind, bucket, key, size_bytes, content_type, checksum, attempt_id, facts)
  VALUES (v_job, p_task, p_kind, p_bucket, p_key, p_size_bytes, p_content_type, p_checksum, p_attempt_id, p_facts)
  ON CONFLICT (bucket, key) DO NOTHING RETURNING id INTO v_id;
  IF v_id IS NULL THEN
    RETURN QUERY SELECT a.id, CASE WHEN a.job_task_id = p_task AND a.attempt_id = p_attempt_id THEN 'repeated' ELSE 'refused' END,
                        CASE WHEN a.job_task_id = p_task AND a.attempt_id = p_attempt_id THEN NULL ELSE 'key_taken' END
                   FROM public.task_artifacts a WHERE a.bucket = p_bucket AND a.key = p_key;
    RETURN;
  END IF;
  INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
  VALUES (v_job, p_task, accs.clock(), 'agent:' || v_service, 'info', 'artifact', p_key,
          jsonb_strip_nulls(jsonb_build_object('artifact_id', v_id, 'kind', p_kind, 'bucket', p_bucket, 'key', p_key,
                                               'size_bytes', p_size_bytes)), p_attempt_id);
  RETURN QUERY SELECT v_id, 'accepted'::text, NULL::text;
END $$;
SELECT accs.is_verb('record_artifact', may => '{agent}');

-- Outputs that a task has because it is done with the result of another one (cache.sql). They stay in the folder of the job that made
-- them, and an object stays in the store while a row here or of task_artifacts names it.
CREATE TABLE accs.borrowed_files (
  job_task_id   uuid NOT NULL,
  bucket        text NOT NULL,
  key           text NOT NULL,
  job_id        uuid NOT NULL,
  owner         uuid NOT NULL,           -- the job that made it
  artifact_id   bigint NOT NULL,         -- its row in task_artifacts; that may be gone
  name          text NOT NULL,           -- what its task called it
  size_bytes    bigint,
  content_type  text,
  checksum      text,
  created_at    timestamptz NOT NULL,
  PRIMARY KEY (job_task_id, bucket, key)
);

CREATE INDEX borrowed_files_job ON accs.borrowed_files (job_id);                 -- retention, a job's list
CREATE INDEX borrowed_files_object ON accs.borrowed_files (bucket, key);         -- who else has it

-- What its task called it: a key without what is put before it (accsd/storage/base.py, build_key). As accsd/work/files.py lays it.
CREATE FUNCTION accs.name_of_file(p_key text, p_of_task boolean) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT regexp_replace(p_key, '^(in|out)puts/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/'
                               || CASE WHEN p_of_task THEN '[^/]+/([0-9]+/)?' ELSE '' END, '')
$$;

-- The objects that a task may need: what the steps that it depends on have put out, each by the attempt that finished it, and the inputs
-- of the job and of this task. n: in which order.
CREATE FUNCTION accs.files_for(p_task public.job_tasks)
RETURNS TABLE (n bigint, id bigint, task_key text, kind text, bucket text, key text, size_bytes bigint, content_type text, checksum text)
LANGUAGE sql STABLE AS $$
  SELECT k.n, a.id, d.task_key, a.kind, a.bucket, a.key, a.size_bytes, a.content_type, a.checksum
    FROM unnest(p_task.depends_on) WITH ORDINALITY AS k (key, n), LATERAL (   -- one look-up for each key, as in claim_tasks
      SELECT t.id, t.items FROM public.job_tasks t
       WHERE t.job_id = p_task.job_id AND t.task_key = k.key AND t.status = 'done' OFFSET 0) m, LATERAL (
      SELECT t.id, t.task_key, t.outcome_attempt_id FROM public.job_tasks t WHERE t.id = m.id
      UNION ALL   -- of a step that was multiplied, those of its tasks
      SELECT t.id, t.task_key, t.outcome_attempt_id FROM public.job_tasks t
       WHERE m.items > 0 AND t.parent = m.id AND t.status = 'done' AND p_task.parent IS DISTINCT FROM m.id) d
    CROSS JOIN LATERAL (
      SELECT a.id, a.kind, a.bucket, a.key, a.size_bytes, a.content_type, a.checksum FROM public.task_artifacts a
       WHERE a.job_task_id = d.id AND a.kind = 'output' AND a.attempt_id = d.outcome_attempt_id
      UNION ALL
      SELECT b.artifact_id, 'output', b.bucket, b.key, b.size_bytes, b.content_type, b.checksum FROM accs.borrowed_files b
       WHERE b.job_task_id = d.id) a
  UNION ALL
  SELECT 0, a.id, NULL, a.kind, a.bucket, a.key, a.size_bytes, a.content_type, a.checksum
    FROM public.task_artifacts a WHERE a.job_id = p_task.job_id AND a.job_task_id IS NULL AND a.kind = 'input'
  UNION ALL
  SELECT 0, a.id, p_task.task_key, a.kind, a.bucket, a.key, a.size_bytes, a.content_type, a.checksum
    FROM public.task_artifacts a WHERE a.job_task_id = p_task.id AND a.kind = 'input'
$$;

-- The objects that an attempt may need, and the files of its workflow (kind "file", with a name). Raises where the attempt does not
-- hold its lease: no rows would mean that there are no inputs.
CREATE FUNCTION accs.task_inputs(p_task uuid, p_attempt_id int, p_owner text)
RETURNS TABLE (task_key text, kind text, bucket text, key text, size_bytes bigint, content_type text, checksum text, name text)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  v_task public.job_tasks;
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_owner);
  END IF;
  SELECT t.* INTO v_task FROM public.job_tasks t
   WHERE t.id = p_task AND t.attempt_id = p_attempt_id AND t.lease_owner = p_owner AND t.lease_until > accs.clock()
     AND t.status IN ('starting', 'running');
  IF NOT FOUND THEN
    RAISE EXCEPTION 'attempt % of task %: %', p_attempt_id, p_task,
        (SELECT e.reason FROM accs.explain(ARRAY[p_task], ARRAY[p_attempt_id], p_owner, ARRAY[NULL::text]) e)
      USING ERRCODE = 'AC002', HINT = 'Stop this attempt and write nothing: the task is not its own any more.';
  END IF;
  RETURN QUERY
  SELECT f.task_key, f.kind, f.bucket, f.key, f.size_bytes, f.content_type, f.checksum, NULL::text FROM accs.files_for(v_task) f
   ORDER BY f.n, f.id;
  IF v_task.files IS NOT NULL THEN
    RETURN QUERY
    SELECT NULL::text, 'file'::text, NULL::text, f ->> 'key', (f ->> 'size')::bigint, NULL::text, 'sha256:' || (f ->> 'sha256'),
           f ->> 'name'
      FROM accs.file_sets s, jsonb_array_elements(s.files) WITH ORDINALITY e (f, n) WHERE s.id = v_task.files ORDER BY n;
  END IF;
END $$;
SELECT accs.is_verb('task_inputs', pinned => true, may => '{agent}');

-- ---------------------------------------------------------------------------------------------------------------
-- Cache: the results of steps that say so are used again
-- ---------------------------------------------------------------------------------------------------------------

-- A step that says cache is resolved like one with expressions. If the same step has been done before, with the same input and not too
-- long ago, it is done at once, with that result and the event that says where it is from; no node is asked. Steps that do not say it
-- never come here (docs/decisions/0013).

-- The tasks that ran, or run, for a step with cache; those that were answered from here are no source themselves, so that no result is
-- older than it seems.
CREATE TABLE accs.cached_results (
  task_id     uuid PRIMARY KEY,
  generation  int NOT NULL,            -- in which it was resolved: after a retry its result is that of another input
  key         bytea NOT NULL,          -- sha256 of everything that decides the result
  made_at     timestamptz NOT NULL,
  keep        interval NOT NULL,       -- for so long after its end
  look_at     timestamptz NOT NULL     -- when it may be too old, and is looked at
);

CREATE INDEX cached_results_key ON accs.cached_results (key, made_at);     -- use_cache
CREATE INDEX cached_results_look_at ON accs.cached_results (look_at);      -- expire_results

-- Of all that decides a result, what the tasks of a step share. By the workflow's name, so that a new version does not forget. Null:
-- it can't be known, because a file has no checksum or the results of earlier steps are too large to be handed over.
CREATE FUNCTION accs.cache_base(p_task public.job_tasks, p_salt text) RETURNS bytea LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN i.known AND f.known THEN sha256(convert_to(jsonb_build_array(
           w.name, p_task.task_key, p_task.service_name, p_task.params, j.options, i.results, f.files, p_salt, o.files)::text, 'UTF8')) END
    FROM public.jobs j JOIN public.workflows w ON w.id = j.workflow_id, LATERAL (
      SELECT jsonb_object_agg(d.task_key, coalesce(d.results, '{}')) AS results,
             coalesce(bool_and(d.is_read) AND sum(pg_column_size(d.results)) <= 16777216, true) AS known
        FROM (SELECT m.task_key, v.results, m.items IS NULL OR v.results IS NOT NULL AS is_read
                FROM unnest(p_task.depends_on) AS k (key), LATERAL (
                  SELECT * FROM public.job_tasks t WHERE t.job_id = p_task.job_id AND t.task_key = k.key OFFSET 0) m, LATERAL (
                  SELECT CASE WHEN m.items IS NULL THEN m.results ELSE accs.results_of_items(m.id, 16777216) END AS results
                  OFFSET 0) v) d) i,
      LATERAL (
      SELECT jsonb_agg(jsonb_build_array(a.task_key, a.kind, a.content_type, a.checksum, m.name) ORDER BY a.task_key, m.name) AS files,
             coalesce(bool_and(a.checksum IS NOT NULL), true) AS known
        FROM accs.files_for(p_task) a, LATERAL (SELECT accs.name_of_file(a.key, a.task_key IS NOT NULL) AS name) m) f,
      LATERAL (   -- of its workflow
      SELECT jsonb_agg(jsonb_build_array(e ->> 'name', e ->> 'sha256') ORDER BY e ->> 'name') AS files
        FROM accs.file_sets s, jsonb_array_elements(s.files) e WHERE s.id = p_task.files) o
   WHERE j.id = p_task.job_id
$$;

-- The same with what one task is given. Of a secret that is its name; the moment is left out, or nothing would ever be the same.
CREATE FUNCTION accs.cache_key(p_base bytea, p_given jsonb) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT sha256(p_base || convert_to(jsonb_build_array(p_given -> 'with', p_given -> 'secrets', p_given -> 'tool')::text, 'UTF8'))
$$;

CREATE FUNCTION accs.check_cache(p_seconds double precision, p_salt text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_seconds NOT BETWEEN 1 AND 31536000 OR length(p_salt) > 200 THEN
    RAISE EXCEPTION 'a result is kept for 1 second to 365 days, with a salt of at most 200 characters'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
END $$;

-- Why a step that says cache runs all the same, where its own job is the reason: it has run before, so that somebody wants it to run
-- again; or who submitted the job did not want the cache.
CREATE FUNCTION accs.why_not_cached(p_task public.job_tasks) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p_task.attempt_id > 0 THEN 'retried' WHEN j.no_cache THEN 'no_cache' END FROM public.jobs j WHERE j.id = p_task.job_id
$$;

-- The newest result of a key that is not older than so many seconds. Bounded, because a step that fails again and again leaves many rows of
-- one key.
CREATE FUNCTION accs.result_of(p_key bytea, p_seconds double precision, OUT source public.job_tasks, OUT files bigint)
RETURNS SETOF record LANGUAGE sql STABLE AS $$
  SELECT s, (SELECT count(*) FROM public.task_artifacts a
              WHERE a.job_task_id = s.id AND a.kind = 'output' AND a.attempt_id = s.outcome_attempt_id)
    FROM (SELECT c.* FROM accs.cached_results c WHERE c.key = p_key ORDER BY c.made_at DESC LIMIT 100) c
    JOIN public.job_tasks s ON s.id = c.task_id
   WHERE s.status = 'done' AND s.generation = c.generation AND s.finished_at > accs.clock() - make_interval(secs => p_seconds)
   ORDER BY s.finished_at DESC, s.id LIMIT 1
$$;

-- Ends those of these tasks as done of whose keys there is a result, and notes the others, which are about to run. The caller holds
-- their jobs' locks and admits the keys. p_reasons: why a task does not want one; null: it does. A result alone is read in one
-- statement, and what becomes of its task afterwards changes nothing. Files are borrowed while the job that has them is locked:
-- neither is it removed meanwhile, nor is its step run again. Whoever finds it locked does not wait, because jobs are locked in
-- another order, and runs.
CREATE FUNCTION accs.use_cache(p_task_ids uuid[], p_keys bytea[], p_seconds double precision[], p_reasons text[],
                               OUT hits uuid[], OUT keys text[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now     timestamptz := accs.clock();
  v_locked  uuid[];
  v_results jsonb[];
BEGIN
  v_locked := ARRAY(SELECT j.id FROM public.jobs j WHERE j.id = ANY (ARRAY(
      SELECT (r.source).job_id FROM unnest(p_keys, p_seconds, p_reasons) AS u (key, seconds, reason), accs.result_of(u.key, u.seconds) r
       WHERE u.reason IS NULL AND r.files > 0))
     ORDER BY j.id FOR SHARE SKIP LOCKED);
  WITH looked AS MATERIALIZED (
    SELECT u.id, t.job_id, t.generation, u.key, u.seconds, make_interval(secs => u.seconds) AS keep, r.source, nullif(r.files, 0) AS files,
           CASE WHEN u.key IS NULL THEN 'unknown_input' WHEN u.reason IS NOT NULL THEN u.reason
                WHEN (r.source).id IS NULL THEN 'no_result'
                WHEN r.files > 0 AND (r.source).job_id <> ALL (v_locked) THEN 'busy' END AS reason
      FROM unnest(p_task_ids, p_keys, p_seconds, p_reasons) AS u (id, key, seconds, reason) JOIN public.job_tasks t ON t.id = u.id
      LEFT JOIN LATERAL accs.result_of(u.key, u.seconds) r ON u.reason IS NULL
  ), noted AS (
    INSERT INTO accs.cached_results AS c (task_id, generation, key, made_at, keep, look_at)
    SELECT l.id, l.generation, l.key, v_now, l.keep, v_now + l.keep FROM looked l
     WHERE l.reason IS NOT NULL AND l.key IS NOT NULL ORDER BY l.id
    ON CONFLICT (task_id) DO UPDATE SET generation = excluded.generation, key = excluded.key, made_at = excluded.made_at,
           keep = excluded.keep, look_at = excluded.look_at
  ), told AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data)
    SELECT l.job_id, l.id, v_now, 'resolver', 'info', 'cache',
           CASE l.reason WHEN 'retried' THEN 'runs: it is run again' WHEN 'no_cache' THEN 'runs: the job was submitted without cache'
                         WHEN 'unknown_input' THEN 'runs: a file of its input has no checksum, or the results before it exceed 16 MiB'
                         WHEN 'no_result' THEN 'runs: no result of the same input is known'
                         WHEN 'busy' THEN format('runs: something else happens to job %s, which has the result', (l.source).job_id)
                         ELSE format('done with the result of %s of job %s', (l.source).task_key, (l.source).job_id) END,
           jsonb_strip_nulls(jsonb_build_object('hit', l.reason IS NULL, 'reason', l.reason, 'key', encode(l.key, 'hex'),
             'seconds', l.seconds, 'job_id', (l.source).job_id, 'task_id', (l.source).id, 'finished_at', (l.source).finished_at,
             'files', l.files)) FROM looked l ORDER BY l.id
  ), borrowed AS (
    INSERT INTO accs.borrowed_files (job_task_id, bucket, key, job_id, owner, artifact_id, name, size_bytes, content_type, checksum,
                                     created_at)
    SELECT l.id, a.bucket, a.key, l.job_id, a.job_id, a.id, accs.name_of_file(a.key, true), a.size_bytes, a.content_type, a.checksum,
           a.created_at
      FROM looked l JOIN public.task_artifacts a
        ON a.job_task_id = (l.source).id AND a.kind = 'output' AND a.attempt_id = (l.source).outcome_attempt_id
     WHERE l.reason IS NULL AND l.files > 0
  ), marked AS (
    UPDATE public.job_tasks t SET given = coalesce(t.given, '{}') || jsonb_build_object('cached', jsonb_build_object(
             'job_id', (l.source).job_id, 'task_id', (l.source).id, 'finished_at', (l.source).finished_at))
      FROM (SELECT * FROM looked WHERE reason IS NULL ORDER BY id) l WHERE t.id = l.id
  )
  SELECT coalesce(array_agg(l.id ORDER BY l.id), '{}'), array_agg((l.source).results ORDER BY l.id) INTO hits, v_results
    FROM looked l WHERE l.reason IS NULL;
  IF hits <> '{}' THEN
    keys := accs.conclude(hits, v_results);
  END IF;
END $$;

-- Forgets the results of a workflow, or of one step of it: also of what runs now. The next tasks run.
CREATE FUNCTION accs.forget_results(p_workflow text, p_step text DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
  WITH gone AS (
    DELETE FROM accs.cached_results c USING public.job_tasks t, public.jobs j, public.workflows w
     WHERE t.id = c.task_id AND j.id = t.job_id AND w.id = j.workflow_id AND w.name = p_workflow
       AND (p_step IS NULL OR split_part(t.task_key, '[', 1) = p_step)   -- an item's key is that of its step, and a number in brackets
    RETURNING 1)
  SELECT count(*) FROM gone
$$;
SELECT accs.is_verb('forget_results', may => '{scheduler,api}');

-- Removes what is too old to be used, or never will have a result. How many were looked at: as many as p_limit means that there may be
-- more.
CREATE FUNCTION accs.expire_results(p_limit int DEFAULT 10000) RETURNS TABLE (looked_at bigint, removed bigint) LANGUAGE sql AS $$
  WITH due AS MATERIALIZED (
    SELECT c.* FROM accs.cached_results c WHERE c.look_at <= accs.clock() ORDER BY c.look_at LIMIT p_limit FOR UPDATE SKIP LOCKED
  ), judged AS MATERIALIZED (
    SELECT d.task_id, CASE WHEN t.status IN ('queued', 'starting', 'running') THEN accs.clock() + d.keep
                           WHEN t.status = 'done' AND t.finished_at + d.keep > accs.clock() THEN t.finished_at + d.keep END AS until
      FROM due d LEFT JOIN public.job_tasks t ON t.id = d.task_id AND t.generation = d.generation
  ), gone AS (
    DELETE FROM accs.cached_results c USING judged j WHERE c.task_id = j.task_id AND j.until IS NULL RETURNING 1
  ), kept AS (
    UPDATE accs.cached_results c SET look_at = j.until FROM judged j WHERE c.task_id = j.task_id AND j.until IS NOT NULL
  )
  SELECT (SELECT count(*) FROM judged), (SELECT count(*) FROM gone)
$$;
SELECT accs.is_verb('expire_results', may => '{scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- Submissions to an online judge: jobs of the workflows judge.<id>, each of which is a problem (docs/doors/judge.md)
-- ---------------------------------------------------------------------------------------------------------------

CREATE SEQUENCE accs.judge_problems AS int;   -- the ids of problems: clients want small integers

-- One row for each submission, as the tables of other judges have them. A rejudged one is pending again, in the next attempt.
CREATE VIEW public.submissions (job_id, status, state, attempt_id, result, created_at, updated_at) AS
  SELECT j.id, CASE s.state WHEN 'pending' THEN 'pending' WHEN 'processing' THEN 'running' ELSE v.verdict END, s.state,
         coalesce(t.attempt_id, 0),
         CASE WHEN s.state = 'done' THEN jsonb_strip_nulls(jsonb_build_object(
           'job_id', j.id, 'attempt_id', coalesce(t.attempt_id, 0), 'status', v.verdict,
           'time_used', coalesce(r.results -> 'time_used', r.results -> 'time_ms'),
           'memory_used', coalesce(r.results -> 'memory_used', r.results -> 'mem_kb'),
           'language', upper(j.options ->> 'language'), 'trace_id', coalesce(j.trace_id, replace(j.id::text, '-', '')),
           'cases', r.results -> 'cases', 'case', r.results -> 'case', 'exit_signal', r.results -> 'exit_signal',
           'error_code', CASE WHEN v.verdict IN ('System Error', 'Cancelled') THEN coalesce(t.error_code, j.error_code) END,
           'error_message', CASE v.verdict WHEN 'System Error' THEN coalesce(t.error_message, j.error_message, 'the judge gave no verdict')
                                           WHEN 'Cancelled' THEN t.error_message
                                           ELSE r.results ->> 'error' END)) END,
         j.created_at, greatest(j.updated_at, t.updated_at)
    FROM public.workflows w
    JOIN public.jobs j ON j.workflow_id = w.id
    LEFT JOIN public.job_tasks t ON t.job_id = j.id AND t.task_key = 'judge',
         LATERAL (SELECT CASE coalesce(t.status, CASE j.status WHEN 'queued' THEN 'queued' ELSE 'error' END)
                           WHEN 'queued' THEN 'pending' WHEN 'starting' THEN 'processing' WHEN 'running' THEN 'processing'
                           ELSE 'done' END AS state) s,
         LATERAL (SELECT CASE WHEN t.status = 'done' THEN t.results END AS results) r,
         LATERAL (SELECT CASE WHEN 'cancelled' IN (t.status, j.status) THEN 'Cancelled'
                              WHEN r.results ->> 'status' IN ('Accepted', 'Wrong Answer', 'Compile Error', 'Time Limit Exceeded',
                                'Memory Limit Exceeded', 'Output Limit Exceeded', 'Runtime Error') THEN r.results ->> 'status'
                              -- of a judge that says no more than what its sandbox saw; OK alone is no judgement
                              ELSE CASE r.results ->> 'verdict' WHEN 'TLE' THEN 'Time Limit Exceeded' WHEN 'RE' THEN 'Runtime Error'
                                     WHEN 'MLE' THEN 'Memory Limit Exceeded' WHEN 'OLE' THEN 'Output Limit Exceeded'
                                     ELSE 'System Error' END END AS verdict) v
   WHERE w.name ~ '^judge\.[0-9]+$';

-- ---------------------------------------------------------------------------------------------------------------
-- The outbox: what happens to jobs and schedules goes out as events, made in the transaction in which it happens
-- ---------------------------------------------------------------------------------------------------------------

-- What can be told to others (docs/outbox.md).
CREATE FUNCTION accs.outgoing_events() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY['job.submitted', 'job.started', 'job.retried', 'job.done', 'job.error', 'job.cancelled', 'task.done', 'task.error',
               'task.skipped', 'task.cancelled']
$$;

-- And of schedules. A target names these itself: no workflow's notify does, or every firing would have to look for one.
CREATE FUNCTION accs.schedule_events() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY['schedule.missed', 'schedule.skipped', 'schedule.broken']
$$;

-- One row for each event and target. Claimed: claim_id is set, and next_attempt_at is when the claim has run out. One that was
-- found behind another of its job has next_attempt_at = infinity, until that one is delivered or given up.
CREATE TABLE public.outbox_events (
  id               bigserial PRIMARY KEY,
  job_id           uuid,
  payload          jsonb NOT NULL CHECK (jsonb_typeof(payload) = 'object'),
  status           text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'delivered')),
  attempts         int NOT NULL DEFAULT 0,
  next_attempt_at  timestamptz NOT NULL DEFAULT accs.clock(),
  last_error       text,
  dispatched_at    timestamptz,
  created_at       timestamptz NOT NULL DEFAULT accs.clock(),
  -- additions
  target           text NOT NULL,               -- accs.outbox_targets
  event            text NOT NULL,
  claim_id         uuid,
  dead_at          timestamptz,                 -- given up; still pending, and sent again by redrive_outbox only
  redriven_at      timestamptz
);

-- claim_outbox: what is due, and who comes first
CREATE INDEX outbox_events_due ON public.outbox_events (target, next_attempt_at, id) WHERE status = 'pending' AND dead_at IS NULL;
CREATE INDEX outbox_events_order ON public.outbox_events (target, job_id, id) WHERE status = 'pending' AND dead_at IS NULL;
CREATE INDEX outbox_events_delivered ON public.outbox_events (dispatched_at) WHERE status = 'delivered';    -- prune_outbox
CREATE INDEX outbox_events_dead ON public.outbox_events (dead_at) WHERE status = 'pending' AND dead_at IS NOT NULL;

-- Who is told of what. Builders register the targets of their settings; address and secret stay there. The rest is the
-- circuit breaker: failures in a row, openings in a row, until when nobody calls, and the claim that then asks for all.
CREATE TABLE accs.outbox_targets (
  name           text PRIMARY KEY CHECK (name <> ''),
  address        text NOT NULL,             -- scheme, host and port, for eyes: a webhook's path may be a secret
  events         text[] NOT NULL               -- notify: and what workflows.notify names
                 CHECK (events <@ (accs.outgoing_events() || accs.schedule_events() || 'notify'::text)),
  workflows      text[],                    -- null: all of them
  registered_at  timestamptz NOT NULL DEFAULT accs.clock(),
  seen_at        timestamptz NOT NULL DEFAULT accs.clock(),   -- a builder that has it in its settings looked for events, to the minute
  failures       int NOT NULL DEFAULT 0,
  trips          int NOT NULL DEFAULT 0,
  open_until     timestamptz,
  probe_id       uuid,
  last_error     text
) WITH (fillfactor = 50);

-- An event for each target that wants it. The order of the ids is the order of a job's events: its transitions hold its lock.
-- By loops: one statement with joins took three times as long for what is nearly always one event and one target.
CREATE FUNCTION accs.announce(p_events text[], p_job uuid, p_workflow uuid, p_about jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now      timestamptz := accs.clock();
  v_target   record;
  v_workflow record;
  v_event    text;
  v_news     boolean := false;
BEGIN
  FOR v_target IN SELECT t.name, t.events, t.workflows, t.open_until FROM accs.outbox_targets t
                   WHERE t.events && (p_events || 'notify'::text) LOOP
    IF v_workflow IS NULL THEN
      SELECT w.name, w.version, w.notify INTO v_workflow FROM public.workflows w WHERE w.id = p_workflow;
    END IF;
    CONTINUE WHEN v_workflow.name <> ALL (v_target.workflows);
    FOREACH v_event IN ARRAY p_events LOOP
      CONTINUE WHEN v_event <> ALL (v_target.events) AND ('notify' <> ALL (v_target.events) OR v_event <> ALL (v_workflow.notify));
      INSERT INTO public.outbox_events (job_id, target, event, payload)
      VALUES (p_job, v_target.name, v_event, p_about || jsonb_build_object('id', accs.new_id(), 'version', 1, 'event', v_event, 'at', v_now,
                'workflow', jsonb_build_object('name', v_workflow.name, 'version', v_workflow.version)));
      v_news := v_news OR v_target.open_until IS NULL OR v_target.open_until <= v_now;
    END LOOP;
  END LOOP;
  IF v_news THEN   -- nobody is woken for a receiver that is left alone for now; no service's name begins with _
    PERFORM pg_notify(accs.channel_prefix() || '_outbox', '');
  END IF;
END $$;

CREATE FUNCTION accs.about_job(p_job public.jobs) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT jsonb_build_object('job', jsonb_build_object(
    'id', p_job.id, 'status', p_job.status, 'generation', p_job.generation,
    'error_code', p_job.error_code, 'error_message', p_job.error_message,
    'idempotency_key', p_job.idempotency_key, 'created_by', p_job.created_by, 'trace_id', p_job.trace_id,
    'created_at', p_job.created_at, 'scheduled_at', p_job.scheduled_at, 'started_at', p_job.started_at, 'finished_at', p_job.finished_at))
$$;

CREATE FUNCTION accs.announce_job() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_events text[];
BEGIN
  v_events := CASE WHEN TG_OP = 'INSERT' AND NEW.status = 'running' THEN ARRAY['job.submitted', 'job.started']
                   WHEN TG_OP = 'INSERT' THEN ARRAY['job.submitted']
                   WHEN NEW.status <> 'running' THEN ARRAY['job.' || NEW.status]
                   WHEN OLD.status = 'queued' THEN ARRAY['job.started'] ELSE ARRAY['job.retried'] END;
  PERFORM accs.announce(v_events, NEW.id, NEW.workflow_id, accs.about_job(NEW));
  RETURN NULL;
END $$;

-- New jobs, for note_new_jobs, which has read that a workflow subscribes to that; where a target wants it of all,
-- announce_submitted has told it.
CREATE FUNCTION accs.announce_subscribed_jobs(p_job_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM accs.outbox_targets t WHERE t.events && ARRAY['job.submitted', 'job.started']) THEN
    PERFORM accs.announce(CASE j.status WHEN 'running' THEN ARRAY['job.submitted', 'job.started'] ELSE ARRAY['job.submitted'] END,
                          j.id, j.workflow_id, accs.about_job(j))
       FROM unnest(p_job_ids) WITH ORDINALITY AS u (id, n) JOIN public.jobs j ON j.id = u.id ORDER BY u.n;
  END IF;
END $$;

CREATE FUNCTION accs.announce_task() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM accs.announce(ARRAY['task.' || NEW.status], j.id, j.workflow_id, jsonb_build_object('job', jsonb_build_object(
            'id', j.id, 'idempotency_key', j.idempotency_key, 'trace_id', j.trace_id), 'task', jsonb_build_object(
            'id', NEW.id, 'key', NEW.task_key, 'service', NEW.service_name, 'status', NEW.status, 'generation', NEW.generation,
            'attempt', NEW.attempt, 'attempt_id', NEW.attempt_id, 'error_code', NEW.error_code, 'error_message', NEW.error_message,
            'started_at', NEW.started_at, 'finished_at', NEW.finished_at)))
     FROM public.jobs j WHERE j.id = NEW.job_id;
  RETURN NULL;
END $$;

-- A schedule, and what is to be told of it, to each target that wants that. It belongs to no job, so it keeps no order.
CREATE FUNCTION accs.announce_schedule(p_event text, s public.schedules, p_about jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  INSERT INTO public.outbox_events (target, event, payload)
  SELECT t.name, p_event, jsonb_build_object('id', accs.new_id(), 'version', 1, 'event', p_event, 'at', v_now,
           'workflow', jsonb_build_object('name', s.workflow),
           'schedule', jsonb_build_object('id', s.id, 'name', s.name, 'kind', s.schedule_kind, 'timezone', s.timezone) || p_about)
    FROM accs.outbox_targets t WHERE p_event = ANY (t.events) AND (t.workflows IS NULL OR s.workflow = ANY (t.workflows));
  IF FOUND AND EXISTS (SELECT FROM accs.outbox_targets t WHERE p_event = ANY (t.events) AND coalesce(t.open_until <= v_now, true)) THEN
    PERFORM pg_notify(accs.channel_prefix() || '_outbox', '');
  END IF;
END $$;

CREATE FUNCTION accs.announce_firing() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM accs.announce_schedule('schedule.' || NEW.outcome, s, jsonb_build_object('reason', NEW.reason, 'nominal', NEW.nominal,
            'fold', NEW.fold, 'due_at', NEW.due_at, 'times', coalesce(NEW.times, 1)))
     FROM public.schedules s WHERE s.id = NEW.schedule_id;
  RETURN NULL;
END $$;

CREATE FUNCTION accs.announce_broken() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM accs.announce_schedule('schedule.broken', NEW, jsonb_build_object('problem', NEW.state_reason));
  RETURN NULL;
END $$;

-- Disabled, so that they cost nothing, until a target wants what they tell: choose_announcements. By row, because the
-- transition tables of a statement trigger are filled even while it is disabled. announce_subscribed stands in for announce_task while
-- targets want of tasks only what workflows subscribe to: the others' tasks are passed over by its WHEN, which calls nothing.
CREATE TRIGGER announce_submitted AFTER INSERT ON public.jobs FOR EACH ROW EXECUTE FUNCTION accs.announce_job();
CREATE TRIGGER announce_outcome AFTER UPDATE OF status ON public.jobs FOR EACH ROW WHEN (OLD.status <> NEW.status)
  EXECUTE FUNCTION accs.announce_job();
CREATE TRIGGER announce_task AFTER UPDATE OF status ON public.job_tasks
  FOR EACH ROW WHEN (OLD.status <> NEW.status AND NEW.status IN ('done', 'error', 'skipped', 'cancelled'))
  EXECUTE FUNCTION accs.announce_task();
ALTER TABLE public.jobs DISABLE TRIGGER announce_submitted;
ALTER TABLE public.jobs DISABLE TRIGGER announce_outcome;
ALTER TABLE public.job_tasks DISABLE TRIGGER announce_task;
CREATE TRIGGER announce_subscribed AFTER UPDATE OF status ON public.job_tasks
  FOR EACH ROW WHEN (NEW.notify IS NOT NULL AND OLD.status <> NEW.status AND 'task.' || NEW.status = ANY (NEW.notify))
  EXECUTE FUNCTION accs.announce_task();
ALTER TABLE public.job_tasks DISABLE TRIGGER announce_subscribed;
CREATE TRIGGER announce_firing AFTER INSERT ON public.firings FOR EACH ROW WHEN (NEW.outcome IN ('missed', 'skipped'))
  EXECUTE FUNCTION accs.announce_firing();
CREATE TRIGGER announce_unsnoozed AFTER UPDATE ON public.firings   -- one that was snoozed has had its row
  FOR EACH ROW WHEN (OLD.outcome <> NEW.outcome AND NEW.outcome IN ('missed', 'skipped')) EXECUTE FUNCTION accs.announce_firing();
CREATE TRIGGER announce_broken AFTER UPDATE OF state ON public.schedules
  FOR EACH ROW WHEN (NEW.state = 'broken' AND OLD.state <> 'broken') EXECUTE FUNCTION accs.announce_broken();
ALTER TABLE public.firings DISABLE TRIGGER announce_firing;
ALTER TABLE public.firings DISABLE TRIGGER announce_unsnoozed;
ALTER TABLE public.schedules DISABLE TRIGGER announce_broken;

-- Enables the triggers that some target needs and disables the others. To change one waits for the writers of its table, so
-- that is done only where it differs; whoever commits later has told.
CREATE FUNCTION accs.choose_announcements() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_row record;
BEGIN
  FOR v_row IN
    SELECT t.tgrelid::regclass AS relation, t.tgname, w.wanted
      FROM (VALUES ('announce_submitted', ARRAY['job.submitted', 'job.started'], '{}'),
                   ('announce_outcome', ARRAY['job.started', 'job.retried', 'job.done', 'job.error', 'job.cancelled', 'notify'], '{}'),
                   ('announce_task', ARRAY['task.done', 'task.error', 'task.skipped', 'task.cancelled'], '{}'),
                   ('announce_subscribed', ARRAY['notify'],
                    ARRAY['task.done', 'task.error', 'task.skipped', 'task.cancelled']),
                   ('announce_firing', ARRAY['schedule.missed', 'schedule.skipped'], '{}'),
                   ('announce_unsnoozed', ARRAY['schedule.missed', 'schedule.skipped'], '{}'),
                   ('announce_broken', ARRAY['schedule.broken'], '{}')) AS k (name, events, unless)
      JOIN pg_trigger t ON t.tgname = k.name   -- of a partitioned table its own: the partitions follow
       AND t.tgrelid = ANY (ARRAY['public.jobs', 'public.job_tasks', 'public.firings', 'public.schedules']::regclass[]),
           LATERAL (SELECT EXISTS (SELECT FROM accs.outbox_targets o WHERE o.events && k.events)
                           AND NOT EXISTS (SELECT FROM accs.outbox_targets o WHERE o.events && k.unless) AS wanted) w
     WHERE (t.tgenabled <> 'D') <> w.wanted
     ORDER BY 1, 2 LOOP
    EXECUTE format('ALTER TABLE %s %s TRIGGER %I', v_row.relation, CASE WHEN v_row.wanted THEN 'ENABLE' ELSE 'DISABLE' END, v_row.tgname);
  END LOOP;
END $$;

-- A target, or what it wants from now on. It is told of what happens after this commits. While a trigger waits for a long writer
-- everybody waits behind it: so not for long, and less than deadlock_timeout, or a finish would be the one that has to give way.
CREATE FUNCTION accs.register_outbox_target(p_name text, p_address text, p_events text[], p_workflows text[] DEFAULT NULL)
RETURNS text LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
BEGIN
  PERFORM accs.lock('outbox_targets');
  IF EXISTS (SELECT FROM accs.outbox_targets
              WHERE (name, address, events) = (p_name, p_address, p_events) AND workflows IS NOT DISTINCT FROM p_workflows) THEN
    RETURN 'repeated';
  END IF;
  INSERT INTO accs.outbox_targets AS t (name, address, events, workflows) VALUES (p_name, p_address, p_events, p_workflows)
  ON CONFLICT (name) DO UPDATE SET address = excluded.address, events = excluded.events, workflows = excluded.workflows,
         registered_at = accs.clock(), failures = 0, trips = 0, open_until = NULL, probe_id = NULL;
  UPDATE public.outbox_events SET next_attempt_at = accs.clock()   -- while it was forgotten, those before them may have been pruned
   WHERE target = p_name AND status = 'pending' AND dead_at IS NULL AND next_attempt_at = 'infinity';
  PERFORM accs.choose_announcements();
  RETURN 'accepted';
END $$;
SELECT accs.is_verb('register_outbox_target', may => '{scheduler}');

-- Nothing more is told to it. What waits for it stays, and is sent if it is registered again before that is pruned.
CREATE FUNCTION accs.forget_outbox_target(p_name text, p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
BEGIN
  PERFORM accs.lock('outbox_targets');
  DELETE FROM accs.outbox_targets WHERE name = p_name;
  IF NOT FOUND THEN
    RETURN accs.audited('forget_outbox_target', 'outbox_target', p_name, 'refused', p_by, p_reason, 'not_found');
  END IF;
  PERFORM accs.choose_announcements();
  RETURN accs.audited('forget_outbox_target', 'outbox_target', p_name, 'accepted', p_by, p_reason);
END $$;
SELECT accs.is_verb('forget_outbox_target', may => '{scheduler,api}');

-- Takes events that are due, for p_lease: of up to p_jobs jobs the first one that waits and up to p_each in all, to be sent
-- one after the other. While the breaker is open there is nothing; when its time is over, one event of one claim asks for all.
-- It looks at no more events than it may take: those that it finds behind another of their job it sends out of sight (infinity), and
-- settle_outbox brings back the first of them when that one has gone. Nobody else is there meanwhile: both hold the target's lock. (Else
-- 50,000 events of one job were looked at by each claim, for 0.4 to 1.7 s.)
-- Lock order: the target, then its events. (A backlog comes faster than statistics of it. Without
-- enable_sort = off it was sorted, and read through for each event: 1.7 s for 200,000 that wait.)
CREATE FUNCTION accs.claim_outbox(p_target text, p_claim uuid, p_lease interval, p_jobs int, p_each int)
RETURNS TABLE (id bigint, job_id uuid, event text, payload jsonb, attempts int, age interval) LANGUAGE plpgsql SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
  v_now    timestamptz := accs.clock();
  v_target accs.outbox_targets;
  v_event  record;
  v_head   bigint;
  v_jobs   uuid[] := '{}';
  v_heads  bigint[] := '{}';
  v_behind bigint[] := '{}';
BEGIN
  SELECT * INTO v_target FROM accs.outbox_targets WHERE name = p_target FOR NO KEY UPDATE;
  IF v_target.name IS NULL THEN
    RETURN;
  END IF;
  IF v_target.seen_at < v_now - interval '1 min' THEN
    UPDATE accs.outbox_targets SET seen_at = v_now WHERE name = p_target;
  END IF;
  IF v_target.open_until > v_now THEN
    RETURN;
  END IF;
  FOR v_event IN
    SELECT e.id, e.job_id FROM public.outbox_events e
     WHERE e.target = p_target AND e.status = 'pending' AND e.dead_at IS NULL AND e.next_attempt_at <= v_now
     ORDER BY e.next_attempt_at, e.id LIMIT greatest(p_jobs * p_each, 100) LOOP
    v_head := NULL;
    IF v_event.job_id IS NULL THEN
      v_head := v_event.id;
    ELSIF v_event.job_id <> ALL (v_jobs) THEN   -- once for each job: until they are vacuumed, all that was delivered of it is passed over
      v_jobs := v_jobs || v_event.job_id;
      SELECT CASE WHEN p.next_attempt_at <= v_now THEN p.id END INTO v_head FROM public.outbox_events p
       WHERE p.target = p_target AND p.job_id = v_event.job_id AND p.status = 'pending' AND p.dead_at IS NULL ORDER BY p.id LIMIT 1;
    END IF;
    IF v_head IS NOT NULL THEN
      v_heads := v_heads || v_head;
    END IF;
    IF v_event.id <> ALL (v_heads) THEN
      v_behind := v_behind || v_event.id;
    END IF;
    EXIT WHEN cardinality(v_heads) >= CASE WHEN v_target.open_until IS NULL THEN p_jobs ELSE 1 END;
  END LOOP;
  -- somebody may redrive them at this moment. (By id only, here and below: no partial index shall look as good as the primary key.)
  v_heads := ARRAY(SELECT e.id FROM public.outbox_events e
                    WHERE e.id = ANY (v_heads) AND e.next_attempt_at <= v_now FOR UPDATE SKIP LOCKED);
  IF v_heads <> '{}' AND v_target.open_until IS NOT NULL THEN
    p_each := 1;
    UPDATE accs.outbox_targets SET open_until = v_now + p_lease, probe_id = p_claim WHERE name = p_target;
  END IF;
  RETURN QUERY
  WITH taken AS (
    UPDATE public.outbox_events e SET claim_id = p_claim, next_attempt_at = v_now + p_lease
     WHERE e.id = ANY (v_heads || ARRAY(
       SELECT n.id FROM unnest(v_heads) AS h (id) JOIN public.outbox_events o ON o.id = h.id, LATERAL (
         -- up to one that is under way: the first was sent back to be tried again (redrive_outbox)
         SELECT f.id, bool_or(f.claim_id IS NOT NULL AND f.next_attempt_at > v_now) OVER (ORDER BY f.id) AS is_taken FROM (
           SELECT f.id, f.claim_id, f.next_attempt_at FROM public.outbox_events f
            WHERE f.target = p_target AND f.job_id = o.job_id AND f.id > o.id
              AND f.status = 'pending' AND f.dead_at IS NULL ORDER BY f.id LIMIT p_each - 1) f) n WHERE NOT n.is_taken))
    RETURNING e.*)
  SELECT t.id, t.job_id, t.event, t.payload, t.attempts, v_now - coalesce(t.redriven_at, t.created_at) FROM taken t ORDER BY t.id;
  IF v_behind <> '{}' THEN   -- but for those that were taken with the one before them
    UPDATE public.outbox_events SET next_attempt_at = 'infinity', claim_id = NULL WHERE id = ANY (ARRAY(
      SELECT b.id FROM public.outbox_events b WHERE b.id = ANY (v_behind) AND b.next_attempt_at <= v_now FOR UPDATE SKIP LOCKED));
  END IF;
END $$;
SELECT accs.is_verb('claim_outbox', pinned => true, may => '{scheduler}');

-- How it went: delivered, failed (again after its delay), dead (given up), or returned (not sent: it waits as long as the one
-- before it). Only for who still has the claim; the others were too late, and somebody else may have sent the event too. After
-- p_trip failures in a row the breaker opens for p_rest, each time in a row for twice as long, up to p_longest.
CREATE FUNCTION accs.settle_outbox(p_target text, p_claim uuid, p_ids bigint[], p_outcomes text[], p_delays interval[], p_errors text[],
                                   p_trip int, p_rest interval, p_longest interval)
RETURNS TABLE (id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now     timestamptz := accs.clock();
  v_target  accs.outbox_targets;
  v_settled record;
BEGIN
  SELECT * INTO v_target FROM accs.outbox_targets WHERE name = p_target FOR NO KEY UPDATE;
  WITH moved AS (
    UPDATE public.outbox_events e SET status = CASE s.outcome WHEN 'delivered' THEN 'delivered' ELSE 'pending' END,
           attempts = e.attempts + CASE s.outcome WHEN 'returned' THEN 0 ELSE 1 END,
           dispatched_at = CASE s.outcome WHEN 'delivered' THEN v_now END, dead_at = CASE s.outcome WHEN 'dead' THEN v_now END,
           next_attempt_at = v_now + coalesce(s.delay, '0'), last_error = coalesce(s.error, e.last_error),
           claim_id = CASE s.outcome WHEN 'delivered' THEN e.claim_id END
      FROM unnest(p_ids, p_outcomes, p_delays, p_errors) AS s (id, outcome, delay, error)
     WHERE e.id = s.id AND e.target = p_target AND e.claim_id = p_claim AND e.status = 'pending'
    RETURNING e.id, s.outcome, s.error)
  SELECT coalesce(array_agg(m.id), '{}') AS ids, array_agg(m.id) FILTER (WHERE m.outcome IN ('delivered', 'dead')) AS gone,
         count(*) FILTER (WHERE m.outcome = 'delivered') AS delivered,
         count(*) FILTER (WHERE m.outcome IN ('failed', 'dead')) AS failed, max(m.error) AS error INTO v_settled FROM moved m;
  IF v_settled.gone IS NOT NULL THEN   -- the next in turn comes into sight again
    UPDATE public.outbox_events e SET next_attempt_at = v_now WHERE e.next_attempt_at = 'infinity' AND e.id = ANY (ARRAY(
      SELECT n.id FROM (SELECT g.job_id, max(g.id) AS id FROM public.outbox_events g WHERE g.id = ANY (v_settled.gone) GROUP BY g.job_id) l,
             LATERAL (SELECT o.id FROM public.outbox_events o WHERE o.target = p_target AND o.job_id = l.job_id AND o.id > l.id
                         AND o.status = 'pending' AND o.dead_at IS NULL ORDER BY o.id LIMIT 1) n));
  END IF;

  IF v_settled.failed > 0 THEN
    v_target.failures := v_settled.failed + CASE WHEN v_settled.delivered > 0 THEN 0 ELSE coalesce(v_target.failures, 0) END;
    IF v_target.probe_id = p_claim OR v_target.open_until IS NULL AND v_target.failures >= p_trip THEN   -- not those that failed beside it
      v_target.trips := v_target.trips + 1;
      v_target.open_until := v_now + least(p_longest, p_rest * 2.0 ^ least(v_target.trips - 1, 20));
    END IF;
    UPDATE accs.outbox_targets SET failures = v_target.failures, trips = v_target.trips, open_until = v_target.open_until, probe_id = NULL,
           last_error = v_settled.error WHERE name = p_target;
  ELSIF v_settled.delivered > 0 AND v_target.failures > 0 THEN
    UPDATE accs.outbox_targets SET failures = 0, trips = 0, open_until = NULL, probe_id = NULL WHERE name = p_target;
    IF v_target.trips > 0 THEN   -- it was away, and what it missed need not wait any longer
      UPDATE public.outbox_events e SET next_attempt_at = v_now
       WHERE e.target = p_target AND e.status = 'pending' AND e.dead_at IS NULL AND e.next_attempt_at > v_now
         AND e.next_attempt_at < 'infinity' AND e.claim_id IS NULL;
    END IF;
  ELSIF v_target.probe_id = p_claim THEN   -- nothing was asked after all
    UPDATE accs.outbox_targets SET open_until = v_now, probe_id = NULL WHERE name = p_target;
  END IF;
  RETURN QUERY
  SELECT u.id, CASE WHEN u.id = ANY (v_settled.ids) THEN 'accepted' WHEN e.claim_id = p_claim THEN 'repeated' ELSE 'refused' END,
         CASE WHEN e.id IS NULL THEN 'not_found' WHEN u.id = ANY (v_settled.ids) OR e.claim_id = p_claim THEN NULL ELSE 'stale_claim' END
    FROM unnest(p_ids) AS u (id) LEFT JOIN public.outbox_events e ON e.id = u.id;
END $$;
SELECT accs.is_verb('settle_outbox', pinned => true, may => '{scheduler}');

-- Sends events again, whatever became of them; without ids those that were given up, of one target or of all. Who does that
-- has seen to the receiver, so the breaker closes. An event that is under way stays so.
CREATE FUNCTION accs.redrive_outbox(p_ids bigint[] DEFAULT NULL, p_target text DEFAULT NULL, p_by text DEFAULT NULL,
                                    p_reason text DEFAULT NULL)
RETURNS TABLE (id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_moved bigint[];
  v_said  record;
BEGIN
  IF p_ids IS NULL THEN
    p_ids := ARRAY(SELECT e.id FROM public.outbox_events e
                    WHERE e.status = 'pending' AND e.dead_at IS NOT NULL AND (p_target IS NULL OR e.target = p_target));
  END IF;
  UPDATE accs.outbox_targets SET failures = 0, trips = 0, open_until = NULL, probe_id = NULL
   WHERE failures > 0 AND name IN (SELECT e.target FROM public.outbox_events e WHERE e.id = ANY (p_ids));
  WITH moved AS (
    UPDATE public.outbox_events e SET status = 'pending', attempts = 0, next_attempt_at = v_now, dispatched_at = NULL, dead_at = NULL,
           claim_id = NULL, redriven_at = v_now
     WHERE e.id = ANY (p_ids) AND NOT (e.status = 'pending' AND e.claim_id IS NOT NULL AND e.next_attempt_at > v_now)
    RETURNING e.id)
  SELECT coalesce(array_agg(m.id), '{}') INTO v_moved FROM moved m;
  PERFORM pg_notify(accs.channel_prefix() || '_outbox', '');
  SELECT array_agg(s.id) AS ids, array_agg(s.answer) AS answers, array_agg(s.reason) AS reasons INTO v_said FROM (
    SELECT u.id, CASE WHEN u.id = ANY (v_moved) THEN 'accepted' WHEN e.id IS NULL THEN 'refused' ELSE 'repeated' END AS answer,
           CASE WHEN e.id IS NULL THEN 'not_found' END AS reason
      FROM unnest(p_ids) AS u (id) LEFT JOIN public.outbox_events e ON e.id = u.id) s;
  PERFORM accs.audit_each('redrive_outbox', 'outgoing_event', v_said.ids::text[], v_said.answers, v_said.reasons, p_by, p_reason,
                          jsonb_strip_nulls(jsonb_build_object('target', p_target)));
  RETURN QUERY SELECT * FROM unnest(v_said.ids, v_said.answers, v_said.reasons);
END $$;
SELECT accs.is_verb('redrive_outbox', may => '{scheduler,api}');

-- Removes what was delivered, or given up, so long ago; up to p_limit rows of each. What still waits is never removed, unless
-- its target was forgotten: nobody will send it, and it would keep its job from leaving.
CREATE FUNCTION accs.prune_outbox(p_keep interval, p_keep_dead interval, p_limit int DEFAULT 1000) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_gone int;
BEGIN
  DELETE FROM public.outbox_events WHERE id = ANY (ARRAY(
    (SELECT e.id FROM public.outbox_events e WHERE e.status = 'delivered' AND e.dispatched_at < accs.clock() - p_keep
      ORDER BY e.dispatched_at LIMIT p_limit)
    UNION ALL
    (SELECT e.id FROM public.outbox_events e WHERE e.status = 'pending' AND e.dead_at < accs.clock() - p_keep_dead
      ORDER BY e.dead_at LIMIT p_limit)
    UNION ALL
    (SELECT e.id FROM public.outbox_events e WHERE e.status = 'pending' AND e.dead_at IS NULL AND e.created_at < accs.clock() - p_keep_dead
        AND NOT EXISTS (SELECT FROM accs.outbox_targets t WHERE t.name = e.target) LIMIT p_limit)));
  GET DIAGNOSTICS v_gone = ROW_COUNT;
  -- the net: one that waits for another which somebody has deleted by hand
  UPDATE public.outbox_events e SET next_attempt_at = accs.clock()
   WHERE e.status = 'pending' AND e.dead_at IS NULL AND e.next_attempt_at = 'infinity'
     AND NOT EXISTS (SELECT FROM public.outbox_events p WHERE p.target = e.target AND p.job_id = e.job_id AND p.id < e.id
                        AND p.status = 'pending' AND p.dead_at IS NULL);
  RETURN v_gone;
END $$;
SELECT accs.is_verb('prune_outbox', may => '{scheduler}');

-- In how long a target's next event is due, or has to be looked at; null: none waits.
CREATE FUNCTION accs.outbox_outlook(p_target text) RETURNS interval LANGUAGE sql STABLE SET enable_sort = off AS $$
  SELECT (SELECT greatest(e.next_attempt_at, t.open_until) - accs.clock()
            FROM public.outbox_events e JOIN accs.outbox_targets t ON t.name = e.target
           WHERE e.target = p_target AND e.status = 'pending' AND e.dead_at IS NULL AND e.next_attempt_at < 'infinity'
           ORDER BY e.next_attempt_at, e.id LIMIT 1)
$$;
SELECT accs.is_verb('outbox_outlook', pinned => true, may => '{scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- Deployments: announced by SeqPulse's clients, sampled before and after, judged once
-- ---------------------------------------------------------------------------------------------------------------

-- That a deployment is analyzed stands nowhere: its analysis is a job, which has the deployment's id, and that job is done.
CREATE TABLE accs.seqpulse_deployments (
  id                uuid PRIMARY KEY DEFAULT accs.new_id(),
  number            int NOT NULL,
  project           text NOT NULL CHECK (length(project) BETWEEN 1 AND 200),
  env               text NOT NULL CHECK (length(env) BETWEEN 1 AND 255),
  idempotency_key   text CHECK (length(idempotency_key) BETWEEN 1 AND 255),
  branch            text CHECK (length(branch) <= 255),
  metrics_endpoint  text CHECK (length(metrics_endpoint) BETWEEN 1 AND 2000),   -- null: nothing is sampled
  window_minutes    int NOT NULL CHECK (window_minutes BETWEEN 1 AND 1440),     -- a sample a minute
  delay_minutes     int NOT NULL CHECK (delay_minutes BETWEEN 0 AND 10080),     -- from the end to the analysis
  state             text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished')),
  pipeline_result   text CHECK (pipeline_result IN ('success', 'failed')),
  created_by        text,
  started_at        timestamptz NOT NULL DEFAULT accs.clock(),
  finished_at       timestamptz,
  duration_ms       bigint,
  UNIQUE (project, number),
  UNIQUE (project, idempotency_key),
  CHECK ((state = 'finished') = (finished_at IS NOT NULL) AND (finished_at IS NULL) = (pipeline_result IS NULL))
);

CREATE UNIQUE INDEX seqpulse_deployments_running ON accs.seqpulse_deployments (project, env) WHERE state = 'running';

INSERT INTO accs.locks VALUES ('deployments');

-- The newest active version of a workflow of deployments: an operator may have written one of his own.
CREATE FUNCTION accs.deployment_workflow(p_name text) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
  v_id uuid;
BEGIN
  SELECT w.id INTO v_id FROM public.workflows w WHERE w.name = p_name AND w.is_active ORDER BY w.version DESC LIMIT 1;
  IF v_id IS NULL THEN
    RAISE EXCEPTION 'there is no active workflow "%"', p_name
      USING ERRCODE = 'AC004', HINT = 'A gateway with a section [gateway.seqpulse] writes it when it starts.';
  END IF;
  RETURN v_id;
END $$;

-- A deployment begins, and with it the sample before it, if there is an address to ask. A known key is that deployment, whatever became
-- of it; so is one that runs in this environment: repeated.
CREATE FUNCTION accs.trigger_deployment(
  p_project text, p_env text, p_endpoint text DEFAULT NULL, p_window int DEFAULT 5, p_delay int DEFAULT 5, p_key text DEFAULT NULL,
  p_branch text DEFAULT NULL, p_by text DEFAULT NULL
) RETURNS TABLE (deployment_id uuid, answer text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_id uuid;
BEGIN
  PERFORM accs.lock('deployments');   -- two with one key, and the numbers of a project
  v_id := coalesce(
    (SELECT d.id FROM accs.seqpulse_deployments d WHERE d.project = p_project AND d.idempotency_key = p_key),
    (SELECT d.id FROM accs.seqpulse_deployments d WHERE d.project = p_project AND d.env = p_env AND d.state = 'running'));
  IF v_id IS NOT NULL THEN
    RETURN QUERY SELECT v_id, 'repeated';
    RETURN;
  END IF;
  INSERT INTO accs.seqpulse_deployments (number, project, env, idempotency_key, branch, metrics_endpoint, window_minutes, delay_minutes,
                                         created_by)
  SELECT coalesce(max(d.number), 0) + 1, p_project, p_env, p_key, p_branch, p_endpoint, p_window, p_delay, p_by
    FROM accs.seqpulse_deployments d WHERE d.project = p_project
  RETURNING id INTO v_id;
  IF p_endpoint IS NOT NULL THEN
    PERFORM accs.submit_jobs(ARRAY[accs.deployment_workflow('seqpulse.pre_collect')],
      ARRAY[jsonb_build_object('deployment_id', v_id, 'project', p_project, 'phase', 'pre', 'sequence_index', NULL)],
      p_scheduled_at => ARRAY[accs.clock()], p_keys => ARRAY[format('seqpulse:%s:pre', v_id)], p_created_by => p_by);
  END IF;
  RETURN QUERY SELECT v_id, 'accepted';
END $$;
SELECT accs.is_verb('trigger_deployment', may => '{gateway}');

-- A deployment has ended: a sample a minute for as long as its window, and one analysis, all or nothing. p_endpoint counts where it began
-- without an address.
CREATE FUNCTION accs.finish_deployment(
  p_project text, p_deployment uuid, p_result text, p_endpoint text DEFAULT NULL, p_by text DEFAULT NULL
) RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_row   accs.seqpulse_deployments;
  v_posts int;
BEGIN
  SELECT * INTO v_row FROM accs.seqpulse_deployments WHERE id = p_deployment AND project = p_project FOR NO KEY UPDATE;
  IF v_row.id IS NULL OR v_row.state <> 'running' THEN
    RETURN QUERY SELECT CASE WHEN v_row.id IS NULL THEN 'refused' ELSE 'repeated' END,
                        CASE WHEN v_row.id IS NULL THEN 'not_found' END;
    RETURN;
  END IF;
  UPDATE accs.seqpulse_deployments SET state = 'finished', pipeline_result = p_result, finished_at = v_now,
         metrics_endpoint = coalesce(metrics_endpoint, p_endpoint),
         duration_ms = greatest(0, date_part('epoch', v_now - started_at) * 1000)::bigint
   WHERE id = p_deployment RETURNING * INTO v_row;
  v_posts := CASE WHEN v_row.metrics_endpoint IS NULL THEN 0 ELSE v_row.window_minutes END;
  PERFORM accs.submit_jobs(
    array_fill(accs.deployment_workflow('seqpulse.post_collect'), ARRAY[v_posts]),
    ARRAY(SELECT jsonb_build_object('deployment_id', v_row.id, 'project', p_project, 'phase', 'post', 'sequence_index', i)
            FROM generate_series(0, v_posts - 1) i ORDER BY i),
    p_scheduled_at => ARRAY(SELECT v_now + i * interval '1 min' FROM generate_series(0, v_posts - 1) i ORDER BY i),
    p_keys => ARRAY(SELECT format('seqpulse:%s:post:%s', v_row.id, i) FROM generate_series(0, v_posts - 1) i ORDER BY i),
    p_created_by => p_by) WHERE v_posts > 0;
  PERFORM accs.submit_jobs(
    ARRAY[accs.deployment_workflow('seqpulse.analysis')], ARRAY[jsonb_build_object('deployment_id', v_row.id, 'project', p_project)],
    p_scheduled_at => ARRAY[v_now + v_row.delay_minutes * interval '1 min'],
    p_keys => ARRAY[format('seqpulse:%s:analysis', v_row.id)], p_job_ids => ARRAY[v_row.id], p_created_by => p_by);
  RETURN QUERY SELECT 'accepted', NULL::text;
END $$;
SELECT accs.is_verb('finish_deployment', may => '{gateway}');

-- Deployments leave with their analyses, which retention has removed just now. The newest of a project stays until it is not the newest
-- any more, and is taken with the next: numbers are given once.
CREATE FUNCTION accs.forget_deployments(p_job_ids uuid[]) RETURNS void LANGUAGE sql AS $$
  DELETE FROM accs.seqpulse_deployments d
   WHERE d.project IN (SELECT project FROM accs.seqpulse_deployments WHERE id = ANY (p_job_ids)) AND d.state = 'finished'
     AND NOT EXISTS (SELECT FROM public.jobs j WHERE j.id = d.id)
     AND EXISTS (SELECT FROM accs.seqpulse_deployments n WHERE n.project = d.project AND n.number > d.number)
$$;

-- The jobs of deployments by the keys that they were given, with the one task of each.
CREATE VIEW accs.deployment_jobs AS
SELECT d.id AS deployment_id, d.project, d.number, k.job_type, k.phase, k.sequence_index, j.id AS job_id,
       CASE WHEN j.status = 'done' THEN 'completed' WHEN j.status IN ('error', 'cancelled') THEN 'failed'
            WHEN t.status IN ('starting', 'running') THEN 'running' ELSE 'pending' END AS status,
       j.scheduled_at, j.created_at, j.error_message AS job_error, j.options, t.id AS task_id, t.attempt,
       t.max_attempts, t.error_message, t.results, t.finished_at, greatest(j.updated_at, t.updated_at) AS updated_at, d.metrics_endpoint
  FROM accs.seqpulse_deployments d
 CROSS JOIN LATERAL (
   SELECT 'pre_collect' AS job_type, 'pre' AS phase, NULL::int AS sequence_index, 'pre' AS key
   UNION ALL SELECT 'post_collect', 'post', i, 'post:' || i FROM generate_series(0, d.window_minutes - 1) i
   UNION ALL SELECT 'analysis', NULL, NULL, 'analysis') k
  JOIN public.jobs j ON j.idempotency_key = 'seqpulse:' || d.id || ':' || k.key
  LEFT JOIN public.job_tasks t ON t.job_id = j.id AND t.task_key = CASE k.job_type WHEN 'analysis' THEN 'analyse' ELSE 'collect' END;

-- What SeqPulse's own tables show, under their names and with their columns.
CREATE VIEW public.scheduled_jobs AS
SELECT job_id AS id, deployment_id, job_type, phase, sequence_index, scheduled_at,
       status, coalesce(least(attempt, max_attempts - 1), 0) AS retry_count,
       CASE WHEN status <> 'completed' THEN coalesce(error_message, job_error) END AS last_error,
       options - 'deployment_id' || jsonb_build_object('metrics_endpoint', metrics_endpoint) AS job_metadata, created_at, updated_at
  FROM accs.deployment_jobs;

CREATE VIEW public.metric_samples AS
SELECT task_id AS id, deployment_id, phase, (results -> 'requests_per_sec')::double precision AS requests_per_sec,
       (results -> 'latency_p95')::double precision AS latency_p95, (results -> 'error_rate')::double precision AS error_rate,
       (results -> 'cpu_usage')::double precision AS cpu_usage, (results -> 'memory_usage')::double precision AS memory_usage,
       (results ->> 'collected_at')::timestamptz AS collected_at, sequence_index, scheduled_at,
       results -> 'warm_up' IS NOT DISTINCT FROM 'true' AS warm_up
  FROM accs.deployment_jobs WHERE status = 'completed' AND job_type <> 'analysis' AND results ? 'collected_at';

CREATE VIEW public.deployment_verdicts AS
SELECT task_id AS id, deployment_id, results ->> 'verdict' AS verdict, (results -> 'confidence')::double precision AS confidence,
       results ->> 'summary' AS summary, results -> 'details' AS details, (results -> 'quality')::double precision AS quality,
       finished_at AS created_at
  FROM accs.deployment_jobs WHERE status = 'completed' AND job_type = 'analysis' AND results ? 'verdict';

CREATE VIEW public.sdh_hints AS
SELECT md5(j.task_id || (h.hint ->> 'metric'))::uuid AS id, j.deployment_id, h.hint ->> 'metric' AS metric,
       h.hint ->> 'severity' AS severity, (nullif(h.hint -> 'observed_value', 'null'))::double precision AS observed_value,
       (nullif(h.hint -> 'threshold', 'null'))::double precision AS threshold,
       (nullif(h.hint -> 'secured_threshold', 'null'))::double precision AS secured_threshold,
       (nullif(h.hint -> 'exceed_ratio', 'null'))::double precision AS exceed_ratio,
       (nullif(h.hint -> 'tolerance', 'null'))::double precision AS tolerance,
       (nullif(h.hint -> 'confidence', 'null'))::double precision AS confidence, h.hint ->> 'title' AS title,
       h.hint ->> 'diagnosis' AS diagnosis, h.hint -> 'suggested_actions' AS suggested_actions, h.hint -> 'audit_data' AS audit_data,
       j.finished_at AS created_at
  FROM accs.deployment_jobs j CROSS JOIN LATERAL jsonb_array_elements(coalesce(j.results -> 'hints', '[]')) h (hint)
 WHERE j.status = 'completed' AND j.job_type = 'analysis';

-- ---------------------------------------------------------------------------------------------------------------
-- History that outlives the database: archives of months, retention of finished jobs (docs/history.md)
-- ---------------------------------------------------------------------------------------------------------------

-- One row for each month of a table that was written to the object store, in the order of the chain; it stays for ever. A month is
-- sorted by its subjects: the jobs of task_events, the schedules of firings, the topics of events.
CREATE TABLE accs.archives (
  id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  partition      text NOT NULL,
  from_ts        timestamptz NOT NULL,
  to_ts          timestamptz NOT NULL,
  rows           bigint NOT NULL CHECK (rows >= 0),
  mark_sum       numeric NOT NULL,           -- of accs.mark_of(row): with the count, whether the table still holds the same rows
  bytes          bigint NOT NULL,            -- of the JSONL, whose checksum follows
  sha256         text NOT NULL,
  bucket         text NOT NULL,
  key            text NOT NULL,
  size_bytes     bigint NOT NULL,            -- of the object
  index_sha256   text NOT NULL,              -- of the object beside it that says where the rows of each subject are
  first_subject  text COLLATE "C",           -- whoever asks for another one needs no look into it
  last_subject   text COLLATE "C",
  previous       text NOT NULL,              -- the digest before this one; empty for the first
  digest         text NOT NULL UNIQUE,
  created_at     timestamptz NOT NULL DEFAULT accs.clock(),
  verified_at    timestamptz,                -- when it was last read back and was what it should be
  refused        text,                       -- what was wrong with it when it was looked at last
  superseded_at  timestamptz,                -- rows came after it was written: another archive holds them all
  dropped_at     timestamptz                 -- since then the store has the only copy
);

CREATE UNIQUE INDEX archives_open ON accs.archives (partition) WHERE dropped_at IS NULL AND superseded_at IS NULL;

CREATE FUNCTION accs.refuse_archive_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'accs.archives is the record of what was archived: % is refused', TG_OP
    USING ERRCODE = 'AC005', HINT = 'accsd history verify says whether the chain of digests holds.';
END $$;
CREATE TRIGGER append_only BEFORE INSERT OR UPDATE OR DELETE ON accs.archives
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_archive_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON accs.archives
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_archive_change();

-- Each digest covers the one before it: who changes an archive, or takes one out, has to change all that follow.
CREATE FUNCTION accs.archive_digest(p_previous text, p_partition text, p_rows bigint, p_sha256 text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT encode(sha256(convert_to(concat_ws(E'\n', p_previous, p_partition, p_rows, p_sha256), 'UTF8')), 'hex') $$;

-- A month of a table in accs.monthly, and no other table; returns that table. One that is gone is none any more; its name still is.
CREATE FUNCTION accs.check_month(p_partition text) RETURNS accs.monthly LANGUAGE plpgsql AS $$
DECLARE
  v_table accs.monthly;
BEGIN
  SELECT * INTO v_table FROM accs.monthly WHERE name = accs.table_of(p_partition);
  IF NOT FOUND OR to_regclass('public.' || p_partition) IS NOT NULL AND NOT EXISTS (
       SELECT FROM pg_inherits WHERE inhparent = to_regclass('public.' || v_table.name)
                                 AND inhrelid = to_regclass('public.' || p_partition)) THEN
    RAISE EXCEPTION '"%" is no month of a table that is archived', left(p_partition, 100) USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN v_table;
END $$;

-- Puts an archive whose objects are in the store on record. The same one again (after a crash) is the same row; other
-- content takes the place of what was not dropped yet. Who has not seen the end of the chain is refused and looks again.
CREATE FUNCTION accs.record_archive(
  p_partition text, p_rows bigint, p_mark_sum numeric, p_bytes bigint, p_sha256 text, p_bucket text, p_key text, p_size_bytes bigint,
  p_index_sha256 text, p_first_subject text, p_last_subject text, p_previous text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_from timestamptz;
  v_open accs.archives;
  v_head text;
  v_id   bigint;
BEGIN
  PERFORM accs.check_month(p_partition);
  PERFORM accs.lock('archives');
  SELECT * INTO v_open FROM accs.archives a WHERE a.partition = p_partition AND a.dropped_at IS NULL AND a.superseded_at IS NULL;
  IF FOUND AND (v_open.sha256, v_open.rows, v_open.bucket, v_open.key) = (p_sha256, p_rows, p_bucket, p_key) THEN
    -- another version may write its index in another way; one with another place in the chain is not this archive's
    UPDATE accs.archives SET size_bytes = p_size_bytes, index_sha256 = p_index_sha256, verified_at = NULL
     WHERE id = v_open.id AND previous = p_previous AND (size_bytes, index_sha256) <> (p_size_bytes, p_index_sha256);
    RETURN v_open.id;
  END IF;
  IF to_regclass('public.' || p_partition) IS NULL THEN
    RAISE EXCEPTION '% is gone: another builder has archived and dropped it', p_partition USING ERRCODE = 'AC004';
  END IF;
  v_from := accs.begin_of(p_partition) AT TIME ZONE 'UTC';
  SELECT a.digest INTO v_head FROM accs.archives a ORDER BY a.id DESC LIMIT 1;
  IF coalesce(v_head, '') <> p_previous THEN
    RAISE EXCEPTION '%: another archive was recorded meanwhile', p_partition USING ERRCODE = 'AC005', HINT = 'Try again.';
  END IF;
  UPDATE accs.archives SET superseded_at = accs.clock() WHERE id = v_open.id;
  INSERT INTO accs.archives (partition, from_ts, to_ts, rows, mark_sum, bytes, sha256, bucket, key, size_bytes, index_sha256, first_subject,
                             last_subject, previous, digest)
  VALUES (p_partition, v_from, (v_from AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC', p_rows, p_mark_sum, p_bytes, p_sha256,
          p_bucket, p_key, p_size_bytes, p_index_sha256, p_first_subject, p_last_subject, p_previous,
          accs.archive_digest(p_previous, p_partition, p_rows, p_sha256))
  RETURNING id INTO v_id;
  RETURN v_id;
END $$;
SELECT accs.is_verb('record_archive', may => '{archive}');

-- What was found when an archive was read back. Null: it is what was recorded; else what is wrong with it.
CREATE FUNCTION accs.check_archive(p_id bigint, p_rows bigint, p_bytes bigint, p_sha256 text, p_problem text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  v_archive accs.archives;
  v_problem text := p_problem;
BEGIN
  SELECT * INTO v_archive FROM accs.archives WHERE id = p_id FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no archive %', p_id USING ERRCODE = 'AC004';
  END IF;
  IF v_problem IS NULL AND p_rows IS DISTINCT FROM v_archive.rows THEN
    v_problem := format('it holds %s rows, and %s were archived', p_rows, v_archive.rows);
  ELSIF v_problem IS NULL AND (p_bytes, p_sha256) IS DISTINCT FROM (v_archive.bytes, v_archive.sha256) THEN
    v_problem := format('its checksum is %s, and %s was archived', p_sha256, v_archive.sha256);
  END IF;
  UPDATE accs.archives SET refused = v_problem, verified_at = CASE WHEN v_problem IS NULL THEN accs.clock() ELSE verified_at END
   WHERE id = p_id;
  RETURN v_problem;
END $$;
SELECT accs.is_verb('check_archive', may => '{archive}');

-- Drops a partition whose archive was just read back. Null: it is gone; else why it is not. Counted under a lock that keeps
-- writers of that month out and nobody else. DETACH CONCURRENTLY is not for tables with a default partition; so everybody
-- waits for the drop, but never longer than a fifth of a second: behind a long reader it gives up, and the next pass tries.
CREATE FUNCTION accs.drop_archived(p_id bigint) RETURNS text LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
  v_archive accs.archives;
  v_table   accs.monthly;
  v_rows    bigint;
  v_marks   numeric;
  v_needed  boolean;
  v_reason  text;
BEGIN
  SELECT * INTO v_archive FROM accs.archives WHERE id = p_id FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no archive %', p_id USING ERRCODE = 'AC004';
  ELSIF v_archive.dropped_at IS NOT NULL THEN
    RETURN NULL;
  END IF;
  v_reason := CASE WHEN v_archive.superseded_at IS NOT NULL THEN 'a newer archive has taken its place'
                   WHEN v_archive.refused IS NOT NULL THEN v_archive.refused
                   WHEN v_archive.verified_at IS NULL OR v_archive.verified_at < accs.clock() - interval '1 hour'
                     THEN 'it was not read back within the last hour'
                   WHEN v_archive.to_ts > accs.clock() - interval '1 day' THEN 'its month has not been over for a day' END;
  IF v_reason IS NOT NULL THEN
    RETURN v_reason;
  END IF;
  v_table := accs.check_month(v_archive.partition);
  BEGIN
    IF to_regclass('public.' || v_archive.partition) IS NOT NULL THEN
      EXECUTE format('LOCK TABLE public.%I IN SHARE MODE', v_archive.partition);
      -- of the parent, within the bounds of the month: marks are those of its rows
      EXECUTE format('SELECT count(*), coalesce(sum(accs.mark_of(e)), 0) FROM public.%1$I e WHERE %2$I >= %3$L AND %2$I < %4$L',
                     v_table.name, v_table.at, (accs.bounds_of(v_archive.partition))[1], (accs.bounds_of(v_archive.partition))[2])
        INTO v_rows, v_marks;
      IF (v_rows, v_marks) <> (v_archive.rows, v_archive.mark_sum) THEN
        v_reason := CASE WHEN v_rows = v_archive.rows THEN 'the table has other rows than were archived'
                         ELSE format('the table has %s rows, and %s were archived', v_rows, v_archive.rows) END;
        UPDATE accs.archives SET refused = v_reason WHERE id = p_id;
        RETURN v_reason;
      END IF;
      PERFORM set_config('lock_timeout', '200ms', true);
      -- the parent first, as its readers do; then nobody is under way who has found a row here and is about to need it
      EXECUTE format('LOCK TABLE ONLY public.%I IN ACCESS EXCLUSIVE MODE', v_table.name);
      EXECUTE format('LOCK TABLE public.%I IN ACCESS EXCLUSIVE MODE', v_archive.partition);
      EXECUTE format('SELECT EXISTS (SELECT FROM public.%I e WHERE %s)', v_archive.partition, v_table.stays) INTO v_needed;
      IF v_needed THEN
        RETURN 'some of its rows are still needed; the next pass tries again';
      END IF;
      EXECUTE format('DROP TABLE public.%I', v_archive.partition);
    END IF;
  EXCEPTION WHEN lock_not_available THEN
    RETURN format('somebody reads %s all the time; the next pass tries again', v_table.name);
  END;
  UPDATE accs.archives SET dropped_at = accs.clock() WHERE id = p_id;
  RETURN NULL;
END $$;
SELECT accs.is_verb('drop_archived', may => '{archive}');

-- Objects of jobs that were removed: noted in the same transaction, taken out of the store afterwards.
CREATE TABLE accs.doomed_objects (
  bucket  text NOT NULL,
  key     text NOT NULL,
  since   timestamptz NOT NULL DEFAULT accs.clock(),
  PRIMARY KEY (bucket, key)
);

-- Gives back what these tasks have borrowed. An object that nobody has any more, the job that made it included, is taken out of the store.
CREATE FUNCTION accs.return_files(p_task_ids uuid[]) RETURNS void LANGUAGE sql AS $$
  WITH gone AS (DELETE FROM accs.borrowed_files WHERE job_task_id = ANY (p_task_ids) RETURNING *)
  INSERT INTO accs.doomed_objects (bucket, key)
  SELECT DISTINCT g.bucket, g.key FROM gone g
   WHERE starts_with(g.key, 'outputs/' || g.owner || '/')
     AND NOT EXISTS (SELECT FROM public.task_artifacts a WHERE a.bucket = g.bucket AND a.key = g.key)
     AND NOT EXISTS (SELECT FROM accs.borrowed_files b WHERE b.bucket = g.bucket AND b.key = g.key AND b.job_task_id <> ALL (p_task_ids))
  ON CONFLICT DO NOTHING
$$;

-- Removes jobs that ended longer ago than p_age, or than p_ages of their workflow says (null: never), with their tasks,
-- dead letters and artifacts. Walks along the global order: p_scan jobs after p_after, fewer where they have many tasks (a
-- million rows in one call would never end in time); next_after of the last row (its workflow
-- is null) is where to go on, null at the end. Kept in any case is what somebody still has to do with: an open dead
-- letter, an undelivered outgoing event. Events stay; they leave with their month. p_dry_run counts and removes nothing.
CREATE FUNCTION accs.delete_finished_jobs(
  p_age interval, p_workflows text[] DEFAULT '{}', p_ages interval[] DEFAULT '{}', p_after bigint DEFAULT 0, p_scan int DEFAULT 1000,
  p_dry_run boolean DEFAULT false
) RETURNS TABLE (workflow text, jobs bigint, tasks bigint, artifacts bigint, bytes bigint, kept bigint, next_after bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_seen  uuid[];
  v_due   uuid[];
  v_next  bigint;
  v_first timestamptz;
BEGIN
  SELECT array_agg(s.id) FILTER (WHERE s.before < 20000), min(s.created_at),
         CASE WHEN count(*) = p_scan OR bool_or(s.before >= 20000) THEN max(s.order_seq) FILTER (WHERE s.before < 20000) END
    INTO v_seen, v_first, v_next
    FROM (SELECT j.*, sum(j.task_count) OVER (ORDER BY j.order_seq) - j.task_count AS before
            FROM (SELECT j.id, j.order_seq, j.created_at, j.task_count FROM public.jobs j
                   WHERE j.order_seq > p_after ORDER BY j.order_seq LIMIT p_scan) j) s;
  IF v_first > v_now - (SELECT min(a) FROM unnest(p_ages || p_age) a) THEN
    v_next := NULL;   -- who was submitted later has not ended long ago
  END IF;
  SELECT array_agg(l.id) INTO v_due FROM (
    SELECT j.id FROM public.jobs j JOIN public.workflows f ON f.id = j.workflow_id
     WHERE j.id = ANY (v_seen) AND j.status IN ('done', 'error', 'cancelled')
       AND coalesce(j.finished_at, j.updated_at)
           < v_now - CASE WHEN f.name = ANY (p_workflows)
                          THEN (SELECT o.age FROM unnest(p_workflows, p_ages) AS o (name, age) WHERE o.name = f.name LIMIT 1)
                          ELSE p_age END
     ORDER BY j.id FOR UPDATE OF j SKIP LOCKED) l;
  RETURN QUERY
  WITH due AS (
    SELECT j.id, f.name,
           EXISTS (SELECT FROM public.job_tasks t JOIN public.dead_letters d ON d.job_task_id = t.id
                    WHERE t.job_id = j.id AND d.redriven_at IS NULL AND d.dismissed_at IS NULL)
           OR EXISTS (SELECT FROM public.outbox_events o WHERE o.job_id = j.id AND o.status = 'pending') AS is_kept
      FROM public.jobs j JOIN public.workflows f ON f.id = j.workflow_id WHERE j.id = ANY (v_due)
  )
  SELECT d.name, count(*) FILTER (WHERE NOT d.is_kept), coalesce(sum(t.n) FILTER (WHERE NOT d.is_kept), 0)::bigint,
         coalesce(sum(a.n) FILTER (WHERE NOT d.is_kept), 0)::bigint, coalesce(sum(a.bytes) FILTER (WHERE NOT d.is_kept), 0)::bigint,
         count(*) FILTER (WHERE d.is_kept), NULL::bigint
    FROM due d
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM public.job_tasks t WHERE t.job_id = d.id) t
    CROSS JOIN LATERAL (SELECT count(*) AS n, sum(a.size_bytes) AS bytes FROM public.task_artifacts a WHERE a.job_id = d.id) a
   GROUP BY d.name ORDER BY d.name;
  IF NOT p_dry_run AND v_due IS NOT NULL THEN
    SELECT array_agg(j.id) INTO v_due FROM unnest(v_due) AS j (id)
     WHERE NOT EXISTS (SELECT FROM public.job_tasks t JOIN public.dead_letters d ON d.job_task_id = t.id
                        WHERE t.job_id = j.id AND d.redriven_at IS NULL AND d.dismissed_at IS NULL)
       AND NOT EXISTS (SELECT FROM public.outbox_events o WHERE o.job_id = j.id AND o.status = 'pending');
    -- only what lies where accsd puts a job's objects: an input may be somebody's own file elsewhere
    INSERT INTO accs.doomed_objects (bucket, key)
    SELECT a.bucket, a.key FROM public.task_artifacts a
     WHERE a.job_id = ANY (v_due) AND starts_with(a.key, a.kind || 's/' || a.job_id || '/')
       AND NOT EXISTS (SELECT FROM accs.borrowed_files b WHERE b.bucket = a.bucket AND b.key = a.key AND b.job_id <> ALL (v_due))
    ON CONFLICT DO NOTHING;
    DELETE FROM public.dead_letters d USING public.job_tasks t WHERE t.job_id = ANY (v_due) AND d.job_task_id = t.id;
    DELETE FROM public.task_artifacts a WHERE a.job_id = ANY (v_due);
    PERFORM accs.return_files(ARRAY(SELECT b.job_task_id FROM accs.borrowed_files b WHERE b.job_id = ANY (v_due)));
    DELETE FROM accs.concurrency_keys k USING public.job_tasks t
     WHERE t.job_id = ANY (v_due) AND t.resolve IS NOT NULL AND k.key = 'map/' || t.id;
    DELETE FROM accs.cached_results c USING public.job_tasks t
     WHERE t.job_id = ANY (v_due) AND (t.resolve IS NOT NULL OR t.parent IS NOT NULL) AND c.task_id = t.id;
    DELETE FROM public.job_tasks t WHERE t.job_id = ANY (v_due);
    DELETE FROM public.jobs j WHERE j.id = ANY (v_due);
    PERFORM accs.forget_deployments(v_due);
  END IF;
  RETURN QUERY SELECT NULL::text, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, v_next;
END $$;
SELECT accs.is_verb('delete_finished_jobs', may => '{archive}');

-- These objects are out of the store.
CREATE FUNCTION accs.forget_objects(p_bucket text, p_keys text[]) RETURNS bigint LANGUAGE sql AS $$
  WITH gone AS (DELETE FROM accs.doomed_objects WHERE bucket = p_bucket AND key = ANY (p_keys) RETURNING 1) SELECT count(*) FROM gone
$$;
SELECT accs.is_verb('forget_objects', may => '{archive}');

-- ---------------------------------------------------------------------------------------------------------------
-- Upkeep, the net under all of the above: the narrow tables and the counts, recounted
-- ---------------------------------------------------------------------------------------------------------------

-- Everything that disagrees with job_tasks and jobs, by one snapshot: every verb leaves it empty at its commit, so whatever
-- is here is damage. id is the task's, or the job's; job_id is null where the row's job is unknown. Looks at what waits, is
-- live or pending, and at the tasks of open jobs. Not accs.clock(): what another transaction has promoted may be due in this
-- one's future.
CREATE VIEW accs.damage (what, job_id, id, found) AS
  SELECT 'waiting_row'::text, t.job_id, w.task_id, jsonb_build_object('waiting', to_jsonb(w), 'status', t.status, 'remaining', t.remaining)
    FROM accs.waiting w LEFT JOIN public.job_tasks t ON t.id = w.task_id LEFT JOIN public.jobs j ON j.id = t.job_id
   WHERE t.id IS NULL OR t.status <> 'queued' OR t.remaining > 0
      OR CASE WHEN t.resolve THEN w.hold IS NULL OR w.hold NOT IN ('resolve', 'paused') ELSE w.hold = 'resolve' END
      OR (w.lane, w.rank, w.order_seq, w.created_at, w.key, w.due_at) IS DISTINCT FROM
         (t.lane, -j.priority, j.order_seq, t.created_at, t.concurrency_key, CASE w.hold WHEN 'backoff' THEN t.next_attempt_at END)
  UNION ALL
  SELECT 'waiting_missing', t.job_id, t.id, jsonb_build_object('status', t.status, 'next_attempt_at', t.next_attempt_at)
    FROM public.jobs j JOIN public.job_tasks t ON t.job_id = j.id
   WHERE j.status = 'running' AND t.status = 'queued' AND t.remaining = 0 AND NOT EXISTS (SELECT FROM accs.waiting w WHERE w.task_id = t.id)
  UNION ALL
  SELECT 'live_row', t.job_id, l.task_id, jsonb_build_object('live', to_jsonb(l), 'status', t.status, 'attempt_id', t.attempt_id,
                                                             'lease_until', t.lease_until)
    FROM accs.live l LEFT JOIN public.job_tasks t ON t.id = l.task_id
   WHERE t.id IS NULL OR (l.job_id, l.service, l.owner, l.attempt_id, l.lease_until, l.progress, l.key) IS DISTINCT FROM
         (t.job_id, t.service_name, t.lease_owner, t.attempt_id, t.lease_until, t.progress, t.concurrency_key)
  UNION ALL
  SELECT 'live_missing', t.job_id, t.id, jsonb_build_object('status', t.status, 'owner', t.lease_owner, 'attempt_id', t.attempt_id)
    FROM public.jobs j JOIN public.job_tasks t ON t.job_id = j.id
   WHERE j.status = 'running' AND t.lease_owner IS NOT NULL AND NOT EXISTS (SELECT FROM accs.live l WHERE l.task_id = t.id)
  UNION ALL
  SELECT 'remaining', t.job_id, t.id, jsonb_build_object('kept', t.remaining, 'counted', r.n)
    FROM public.jobs j JOIN public.job_tasks t ON t.job_id = j.id,
         LATERAL (SELECT count(*)::int AS n FROM accs.unsatisfied(t.job_id, t.depends_on, t.parent)) r
   WHERE j.status = 'running' AND t.status IN ('queued', 'starting', 'running') AND t.remaining <> r.n
  UNION ALL
  SELECT 'pending_row', j.id, p.job_id, jsonb_build_object('due_at', p.due_at, 'status', j.status, 'scheduled_at', j.scheduled_at)
    FROM accs.pending_jobs p LEFT JOIN public.jobs j ON j.id = p.job_id LEFT JOIN accs.open_runs o ON o.job_id = p.job_id AND o.waits
   WHERE j.id IS NULL OR j.status <> 'queued'
      OR p.due_at <> CASE WHEN o.job_id IS NOT NULL THEN 'infinity' ELSE coalesce(j.scheduled_at, j.created_at) END
  UNION ALL
  SELECT 'pending_missing', j.id, j.id, jsonb_build_object('scheduled_at', j.scheduled_at)
    FROM public.jobs j WHERE j.status = 'queued' AND NOT EXISTS (SELECT FROM accs.pending_jobs p WHERE p.job_id = j.id)
  UNION ALL
  SELECT 'run_row', j.id, o.job_id, jsonb_build_object('key', o.key, 'status', j.status)
    FROM accs.open_runs o LEFT JOIN public.jobs j ON j.id = o.job_id WHERE j.id IS NULL OR j.status NOT IN ('queued', 'running')
  UNION ALL   -- repair leaves it to expire_results
  SELECT 'cache_row', NULL, c.task_id, jsonb_build_object('generation', c.generation, 'made_at', c.made_at)
    FROM accs.cached_results c LEFT JOIN public.job_tasks t ON t.id = c.task_id WHERE t.id IS NULL OR t.generation < c.generation
  UNION ALL
  SELECT r.what, c.id, c.id, jsonb_build_object('task_count', c.task_count, 'open_tasks', c.open_tasks, 'task_progress', c.task_progress,
                                                'progress', c.progress, 'counted', jsonb_build_array(c.tasks, c.open, c.gained))
    FROM (SELECT j.id, j.task_count, j.open_tasks, j.task_progress, j.progress, count(t.id) AS tasks,
                 count(*) FILTER (WHERE t.status IN ('queued', 'starting', 'running')) AS open,
                 coalesce(sum(CASE WHEN t.status IN ('done', 'skipped', 'error') THEN 1
                                   WHEN t.status = 'queued' THEN 0 ELSE t.progress END), 0) AS gained
            FROM public.jobs j LEFT JOIN public.job_tasks t ON t.job_id = j.id WHERE j.status = 'running' GROUP BY j.id) c,
         LATERAL (VALUES ('job_open', c.open = 0),
                         ('job_counts', (c.task_count, c.open_tasks, c.task_progress) IS DISTINCT FROM (c.tasks, c.open, c.gained)
                                        OR abs(coalesce(c.progress, 0) - coalesce(c.gained / nullif(c.tasks, 0), 0)) > 0.000001)
                 ) AS r (what, is_so)
   WHERE r.is_so;

-- Where the last repair stopped looking because its time was up; zeros: it came to the end.
CREATE TABLE accs.repair_position (
  only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  job_id    uuid NOT NULL,
  task_id   uuid NOT NULL
);
INSERT INTO accs.repair_position (job_id, task_id) VALUES ('00000000-0000-0000-0000-000000000000', '00000000-0000-0000-0000-000000000000');

-- Looks through the running jobs and what waits, slice by slice, each slice by a snapshot of its own and along indexes. Stops
-- when it has found p_limit things, or has looked at each of the two for p_patience: then the next call begins there. No index
-- may cover the status of a job, so jobs is read twice to find the open ones.
CREATE FUNCTION accs.find_damage(p_limit int, p_patience interval) RETURNS SETOF accs.damage LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_zero  uuid := '00000000-0000-0000-0000-000000000000';
  v_at    accs.repair_position;
  v_next  accs.repair_position;
  v_until timestamptz := clock_timestamp() + p_patience;
  v_slice uuid[];
  v_begun boolean;
  v_n     int;
  v_left  int := p_limit;
BEGIN
  SELECT * INTO v_at FROM accs.repair_position;
  v_next := ROW(true, v_zero, v_zero);
  FOR v_slice IN SELECT array_agg(o.id ORDER BY o.n) FROM (   -- from the position to the end, then from the beginning to it
      SELECT j.id, row_number() OVER (ORDER BY j.id <= v_at.job_id, j.id) AS n FROM public.jobs j WHERE j.status = 'running') o
     GROUP BY (o.n - 1) / 500 ORDER BY (o.n - 1) / 500 LOOP
    RETURN QUERY SELECT * FROM accs.damage d WHERE d.job_id = ANY (v_slice);
    GET DIAGNOSTICS v_n = ROW_COUNT;
    v_left := v_left - v_n;
    IF v_left <= 0 OR clock_timestamp() > v_until THEN
      v_next.job_id := CASE WHEN v_left <= 0 THEN v_at.job_id ELSE v_slice[cardinality(v_slice)] END;
      EXIT;
    END IF;
  END LOOP;

  -- what belongs to no running job, or to none at all
  RETURN QUERY SELECT * FROM accs.damage d WHERE d.what IN ('live_row', 'pending_row', 'pending_missing', 'run_row');
  v_until := clock_timestamp() + p_patience;
  v_next.task_id := v_at.task_id;
  v_begun := v_at.task_id = v_zero;
  WHILE v_left > 0 AND NOT (v_begun AND v_next.task_id >= v_at.task_id AND v_at.task_id <> v_zero) LOOP
    v_slice := ARRAY(SELECT w.task_id FROM accs.waiting w WHERE w.task_id > v_next.task_id ORDER BY w.task_id LIMIT 5000);
    IF v_slice = '{}' THEN
      v_next.task_id := v_zero;
      EXIT WHEN v_begun;
      v_begun := true;
      CONTINUE;
    END IF;
    RETURN QUERY SELECT * FROM accs.damage d WHERE d.what = 'waiting_row' AND d.id = ANY (v_slice);
    GET DIAGNOSTICS v_n = ROW_COUNT;
    v_left := v_left - v_n;
    v_next.task_id := v_slice[cardinality(v_slice)];
    EXIT WHEN clock_timestamp() > v_until;
  END LOOP;
  UPDATE accs.repair_position SET job_id = v_next.job_id, task_id = v_next.task_id
   WHERE (job_id, task_id) <> (v_next.job_id, v_next.task_id);
END $$;

-- Mends what accs.damage shows, up to p_limit things, and leaves an event of level error for each: a repair is a bug
-- somewhere. The damage is read without a lock, and again under its jobs' locks; a job that somebody else has locked is left
-- to the next call. One repair at a time. Answers what it has mended; nothing when all is well.
CREATE FUNCTION accs.repair(p_limit int DEFAULT 1000) RETURNS TABLE (what text, repaired int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now     timestamptz := accs.clock();
  v_jobs    uuid[];
  v_strays  accs.damage[];
  v_found   accs.damage[];
  v_waiting uuid[];
  v_live    uuid[];
  v_counts  uuid[];
  v_pending uuid[];
  v_keys    text[];
BEGIN
  PERFORM FROM accs.locks WHERE name = 'repair' FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN   -- another builder is at it
    RETURN;
  END IF;
  SELECT array_agg(DISTINCT d.job_id) FILTER (WHERE d.job_id IS NOT NULL), array_agg(d) FILTER (WHERE d.job_id IS NULL)
    INTO v_jobs, v_strays FROM (SELECT * FROM accs.find_damage(p_limit, '5 s') LIMIT p_limit) d;
  IF v_jobs IS NULL AND v_strays IS NULL THEN
    RETURN;
  END IF;
  v_jobs := ARRAY(SELECT id FROM public.jobs WHERE id = ANY (v_jobs) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED);
  v_found := ARRAY(SELECT d FROM accs.damage d WHERE d.job_id = ANY (v_jobs) LIMIT p_limit);

  INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data)
  SELECT f.job_id, nullif(f.id, f.job_id), v_now, 'builder', 'error', 'repair', 'repaired: ' || f.what, f.found FROM unnest(v_found) f;
  v_waiting := ARRAY(SELECT f.id FROM unnest(v_found) f WHERE f.what IN ('waiting_row', 'waiting_missing', 'remaining'));
  v_live := ARRAY(SELECT f.id FROM unnest(v_found) f WHERE f.what IN ('live_row', 'live_missing'));
  v_pending := ARRAY(SELECT f.id FROM unnest(v_found) f WHERE f.what IN ('pending_row', 'pending_missing'));
  v_counts := ARRAY(SELECT f.id FROM unnest(v_found) f WHERE f.what IN ('job_counts', 'job_open'));

  -- waiting, then tasks, then live. What should wait after all comes back at the end.
  PERFORM accs.unqueue(v_waiting);
  DELETE FROM accs.waiting w WHERE w.task_id IN (SELECT s.id FROM unnest(v_strays) s WHERE s.what = 'waiting_row')
     AND NOT EXISTS (SELECT FROM public.job_tasks t WHERE t.id = w.task_id);
  PERFORM FROM public.job_tasks WHERE id = ANY (v_waiting || v_live) ORDER BY id FOR NO KEY UPDATE;
  UPDATE public.job_tasks t SET remaining = (d.found ->> 'counted')::int, updated_at = v_now
    FROM accs.damage d WHERE d.what = 'remaining' AND d.job_id = ANY (v_jobs) AND d.id = ANY (v_waiting) AND t.id = d.id;
  WITH gone AS (
    DELETE FROM accs.live l WHERE (l.task_id = ANY (v_live) OR l.task_id IN (SELECT s.id FROM unnest(v_strays) s WHERE s.what = 'live_row'))
       AND NOT EXISTS (SELECT FROM public.job_tasks t WHERE t.id = l.task_id AND t.lease_owner IS NOT NULL)
    RETURNING l.key)
  SELECT array_agg(DISTINCT key) FILTER (WHERE key IS NOT NULL) INTO v_keys FROM gone;
  INSERT INTO accs.live AS l (task_id, job_id, service, node, owner, attempt_id, key, progress, lease_until)
  SELECT t.id, t.job_id, t.service_name, coalesce(t.assigned_node, e.node, t.lease_owner), t.lease_owner, t.attempt_id, t.concurrency_key,
         t.progress, t.lease_until
    FROM public.job_tasks t LEFT JOIN LATERAL (   -- only the claim knew the node
      SELECT data ->> 'node' AS node FROM public.task_events
       WHERE job_id = t.job_id AND job_task_id = t.id AND attempt_id = t.attempt_id AND data ->> 'to' = 'starting'
       ORDER BY ts DESC LIMIT 1) e ON true
   WHERE t.id = ANY (v_live) AND t.lease_owner IS NOT NULL
  ON CONFLICT (task_id) DO UPDATE SET job_id = excluded.job_id, service = excluded.service, owner = excluded.owner,
         attempt_id = excluded.attempt_id, key = excluded.key, progress = excluded.progress, lease_until = excluded.lease_until;

  DELETE FROM accs.pending_jobs p
   WHERE (p.job_id = ANY (v_pending) OR p.job_id IN (SELECT s.id FROM unnest(v_strays) s WHERE s.what = 'pending_row'))
     AND NOT EXISTS (SELECT FROM public.jobs j WHERE j.id = p.job_id AND j.status = 'queued');
  INSERT INTO accs.pending_jobs AS p (job_id, due_at)
  SELECT j.id, CASE WHEN o.job_id IS NOT NULL THEN 'infinity' ELSE coalesce(j.scheduled_at, j.created_at) END
    FROM public.jobs j LEFT JOIN accs.open_runs o ON o.job_id = j.id AND o.waits WHERE j.id = ANY (v_pending) AND j.status = 'queued'
  ON CONFLICT (job_id) DO UPDATE SET due_at = excluded.due_at;
  IF FOUND THEN
    PERFORM pg_notify(accs.channel_prefix() || 'builder', '');
  END IF;

  PERFORM accs.end_runs(ARRAY(SELECT f.id FROM unnest(v_found || v_strays) f WHERE f.what IN ('run_row')));
  v_keys := v_keys || accs.enqueue(v_waiting) || ARRAY(
    SELECT DISTINCT concurrency_key FROM public.job_tasks WHERE id = ANY (v_waiting || v_live) AND concurrency_key IS NOT NULL);
  PERFORM accs.recount(v_counts);
  PERFORM accs.admit(v_keys);
  RETURN QUERY SELECT f.what, count(*)::int FROM unnest(v_found || v_strays) f GROUP BY f.what;
END $$;
SELECT accs.is_verb('repair', pinned => true, may => '{scheduler}');

-- Counts the tasks of running jobs anew and closes those that have none open; the caller holds their locks. A job without
-- any task can't have succeeded.
CREATE FUNCTION accs.recount(p_job_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  WITH counted AS (
    SELECT u.id, count(t.id)::int AS tasks, count(*) FILTER (WHERE t.status IN ('queued', 'starting', 'running'))::int AS open,
           coalesce(sum(CASE WHEN t.status IN ('done', 'skipped', 'error') THEN 1
                             WHEN t.status = 'queued' THEN 0 ELSE t.progress END), 0) AS gained,
           CASE WHEN count(t.id) = 0 THEN 'no_tasks'
                ELSE (array_agg(coalesce(t.error_code, 'error') ORDER BY t.finished_at, t.id)
                      FILTER (WHERE t.status IN ('error', 'cancelled') AND t.tolerated IS NULL))[1] END AS code
      FROM unnest(p_job_ids) AS u (id) LEFT JOIN public.job_tasks t ON t.job_id = u.id GROUP BY u.id
  ), moved AS (
    UPDATE public.jobs j SET task_count = c.tasks, open_tasks = c.open, task_progress = c.gained,
           progress = coalesce(c.gained / nullif(c.tasks, 0), 0), updated_at = v_now,
           error_code = CASE WHEN c.open = 0 THEN coalesce(j.error_code, c.code) ELSE j.error_code END,
           status = CASE WHEN c.open > 0 THEN j.status WHEN coalesce(j.error_code, c.code) IS NULL THEN 'done' ELSE 'error' END,
           finished_at = CASE WHEN c.open = 0 THEN v_now END
      FROM counted c WHERE j.id = c.id AND j.status = 'running'
    RETURNING j.id, j.status, j.error_code
  )
  INSERT INTO public.task_events (job_id, ts, source, level, type, message, data)
  SELECT id, v_now, 'builder', 'warn', 'status', 'running → ' || status,
         jsonb_strip_nulls(jsonb_build_object('from', 'running', 'to', status, 'error_code', error_code))
    FROM moved WHERE status <> 'running';
  PERFORM accs.end_runs(ARRAY(SELECT id FROM public.jobs WHERE id = ANY (p_job_ids) AND status <> 'running'));
END $$;

-- What people ask by status, without an index on a status that changes all the time.
CREATE VIEW accs.service_load AS
  SELECT service, coalesce(sum(claimable), 0)::bigint AS claimable, coalesce(sum(backoff), 0)::bigint AS in_backoff,
         coalesce(sum(key), 0)::bigint AS held_by_key, coalesce(sum(paused), 0)::bigint AS paused, coalesce(sum(live), 0)::bigint AS live,
         coalesce(sum(resolving), 0)::bigint AS resolving
    FROM (SELECT l.service, count(*) FILTER (WHERE w.hold IS NULL) AS claimable, count(*) FILTER (WHERE w.hold = 'backoff') AS backoff,
                 count(*) FILTER (WHERE w.hold = 'key') AS key, count(*) FILTER (WHERE w.hold = 'paused') AS paused, NULL::bigint AS live,
                 count(*) FILTER (WHERE w.hold = 'resolve') AS resolving
            FROM accs.waiting w JOIN accs.lanes l ON l.id = w.lane GROUP BY l.service
          UNION ALL
          SELECT service, NULL, NULL, NULL, NULL, count(*), NULL FROM accs.live GROUP BY service) x
   GROUP BY service;

-- ---------------------------------------------------------------------------------------------------------------
-- Statistics: how busy nodes were, how attempts ended by the minute, how long steps usually take. None of it is on the way of a task:
-- a pass of the builder reads what has happened
-- ---------------------------------------------------------------------------------------------------------------

-- How many tasks of a service were live on a node, of how many slots: once a minute, where one of the two has changed. A node that is not
-- awake has no slots. After 14 days the last of each quarter of an hour is kept.
CREATE TABLE accs.samples (
  ts       timestamptz NOT NULL,
  node     text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  service  text NOT NULL,
  live     int NOT NULL,
  slots    int NOT NULL,
  PRIMARY KEY (node, service, ts)
);

CREATE INDEX samples_ts ON accs.samples (ts);   -- forget_statistics

-- How many attempts ended in each minute, and how. error: for good; retried: failed, and tried again; lost: the owner was gone (those that
-- were lost for good count as error, too). What was released is not counted. wait_s: for how long these attempts had been ready before
-- they were claimed; run_s: for how long those that were not lost had run, each in all.
CREATE TABLE accs.outcomes (
  minute   timestamptz NOT NULL,            -- when it begins
  service  text NOT NULL,
  seconds  int NOT NULL DEFAULT 60,         -- how long it is: after 14 days a quarter of an hour
  done     int NOT NULL DEFAULT 0,
  error    int NOT NULL DEFAULT 0,
  retried  int NOT NULL DEFAULT 0,
  lost     int NOT NULL DEFAULT 0,
  wait_s   double precision NOT NULL DEFAULT 0,
  run_s    double precision NOT NULL DEFAULT 0,
  PRIMARY KEY (minute, service, seconds)
) WITH (fillfactor = 70);

CREATE FUNCTION accs.quantile(p_values real[], p_share double precision) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
  SELECT percentile_cont(p_share) WITHIN GROUP (ORDER BY v) FROM unnest(p_values) AS u (v)
$$;

-- How long each step of a workflow (all versions) usually runs and waits, in seconds, by its last 200 attempts that were done: what has
-- become faster is known as fast soon. The tasks of a step that was multiplied count as the step.
CREATE TABLE accs.step_stats (
  workflow    text NOT NULL,
  task_key    text NOT NULL,
  n           bigint NOT NULL,              -- all that were ever counted
  runs        real[] NOT NULL,              -- the newest first
  waits       real[] NOT NULL,
  p50         double precision GENERATED ALWAYS AS (accs.quantile(runs, 0.5)) STORED,
  p95         double precision GENERATED ALWAYS AS (accs.quantile(runs, 0.95)) STORED,
  wait_p50    double precision GENERATED ALWAYS AS (accs.quantile(waits, 0.5)) STORED,
  updated_at  timestamptz NOT NULL,
  PRIMARY KEY (workflow, task_key)
) WITH (fillfactor = 50);

-- Where the pass stands. Its lock makes it one pass at a time, whichever builder makes it.
CREATE TABLE accs.statistics_position (
  only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  counted_to  bigint NOT NULL DEFAULT 0,                  -- task events up to this id are counted, but for accs.event_gaps
  sampled_at  timestamptz NOT NULL DEFAULT '-infinity',
  kept_at     timestamptz NOT NULL DEFAULT '-infinity'    -- when what is old was last put together
);
INSERT INTO accs.statistics_position DEFAULT VALUES;

-- Ids up to that position that no row had when the pass came by: their transaction was still under way, or has been rolled back. From the
-- pass after on, `before` is above every transaction that could own them: once all below it have ended, who is still missing never comes.
-- So an event is counted once, however late its transaction commits.
CREATE TABLE accs.event_gaps (
  ids     int8range NOT NULL,
  since   timestamptz NOT NULL,
  before  xid8
);

-- What ended attempts tell: how, for how long they had run, and how long they had been ready before they were claimed. A task's row knows
-- its last attempt; of an earlier one the job's events do. A task is ready when it was made, when all that it depends on has ended, or when
-- the last attempt or run of it said that it begins again. (Each is one look-up by index, as in claim_tasks.)
CREATE FUNCTION accs.attempts_ended(p_events public.task_events[])
RETURNS TABLE (ts timestamptz, workflow text, task_key text, service text, ended text, is_lost boolean, run double precision,
               wait double precision) LANGUAGE sql STABLE AS $$
  SELECT e.ts, f.name, coalesce(m.task_key, t.task_key), t.service_name,
         CASE e.data ->> 'to' WHEN 'queued' THEN 'retried' ELSE e.data ->> 'to' END, coalesce(e.data ->> 'outcome' = 'lost', false),
         extract(epoch FROM e.ts - a.started), extract(epoch FROM greatest(a.claimed - greatest(t.created_at, d.ended, b.due), '0'))
    FROM unnest(p_events) e, LATERAL (
         SELECT * FROM public.job_tasks t WHERE t.id = e.job_task_id OFFSET 0) t, LATERAL (
         SELECT j.workflow_id FROM public.jobs j WHERE j.id = e.job_id OFFSET 0) j, LATERAL (
         SELECT w.name FROM public.workflows w WHERE w.id = j.workflow_id OFFSET 0) f
    LEFT JOIN LATERAL (SELECT p.task_key, p.finished_at FROM public.job_tasks p WHERE p.id = t.parent OFFSET 0) m ON true
    CROSS JOIN LATERAL (
         SELECT t.claimed_at AS claimed, t.started_at AS started WHERE t.attempt_id = e.attempt_id
         UNION ALL
         SELECT min(s.ts) FILTER (WHERE s.data ->> 'to' = 'starting'), min(s.ts) FILTER (WHERE s.data ->> 'to' = 'running')
           FROM public.task_events s
          WHERE t.attempt_id <> e.attempt_id AND s.job_id = e.job_id AND s.ts BETWEEN e.ts - interval '1 day' AND e.ts
            AND s.job_task_id = e.job_task_id AND s.attempt_id = e.attempt_id AND s.type = 'status'
         HAVING t.attempt_id <> e.attempt_id) a
    LEFT JOIN LATERAL (
         SELECT max(x.finished_at) FILTER (WHERE x.finished_at <= a.claimed) AS ended FROM (
           SELECT m.finished_at WHERE t.parent IS NOT NULL
           UNION ALL
           SELECT greatest(u.finished_at, CASE WHEN u.items IS NOT NULL THEN (
                    SELECT max(c.finished_at) FROM public.job_tasks c WHERE c.parent = u.id) END)
             FROM unnest(t.depends_on) AS k (key), LATERAL (
               SELECT u.id, u.finished_at, u.items FROM public.job_tasks u WHERE u.job_id = t.job_id AND u.task_key = k.key OFFSET 0) u
            WHERE t.parent IS NULL) x) d ON true
    LEFT JOIN LATERAL (
         SELECT coalesce((p.data ->> 'next_attempt_at')::timestamptz, p.ts) AS due FROM public.task_events p
          WHERE (e.attempt_id > 1 OR t.generation > 0) AND p.job_id = e.job_id AND p.ts <= a.claimed AND p.job_task_id = e.job_task_id
            AND p.type IN ('status', 'retry') AND p.data ->> 'to' = 'queued'
          ORDER BY p.ts DESC LIMIT 1) b ON true
$$;

-- One pass: counts the next p_limit events, and those that came late; once a minute it takes samples. Of several builders one makes it.
-- `more`: there are further events. What ended without a node (the resolver's) is nobody's attempt.
CREATE FUNCTION accs.count_events(p_limit int DEFAULT 5000) RETURNS TABLE (events int, samples int, more boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_at    accs.statistics_position;
  v_last  bigint;
  v_to    bigint;
  v_snap  pg_snapshot;
  v_seen  int8multirange;
BEGIN
  events := 0;
  samples := 0;
  more := false;
  SELECT * INTO v_at FROM accs.statistics_position FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN   -- another builder is at it
    RETURN NEXT;
    RETURN;
  END IF;
  IF v_at.sampled_at NOT BETWEEN v_now - interval '55 s' AND v_now THEN   -- a clock that was set back counts as a change
    samples := accs.take_samples();
    UPDATE accs.statistics_position SET sampled_at = v_now;
  END IF;

  -- Before the events are read: a transaction that has ended by now is seen then, and an id that was given out by now is there or a gap.
  v_snap := pg_current_snapshot();
  SELECT CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END INTO v_last FROM public.task_events_id_seq s;
  v_at.counted_to := least(v_at.counted_to, v_last);   -- a restored database may have begun anew
  v_to := least(v_last, v_at.counted_to + greatest(1, least(p_limit, 100000)));
  more := v_to < v_last;
  IF v_to > v_at.counted_to OR EXISTS (SELECT FROM accs.event_gaps) THEN
    WITH fresh AS MATERIALIZED (
      SELECT e FROM public.task_events e WHERE e.id BETWEEN v_at.counted_to + 1 AND v_to
      UNION ALL
      SELECT l.e FROM accs.event_gaps g, LATERAL (
        SELECT e FROM public.task_events e WHERE e.id >= lower(g.ids) AND e.id < upper(g.ids) OFFSET 0) l
    ), measured AS MATERIALIZED (
      SELECT m.* FROM accs.attempts_ended(ARRAY(
        SELECT f.e FROM fresh f WHERE (f.e).type IN ('status', 'retry') AND (f.e).attempt_id IS NOT NULL AND (f.e).source <> 'resolver'
           AND ((f.e).data ->> 'to' IN ('done', 'error') OR (f.e).data ->> 'outcome' IN ('lost', 'error')))) m
    ), counted AS (
      INSERT INTO accs.outcomes AS o (minute, service, done, error, retried, lost, wait_s, run_s)
      SELECT date_trunc('minute', m.ts), m.service, count(*) FILTER (WHERE m.ended = 'done'), count(*) FILTER (WHERE m.ended = 'error'),
             count(*) FILTER (WHERE m.ended = 'retried' AND NOT m.is_lost), count(*) FILTER (WHERE m.is_lost), coalesce(sum(m.wait), 0),
             coalesce(sum(m.run) FILTER (WHERE NOT m.is_lost), 0)
        FROM measured m GROUP BY 1, 2
      ON CONFLICT (minute, service, seconds) DO UPDATE SET done = o.done + excluded.done, error = o.error + excluded.error,
             retried = o.retried + excluded.retried, lost = o.lost + excluded.lost, wait_s = o.wait_s + excluded.wait_s,
             run_s = o.run_s + excluded.run_s
    ), learnt AS (
      INSERT INTO accs.step_stats AS s (workflow, task_key, n, runs, waits, updated_at)
      SELECT m.workflow, m.task_key, count(*), (array_agg(m.run ORDER BY m.ts DESC))[1:200],
             (array_agg(coalesce(m.wait, 0) ORDER BY m.ts DESC))[1:200], v_now
        FROM measured m WHERE m.ended = 'done' AND m.run IS NOT NULL GROUP BY 1, 2
      ON CONFLICT (workflow, task_key) DO UPDATE SET n = s.n + excluded.n, runs = (excluded.runs || s.runs)[1:200],
             waits = (excluded.waits || s.waits)[1:200], updated_at = v_now
    )
    SELECT coalesce(range_agg(int8range((f.e).id, (f.e).id, '[]')), '{}'), count(*) INTO v_seen, events FROM fresh f;

    WITH known AS (
      DELETE FROM accs.event_gaps RETURNING *)
    INSERT INTO accs.event_gaps (ids, since, before)
    SELECT r.ids, g.since, coalesce(g.before, pg_snapshot_xmax(v_snap)) FROM known g, unnest(int8multirange(g.ids) - v_seen) AS r (ids)
     WHERE (g.before <= pg_snapshot_xmin(v_snap) AND g.since < v_now - interval '1 min' OR g.since < v_now - interval '1 day') IS NOT TRUE;
    INSERT INTO accs.event_gaps (ids, since)
    SELECT r.ids, v_now FROM unnest(int8multirange(int8range(v_at.counted_to + 1, v_to + 1)) - v_seen) AS r (ids);
  END IF;
  UPDATE accs.statistics_position SET counted_to = v_to WHERE counted_to <> v_to;
  RETURN NEXT;
END $$;
SELECT accs.is_verb('count_events', may => '{scheduler}');
-- Plans by index, as those of pinned verbs; but a range of ids is found by a bitmap.
ALTER FUNCTION accs.count_events SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
  SET enable_mergejoin = off SET jit = off;

-- What has changed since each node's last sample of a service.
CREATE FUNCTION accs.take_samples() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_now   timestamptz := accs.clock();
  v_taken int;
BEGIN
  INSERT INTO accs.samples (ts, node, service, live, slots)
  SELECT v_now, c.node, c.service, c.live, c.slots
    FROM (SELECT s.node, s.service, (SELECT count(*)::int FROM accs.live l WHERE l.node = s.node AND l.service = s.service) AS live,
                 CASE WHEN n.awake_state = 'awake' AND n.last_seen > v_now - interval '2 min'
                      THEN coalesce((n.max_concurrency ->> s.service)::int, 0) ELSE 0 END AS slots
            FROM accs.slots s JOIN public.nodes n ON n.name = s.node WHERE NOT n.labels ? 'accs.kind') c
    LEFT JOIN LATERAL (SELECT p.live, p.slots FROM accs.samples p WHERE p.node = c.node AND p.service = c.service
                        ORDER BY p.ts DESC LIMIT 1) p ON true
   WHERE (c.live, c.slots) IS DISTINCT FROM (coalesce(p.live, 0), coalesce(p.slots, 0))
  ON CONFLICT DO NOTHING;
  GET DIAGNOSTICS v_taken = ROW_COUNT;
  RETURN v_taken;
END $$;

-- Once an hour: what is older than 14 days is put together by the quarter of an hour, and what is older than 400 days is forgotten. What a
-- node's power was at that time stays known. Returns how many rows there are less.
CREATE FUNCTION accs.forget_statistics() RETURNS int LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_fine  timestamptz := date_bin('15 min', accs.clock() - interval '14 days', '2000-01-01Z');
  v_old   timestamptz := accs.clock() - interval '400 days';
  v_at    accs.statistics_position;
  v_n     int;
  v_less  int := 0;
BEGIN
  SELECT * INTO v_at FROM accs.statistics_position FOR UPDATE SKIP LOCKED;
  IF NOT FOUND OR v_at.kept_at BETWEEN v_now - interval '50 min' AND v_now THEN
    RETURN 0;
  END IF;
  WITH fine AS (
    DELETE FROM accs.outcomes WHERE seconds = 60 AND minute < v_fine RETURNING *
  ), coarse AS (
    INSERT INTO accs.outcomes AS o (minute, service, seconds, done, error, retried, lost, wait_s, run_s)
    SELECT date_bin('15 min', minute, '2000-01-01Z'), service, 900, sum(done), sum(error), sum(retried), sum(lost), sum(wait_s), sum(run_s)
      FROM fine GROUP BY 1, 2
    ON CONFLICT (minute, service, seconds) DO UPDATE SET done = o.done + excluded.done, error = o.error + excluded.error,
           retried = o.retried + excluded.retried, lost = o.lost + excluded.lost, wait_s = o.wait_s + excluded.wait_s,
           run_s = o.run_s + excluded.run_s
    RETURNING 1)
  SELECT (SELECT count(*) FROM fine) - (SELECT count(*) FROM coarse) INTO v_less;
  -- those that have become old since the last time, and an hour before it, if builders were away
  DELETE FROM accs.samples s
   WHERE s.ts < v_fine AND s.ts >= greatest(v_old, date_bin('15 min', v_at.kept_at, '2000-01-01Z') - interval '14 days 1 hour')
     AND EXISTS (SELECT FROM accs.samples l WHERE l.node = s.node AND l.service = s.service AND l.ts > s.ts
                    AND l.ts < date_bin('15 min', s.ts, '2000-01-01Z') + interval '15 min');
  GET DIAGNOSTICS v_n = ROW_COUNT;
  v_less := v_less + v_n;
  DELETE FROM accs.outcomes WHERE minute < v_old;
  GET DIAGNOSTICS v_n = ROW_COUNT;
  v_less := v_less + v_n;
  DELETE FROM accs.samples s WHERE s.ts < v_old
     AND EXISTS (SELECT FROM accs.samples l WHERE l.node = s.node AND l.service = s.service AND l.ts > s.ts AND l.ts < v_old);
  GET DIAGNOSTICS v_n = ROW_COUNT;
  v_less := v_less + v_n;
  DELETE FROM accs.power_log p WHERE p.ts < v_old
     AND EXISTS (SELECT FROM accs.power_log l WHERE l.node = p.node AND l.ts > p.ts AND l.ts < v_old);
  GET DIAGNOSTICS v_n = ROW_COUNT;
  v_less := v_less + v_n;
  DELETE FROM accs.step_stats WHERE updated_at < v_old;
  GET DIAGNOSTICS v_n = ROW_COUNT;
  UPDATE accs.statistics_position SET kept_at = v_now;
  RETURN v_less + v_n;
END $$;
SELECT accs.is_verb('forget_statistics', may => '{scheduler}');

-- ---------------------------------------------------------------------------------------------------------------
-- Health: which daemons are there, and what waits, runs, has failed, is stuck or overdue
-- ---------------------------------------------------------------------------------------------------------------

-- Each process of accsd, and what keeps its roles from their work. A machine may have several, which do different things.
CREATE TABLE accs.daemons (
  name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),           -- the node's
  roles      text[] NOT NULL CHECK (roles <> '{}' AND roles <@ '{builder,agent,gateway}'),
  version    text CHECK (length(version) <= 100),
  since      timestamptz,                                                    -- when it began, by its own clock
  last_seen  timestamptz NOT NULL DEFAULT accs.clock(),
  hearing    text CHECK (length(hearing) <= 500),                            -- whether notifications arrive: listening, or why not
  problems   jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(problems) = 'object' AND pg_column_size(problems) <= 65536),
  PRIMARY KEY (name, roles)
) WITH (fillfactor = 50);

CREATE INDEX schedules_broken ON public.schedules (id) WHERE state = 'broken';   -- scheduler_health

-- A daemon is there: each says it every 20 or 30 s. Said again within 15 s it is written only where something has changed. One that has
-- gone is forgotten after a day. p_problems are sentences by role.
CREATE FUNCTION accs.note_daemon(p_name text, p_roles text[], p_version text DEFAULT NULL, p_since timestamptz DEFAULT NULL,
                                 p_hearing text DEFAULT NULL, p_problems jsonb DEFAULT '{}') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_now   timestamptz := accs.clock();
  v_roles text[] := ARRAY(SELECT DISTINCT u.role FROM unnest(p_roles) AS u (role) ORDER BY 1);
BEGIN
  IF session_user <> current_user AND NOT accs.speaks_for_all() THEN   -- an agent's login is no builder, and says nothing of others' nodes
    IF 'builder' = ANY (v_roles) OR EXISTS (SELECT FROM public.nodes n WHERE n.name = p_name AND n.login <> session_user)
       OR 'gateway' = ANY (v_roles) AND NOT coalesce(pg_has_role(session_user, to_regrole('accs_api'), 'MEMBER'), false) THEN
      RAISE EXCEPTION 'the login "%" does not speak for a daemon "%" that is %', session_user, p_name, array_to_string(v_roles, ', ')
        USING ERRCODE = 'AC006', HINT = 'A builder logs in as accs_scheduler, and each node by a login of its own or one that they share.';
    END IF;
  END IF;
  IF EXISTS (SELECT FROM accs.daemons d WHERE d.name = p_name AND d.roles = v_roles
                AND (d.version, d.since, d.hearing, d.problems) IS NOT DISTINCT FROM (p_version, p_since, p_hearing, p_problems)
                AND d.last_seen BETWEEN v_now - interval '15 s' AND v_now) THEN   -- a clock that was set back counts as a change
    RETURN 'repeated';
  END IF;
  INSERT INTO accs.daemons (name, roles, version, since, last_seen, hearing, problems)
  VALUES (p_name, v_roles, p_version, p_since, v_now, left(p_hearing, 500), p_problems)
  ON CONFLICT (name, roles) DO UPDATE SET version = excluded.version, since = excluded.since, last_seen = excluded.last_seen,
         hearing = excluded.hearing, problems = excluded.problems;
  DELETE FROM accs.daemons d WHERE d.last_seen < v_now - interval '1 day';
  RETURN 'accepted';
END $$;
SELECT accs.is_verb('note_daemon', may => '{agent,scheduler,api}');

-- What waits (jobs, tasks that could be claimed or are held, rows of the agenda), what is live, what failed for good and nobody has
-- dealt with, what is live without a lease or for more than 10 minutes, whether a builder was seen within a minute; and of
-- schedules: what nobody has settled or planned for a minute, the broken ones, why all are held. Each is counted up to p_most, along
-- the narrow tables and an index: it is asked all the time.
CREATE FUNCTION accs.scheduler_health(p_most int DEFAULT 10000) RETURNS TABLE (
  pending int, running int, failed int, stuck_running int, poller_running boolean, overdue int, overdue_for interval, unplanned int,
  unplanned_for interval, broken int, hold text
) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  RETURN QUERY
  SELECT (SELECT count(*)::int FROM (
            SELECT FROM accs.pending_jobs UNION ALL SELECT FROM accs.waiting
            UNION ALL SELECT FROM accs.agenda a WHERE a.what <> ALL ('{replan,probe}') AND a.due_at <= v_now
            UNION ALL SELECT FROM accs.agenda a WHERE a.what = ANY ('{replan,probe}') AND a.due_at <= v_now LIMIT p_most) w),
         l.running, (SELECT count(*)::int FROM (
                       SELECT FROM public.dead_letters d WHERE d.redriven_at IS NULL AND d.dismissed_at IS NULL LIMIT p_most) d),
         l.stuck, EXISTS (SELECT FROM accs.daemons d WHERE 'builder' = ANY (d.roles) AND d.last_seen > v_now - interval '1 min'),
         o.n, o.longest, u.n, u.longest,
         (SELECT count(*)::int FROM (SELECT FROM public.schedules s WHERE s.state = 'broken' LIMIT p_most) b),
         (SELECT concat_ws(', ', coalesce(h.reason, 'no reason given'), 'by ' || h.by) FROM accs.schedule_hold h)
    FROM (SELECT count(*)::int AS running,
                 (count(*) FILTER (WHERE t.lease_until < v_now OR t.since < v_now - interval '600 s'))::int AS stuck
            FROM (SELECT v.lease_until, t.since FROM (SELECT * FROM accs.live LIMIT p_most) v
                  LEFT JOIN LATERAL (   -- one look-up for each, as in claim_tasks
                    SELECT coalesce(t.started_at, t.claimed_at) AS since FROM public.job_tasks t
                     WHERE t.id = v.task_id OFFSET 0) t ON true) t) l,
         (SELECT count(*)::int AS n, max(v_now - a.due_at) AS longest FROM (
            SELECT a.due_at FROM accs.agenda a WHERE a.what <> ALL ('{replan,probe}') AND a.due_at < v_now - interval '1 min'
             ORDER BY a.due_at LIMIT p_most) a) o,
         (SELECT count(*)::int AS n, max(v_now - a.due_at) AS longest FROM (
            SELECT a.due_at FROM accs.agenda a WHERE a.what = ANY ('{replan,probe}') AND a.what = 'replan'
               AND a.due_at < v_now - interval '1 min' ORDER BY a.due_at LIMIT p_most) a) u;
END $$;
SELECT accs.is_verb('scheduler_health', may => '{scheduler,api,archive,reader}');

-- ---------------------------------------------------------------------------------------------------------------
-- Why: what keeps a task from running
-- ---------------------------------------------------------------------------------------------------------------

-- Why a task does not run: every blocker, since when, and until when where that is known. Of one that is live or has ended,
-- how. In place of a task, a job that has none yet. By one snapshot. A node that was not seen for p_silent (the lease) is away.
CREATE FUNCTION accs.why(p_task uuid, p_silent interval DEFAULT '2 min')
RETURNS TABLE (blocker text, since timestamptz, until timestamptz, detail jsonb) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_task  public.job_tasks;
  v_place accs.waiting;
  v_since timestamptz;
  v_next  boolean;    -- nothing of its own keeps it: only now it matters what the nodes do
  v_n     int;
  v_found int := 0;
BEGIN
  SELECT * INTO v_task FROM public.job_tasks WHERE id = p_task;
  IF NOT FOUND THEN
    RETURN QUERY SELECT * FROM accs.why_job(p_task);
    RETURN;
  ELSIF v_task.status IN ('starting', 'running') THEN
    RETURN QUERY
    SELECT v_task.status, coalesce(v_task.started_at, v_task.claimed_at), v_task.lease_until, jsonb_build_object(
             'node', l.node, 'owner', v_task.lease_owner, 'attempt_id', v_task.attempt_id, 'attempt', v_task.attempt,
             'max_attempts', v_task.max_attempts, 'progress', v_task.progress, 'is_expired', v_task.lease_until <= v_now)
      FROM (SELECT 1) one LEFT JOIN accs.live l ON l.task_id = p_task;
    RETURN;
  ELSIF v_task.status <> 'queued' THEN
    RETURN QUERY
    SELECT v_task.status, v_task.finished_at, NULL::timestamptz, jsonb_strip_nulls(jsonb_build_object(
             'error_code', v_task.error_code, 'error_message', v_task.error_message, 'attempt', v_task.attempt,
             'max_attempts', v_task.max_attempts, 'lost', v_task.lost, 'dead_letter', d.id, 'reason', d.reason,
             'fails_everywhere', CASE WHEN v_task.status = 'error' THEN accs.why_step(v_task) END,
             'failed', CASE WHEN v_task.error_code = 'upstream_failed' THEN (
               SELECT jsonb_agg(f.task_key) FROM (SELECT u.task_key FROM public.job_tasks u
                                                   WHERE u.job_id = v_task.job_id AND u.status = 'error'
                                                   ORDER BY u.finished_at, u.id LIMIT 10) f) END))
      FROM (SELECT 1) one LEFT JOIN public.dead_letters d
        ON d.job_task_id = p_task AND d.generation = v_task.generation AND d.redriven_at IS NULL AND d.dismissed_at IS NULL;
    RETURN;
  END IF;

  SELECT * INTO v_place FROM accs.waiting WHERE task_id = p_task;
  v_next := v_place.task_id IS NOT NULL AND (v_place.hold IS NULL OR v_place.hold = 'backoff' AND v_place.due_at <= v_now);
  v_since := CASE WHEN v_task.remaining > 0 THEN v_task.created_at
                  ELSE greatest(v_task.updated_at, CASE WHEN v_task.next_attempt_at <= v_now THEN v_task.next_attempt_at END) END;
  RETURN QUERY SELECT * FROM accs.why_held(v_task, v_place, v_since);
  GET DIAGNOSTICS v_found = ROW_COUNT;
  RETURN QUERY SELECT * FROM accs.why_no_node(v_task, v_next, v_since, p_silent);
  GET DIAGNOSTICS v_n = ROW_COUNT;
  IF v_found + v_n = 0 THEN
    RETURN QUERY
    SELECT 'unclaimed', v_since, NULL::timestamptz, jsonb_build_object('service', v_task.service_name,
             'nodes', (SELECT jsonb_agg(f.node ORDER BY f.node) FROM accs.why_nodes(v_task, p_silent) f WHERE f.state = 'free'),
             'ahead', (SELECT count(*) FROM (
                SELECT FROM accs.waiting w WHERE w.lane = v_place.lane AND w.hold IS NULL
                   AND (w.rank, w.order_seq, w.created_at, w.task_id)
                       < (v_place.rank, v_place.order_seq, v_place.created_at, v_place.task_id) LIMIT 10000) a));
  END IF;
  RETURN QUERY
  SELECT 'step_failing', h.since, NULL::timestamptz, jsonb_build_object('reason', h.reason)
    FROM accs.step_health h JOIN public.jobs j ON j.workflow_id = h.workflow_id WHERE j.id = v_task.job_id AND h.task_key = v_task.task_key;
END $$;
SELECT accs.is_verb('why', may => '{scheduler,api,archive,reader}');

-- What is wrong with the step itself, if it fails wherever it runs.
CREATE FUNCTION accs.why_step(p_task public.job_tasks) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT h.reason FROM public.jobs j JOIN accs.step_health h ON h.workflow_id = j.workflow_id AND h.task_key = p_task.task_key
   WHERE j.id = p_task.job_id
$$;

-- The same for a job: before it is instantiated, or as a whole.
CREATE FUNCTION accs.why_job(p_job uuid) RETURNS TABLE (blocker text, since timestamptz, until timestamptz, detail jsonb)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  v_job record;
  v_due timestamptz;
BEGIN
  SELECT j.*, f.name AS workflow INTO v_job FROM public.jobs j JOIN public.workflows f ON f.id = j.workflow_id WHERE j.id = p_job;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no task or job %', p_job USING ERRCODE = 'AC004';
  ELSIF v_job.status <> 'queued' THEN
    RETURN QUERY SELECT v_job.status, coalesce(v_job.finished_at, v_job.started_at), NULL::timestamptz, jsonb_strip_nulls(
      jsonb_build_object('error_code', v_job.error_code, 'error_message', v_job.error_message,
                         'open_tasks', v_job.open_tasks, 'task_count', v_job.task_count));
    RETURN;
  END IF;
  v_due := coalesce(v_job.scheduled_at, v_job.created_at);
  IF EXISTS (SELECT FROM accs.open_runs o WHERE o.job_id = p_job AND o.waits) THEN
    RETURN QUERY
    SELECT 'run_key'::text, v_job.created_at, NULL::timestamptz, jsonb_build_object('key', o.key, 'limit', k.max_open,
             'ahead', (SELECT count(*) FROM accs.open_runs a WHERE a.key = o.key AND a.waits AND a.order_seq < o.order_seq),
             'by', (SELECT jsonb_agg(a.job_id ORDER BY a.order_seq) FROM (SELECT * FROM accs.open_runs a WHERE a.key = o.key AND NOT a.waits
                                                                         ORDER BY a.order_seq LIMIT 5) a),
             'schedule', (SELECT s.name FROM public.schedules s WHERE s.id = o.schedule_id))
      FROM accs.open_runs o JOIN accs.run_keys k ON k.key = o.key WHERE o.job_id = p_job;
  ELSIF v_due > accs.clock() THEN
    RETURN QUERY SELECT 'not_due'::text, v_job.created_at, v_due, '{}'::jsonb;
  ELSE   -- a builder can't be told from an agent here; but where there is no daemon there is no builder
    RETURN QUERY SELECT 'not_instantiated'::text, v_due, NULL::timestamptz, jsonb_build_object('daemons', (
      SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'accsd listener'));
  END IF;
  RETURN QUERY SELECT 'workflow_paused'::text, p.since, NULL::timestamptz,
                      jsonb_strip_nulls(jsonb_build_object('name', p.name, 'reason', p.reason, 'by', p.by))
                 FROM accs.pauses p WHERE p.kind = 'workflow' AND p.name = v_job.workflow;
END $$;

-- Whether a task that waits for a time does so because its step says so: no attempt has ended since it was opened.
CREATE FUNCTION accs.is_delayed(p_task public.job_tasks) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT p_task.attempt = 0 AND p_task.lost = 0 AND p_task.outcome IS DISTINCT FROM 'released'
$$;

-- What keeps a queued task by itself: dependencies, pauses, its backoff, its concurrency key.
CREATE FUNCTION accs.why_held(p_task public.job_tasks, p_place accs.waiting, p_since timestamptz)
RETURNS TABLE (blocker text, since timestamptz, until timestamptz, detail jsonb) LANGUAGE sql STABLE AS $$
  (SELECT 'dependency',
          CASE d.status WHEN 'queued' THEN d.created_at WHEN 'starting' THEN d.claimed_at
                        WHEN 'running' THEN d.started_at ELSE d.finished_at END,
          NULL::timestamptz, jsonb_strip_nulls(jsonb_build_object('task_key', d.task_key, 'task_id', d.id, 'status', d.status,
                                                                  'items_missing', CASE WHEN d.parent IS NOT NULL THEN d.missing END))
     FROM (   -- of each step that was multiplied the first thousand items, and how many there are
       SELECT d.id, d.task_key, d.status, d.created_at, d.claimed_at, d.started_at, d.finished_at, d.parent, d.item_no,
              count(*) OVER (PARTITION BY d.parent) AS missing,
              row_number() OVER (PARTITION BY d.parent ORDER BY d.item_no, array_position(p_task.depends_on, d.task_key)) AS nth
         FROM accs.unsatisfied(p_task.job_id, p_task.depends_on, p_task.parent) AS u (id) JOIN public.job_tasks d ON d.id = u.id) d
    WHERE d.nth <= 1000
    ORDER BY array_position(p_task.depends_on, split_part(d.task_key, '[', 1)), d.item_no NULLS FIRST)
  UNION ALL   -- what it depends on is there; its condition and its input are not worked out yet
  SELECT 'resolve', p_since, NULL, jsonb_strip_nulls(jsonb_build_object('builders', count(*), 'obstacle', min(b.problems ->> 'resolver')))
    FROM accs.daemons b WHERE 'builder' = ANY (b.roles) AND b.last_seen > accs.clock() - interval '1 min' HAVING p_place.hold = 'resolve'
  UNION ALL
  SELECT p.kind || '_paused', p.since, NULL, jsonb_strip_nulls(jsonb_build_object('name', p.name, 'reason', p.reason, 'by', p.by))
    FROM accs.pauses p
   WHERE p.kind = 'service' AND p.name = p_task.service_name
      OR p.kind = 'workflow' AND p.name = (SELECT f.name FROM public.jobs j JOIN public.workflows f ON f.id = j.workflow_id
                                            WHERE j.id = p_task.job_id)
  UNION ALL
  SELECT 'backoff', p_task.updated_at, p_place.due_at,
         jsonb_strip_nulls(jsonb_build_object('outcome', p_task.outcome, 'error_code', p_task.error_code,
           'error_message', p_task.error_message, 'attempt', p_task.attempt, 'max_attempts', p_task.max_attempts, 'lost', p_task.lost))
   WHERE p_place.hold = 'backoff' AND p_place.due_at > accs.clock() AND NOT accs.is_delayed(p_task)
  UNION ALL
  SELECT 'delay', p_task.updated_at, p_place.due_at, '{}'
   WHERE p_place.hold = 'backoff' AND p_place.due_at > accs.clock() AND accs.is_delayed(p_task)
  UNION ALL
  SELECT 'key', p_since, NULL, jsonb_build_object(
           'key', k.key, 'limit', k.max_running, 'taken', l.n, 'by', coalesce(l.tasks, '[]'), 'ahead', (
           SELECT count(*) FROM accs.waiting w WHERE w.key = k.key AND (w.hold IS NULL OR w.hold = 'key')
              AND (w.rank, w.order_seq, w.created_at, w.task_id) < (p_place.rank, p_place.order_seq, p_place.created_at, p_place.task_id)))
    FROM accs.concurrency_keys k, LATERAL (
      SELECT count(*) AS n, jsonb_agg(jsonb_build_object('task_id', v.task_id, 'job_id', v.job_id, 'node', v.node) ORDER BY v.task_id)
                              FILTER (WHERE v.nth <= 10) AS tasks
        FROM (SELECT *, row_number() OVER (ORDER BY task_id) AS nth FROM accs.live WHERE key = k.key) v) l
   WHERE k.key = p_task.concurrency_key AND p_task.remaining = 0 AND (p_place.hold = 'key' OR l.n >= k.max_running)
  UNION ALL   -- damage, which repair mends
  SELECT 'misplaced', p_since, NULL, '{}' WHERE p_task.remaining = 0 AND p_place.task_id IS NULL
$$;

-- The nodes that a task may go to, by the rule of a claim, and what each one does: free, hindered, full, away, asleep,
-- quarantined, drained.
CREATE FUNCTION accs.why_nodes(p_task public.job_tasks, p_silent interval)
RETURNS TABLE (node text, state text, since timestamptz, detail jsonb) LANGUAGE sql STABLE AS $$
  SELECT n.name,
         CASE WHEN p.name IS NOT NULL THEN 'drained' WHEN q.state = 'shut' THEN 'quarantined' WHEN n.awake_state = 'sleep' THEN 'asleep'
              WHEN n.last_seen IS NULL OR n.last_seen <= accs.clock() - p_silent THEN 'away'
              WHEN l.n >= least((n.max_concurrency ->> p_task.service_name)::int, CASE WHEN q.state = 'trial' THEN 1 END) THEN 'full'
              WHEN o.node IS NOT NULL THEN 'hindered' ELSE 'free' END,
         CASE WHEN p.name IS NOT NULL THEN p.since WHEN q.state = 'shut' THEN q.since WHEN o.node IS NOT NULL THEN o.since
              ELSE n.last_seen END,
         jsonb_strip_nulls(jsonb_build_object(
           'node', n.name, 'service', p_task.service_name, 'slots', (n.max_concurrency ->> p_task.service_name)::int, 'live', l.n,
           'by', l.tasks, 'obstacle', o.reason, 'reason', p.reason, 'drained_by', p.by, 'awake_state', n.awake_state,
           'wake_method', n.wake_method,
           'power', w.state, 'power_since', w.since, 'because', w.because, 'latency_sec', round(extract(epoch FROM w.latency), 1))
           || CASE WHEN w.tries > 0 THEN jsonb_build_object('tries', w.tries, 'tried_at', w.tried_at, 'method', w.method, 'tried_ok', w.ok,
                                                            'error', w.error) ELSE '{}' END
           || CASE WHEN q.state IS NOT NULL THEN jsonb_build_object('quarantine', jsonb_build_object(
                'state', q.state, 'since', q.since, 'reason', q.reason, 'probe_at', q.probe_at, 'probe_error', q.probe_error,
                'probe_in_sec', round(extract(epoch FROM q.probe_at - accs.clock()), 1))) ELSE '{}' END)
    FROM accs.lanes a
    JOIN public.nodes n ON (a.node IS NULL OR n.name = a.node) AND a.requires <@ n.labels
                           AND (n.max_concurrency ->> p_task.service_name)::int > 0
    LEFT JOIN accs.pauses p ON p.kind = 'node' AND p.name = n.name
    LEFT JOIN accs.power w ON w.node = n.name
    LEFT JOIN accs.quarantines q ON q.node = n.name AND q.service = p_task.service_name
    LEFT JOIN accs.obstacles o ON o.node = n.name AND o.service = p_task.service_name,
         LATERAL (SELECT count(*) AS n, jsonb_agg(jsonb_build_object('task_id', v.task_id, 'job_id', v.job_id) ORDER BY v.task_id)
                                          FILTER (WHERE v.nth <= 10) AS tasks
                    FROM (SELECT *, row_number() OVER (ORDER BY task_id) AS nth FROM accs.live
                           WHERE node = n.name AND service = p_task.service_name) v) l
   WHERE a.id = p_task.lane
$$;

-- Why no node takes it: nobody offers the service, has the labels, or is the one that is named; or all that could are busy, away,
-- asleep, in quarantine or drained. What passes by itself counts only for a task that is next.
CREATE FUNCTION accs.why_no_node(p_task public.job_tasks, p_next boolean, p_since timestamptz, p_silent interval)
RETURNS TABLE (blocker text, since timestamptz, until timestamptz, detail jsonb) LANGUAGE sql STABLE AS $$
  WITH lane AS (
    SELECT * FROM accs.lanes WHERE id = p_task.lane
  ), offering AS (
    SELECT n.name, n.labels
      FROM lane l JOIN public.nodes n ON (l.node IS NULL OR n.name = l.node) AND (n.max_concurrency ->> l.service)::int > 0
  ), fitting AS MATERIALIZED (
    SELECT * FROM accs.why_nodes(p_task, p_silent)
  ), nearest AS (
    SELECT o.name, (SELECT jsonb_object_agg(r.key, jsonb_build_object('wanted', r.value, 'has', o.labels -> r.key))
                      FROM jsonb_each(l.requires) r WHERE NOT o.labels @> jsonb_build_object(r.key, r.value)) AS missing
      FROM lane l, offering o
  )
  SELECT 'node_unknown', p_since, NULL::timestamptz, jsonb_build_object('node', l.node)
    FROM lane l WHERE l.node IS NOT NULL AND NOT EXISTS (SELECT FROM public.nodes WHERE name = l.node)
  UNION ALL
  SELECT 'service_not_offered', p_since, NULL, jsonb_strip_nulls(jsonb_build_object('service', l.service, 'node', l.node,
           'nodes', (SELECT count(*) FROM public.nodes),
           'without_slots', (SELECT jsonb_agg(name ORDER BY name) FROM public.nodes WHERE max_concurrency ? l.service)))
    FROM lane l WHERE NOT EXISTS (SELECT FROM offering) AND (l.node IS NULL OR EXISTS (SELECT FROM public.nodes WHERE name = l.node))
  UNION ALL
  (SELECT 'labels', p_since, NULL, jsonb_build_object('requires', l.requires, 'service', l.service, 'node', l.node, 'nearest', n.name,
                                                      'missing', n.missing)
     FROM lane l, nearest n WHERE NOT EXISTS (SELECT FROM fitting)
    ORDER BY (SELECT count(*) FROM jsonb_object_keys(n.missing)), n.name LIMIT 1)
  UNION ALL
  (SELECT 'node_' || f.state, CASE f.state WHEN 'full' THEN p_since ELSE f.since END, NULL, f.detail
     FROM fitting f
    WHERE CASE WHEN p_next THEN NOT EXISTS (SELECT FROM fitting WHERE state = 'free')
               ELSE NOT EXISTS (SELECT FROM fitting WHERE state <> 'drained') END
    ORDER BY f.node LIMIT 100)
$$;

-- ---------------------------------------------------------------------------------------------------------------
-- The joblib door: its workers are nodes joblib/<uuid>, its jobs are workflows <room>:<category>:<name>
-- ---------------------------------------------------------------------------------------------------------------

-- What a job or a worker is, the door reads from workflows and nodes themselves: a worker serves a job if it has the label
-- joblib:<full name>, and the one step of a job requires that label. Only providers are like nothing else here.
CREATE TABLE accs.joblib_providers (
  id            uuid PRIMARY KEY DEFAULT accs.new_id(),
  room          text NOT NULL,
  category      text NOT NULL,
  name          text NOT NULL,
  schema        jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(schema) = 'object' AND pg_column_size(schema) <= 65536),
  content_type  text NOT NULL CHECK (length(content_type) BETWEEN 1 AND 200),
  owner         text NOT NULL,                 -- the actor whose it is
  node          text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  created_at    timestamptz NOT NULL DEFAULT accs.clock(),
  UNIQUE (room, category, name),
  CHECK (length(room || category || name) <= 200)
);

CREATE INDEX joblib_providers_node ON accs.joblib_providers (node);

-- The tasks of a room, the newest last. Options never change at a transition, so that updates of jobs stay HOT; of a text of any length
-- an index takes the beginning.
CREATE INDEX jobs_room ON public.jobs (left(options ->> 'room_id', 200), order_seq) WHERE options ? 'room_id';

-- Tells the gateways what leaves no event: jobs or providers of these rooms are not what they were. What is too long to say means: look.
CREATE FUNCTION accs.joblib_tell(p_jobs text[], p_providers text[] DEFAULT '{}', p_worker text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_said text := jsonb_build_object('door', 'joblib', 'jobs', p_jobs, 'providers', p_providers, 'worker', p_worker)::text;
BEGIN
  PERFORM pg_notify(accs.channel_prefix() || '_doors', CASE WHEN octet_length(v_said) < 7000 THEN v_said ELSE '' END);
END $$;

CREATE FUNCTION accs.joblib_room(p_name text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT split_part(p_name, ':', 1) $$;

-- The schema that a job was registered with; of one that the fleet serves, what its options say of the payload.
CREATE FUNCTION accs.joblib_schema(p_workflow public.workflows) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(p_workflow.meta #> '{joblib,schema}', p_workflow.options_schema #> '{properties,payload}', '{}')
$$;

-- Whether workers of the door serve a workflow; otherwise the fleet does.
CREATE FUNCTION accs.joblib_is_served(p_workflow uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT FROM accs.steps WHERE workflow_id = p_workflow AND service = 'joblib')
$$;

CREATE FUNCTION accs.joblib_workers(p_name text) RETURNS text[] LANGUAGE sql STABLE AS $$
  SELECT coalesce(array_agg(name ORDER BY name), '{}') FROM public.nodes
   WHERE labels ->> 'accs.kind' = 'joblib' AND labels ? ('joblib:' || p_name)
$$;

-- The workflow that a job is. References of the schema point at its root, which is another one within the options.
CREATE FUNCTION accs.joblib_workflow(p_name text, p_version int, p_schema jsonb, p_policy jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT jsonb_build_object('name', p_name, 'version', p_version,
    'steps', jsonb_build_array(
      jsonb_build_object('key', 'run', 'service', 'joblib', 'max_attempts', 1, 'requires', jsonb_build_object('joblib:' || p_name, true))
      || (p_policy - '{on_worker_loss,validate}'::text[])),
    'options_schema', CASE WHEN p_policy -> 'validate' = 'true' THEN
      jsonb_build_object('type', 'object', 'properties', jsonb_build_object('payload', p_schema))
      || CASE WHEN p_schema ? '$defs' THEN jsonb_build_object('$defs', p_schema -> '$defs') ELSE '{}' END END,
    'meta', jsonb_build_object('joblib', jsonb_build_object('schema', p_schema, 'policy', p_policy)))
$$;

-- Whether this actor's worker is there; with p_is_new it is made.
CREATE FUNCTION accs.joblib_worker(p_worker text, p_is_new boolean, p_by text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF p_is_new THEN
    PERFORM accs.register_node(p_worker, jsonb_build_object('accs.kind', 'joblib', 'joblib.user', p_by), '{"joblib": 1000000}');
  END IF;
  RETURN EXISTS (SELECT FROM public.nodes WHERE name = p_worker AND labels ->> 'accs.kind' = 'joblib' AND labels ->> 'joblib.user' = p_by);
END $$;

-- Registers a job, and that this worker serves it. p_policy are the opt-in fields of its step, with on_worker_loss and validate; null: as
-- they stand. A refused call leaves nothing behind. Registrations and the orphan rule lock the workflow, and after it the node.
CREATE FUNCTION accs.joblib_register(p_name text, p_schema jsonb, p_policy jsonb, p_worker text, p_is_new boolean, p_by text,
                                     p_at_once int DEFAULT NULL)
RETURNS TABLE (answer text, reason text, job_id uuid, workers text[]) LANGUAGE plpgsql AS $$
DECLARE
  v_job     public.workflows;
  v_policy  jsonb;
  v_version int;
BEGIN
  SELECT * INTO v_job FROM public.workflows WHERE name = p_name ORDER BY is_active DESC, version DESC LIMIT 1;
  IF v_job.is_active IS NOT TRUE OR p_policy IS NOT NULL THEN
    PERFORM accs.lock('workflows');
  END IF;
  SELECT * INTO v_job FROM public.workflows WHERE name = p_name ORDER BY is_active DESC, version DESC LIMIT 1 FOR NO KEY UPDATE;
  IF v_job.is_active AND accs.joblib_schema(v_job) <> p_schema THEN
    RETURN QUERY SELECT 'refused'::text, 'schema_conflict'::text, NULL::uuid, NULL::text[];
    RETURN;
  ELSIF NOT accs.joblib_worker(p_worker, p_is_new, p_by) THEN
    RETURN QUERY SELECT 'refused'::text, 'worker_not_found'::text, NULL::uuid, NULL::text[];
    RETURN;
  END IF;
  v_policy := coalesce(p_policy, v_job.meta #> '{joblib,policy}', '{}');
  IF v_job.is_active IS NOT TRUE
     OR p_policy IS NOT NULL AND accs.joblib_is_served(v_job.id) AND p_policy <> coalesce(v_job.meta #> '{joblib,policy}', '{}') THEN
    SELECT coalesce(max(w.version), 0) + 1 INTO v_version FROM public.workflows w WHERE w.name = p_name;
    IF NOT v_job.is_active AND accs.joblib_is_served(v_job.id) AND accs.joblib_schema(v_job) = p_schema
       AND v_policy = coalesce(v_job.meta #> '{joblib,policy}', '{}') THEN
      v_version := v_job.version;   -- the same again
    END IF;
    PERFORM accs.apply_workflow(accs.joblib_workflow(p_name, v_version, p_schema, v_policy), p_by);
  END IF;
  IF p_at_once IS NOT NULL THEN
    PERFORM accs.register_node(p_worker, NULL, jsonb_build_object('joblib', p_at_once));
  END IF;
  PERFORM accs.label_node(p_worker, jsonb_build_object('joblib:' || p_name, true));
  PERFORM accs.joblib_tell(ARRAY[accs.joblib_room(p_name)], '{}', p_worker);
  RETURN QUERY SELECT CASE WHEN v_job.is_active THEN 'repeated' ELSE 'accepted' END, NULL::text,
                      (SELECT w.id FROM public.workflows w WHERE w.name = p_name ORDER BY w.version LIMIT 1), accs.joblib_workers(p_name);
END $$;
SELECT accs.is_verb('joblib_register', may => '{gateway}');

-- Submits a task. The lock lets either the orphan rule see it, or it that the job is gone: submit_jobs alone reads is_active before it
-- locks.
CREATE FUNCTION accs.joblib_submit(p_name text, p_options jsonb, p_job uuid, p_key text, p_by text, p_needs_worker boolean DEFAULT false)
RETURNS TABLE (job_id uuid, answer text, reason text) LANGUAGE plpgsql AS $$
DECLARE
  v_workflow uuid;
  v_served   boolean;
  v_no       text;
BEGIN
  SELECT id INTO v_workflow FROM public.workflows WHERE name = p_name AND is_active ORDER BY version DESC LIMIT 1 FOR KEY SHARE;
  v_served := accs.joblib_is_served(v_workflow);
  v_no := CASE WHEN v_workflow IS NULL THEN 'workflow_inactive'
               WHEN v_served AND accs.joblib_room(p_name) = '@internal' THEN 'no_executor'
               WHEN v_served AND p_needs_worker AND accs.joblib_workers(p_name) = '{}' THEN 'no_workers' END;
  IF v_no IS NOT NULL THEN
    RETURN QUERY SELECT NULL::uuid, 'refused'::text, v_no;
  ELSE
    RETURN QUERY SELECT s.job_id, s.answer, s.reason
      FROM accs.submit_jobs(ARRAY[v_workflow], ARRAY[p_options], NULL, NULL, CASE WHEN p_key IS NOT NULL THEN ARRAY[p_key] END,
                            ARRAY[p_job], p_by) s;
  END IF;
END $$;
SELECT accs.is_verb('joblib_submit', may => '{gateway}');

-- Claims the oldest task of all jobs that this worker serves. Whoever removes the worker waits for the lock of its slots and then for the
-- node: what is claimed here is either ended by that, or not claimed. A REST worker has no agent that probes: its claim is the probe.
CREATE FUNCTION accs.joblib_claim(p_node text, p_lease interval) RETURNS SETOF accs.claimed LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM accs.quarantines WHERE node = p_node AND service = 'joblib' AND state = 'shut' AND probe_at <= accs.clock()) THEN
    PERFORM accs.note_probe(p_node, 'joblib', NULL, '0');
  END IF;
  RETURN QUERY SELECT * FROM accs.claim_tasks('joblib', p_node, p_node, 1, p_lease);
  IF FOUND THEN
    PERFORM FROM public.nodes WHERE name = p_node FOR KEY SHARE;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'worker "%" is gone', p_node USING ERRCODE = 'AC004';
    END IF;
  END IF;
END $$;
SELECT accs.is_verb('joblib_claim', may => '{gateway}');

-- A job that nobody serves and nobody waits for is not offered any more. The caller holds its lock. What the fleet serves stays.
CREATE FUNCTION accs.joblib_bury(p_name text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  v_requires jsonb := jsonb_build_object('joblib:' || p_name, true);
BEGIN
  IF accs.joblib_room(p_name) = '@internal' OR accs.joblib_workers(p_name) <> '{}'
     OR EXISTS (SELECT FROM accs.lanes l JOIN accs.waiting w ON w.lane = l.id
                 WHERE l.service = 'joblib' AND l.requires = v_requires AND l.node IS NULL)
     OR EXISTS (SELECT FROM accs.pending_jobs p JOIN public.jobs j ON j.id = p.job_id JOIN public.workflows w ON w.id = j.workflow_id
                 WHERE w.name = p_name) THEN
    RETURN false;
  END IF;
  UPDATE public.workflows w SET is_active = false WHERE w.name = p_name AND w.is_active AND accs.joblib_is_served(w.id);
  RETURN FOUND;
END $$;

CREATE FUNCTION accs.joblib_lock(p_names text[]) RETURNS void LANGUAGE sql AS $$
  SELECT FROM public.workflows WHERE name = ANY (p_names) AND is_active ORDER BY name, version FOR UPDATE
$$;

-- What joblib calls failed is final and common: nobody has to look at it, unless somebody wants to (p_keep).
CREATE FUNCTION accs.joblib_dismiss(p_task_ids uuid[], p_keep boolean) RETURNS void LANGUAGE sql AS $$
  UPDATE public.dead_letters SET dismissed_at = accs.clock()
   WHERE job_task_id = ANY (p_task_ids) AND NOT p_keep AND dismissed_at IS NULL AND redriven_at IS NULL
$$;

-- Ends a task as its worker, or an admin in its name, says: completed, failed or cancelled; then the orphan rule. p_attempt null: the
-- present attempt. What its job allows more attempts for is queued again after a failure.
CREATE FUNCTION accs.joblib_end(p_job uuid, p_attempt int, p_to text, p_error text, p_results jsonb, p_keep boolean, p_by text)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
DECLARE
  v_task record;
  v_said record;
BEGIN
  SELECT w.name INTO v_task FROM public.jobs j JOIN public.workflows w ON w.id = j.workflow_id WHERE j.id = p_job;
  IF accs.joblib_workers(v_task.name) = '{}' THEN
    PERFORM accs.joblib_lock(ARRAY[v_task.name]);
  END IF;
  PERFORM FROM public.jobs WHERE id = p_job FOR NO KEY UPDATE;
  SELECT v_task.name AS name, t.* INTO v_task FROM public.job_tasks t WHERE t.job_id = p_job ORDER BY t.step_no LIMIT 1;
  IF p_to = 'cancelled' AND p_attempt <> v_task.attempt_id THEN
    RETURN QUERY SELECT 'refused'::text, 'stale_attempt'::text;
    RETURN;
  ELSIF p_to = 'cancelled' THEN
    SELECT c.answer, c.reason INTO v_said FROM accs.cancel_jobs(ARRAY[p_job], p_error, p_by) c;
  ELSE
    SELECT f.answer, f.reason INTO v_said FROM accs.finish_tasks(
      ARRAY[v_task.id], ARRAY[coalesce(p_attempt, v_task.attempt_id)], coalesce(v_task.lease_owner, v_task.claimed_by),
      ARRAY[CASE p_to WHEN 'completed' THEN 'done' ELSE 'error' END], CASE WHEN p_results IS NOT NULL THEN ARRAY[p_results] END,
      CASE p_to WHEN 'failed' THEN ARRAY['reported'] END, CASE p_to WHEN 'failed' THEN ARRAY[p_error] END,
      CASE p_to WHEN 'failed' THEN ARRAY[v_task.max_attempts = 1] END) f;
    PERFORM accs.joblib_dismiss(ARRAY[v_task.id], p_keep);
  END IF;
  IF accs.joblib_bury(v_task.name) THEN
    PERFORM accs.joblib_tell(ARRAY[accs.joblib_room(v_task.name)]);
  END IF;
  RETURN QUERY SELECT v_said.answer, v_said.reason;
END $$;
SELECT accs.is_verb('joblib_end', may => '{gateway}');

-- The live tasks of a worker that goes: they fail, or where their job says so they go back. A lease that has run out is reclaimed.
CREATE FUNCTION accs.joblib_drop_tasks(p_node text, p_keep boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_failed record;
  v_back   record;
BEGIN
  SELECT array_agg(l.task_id ORDER BY l.task_id) AS ids, array_agg(l.attempt_id ORDER BY l.task_id) AS attempts,
         array_fill('error'::text, ARRAY[count(*)::int]) AS outcomes, array_fill('worker_lost'::text, ARRAY[count(*)::int]) AS codes,
         array_fill('Worker disconnected'::text, ARRAY[count(*)::int]) AS messages, array_fill(true, ARRAY[count(*)::int]) AS permanent
    INTO v_failed FROM accs.live l JOIN public.jobs j ON j.id = l.job_id JOIN public.workflows w ON w.id = j.workflow_id
   WHERE l.node = p_node AND l.lease_until > accs.clock() AND w.meta #>> '{joblib,policy,on_worker_loss}' IS DISTINCT FROM 'requeue';
  SELECT array_agg(l.task_id ORDER BY l.task_id) AS ids, array_agg(l.attempt_id ORDER BY l.task_id) AS attempts
    INTO v_back FROM accs.live l WHERE l.node = p_node AND l.lease_until > accs.clock() AND l.task_id <> ALL (coalesce(v_failed.ids, '{}'));
  IF v_failed.ids IS NOT NULL THEN
    PERFORM accs.finish_tasks(v_failed.ids, v_failed.attempts, p_node, v_failed.outcomes, NULL, v_failed.codes, v_failed.messages,
                              v_failed.permanent);
    PERFORM accs.joblib_dismiss(v_failed.ids, p_keep);
  END IF;
  IF v_back.ids IS NOT NULL THEN
    PERFORM accs.release_tasks(v_back.ids, v_back.attempts, p_node, 'Worker disconnected', true);
    PERFORM accs.joblib_dismiss(v_back.ids, p_keep);   -- of those that were lost too often
  END IF;
  IF EXISTS (SELECT FROM accs.live WHERE node = p_node) THEN
    PERFORM accs.reclaim_tasks(10000, '0');
  END IF;
END $$;

-- A worker that is gone: its tasks, its providers, itself, and the jobs that nobody serves now. p_silent: only if it was not heard for that
-- long. Answers the rooms whose jobs and whose providers are not what they were; no row: there is no such worker.
CREATE FUNCTION accs.joblib_remove_worker(p_node text, p_silent interval, p_keep boolean, p_by text)
RETURNS TABLE (jobs text[], providers text[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_names     text[];
  v_name      text;
  v_providers text[];
  v_rooms     text[];
BEGIN
  SELECT ARRAY(SELECT substr(k, 8) FROM jsonb_object_keys(n.labels) k WHERE k LIKE 'joblib:%') INTO v_names
    FROM public.nodes n WHERE n.name = p_node AND n.labels ->> 'accs.kind' = 'joblib';
  PERFORM accs.joblib_lock(v_names);
  PERFORM FROM accs.slots WHERE node = p_node FOR UPDATE;
  PERFORM FROM public.nodes n WHERE n.name = p_node AND n.labels ->> 'accs.kind' = 'joblib'
      AND (p_silent IS NULL OR n.last_seen <= accs.clock() - p_silent) FOR UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  v_providers := ARRAY(SELECT DISTINCT p.room FROM accs.joblib_providers p WHERE p.node = p_node);
  v_rooms := ARRAY(SELECT DISTINCT accs.joblib_room(u.n) FROM unnest(v_names) AS u (n));
  PERFORM accs.joblib_drop_tasks(p_node, p_keep);
  IF (SELECT f.answer FROM accs.forget_node(p_node, interval '-1 day', p_by) f) <> 'accepted' THEN
    RAISE EXCEPTION 'worker "%" holds tasks', p_node USING ERRCODE = 'AC002';
  END IF;
  FOREACH v_name IN ARRAY v_names LOOP
    PERFORM accs.joblib_bury(v_name);
  END LOOP;
  PERFORM accs.joblib_tell(v_rooms, v_providers, p_node);
  RETURN QUERY SELECT v_rooms, v_providers;
END $$;
SELECT accs.is_verb('joblib_remove_worker', may => '{gateway}');

-- Ends live tasks in whoever's hands they are, and tells those to look at their leases.
CREATE FUNCTION accs.joblib_take_away(p_task_ids uuid[], p_outcome text, p_code text, p_message text, p_keep boolean) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
  v_live record;
  v_keys text[];
BEGIN
  PERFORM accs.lock_jobs_of(p_task_ids);
  PERFORM FROM public.job_tasks WHERE id = ANY (p_task_ids) ORDER BY id FOR NO KEY UPDATE;
  SELECT array_agg(t.id ORDER BY t.id) AS ids, array_agg(t.max_attempts = 1 OR p_code = 'internal_timeout' ORDER BY t.id) AS permanent,
         array_agg(DISTINCT t.service_name) AS services, count(*)::int AS n
    INTO v_live FROM public.job_tasks t WHERE t.id = ANY (p_task_ids) AND t.status IN ('starting', 'running');
  IF v_live.ids IS NULL THEN
    RETURN 0;
  END IF;
  v_keys := accs.end_attempts(v_live.ids, p_outcome, array_fill(p_code, ARRAY[v_live.n]), array_fill(p_message, ARRAY[v_live.n]),
                              v_live.permanent, 'joblib');
  PERFORM accs.admit(v_keys);
  PERFORM accs.joblib_dismiss(v_live.ids, p_keep);
  PERFORM pg_notify(accs.channel_prefix() || s, 'cancel') FROM unnest(v_live.services) s;
  RETURN v_live.n;
END $$;

-- What takes too long: tasks of @internal jobs, tasks with a time limit, which nobody else watches, and with p_claimed those that were
-- claimed and never begun, which go back. Then the jobs that the orphan rule has missed, because two did at once what leads to it.
CREATE FUNCTION accs.joblib_sweep(p_internal interval, p_claimed interval, p_keep boolean) RETURNS TABLE (did text, n int)
LANGUAGE plpgsql AS $$
DECLARE
  v_now  timestamptz := accs.clock();
  v_name text;
BEGIN
  RETURN QUERY SELECT 'internal_timeout'::text, accs.joblib_take_away(ARRAY(
    SELECT l.task_id FROM accs.live l JOIN public.job_tasks t ON t.id = l.task_id JOIN public.jobs j ON j.id = l.job_id
      JOIN public.workflows w ON w.id = j.workflow_id
     WHERE starts_with(w.name, '@internal:') AND coalesce(t.started_at, t.claimed_at) <= v_now - p_internal),
    p_outcome => 'error', p_code => 'internal_timeout', p_message => 'Internal worker timeout', p_keep => p_keep);
  RETURN QUERY SELECT 'timeout'::text, accs.joblib_take_away(ARRAY(
    SELECT l.task_id FROM accs.live l JOIN public.job_tasks t ON t.id = l.task_id
     WHERE l.service = 'joblib' AND t.status = 'running' AND t.started_at <= v_now - make_interval(secs => least(t.timeout_sec, 1e9))),
    p_outcome => 'error', p_code => 'timeout', p_message => 'Task timeout', p_keep => p_keep);
  RETURN QUERY SELECT 'claimed_timeout'::text, accs.joblib_take_away(ARRAY(
    SELECT l.task_id FROM accs.live l JOIN public.job_tasks t ON t.id = l.task_id
     WHERE l.service = 'joblib' AND t.status = 'starting' AND t.claimed_at <= v_now - p_claimed),
    p_outcome => 'released', p_code => NULL, p_message => 'it was claimed and never begun', p_keep => p_keep);
  FOR v_name IN SELECT DISTINCT w.name FROM public.workflows w
                 WHERE w.is_active AND w.name LIKE '%:%:%' AND accs.joblib_is_served(w.id) AND accs.joblib_workers(w.name) = '{}'
                 ORDER BY 1 LOOP
    PERFORM accs.joblib_lock(ARRAY[v_name]);
    IF accs.joblib_bury(v_name) THEN
      PERFORM accs.joblib_tell(ARRAY[accs.joblib_room(v_name)]);
      RETURN QUERY SELECT 'orphan ' || v_name, 1;
    END IF;
  END LOOP;
END $$;
SELECT accs.is_verb('joblib_sweep', may => '{gateway}');

-- Registers a provider, or replaces what is said of it. p_is_admin may take over another actor's.
CREATE FUNCTION accs.joblib_put_provider(p_room text, p_category text, p_name text, p_schema jsonb, p_content_type text, p_worker text,
                                         p_is_new boolean, p_by text, p_is_admin boolean)
RETURNS TABLE (answer text, reason text, id uuid, created_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_owner text;
BEGIN
  SELECT p.owner INTO v_owner FROM accs.joblib_providers p
   WHERE p.room = p_room AND p.category = p_category AND p.name = p_name FOR NO KEY UPDATE;
  IF NOT p_is_new AND NOT accs.joblib_worker(p_worker, false, p_by) THEN
    RETURN QUERY SELECT 'refused'::text, 'worker_not_found'::text, NULL::uuid, NULL::timestamptz;
    RETURN;
  ELSIF v_owner <> p_by AND NOT p_is_admin THEN
    RETURN QUERY SELECT 'refused'::text, 'not_yours'::text, NULL::uuid, NULL::timestamptz;
    RETURN;
  END IF;
  PERFORM accs.joblib_worker(p_worker, p_is_new, p_by);
  PERFORM accs.joblib_tell('{}', ARRAY[p_room]);
  RETURN QUERY
  INSERT INTO accs.joblib_providers AS p (room, category, name, schema, content_type, owner, node)
  VALUES (p_room, p_category, p_name, p_schema, p_content_type, p_by, p_worker)
  ON CONFLICT (room, category, name) DO UPDATE SET schema = excluded.schema, content_type = excluded.content_type, owner = excluded.owner,
         node = excluded.node WHERE p.owner = p_by OR p_is_admin
  RETURNING CASE WHEN v_owner IS NULL THEN 'accepted' ELSE 'repeated' END, NULL::text, p.id, p.created_at;
  IF NOT FOUND THEN   -- somebody else was quicker
    RAISE EXCEPTION 'the provider is another actor''s' USING ERRCODE = 'AC002';
  END IF;
END $$;
SELECT accs.is_verb('joblib_put_provider', may => '{gateway}');

CREATE FUNCTION accs.joblib_drop_provider(p_id uuid) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_room text;
BEGIN
  DELETE FROM accs.joblib_providers WHERE id = p_id RETURNING room INTO v_room;
  IF v_room IS NOT NULL THEN
    PERFORM accs.joblib_tell('{}', ARRAY[v_room]);
  END IF;
  RETURN v_room;
END $$;
SELECT accs.is_verb('joblib_drop_provider', may => '{gateway}');

-- ---------------------------------------------------------------------------------------------------------------
-- The end of the installation: references, functions closed to the public, the first partitions
-- ---------------------------------------------------------------------------------------------------------------

-- PostgreSQL 18 lets a foreign key be declared without being checked row by row, which was a third of the cost of a submission
-- and a tenth of that of everything else (docs/performance.md). Triggers check it once a statement (note_new_jobs,
-- refuse_used_workflow, refuse_stray_artifacts); job_tasks is written by the verbs only.
DO $keys$
DECLARE
  v_key record;
BEGIN
  IF current_setting('server_version_num')::int >= 180000 THEN
    FOR v_key IN SELECT conrelid::regclass AS tab, conname FROM pg_constraint
                  WHERE contype = 'f' AND confrelid IN ('public.workflows'::regclass, 'public.jobs'::regclass, 'public.job_tasks'::regclass)
                    AND conrelid IN ('public.jobs'::regclass, 'public.job_tasks'::regclass, 'public.task_artifacts'::regclass) LOOP
      EXECUTE format('ALTER TABLE %s ALTER CONSTRAINT %I NOT ENFORCED', v_key.tab, v_key.conname);
    END LOOP;
  END IF;
END $keys$;

-- What is no verb is not for calling, and a verb only for the roles that it names (accsd/db/roles.sql).
DO $close$
DECLARE
  v_function text;
BEGIN
  FOR v_function IN SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'accs'::regnamespace LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', v_function);
  END LOOP;
END $close$;

SELECT accs.make_months(name) FROM accs.monthly;
INSERT INTO accs.schema_versions (version) VALUES (1);
