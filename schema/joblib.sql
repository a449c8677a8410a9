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
