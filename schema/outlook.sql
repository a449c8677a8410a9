-- ---------------------------------------------------------------------------------------------------------------
-- What the daemon asks between its passes. Times are distances from this clock: a node's own does not matter
-- ---------------------------------------------------------------------------------------------------------------

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

-- For the builder: is a job due, when is the next one, and when does the next lease end. All of live is read: it is little,
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
