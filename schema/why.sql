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
