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
