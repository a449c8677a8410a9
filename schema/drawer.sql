-- ---------------------------------------------------------------------------------------------------------------
-- Pauses, keys, nodes, artifacts
-- ---------------------------------------------------------------------------------------------------------------

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
    RETURN 'repeated';
  END IF;
  IF p_kind = 'workflow' THEN
    -- A task that becomes claimable at this very moment may be missed: the claim that meets it holds it.
    WITH ours AS (
      SELECT w.task_id FROM accs.waiting w JOIN public.job_tasks t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id
        JOIN public.workflows f ON f.id = j.workflow_id WHERE f.name = p_name AND (w.hold IS NULL OR w.hold = 'key') FOR UPDATE OF w SKIP LOCKED
    ), held AS (
      UPDATE accs.waiting w SET hold = 'paused' FROM ours WHERE w.task_id = ours.task_id RETURNING w.key
    )
    SELECT array_agg(DISTINCT key) FILTER (WHERE key IS NOT NULL) INTO v_keys FROM held;
    IF v_keys IS NOT NULL THEN
      PERFORM accs.admit(v_keys);   -- their places are the next ones'
    END IF;
  END IF;
  RETURN 'accepted';
END $$;

CREATE FUNCTION accs.resume(p_kind text, p_name text) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_keys text[];
BEGIN
  DELETE FROM accs.pauses WHERE kind = p_kind AND name = p_name;   -- waits for whoever holds a task because of it right now
  IF NOT FOUND THEN
    RETURN 'repeated';
  END IF;
  IF p_kind = 'workflow' THEN
    WITH ours AS (
      SELECT w.task_id FROM accs.waiting w JOIN public.job_tasks t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id
        JOIN public.workflows f ON f.id = j.workflow_id WHERE f.name = p_name AND w.hold = 'paused' FOR UPDATE OF w SKIP LOCKED
    ), freed AS (
      UPDATE accs.waiting w SET hold = CASE WHEN w.key IS NOT NULL THEN 'key' END FROM ours WHERE w.task_id = ours.task_id RETURNING w.key
    )
    SELECT array_agg(DISTINCT key) FILTER (WHERE key IS NOT NULL) INTO v_keys FROM freed;
    IF v_keys IS NOT NULL THEN
      PERFORM accs.admit(v_keys);
    END IF;
  ELSIF p_kind = 'service' THEN
    PERFORM pg_notify(accs.channel_prefix() || p_name, '');
  ELSE
    PERFORM pg_notify(accs.channel_prefix() || s.service, '') FROM (
      SELECT DISTINCT jsonb_object_keys(max_concurrency) AS service FROM public.nodes WHERE name = p_name) s;
  END IF;
  RETURN 'accepted';
END $$;

-- The net under SKIP LOCKED: whoever frees a held task passes over a row that somebody is about to cancel or skip, and that
-- one may yet roll back. Frees what is held without a reason; returns how many keys and tasks of no key that were.
CREATE FUNCTION accs.recheck_holds() RETURNS int LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_keys  text[];
  v_freed text[];
BEGIN
  WITH ours AS (
    SELECT w.task_id FROM accs.waiting w JOIN public.job_tasks t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id
      JOIN public.workflows f ON f.id = j.workflow_id
     WHERE w.hold = 'paused' AND NOT EXISTS (SELECT FROM accs.pauses p WHERE p.kind = 'workflow' AND p.name = f.name) FOR UPDATE OF w SKIP LOCKED
  ), freed AS (
    UPDATE accs.waiting w SET hold = CASE WHEN w.key IS NOT NULL THEN 'key' END FROM ours WHERE w.task_id = ours.task_id RETURNING w.key
  )
  SELECT array_agg(key) INTO v_freed FROM freed;
  SELECT array_agg(DISTINCT h.key) INTO v_keys
    FROM (SELECT key, lane, count(*) FILTER (WHERE hold IS NULL) AS claimable FROM accs.waiting
           WHERE key IS NOT NULL AND (hold IS NULL OR hold = 'key') GROUP BY key, lane HAVING bool_or(hold = 'key')) h
    JOIN accs.concurrency_keys k ON k.key = h.key
   WHERE h.claimable < k.max_running - (SELECT count(*) FROM accs.live l WHERE l.key = h.key);
  IF v_keys IS NOT NULL THEN
    PERFORM accs.admit(v_keys);
  END IF;
  RETURN coalesce(cardinality(v_keys), 0) + coalesce(cardinality(v_freed) - cardinality(array_remove(v_freed, NULL)), 0);
END $$;

