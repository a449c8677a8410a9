-- ---------------------------------------------------------------------------------------------------------------
-- Operations: one action on many jobs or dead letters, done in chunks, each of which is answered once
-- ---------------------------------------------------------------------------------------------------------------

-- Whoever has the lease reads the next items and calls advance_operation, which calls the verb for them and notes the answers and the
-- position in one transaction: a chunk is done and counted, or neither. What is newer than the bound in the filter is never met.
CREATE TABLE accs.operations (
  id           uuid PRIMARY KEY DEFAULT accs.new_id(),
  action       text NOT NULL CHECK (action IN ('cancel', 'retry', 'redrive', 'dismiss', 'set_priority')),
  filter       jsonb CHECK (jsonb_typeof(filter) = 'object'),   -- all that pass it, or
  ids          text[] CHECK (cardinality(ids) BETWEEN 1 AND 100000),
  arguments    jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(arguments) = 'object'),
  reason       text,
  by           text NOT NULL,
  key          text UNIQUE,                     -- the same key again is the same operation
  state        text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'stopped', 'failed')),
  expected     bigint,                          -- how many items there were when it began, where that was counted
  chunks       int NOT NULL DEFAULT 0,          -- how many are done: a caller names the next one
  position     jsonb,                           -- behind the last item that was looked at; null: nothing was
  looked_at    bigint NOT NULL DEFAULT 0,
  accepted     bigint NOT NULL DEFAULT 0,
  repeated     bigint NOT NULL DEFAULT 0,
  refused      bigint NOT NULL DEFAULT 0,
  reasons      jsonb NOT NULL DEFAULT '{}',     -- how many were refused, by reason
  refusals     jsonb NOT NULL DEFAULT '[]',     -- the first of them: id, reason
  owner        text,
  lease_until  timestamptz,
  failures     int NOT NULL DEFAULT 0,          -- of the next chunk
  error        text,
  created_at   timestamptz NOT NULL DEFAULT accs.clock(),
  ended_at     timestamptz,
  ended_by     text,                            -- who stopped it
  CHECK ((filter IS NULL) <> (ids IS NULL)),
  CHECK ((state = 'running') = (ended_at IS NULL))
);

CREATE INDEX operations_open ON accs.operations (id) WHERE state = 'running';   -- take_operation

CREATE TYPE accs.said AS (id text, answer text, reason text);

