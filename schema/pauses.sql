-- ---------------------------------------------------------------------------------------------------------------
-- Pauses of services, workflows and nodes; limits of concurrency keys; the net under both
-- ---------------------------------------------------------------------------------------------------------------

-- What takes nothing new: a service, a workflow (by name, all its versions), a node (a drain).
CREATE TABLE accs.pauses (
  kind    text NOT NULL CHECK (kind IN ('service', 'workflow', 'node')),
  name    text NOT NULL CHECK (length(name) BETWEEN 1 AND CASE kind WHEN 'service' THEN 40 ELSE 200 END),
  since   timestamptz NOT NULL DEFAULT accs.clock(),
  reason  text,
  by      text,
  PRIMARY KEY (kind, name)
);

-- The ids of the paused workflows. KEY SHARE makes resume wait for whoever is about to hold a task because of the pause:
-- otherwise that task would be held for ever.
CREATE FUNCTION accs.paused_workflows() RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
  v_names text[];
BEGIN
  SELECT array_agg(name) INTO v_names FROM (SELECT name FROM accs.pauses WHERE kind = 'workflow' FOR KEY SHARE) p;
  IF v_names IS NULL THEN
    RETURN '{}';
  END IF;
  RETURN ARRAY(SELECT id FROM public.workflows WHERE name = ANY (v_names));
END $$;

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
    RETURN accs.audited('pause', p_kind, p_name, 'repeated', p_by, p_reason);
  END IF;
  IF p_kind = 'workflow' THEN
    -- A task that becomes claimable at this very moment may be missed: the claim that meets it holds it.
    WITH ours AS (
      SELECT w.task_id FROM accs.waiting w JOIN public.job_tasks t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id
        JOIN public.workflows f ON f.id = j.workflow_id WHERE f.name = p_name AND (w.hold IS NULL OR w.hold IN ('key', 'resolve'))
         FOR UPDATE OF w SKIP LOCKED
    ), held AS (
      UPDATE accs.waiting w SET hold = 'paused' FROM ours WHERE w.task_id = ours.task_id RETURNING w.key
    )
    SELECT array_agg(DISTINCT key) FILTER (WHERE key IS NOT NULL) INTO v_keys FROM held;
    PERFORM accs.admit(v_keys);   -- their places are the next ones'
  END IF;
  RETURN accs.audited('pause', p_kind, p_name, 'accepted', p_by, p_reason);
END $$;
SELECT accs.is_verb('pause', may => '{scheduler,api}');

CREATE FUNCTION accs.resume(p_kind text, p_name text, p_reason text DEFAULT NULL, p_by text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_keys text[];
BEGIN
  DELETE FROM accs.pauses WHERE kind = p_kind AND name = p_name;   -- waits for whoever holds a task because of it right now
  IF NOT FOUND THEN
    RETURN accs.audited('resume', p_kind, p_name, 'repeated', p_by, p_reason);
  END IF;
  IF p_kind = 'workflow' THEN
    WITH ours AS (
      SELECT w.task_id, t.resolve FROM accs.waiting w JOIN public.job_tasks t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id
        JOIN public.workflows f ON f.id = j.workflow_id WHERE f.name = p_name AND w.hold = 'paused' FOR UPDATE OF w SKIP LOCKED
    ), freed AS (
      UPDATE accs.waiting w SET hold = CASE WHEN ours.resolve THEN 'resolve' WHEN w.key IS NOT NULL THEN 'key' END FROM ours
       WHERE w.task_id = ours.task_id RETURNING w.key
    )
    SELECT array_agg(DISTINCT key) FILTER (WHERE key IS NOT NULL) INTO v_keys FROM freed;
    PERFORM accs.admit(v_keys);
  ELSIF p_kind = 'service' THEN
    PERFORM pg_notify(accs.channel_prefix() || p_name, '');
  ELSE
    PERFORM pg_notify(accs.channel_prefix() || s.service, '') FROM (
      SELECT DISTINCT jsonb_object_keys(max_concurrency) AS service FROM public.nodes WHERE name = p_name) s;
  END IF;
  RETURN accs.audited('resume', p_kind, p_name, 'accepted', p_by, p_reason);
END $$;
SELECT accs.is_verb('resume', may => '{scheduler,api}');

-- The net under SKIP LOCKED: whoever frees a held task passes over a row that somebody is about to cancel or skip, and that
-- one may yet roll back. Frees what is held without a reason; returns how many keys and tasks of no key that were.
CREATE FUNCTION accs.recheck_holds() RETURNS int LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_keys  text[];
  v_freed text[];
BEGIN
  WITH ours AS (
    SELECT w.task_id, t.resolve FROM accs.waiting w JOIN public.job_tasks t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id
      JOIN public.workflows f ON f.id = j.workflow_id
     WHERE w.hold = 'paused' AND NOT EXISTS (SELECT FROM accs.pauses p WHERE p.kind = 'workflow' AND p.name = f.name)
       FOR UPDATE OF w SKIP LOCKED
  ), freed AS (
    UPDATE accs.waiting w SET hold = CASE WHEN ours.resolve THEN 'resolve' WHEN w.key IS NOT NULL THEN 'key' END FROM ours
       WHERE w.task_id = ours.task_id RETURNING w.key
  )
  SELECT array_agg(key) INTO v_freed FROM freed;
  SELECT array_agg(DISTINCT h.key) INTO v_keys
    FROM (SELECT key, lane, count(*) FILTER (WHERE hold IS NULL) AS claimable FROM accs.waiting
           WHERE key IS NOT NULL AND (hold IS NULL OR hold = 'key') GROUP BY key, lane HAVING bool_or(hold = 'key')) h
    JOIN accs.concurrency_keys k ON k.key = h.key
   WHERE h.claimable < k.max_running - (SELECT count(*) FROM accs.live l WHERE l.key = h.key);
  PERFORM accs.admit(v_keys);
  RETURN coalesce(cardinality(v_keys), 0) + coalesce(cardinality(v_freed) - cardinality(array_remove(v_freed, NULL)), 0);
END $$;
SELECT accs.is_verb('recheck_holds', may => '{scheduler}');

CREATE FUNCTION accs.set_concurrency_limit(p_key text, p_limit int, p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  v_said jsonb := jsonb_build_object('limit', p_limit);
BEGIN
  INSERT INTO accs.concurrency_keys AS k (key, max_running) VALUES (p_key, p_limit)
  ON CONFLICT (key) DO UPDATE SET max_running = excluded.max_running WHERE k.max_running <> excluded.max_running;
  IF NOT FOUND THEN
    RETURN accs.audited('set_concurrency_limit', 'concurrency_key', p_key, 'repeated', p_by, p_reason, NULL, v_said);
  END IF;
  PERFORM accs.admit(ARRAY[p_key]);
  RETURN accs.audited('set_concurrency_limit', 'concurrency_key', p_key, 'accepted', p_by, p_reason, NULL, v_said);
END $$;
SELECT accs.is_verb('set_concurrency_limit', may => '{scheduler,api}');
