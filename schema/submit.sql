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