CREATE FUNCTION accs.set_concurrency_limit(p_key text, p_limit int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO accs.concurrency_keys AS k (key, max_running) VALUES (p_key, p_limit)
  ON CONFLICT (key) DO UPDATE SET max_running = excluded.max_running WHERE k.max_running <> excluded.max_running;
  IF NOT FOUND THEN
    RETURN 'repeated';
  END IF;
  PERFORM accs.admit(ARRAY[p_key]);
  RETURN 'accepted';
END $$;

-- A node's power takes a new state, and its history says so.
CREATE FUNCTION accs.note_power(p_node text, p_state text, p_message text, p_data jsonb DEFAULT '{}') RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE accs.power SET state = p_state, since = accs.clock() WHERE node = p_node AND state <> p_state;
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
    CASE WHEN v_took IS NULL THEN 'it is there' ELSE format('it is there, %s s after it was called by %s', round(extract(epoch FROM v_took), 1), v_by) END,
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
  RAISE EXCEPTION 'the name "%" is taken: machine %, boot %, process % was seen under it % s ago', p_node, coalesce(v_node.machine_id, 'unknown'),
      coalesce(v_node.boot_id, 'unknown'), coalesce(v_node.instance, 'unknown'), round(extract(epoch FROM accs.clock() - v_node.last_seen), 1)
    USING ERRCODE = 'AC007', HINT = 'Give one of the two machines another name: node.name in its settings, or ACC_NODE_NAME.';
END $$;

-- Registers a node or says anew what it offers. What is null stays as it is. The control host runs what `script` names, so an agent's login
-- must not choose it: it could name any program there.
-- Two machines with one name would take each other's tasks for their own. Where the boot differs, another instance has to be silent for
-- p_lease, or to have said goodbye, before the name changes hands (a replaced disk, a power cut); clones of a disk share the machine's id.
CREATE FUNCTION accs.register_node(
  p_name text, p_labels jsonb DEFAULT '{}', p_max_concurrency jsonb DEFAULT '{}', p_wake_method text DEFAULT NULL, p_mac text DEFAULT NULL,
  p_provider_ref text DEFAULT NULL, p_script text DEFAULT NULL, p_networks cidr[] DEFAULT NULL,
  p_machine_id text DEFAULT NULL, p_boot_id text DEFAULT NULL, p_instance text DEFAULT NULL, p_lease interval DEFAULT '2 min'
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
        ELSE format('another machine has taken the name over: %s, before it %s', coalesce(p_machine_id, 'unknown'), coalesce(v_was.machine_id, 'unknown')) END,
      jsonb_build_object('boot_id', p_boot_id, 'boot_id_before', v_was.boot_id));
  END IF;
  RETURN QUERY
  UPDATE public.nodes n SET last_seen = v_now, awake_state = 'awake', login = coalesce(n.login, v_login),
    labels = coalesce(p_labels, n.labels), max_concurrency = coalesce(p_max_concurrency, n.max_concurrency),
    wake_method = coalesce(p_wake_method, n.wake_method), mac = coalesce(p_mac, n.mac), provider_ref = coalesce(p_provider_ref, n.provider_ref),
    script = CASE WHEN v_login IS NULL THEN coalesce(p_script, n.script) ELSE n.script END,
    machine_id = CASE WHEN p_instance IS NULL THEN n.machine_id ELSE p_machine_id END,
    boot_id = CASE WHEN p_instance IS NULL THEN n.boot_id ELSE p_boot_id END, instance = coalesce(p_instance, n.instance)
   WHERE n.name = p_name
  RETURNING n.*;
  INSERT INTO accs.slots (node, service) SELECT p_name, k FROM jsonb_object_keys(p_max_concurrency) k ORDER BY k ON CONFLICT DO NOTHING;
  INSERT INTO accs.power AS w (node, state, networks) VALUES (p_name, 'unknown', coalesce(p_networks, '{}'))
  ON CONFLICT (node) DO UPDATE SET networks = p_networks WHERE p_networks IS NOT NULL AND w.networks <> p_networks;
  PERFORM accs.node_seen(p_name);
END $$;

-- A machine that is no more: its name, its history and what was held against it go. What runs there, or was seen within p_silent, stays.
CREATE FUNCTION accs.forget_node(p_name text, p_silent interval DEFAULT '2 min') RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
DECLARE
  v_node public.nodes;
BEGIN
  SELECT * INTO v_node FROM public.nodes WHERE name = p_name FOR UPDATE;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'refused'::text, 'not_found'::text;
  ELSIF EXISTS (SELECT FROM accs.live WHERE node = p_name) THEN
    RETURN QUERY SELECT 'refused'::text, 'holds_tasks'::text;
  ELSIF v_node.awake_state = 'awake' AND v_node.last_seen > accs.clock() - p_silent THEN
    RETURN QUERY SELECT 'refused'::text, 'is_here'::text;
  ELSE
    DELETE FROM accs.slots WHERE node = p_name;
    DELETE FROM accs.conclusions WHERE node = p_name;
    DELETE FROM accs.pauses WHERE kind = 'node' AND name = p_name;
    DELETE FROM public.nodes WHERE name = p_name;
    RETURN QUERY SELECT 'accepted'::text, NULL::text;
  END IF;
END $$;

-- What is due together, as far as a machine's start is concerned: 0 is now, then by the half minute.
CREATE FUNCTION accs.soon(p_due_at timestamptz) RETURNS int LANGUAGE sql STABLE AS $$
  SELECT greatest(0, ceil(extract(epoch FROM p_due_at - accs.clock()) / 30))::int
$$;

-- What wants a node within p_ahead (A13, tick 2), by service, labels, named node and time: tasks that are claimable or will be when
-- their backoff ends, and the first steps of jobs that will be due; of a concurrency key as many as may run at once. Looks at
-- no more than 1,000 jobs ahead, 1,000 tasks of a lane and 1,000 first steps of a workflow: more would wake nobody else.
CREATE FUNCTION accs.wake_demand(p_ahead interval DEFAULT '5 min')
RETURNS TABLE (service text, requires jsonb, node text, tasks int, due_in interval, job_id uuid) LANGUAGE sql STABLE AS $$
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
    SELECT j.workflow_id, count(*) AS jobs, min(p.due_at) AS due_at, (array_agg(p.job_id ORDER BY p.due_at, j.order_seq))[1] AS first
      FROM (SELECT * FROM accs.pending_jobs WHERE due_at <= accs.clock() + p_ahead ORDER BY due_at LIMIT 1000) p
      JOIN public.jobs j ON j.id = p.job_id JOIN public.workflows f ON f.id = j.workflow_id
     WHERE f.is_active AND j.workflow_id NOT IN (SELECT id FROM paused) GROUP BY j.workflow_id, accs.soon(p.due_at)
  ), wanted AS (
    SELECT n.lane, n.key, accs.soon(n.due_at) AS soon, count(*) AS tasks, min(n.due_at) AS due_at,
           (array_agg(n.task_id ORDER BY n.due_at, n.rank, n.order_seq))[1] AS first_task, NULL::uuid AS first_job
      FROM near n
     WHERE NOT EXISTS (SELECT FROM paused)   -- a retry of a paused workflow is held only when it is due
        OR NOT EXISTS (SELECT FROM public.job_tasks t JOIN public.jobs j ON j.id = t.job_id
                        WHERE t.id = n.task_id AND j.workflow_id IN (SELECT id FROM paused))
     GROUP BY n.lane, n.key, accs.soon(n.due_at)
    UNION ALL
    SELECT s.lane, s.concurrency_key, accs.soon(d.due_at), d.jobs * s.steps, d.due_at, NULL, d.first
      FROM due d, LATERAL (
        SELECT r.lane, r.concurrency_key, count(*) AS steps
          FROM (SELECT lane, concurrency_key FROM accs.steps WHERE workflow_id = d.workflow_id AND depends_on = '{}' LIMIT 1000) r GROUP BY 1, 2) s
  ), bounded AS (   -- of a key as many as may run at once, the earliest ones
    SELECT w.lane, w.soon, least(w.tasks, k.max_running - coalesce(sum(w.tasks) OVER earlier, 0)) AS tasks, w.due_at, coalesce(w.first_job, t.job_id) AS job_id
      FROM wanted w LEFT JOIN public.job_tasks t ON t.id = w.first_task LEFT JOIN accs.concurrency_keys k ON k.key = w.key
    WINDOW earlier AS (PARTITION BY w.lane, w.key ORDER BY w.due_at, w.first_task, w.first_job ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
  )
  SELECT l.service, l.requires, l.node, sum(b.tasks)::int, greatest(min(b.due_at) - accs.clock(), '0'),
         (array_agg(b.job_id ORDER BY b.due_at, b.job_id))[1]
    FROM bounded b JOIN lane l ON l.id = b.lane WHERE b.job_id IS NOT NULL AND b.tasks > 0 GROUP BY l.id, l.service, l.requires, l.node, b.soon
$$;

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
         coalesce(w.state, 'unknown'), w.because, w.try_id, w.tried_at, accs.clock() - w.tried_at, w.method, w.ok, w.error, coalesce(w.tries, 0),
         w.brought_by, w.latency, coalesce(w.networks, '{}'),
         ARRAY(SELECT o.node FROM accs.power o JOIN public.nodes m ON m.name = o.node
                WHERE o.networks && w.networks AND o.node <> n.name AND m.awake_state = 'awake' AND m.last_seen > accs.clock() - p_silent ORDER BY m.last_seen DESC)
    FROM public.nodes n
    LEFT JOIN (SELECT node, jsonb_object_agg(service, tasks) AS live
                 FROM (SELECT node, service, count(*) AS tasks FROM accs.live GROUP BY node, service) c GROUP BY node) l ON l.node = n.name
    LEFT JOIN accs.pauses p ON p.kind = 'node' AND p.name = n.name
    LEFT JOIN accs.power w ON w.node = n.name
   ORDER BY n.name
$$;

-- Before a call: of several builders one makes it. The caller says which call and which sight of the node were the last ones
-- that he knew when he decided; had there been another since, he would have decided otherwise. The same call again is repeated.
CREATE FUNCTION accs.claim_wake(p_node text, p_try uuid, p_method text, p_after uuid, p_last_seen timestamptz) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO accs.power AS w (node, state, try_id, tried_at, method, tries)
  SELECT n.name, 'waking', p_try, accs.clock(), p_method, 1 FROM public.nodes n
   WHERE n.name = p_node AND n.last_seen IS NOT DISTINCT FROM p_last_seen FOR SHARE   -- a heartbeat that is under way is waited for
  ON CONFLICT (node) DO UPDATE SET try_id = p_try, tried_at = excluded.tried_at, method = p_method, ok = NULL, error = NULL, tries = w.tries + 1
    WHERE w.try_id IS NOT DISTINCT FROM p_after;
  IF NOT FOUND THEN
    RETURN CASE WHEN EXISTS (SELECT FROM accs.power WHERE node = p_node AND try_id = p_try) THEN 'repeated' ELSE 'refused' END;
  END IF;
  UPDATE accs.power SET state = 'waking', since = accs.clock() WHERE node = p_node AND state <> 'waking';
  RETURN 'accepted';
END $$;

-- After a call: whether it got through, in the node's history and as an event of the job that wanted the node. A call that was
-- overtaken by a later one, or by the node itself, is history too.
CREATE FUNCTION accs.record_wake(p_node text, p_try uuid, p_ok boolean, p_job uuid, p_message text, p_data jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_state text;
BEGIN
  UPDATE accs.power SET ok = p_ok, because = p_message, error = CASE WHEN NOT p_ok THEN p_data ->> 'error' END,
    called_at = CASE WHEN p_ok THEN tried_at ELSE called_at END, called_by = CASE WHEN p_ok THEN method ELSE called_by END
   WHERE node = p_node AND try_id = p_try AND ok IS NULL;
  IF FOUND THEN
    SELECT CASE WHEN p_ok THEN 'booting' WHEN awake_state = 'sleep' THEN 'asleep' ELSE 'unknown' END INTO v_state FROM public.nodes WHERE name = p_node;
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
  RETURN 'accepted';
END $$;

-- Why each of these nodes is not woken, as the builder last planned. One that was called or seen since is left alone: p_tries
-- are the last calls that the builder knew, p_silent is how long a node may be unseen before it counts as away.
CREATE FUNCTION accs.note_not_woken(p_nodes text[], p_tries uuid[], p_failed boolean[], p_because text[], p_silent interval) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_node  record;
  v_noted int := 0;
BEGIN
  INSERT INTO accs.power (node, state) SELECT name, 'unknown' FROM public.nodes WHERE name = ANY (p_nodes) ORDER BY name ON CONFLICT DO NOTHING;
  FOR v_node IN
    SELECT w.node, w.state, s.because, CASE WHEN s.failed THEN 'failed' WHEN n.awake_state = 'sleep' THEN 'asleep' ELSE 'unknown' END AS becomes
      FROM unnest(p_nodes, p_tries, p_failed, p_because) AS s (node, try_id, failed, because)
      JOIN accs.power w ON w.node = s.node AND w.try_id IS NOT DISTINCT FROM s.try_id JOIN public.nodes n ON n.name = s.node
     WHERE (w.state <> 'ready' OR n.awake_state <> 'awake' OR n.last_seen <= accs.clock() - p_silent) AND w.because IS DISTINCT FROM s.because
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

-- Why a node stays awake, as its agent sees it.
CREATE FUNCTION accs.note_awake(p_node text, p_because text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  UPDATE accs.power SET because = left(p_because, 2000) WHERE node = p_node AND state = 'ready' AND because IS DISTINCT FROM left(p_because, 2000);
  RETURN CASE WHEN FOUND THEN 'accepted' ELSE 'repeated' END;
END $$;

-- An orderly goodbye: 'unknown' when the daemon stops, 'sleep' when the machine goes to sleep. When it was last seen stays. Who
-- goes to sleep must hold no lease, and names those whom he counts on to be awake: of two that count on each other one stays.
CREATE FUNCTION accs.node_leaves(p_node text, p_awake_state text DEFAULT 'unknown', p_because text DEFAULT NULL, p_counting_on text[] DEFAULT '{}')
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
    PERFORM accs.note_power(p_node, v_state, coalesce(p_because, CASE v_state WHEN 'asleep' THEN 'it goes to sleep' ELSE 'its agent stops' END));
    RETURN 'accepted';
  ELSIF EXISTS (SELECT FROM public.nodes WHERE name = p_node) THEN
    RETURN 'repeated';
  END IF;
  RAISE EXCEPTION 'node "%" is not registered', p_node USING ERRCODE = 'AC004', HINT = 'Call accs.register_node first.';
END $$;

-- Asks a node to do something soon: 'relay' sends a magic packet for p_target, 'sleep' goes to sleep. Orders of yesterday go.
CREATE FUNCTION accs.ask_node(p_id uuid, p_node text, p_kind text, p_target text, p_by text, p_within interval) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM accs.node_orders WHERE asked_at < accs.clock() - interval '1 day';
  INSERT INTO accs.node_orders (id, node, kind, target, asked_by, good_until) VALUES (p_id, p_node, p_kind, p_target, p_by, accs.clock() + p_within)
  ON CONFLICT (id) DO NOTHING;
  IF NOT FOUND THEN
    RETURN 'repeated';
  END IF;
  PERFORM pg_notify(accs.channel_prefix() || 'orders', p_node);
  RETURN 'accepted';
END $$;

-- What a node is asked to do; each order is given out once.
CREATE FUNCTION accs.take_orders(p_node text) RETURNS TABLE (id uuid, kind text, target text, mac text, asked_by text) LANGUAGE plpgsql AS $$
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

CREATE FUNCTION accs.answer_order(p_id uuid, p_node text, p_ok boolean, p_output text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  UPDATE accs.node_orders SET answered_at = accs.clock(), ok = p_ok, output = left(p_output, 2000) WHERE id = p_id AND node = p_node AND answered_at IS NULL;
  IF FOUND THEN
    RETURN 'accepted';
  END IF;
  RETURN CASE WHEN EXISTS (SELECT FROM accs.node_orders WHERE id = p_id AND node = p_node) THEN 'repeated' ELSE 'refused' END;
END $$;

-- Records an object that exists in storage already, for a running attempt: fenced like its other writes. The same object
-- again is repeated.
CREATE FUNCTION accs.record_artifact(
  p_task uuid, p_attempt_id int, p_owner text, p_kind text, p_bucket text, p_key text, p_size_bytes bigint DEFAULT NULL,
  p_content_type text DEFAULT NULL, p_checksum text DEFAULT NULL
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
   WHERE id = p_task AND attempt_id = p_attempt_id AND lease_owner = p_owner AND lease_until > accs.clock() AND status IN ('starting', 'running') FOR SHARE;
  IF NOT FOUND THEN
    SELECT id INTO v_id FROM public.task_artifacts WHERE bucket = p_bucket AND key = p_key AND job_task_id = p_task AND attempt_id = p_attempt_id;
    IF FOUND THEN
      RETURN QUERY SELECT v_id, 'repeated'::text, NULL::text;
    ELSE
      RETURN QUERY SELECT NULL::bigint, e.answer, e.reason FROM accs.explain(ARRAY[p_task], ARRAY[p_attempt_id], p_owner, ARRAY[NULL::text]) e;
    END IF;
    RETURN;
  END IF;
  INSERT INTO public.task_artifacts (job_id, job_task_id, kind, bucket, key, size_bytes, content_type, checksum, attempt_id)
  VALUES (v_job, p_task, p_kind, p_bucket, p_key, p_size_bytes, p_content_type, p_checksum, p_attempt_id)
  ON CONFLICT (bucket, key) DO NOTHING RETURNING id INTO v_id;
  IF v_id IS NULL THEN
    RETURN QUERY SELECT a.id, CASE WHEN a.job_task_id = p_task AND a.attempt_id = p_attempt_id THEN 'repeated' ELSE 'refused' END,
                        CASE WHEN a.job_task_id = p_task AND a.attempt_id = p_attempt_id THEN NULL ELSE 'key_taken' END
                   FROM public.task_artifacts a WHERE a.bucket = p_bucket AND a.key = p_key;
    RETURN;
  END IF;
  INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
  VALUES (v_job, p_task, accs.clock(), 'agent:' || v_service, 'info', 'artifact', p_key,
          jsonb_strip_nulls(jsonb_build_object('artifact_id', v_id, 'kind', p_kind, 'bucket', p_bucket, 'key', p_key, 'size_bytes', p_size_bytes)), p_attempt_id);
  RETURN QUERY SELECT v_id, 'accepted'::text, NULL::text;
END $$;

-- The objects that an attempt may need: what the steps that it depends on have put out, each by the attempt that finished
-- it, and the inputs of the job and of this task. Raises where the attempt does not hold its lease: no rows would mean
-- that there are no inputs.
CREATE FUNCTION accs.task_inputs(p_task uuid, p_attempt_id int, p_owner text)
RETURNS TABLE (task_key text, kind text, bucket text, key text, size_bytes bigint, content_type text, checksum text) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  v_task record;
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_owner);
  END IF;
  SELECT t.job_id, t.task_key, t.depends_on INTO v_task FROM public.job_tasks t
   WHERE t.id = p_task AND t.attempt_id = p_attempt_id AND t.lease_owner = p_owner AND t.lease_until > accs.clock() AND t.status IN ('starting', 'running');
  IF NOT FOUND THEN
    RAISE EXCEPTION 'attempt % of task %: %', p_attempt_id, p_task,
        (SELECT e.reason FROM accs.explain(ARRAY[p_task], ARRAY[p_attempt_id], p_owner, ARRAY[NULL::text]) e)
      USING ERRCODE = 'AC002', HINT = 'Stop this attempt and write nothing: the task is not its own any more.';
  END IF;
  RETURN QUERY
  SELECT f.task_key, f.kind, f.bucket, f.key, f.size_bytes, f.content_type, f.checksum FROM (
    SELECT k.n, d.task_key, a.id, a.kind, a.bucket, a.key, a.size_bytes, a.content_type, a.checksum
      FROM unnest(v_task.depends_on) WITH ORDINALITY AS k (key, n), LATERAL (   -- one look-up for each key, as in claim_tasks
        SELECT t.id, t.task_key, t.outcome_attempt_id FROM public.job_tasks t
         WHERE t.job_id = v_task.job_id AND t.task_key = k.key AND t.status = 'done' OFFSET 0) d
      JOIN public.task_artifacts a ON a.job_task_id = d.id AND a.kind = 'output' AND a.attempt_id = d.outcome_attempt_id
    UNION ALL
    SELECT 0, NULL, a.id, a.kind, a.bucket, a.key, a.size_bytes, a.content_type, a.checksum
      FROM public.task_artifacts a WHERE a.job_id = v_task.job_id AND a.job_task_id IS NULL AND a.kind = 'input'
    UNION ALL
    SELECT 0, v_task.task_key, a.id, a.kind, a.bucket, a.key, a.size_bytes, a.content_type, a.checksum
      FROM public.task_artifacts a WHERE a.job_task_id = p_task AND a.kind = 'input') f
   ORDER BY f.n, f.id;
END $$;

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
             'node', l.node, 'owner', v_task.lease_owner, 'attempt_id', v_task.attempt_id, 'attempt', v_task.attempt, 'max_attempts', v_task.max_attempts,
             'progress', v_task.progress, 'is_expired', v_task.lease_until <= v_now)
      FROM (SELECT 1) one LEFT JOIN accs.live l ON l.task_id = p_task;
    RETURN;
  ELSIF v_task.status <> 'queued' THEN
    RETURN QUERY
    SELECT v_task.status, v_task.finished_at, NULL::timestamptz, jsonb_strip_nulls(jsonb_build_object(
             'error_code', v_task.error_code, 'error_message', v_task.error_message, 'attempt', v_task.attempt, 'max_attempts', v_task.max_attempts,
             'lost', v_task.lost, 'dead_letter', d.id, 'reason', d.reason, 'fails_everywhere', CASE WHEN v_task.status = 'error' THEN accs.why_step(v_task) END, 'failed', CASE WHEN v_task.error_code = 'upstream_failed' THEN (
               SELECT jsonb_agg(f.task_key) FROM (SELECT u.task_key FROM public.job_tasks u WHERE u.job_id = v_task.job_id AND u.status = 'error'
                                                   ORDER BY u.finished_at, u.id LIMIT 10) f) END))
      FROM (SELECT 1) one LEFT JOIN public.dead_letters d
        ON d.job_task_id = p_task AND d.generation = v_task.generation AND d.redriven_at IS NULL AND d.dismissed_at IS NULL;
    RETURN;
  END IF;

  SELECT * INTO v_place FROM accs.waiting WHERE task_id = p_task;
  v_next := v_place.task_id IS NOT NULL AND (v_place.hold IS NULL OR v_place.hold = 'backoff' AND v_place.due_at <= v_now);
  v_since := CASE WHEN v_task.remaining > 0 THEN v_task.created_at ELSE greatest(v_task.updated_at, CASE WHEN v_task.next_attempt_at <= v_now THEN v_task.next_attempt_at END) END;
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
                   AND (w.rank, w.order_seq, w.created_at, w.task_id) < (v_place.rank, v_place.order_seq, v_place.created_at, v_place.task_id) LIMIT 10000) a));
  END IF;
  RETURN QUERY
  SELECT 'step_failing', h.since, NULL::timestamptz, jsonb_build_object('reason', h.reason)
    FROM accs.step_health h JOIN public.jobs j ON j.workflow_id = h.workflow_id WHERE j.id = v_task.job_id AND h.task_key = v_task.task_key;
