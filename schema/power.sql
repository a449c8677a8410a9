-- ---------------------------------------------------------------------------------------------------------------
-- Power: when each node slept, was woken, started and was there, for as long as people ask what that has cost
-- ---------------------------------------------------------------------------------------------------------------

-- Each change of accs.power.state, kept for 400 days (forget_statistics); node_history has only the last 1,000 things. ready: it is there,
-- whether it works or not (accs.samples know that). unknown and failed: nobody knows what it draws.
CREATE TABLE accs.power_log (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  node     text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  ts       timestamptz NOT NULL,
  state    text NOT NULL CHECK (state IN ('unknown', 'asleep', 'waking', 'booting', 'ready', 'failed')),
  because  text,
  method   text                             -- by which it was called, or by which it came
);

CREATE INDEX power_log_node ON accs.power_log (node, ts, id);   -- power_log of a time, and what it was before

-- A node's power has taken a new state. The same state again is no change.
CREATE FUNCTION accs.log_power(p_node text, p_state text, p_because text, p_method text) RETURNS void LANGUAGE sql AS $$
  INSERT INTO accs.power_log (node, ts, state, because, method)
  SELECT p_node, accs.clock(), p_state, left(p_because, 2000), p_method
   WHERE (SELECT l.state FROM accs.power_log l WHERE l.node = p_node ORDER BY l.ts DESC, l.id DESC LIMIT 1) IS DISTINCT FROM p_state
$$;

-- A node that counted as ready was silent, and is there again: a power cut, a crash, a suspend that nobody announced. Nobody has noticed
-- if nothing wanted the node meanwhile.
CREATE FUNCTION accs.log_silence(p_node text, p_since timestamptz) RETURNS void LANGUAGE sql AS $$
  INSERT INTO accs.power_log (node, ts, state, because)
  SELECT p_node, s.ts, s.state, s.because
    FROM (VALUES (1, p_since, 'unknown', 'it was not seen any more'), (2, accs.clock(), 'ready', 'it is there again'))
           AS s (n, ts, state, because)
   WHERE EXISTS (SELECT FROM accs.power w WHERE w.node = p_node AND w.state = 'ready' AND w.since < p_since)
   ORDER BY s.n
$$;
