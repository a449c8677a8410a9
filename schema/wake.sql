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