END $$;

-- What is wrong with the step itself, if it fails wherever it runs.
CREATE FUNCTION accs.why_step(p_task public.job_tasks) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT h.reason FROM public.jobs j JOIN accs.step_health h ON h.workflow_id = j.workflow_id AND h.task_key = p_task.task_key WHERE j.id = p_task.job_id
$$;

-- The same for a job: before it is instantiated, or as a whole.
CREATE FUNCTION accs.why_job(p_job uuid) RETURNS TABLE (blocker text, since timestamptz, until timestamptz, detail jsonb) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  v_job record;
  v_due timestamptz;
BEGIN
  SELECT j.*, f.name AS workflow INTO v_job FROM public.jobs j JOIN public.workflows f ON f.id = j.workflow_id WHERE j.id = p_job;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no task or job %', p_job USING ERRCODE = 'AC004';
  ELSIF v_job.status <> 'queued' THEN
    RETURN QUERY SELECT v_job.status, coalesce(v_job.finished_at, v_job.started_at), NULL::timestamptz, jsonb_strip_nulls(jsonb_build_object(
      'error_code', v_job.error_code, 'error_message', v_job.error_message, 'open_tasks', v_job.open_tasks, 'task_count', v_job.task_count));
    RETURN;
  END IF;
  v_due := coalesce(v_job.scheduled_at, v_job.created_at);
  IF v_due > accs.clock() THEN
    RETURN QUERY SELECT 'not_due'::text, v_job.created_at, v_due, '{}'::jsonb;
  ELSE   -- a builder can't be told from an agent here; but where there is no daemon there is no builder
    RETURN QUERY SELECT 'not_instantiated'::text, v_due, NULL::timestamptz, jsonb_build_object('daemons', (
      SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'accsd listener'));
  END IF;
  RETURN QUERY SELECT 'workflow_paused'::text, p.since, NULL::timestamptz, jsonb_strip_nulls(jsonb_build_object('name', p.name, 'reason', p.reason, 'by', p.by))
                 FROM accs.pauses p WHERE p.kind = 'workflow' AND p.name = v_job.workflow;
