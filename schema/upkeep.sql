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
