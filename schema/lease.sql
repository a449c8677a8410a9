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