END $$;

-- What keeps a queued task by itself: dependencies, pauses, its backoff, its concurrency key.
CREATE FUNCTION accs.why_held(p_task public.job_tasks, p_place accs.waiting, p_since timestamptz)
RETURNS TABLE (blocker text, since timestamptz, until timestamptz, detail jsonb) LANGUAGE sql STABLE AS $$
  (SELECT 'dependency', CASE d.status WHEN 'queued' THEN d.created_at WHEN 'starting' THEN d.claimed_at WHEN 'running' THEN d.started_at ELSE d.finished_at END,
          NULL::timestamptz, jsonb_build_object('task_key', d.task_key, 'task_id', d.id, 'status', d.status)
     FROM unnest(p_task.depends_on) WITH ORDINALITY AS k (key, n), LATERAL (
       SELECT * FROM public.job_tasks WHERE job_id = p_task.job_id AND task_key = k.key OFFSET 0) d
    WHERE d.status NOT IN ('done', 'skipped') OR d.status = 'skipped' AND d.error_code = 'upstream_failed'
    ORDER BY k.n LIMIT 1000)
  UNION ALL
  SELECT p.kind || '_paused', p.since, NULL, jsonb_strip_nulls(jsonb_build_object('name', p.name, 'reason', p.reason, 'by', p.by))
    FROM accs.pauses p
   WHERE p.kind = 'service' AND p.name = p_task.service_name
      OR p.kind = 'workflow' AND p.name = (SELECT f.name FROM public.jobs j JOIN public.workflows f ON f.id = j.workflow_id WHERE j.id = p_task.job_id)
  UNION ALL
  SELECT 'backoff', p_task.updated_at, p_place.due_at, jsonb_strip_nulls(jsonb_build_object('outcome', p_task.outcome, 'error_code', p_task.error_code,
           'error_message', p_task.error_message, 'attempt', p_task.attempt, 'max_attempts', p_task.max_attempts, 'lost', p_task.lost))
   WHERE p_place.hold = 'backoff' AND p_place.due_at > accs.clock()
  UNION ALL
  SELECT 'key', p_since, NULL, jsonb_build_object('key', k.key, 'limit', k.max_running, 'taken', l.n, 'by', coalesce(l.tasks, '[]'), 'ahead', (
           SELECT count(*) FROM accs.waiting w WHERE w.key = k.key AND (w.hold IS NULL OR w.hold = 'key')
              AND (w.rank, w.order_seq, w.created_at, w.task_id) < (p_place.rank, p_place.order_seq, p_place.created_at, p_place.task_id)))
    FROM accs.concurrency_keys k, LATERAL (
      SELECT count(*) AS n, jsonb_agg(jsonb_build_object('task_id', v.task_id, 'job_id', v.job_id, 'node', v.node) ORDER BY v.task_id) FILTER (WHERE v.nth <= 10) AS tasks
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
         CASE WHEN p.name IS NOT NULL THEN p.since WHEN q.state = 'shut' THEN q.since WHEN o.node IS NOT NULL THEN o.since ELSE n.last_seen END,
         jsonb_strip_nulls(jsonb_build_object('node', n.name, 'service', p_task.service_name, 'slots', (n.max_concurrency ->> p_task.service_name)::int,
           'live', l.n, 'by', l.tasks, 'obstacle', o.reason, 'reason', p.reason, 'drained_by', p.by, 'awake_state', n.awake_state, 'wake_method', n.wake_method,
           'power', w.state, 'power_since', w.since, 'because', w.because, 'latency_sec', round(extract(epoch FROM w.latency), 1))
           || CASE WHEN w.tries > 0 THEN jsonb_build_object('tries', w.tries, 'tried_at', w.tried_at, 'method', w.method, 'tried_ok', w.ok, 'error', w.error) ELSE '{}' END
           || CASE WHEN q.state IS NOT NULL THEN jsonb_build_object('quarantine', jsonb_build_object(
                'state', q.state, 'since', q.since, 'reason', q.reason, 'probe_at', q.probe_at, 'probe_error', q.probe_error,
                'probe_in_sec', round(extract(epoch FROM q.probe_at - accs.clock()), 1))) ELSE '{}' END)
    FROM accs.lanes a JOIN public.nodes n ON (a.node IS NULL OR n.name = a.node) AND a.requires <@ n.labels AND (n.max_concurrency ->> p_task.service_name)::int > 0
    LEFT JOIN accs.pauses p ON p.kind = 'node' AND p.name = n.name
    LEFT JOIN accs.power w ON w.node = n.name
    LEFT JOIN accs.quarantines q ON q.node = n.name AND q.service = p_task.service_name
    LEFT JOIN accs.obstacles o ON o.node = n.name AND o.service = p_task.service_name,
         LATERAL (SELECT count(*) AS n, jsonb_agg(jsonb_build_object('task_id', v.task_id, 'job_id', v.job_id) ORDER BY v.task_id) FILTER (WHERE v.nth <= 10) AS tasks
                    FROM (SELECT *, row_number() OVER (ORDER BY task_id) AS nth FROM accs.live WHERE node = n.name AND service = p_task.service_name) v) l
   WHERE a.id = p_task.lane
$$;

-- Why no node takes it: nobody offers the service, has the labels, or is the one that is named; or all that could are busy, away,
-- asleep, in quarantine or drained. What passes by itself counts only for a task that is next.
CREATE FUNCTION accs.why_no_node(p_task public.job_tasks, p_next boolean, p_since timestamptz, p_silent interval)
RETURNS TABLE (blocker text, since timestamptz, until timestamptz, detail jsonb) LANGUAGE sql STABLE AS $$
  WITH lane AS (
    SELECT * FROM accs.lanes WHERE id = p_task.lane
  ), offering AS (
    SELECT n.name, n.labels FROM lane l JOIN public.nodes n ON (l.node IS NULL OR n.name = l.node) AND (n.max_concurrency ->> l.service)::int > 0
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
           'nodes', (SELECT count(*) FROM public.nodes), 'without_slots', (SELECT jsonb_agg(name ORDER BY name) FROM public.nodes WHERE max_concurrency ? l.service)))
    FROM lane l WHERE NOT EXISTS (SELECT FROM offering) AND (l.node IS NULL OR EXISTS (SELECT FROM public.nodes WHERE name = l.node))
  UNION ALL
  (SELECT 'labels', p_since, NULL, jsonb_build_object('requires', l.requires, 'service', l.service, 'node', l.node, 'nearest', n.name, 'missing', n.missing)
     FROM lane l, nearest n WHERE NOT EXISTS (SELECT FROM fitting)
    ORDER BY (SELECT count(*) FROM jsonb_object_keys(n.missing)), n.name LIMIT 1)
  UNION ALL
  (SELECT 'node_' || f.state, CASE f.state WHEN 'full' THEN p_since ELSE f.since END, NULL, f.detail
     FROM fitting f
    WHERE CASE WHEN p_next THEN NOT EXISTS (SELECT FROM fitting WHERE state = 'free') ELSE NOT EXISTS (SELECT FROM fitting WHERE state <> 'drained') END
    ORDER BY f.node LIMIT 100)
$$;
