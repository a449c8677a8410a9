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