-- An operation for whoever takes it, or of this owner. The same key again is the same operation.
CREATE FUNCTION accs.start_operation(
  p_action text, p_filter jsonb, p_ids text[], p_arguments jsonb, p_by text, p_reason text DEFAULT NULL, p_key text DEFAULT NULL,
  p_expected bigint DEFAULT NULL, p_owner text DEFAULT NULL, p_lease interval DEFAULT NULL
) RETURNS TABLE (id uuid, answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_id  uuid;
  v_op  accs.operations;
  v_ids text[];
BEGIN
  IF p_ids IS NOT NULL THEN   -- each once, in the order given, and written in one way
    IF p_action IN ('redrive', 'dismiss') THEN
      v_ids := ARRAY(SELECT u.id::text FROM unnest(p_ids::bigint[]) WITH ORDINALITY AS u (id, n) GROUP BY u.id ORDER BY min(n));
    ELSE
      v_ids := ARRAY(SELECT u.id::text FROM unnest(p_ids::uuid[]) WITH ORDINALITY AS u (id, n) GROUP BY u.id ORDER BY min(n));
    END IF;
  END IF;
  IF p_action = 'set_priority' AND (p_arguments ->> 'priority')::int IS NULL THEN
    RAISE EXCEPTION 'set_priority needs a priority' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  DELETE FROM accs.operations WHERE ended_at < accs.clock() - interval '400 days';
  INSERT INTO accs.operations (action, filter, ids, arguments, reason, by, key, expected, owner, lease_until)
  VALUES (p_action, p_filter, v_ids, coalesce(p_arguments, '{}'), p_reason, p_by, p_key, coalesce(cardinality(v_ids), p_expected), p_owner,
          CASE WHEN p_owner IS NOT NULL THEN accs.clock() + accs.waited() + p_lease END)
  ON CONFLICT (key) DO NOTHING RETURNING id INTO v_id;
  IF v_id IS NOT NULL THEN
    PERFORM pg_notify(accs.channel_prefix() || '_operations', v_id::text);
    PERFORM accs.audited('start_operation', 'operation', v_id::text, 'accepted', p_by, p_reason,
                         p_detail => jsonb_build_object('action', p_action));
    RETURN QUERY SELECT v_id, 'accepted', NULL::text;
    RETURN;
  END IF;
  SELECT * INTO v_op FROM accs.operations WHERE key = p_key;
  RETURN QUERY SELECT v_op.id, CASE WHEN same THEN 'repeated' ELSE 'refused' END, CASE WHEN NOT same THEN 'idempotency_mismatch' END
    FROM (SELECT v_op.action = p_action AND v_op.ids IS NOT DISTINCT FROM v_ids AND v_op.arguments = coalesce(p_arguments, '{}')
                 AND v_op.filter - '{until_order_seq,until_id,since,until}'::text[]
                     IS NOT DISTINCT FROM p_filter - '{until_order_seq,until_id,since,until}'::text[] AS same) c;
END $$;
SELECT accs.is_verb('start_operation', may => '{api}');

-- An operation that nobody works on, or that this owner works on already: the one that has waited longest, so that a large one does not
-- keep the others waiting.
CREATE FUNCTION accs.take_operation(p_owner text, p_lease interval) RETURNS SETOF accs.operations LANGUAGE sql AS $$
  UPDATE accs.operations o SET owner = p_owner, lease_until = accs.clock() + accs.waited() + p_lease
    FROM (SELECT id FROM accs.operations
           WHERE state = 'running' AND (owner IS NOT DISTINCT FROM p_owner OR coalesce(lease_until <= accs.clock(), true))
           ORDER BY lease_until NULLS FIRST, id LIMIT 1 FOR UPDATE SKIP LOCKED) t
   WHERE o.id = t.id RETURNING o.*
$$;
SELECT accs.is_verb('take_operation', may => '{api}');

-- Does the next chunk: the verb for these items, the answers and the position, all at once. Refused to whoever has lost the lease;
-- a chunk that is done already is repeated. p_last: nothing is left behind the position.
CREATE FUNCTION accs.advance_operation(p_id uuid, p_owner text, p_chunk int, p_ids text[], p_position jsonb, p_looked bigint,
                                       p_last boolean, p_lease interval)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_op   accs.operations;
  v_said accs.said[];
BEGIN
  SELECT * INTO v_op FROM accs.operations WHERE id = p_id FOR UPDATE;
  IF v_op.id IS NULL OR v_op.state <> 'running' OR v_op.owner IS DISTINCT FROM p_owner OR v_op.chunks <> p_chunk THEN
    RETURN QUERY SELECT CASE WHEN v_op.chunks > p_chunk AND v_op.owner = p_owner THEN 'repeated' ELSE 'refused' END,
                        CASE WHEN v_op.id IS NULL THEN 'not_found' WHEN v_op.chunks > p_chunk AND v_op.owner = p_owner THEN NULL
                             WHEN v_op.state <> 'running' THEN 'already_ended' WHEN v_op.owner IS DISTINCT FROM p_owner THEN 'lease_lost'
                             ELSE 'not_in_expected_state' END;
    RETURN;
  END IF;
  IF cardinality(p_ids) > 1000 THEN
    RAISE EXCEPTION 'a chunk has at most 1000 items' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_ids <> '{}' THEN
    CASE v_op.action
      WHEN 'cancel' THEN
        v_said := ARRAY(SELECT ROW(id::text, answer, reason)::accs.said FROM accs.cancel_jobs(p_ids::uuid[],
          p_by => v_op."by", p_reason => v_op.reason));
      WHEN 'retry' THEN
        v_said := ARRAY(SELECT ROW(id::text, answer, reason)::accs.said FROM accs.retry_jobs(p_ids::uuid[],
          CASE WHEN v_op.arguments ? 'from_step' THEN array_fill(v_op.arguments ->> 'from_step', ARRAY[cardinality(p_ids)]) END,
          p_by => v_op."by", p_reason => v_op.reason));
      WHEN 'set_priority' THEN
        v_said := ARRAY(SELECT ROW(id::text, answer, reason)::accs.said FROM accs.change_jobs(p_ids::uuid[],
          p_priority => (v_op.arguments ->> 'priority')::int, p_by => v_op."by", p_reason => v_op.reason));
      WHEN 'redrive' THEN
        v_said := ARRAY(SELECT ROW(dead_letter_id::text, answer, reason)::accs.said FROM accs.redrive(p_ids::bigint[],
          p_by => v_op."by", p_reason => v_op.reason));
      WHEN 'dismiss' THEN
        v_said := ARRAY(SELECT ROW(dead_letter_id::text, answer, reason)::accs.said FROM accs.dismiss(p_ids::bigint[],
          p_by => v_op."by", p_reason => v_op.reason));
    END CASE;
  END IF;
  UPDATE accs.operations o SET
         chunks = o.chunks + 1, position = p_position, looked_at = o.looked_at + p_looked, failures = 0, error = NULL,
         accepted = o.accepted + s.accepted, repeated = o.repeated + s.repeated, refused = o.refused + s.refused,
         reasons = o.reasons || s.reasons,
         refusals = CASE WHEN s.refused = 0 THEN o.refusals ELSE (
           SELECT jsonb_agg(e.each ORDER BY e.n) FROM jsonb_array_elements(o.refusals || s.refusals) WITH ORDINALITY AS e (each, n)
            WHERE e.n <= 100) END,
         state = CASE WHEN p_last THEN 'done' ELSE 'running' END, ended_at = CASE WHEN p_last THEN accs.clock() END,
         lease_until = accs.clock() + accs.waited() + p_lease
    FROM (SELECT count(*) FILTER (WHERE u.answer = 'accepted') AS accepted, count(*) FILTER (WHERE u.answer = 'repeated') AS repeated,
                 count(*) FILTER (WHERE u.answer = 'refused') AS refused,
                 coalesce(jsonb_agg(jsonb_build_object('id', u.id, 'reason', u.reason)) FILTER (WHERE u.answer = 'refused'), '[]')
                   AS refusals,
                 coalesce((SELECT jsonb_object_agg(r.reason, r.n + coalesce((v_op.reasons ->> r.reason)::bigint, 0)) FROM (
                   SELECT reason, count(*) AS n FROM unnest(v_said) WHERE answer = 'refused' GROUP BY reason) r), '{}') AS reasons
            FROM unnest(v_said) AS u) s
   WHERE o.id = p_id;
  PERFORM pg_notify(accs.channel_prefix() || '_operations', p_id::text);
  RETURN QUERY SELECT 'accepted', NULL::text;
END $$;
SELECT accs.is_verb('advance_operation', may => '{api}');

-- Gives an operation back whose next chunk failed: somebody tries it again after the pause. After the fifth time it has failed.
CREATE FUNCTION accs.leave_operation(p_id uuid, p_owner text, p_error text, p_pause interval) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_state text;
BEGIN
  UPDATE accs.operations SET owner = NULL, lease_until = accs.clock() + p_pause, failures = failures + 1, error = left(p_error, 2000),
         state = CASE WHEN failures >= 4 THEN 'failed' ELSE 'running' END, ended_at = CASE WHEN failures >= 4 THEN accs.clock() END
   WHERE id = p_id AND owner = p_owner AND state = 'running' RETURNING state INTO v_state;
  PERFORM pg_notify(accs.channel_prefix() || '_operations', p_id::text) WHERE v_state = 'failed';
  RETURN CASE WHEN v_state IS NULL THEN 'refused' ELSE 'accepted' END;
END $$;
SELECT accs.is_verb('leave_operation', may => '{api}');

-- Ends an operation after the chunk that it is in; what is done stays done.
CREATE FUNCTION accs.stop_operation(p_id uuid, p_by text, p_reason text DEFAULT NULL)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_state text;
BEGIN
  SELECT state INTO v_state FROM accs.operations WHERE id = p_id FOR UPDATE;
  IF v_state = 'running' THEN
    UPDATE accs.operations SET state = 'stopped', ended_at = accs.clock(), ended_by = p_by WHERE id = p_id;
    PERFORM accs.audited('stop_operation', 'operation', p_id::text, 'accepted', p_by, p_reason);
    PERFORM pg_notify(accs.channel_prefix() || '_operations', p_id::text);
  END IF;
  RETURN QUERY SELECT CASE v_state WHEN 'running' THEN 'accepted' WHEN 'stopped' THEN 'repeated' ELSE 'refused' END,
                      CASE WHEN v_state IS NULL THEN 'not_found' WHEN v_state IN ('done', 'failed') THEN 'already_ended' END;
END $$;
SELECT accs.is_verb('stop_operation', may => '{api}');
