-- ---------------------------------------------------------------------------------------------------------------
-- Pieces that the verbs share
-- ---------------------------------------------------------------------------------------------------------------

-- A11, and the other strategies. What grows is capped at an hour where the step gives no cap; attempt counts from 1.
CREATE FUNCTION accs.backoff_seconds(p_spec jsonb, p_attempt int, p_base double precision DEFAULT NULL)
RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE jsonb_typeof(p_spec)
    WHEN 'array' THEN (p_spec ->> (least(p_attempt, jsonb_array_length(p_spec)) - 1))::double precision
    ELSE least(
      coalesce((p_spec ->> 'cap')::double precision, CASE WHEN p_spec ->> 'strategy' = 'fixed' THEN 'infinity'::double precision ELSE 3600 END),
      coalesce((p_spec ->> 'base')::double precision, p_base, accs.backoff_base())
        * CASE p_spec ->> 'strategy' WHEN 'fixed' THEN 1
                                     WHEN 'linear' THEN p_attempt
                                     ELSE power(2::double precision, least(p_attempt, 901) - 1) END)
    END
$$;

-- Exponential delays get up to a tenth more, so that what failed together does not come back together. Derived from the
-- task and its attempt: the same call gives the same time.
CREATE FUNCTION accs.retry_delay(p_spec jsonb, p_attempt int, p_task uuid, p_base double precision) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
  SELECT make_interval(secs => accs.backoff_seconds(p_spec, p_attempt, p_base)
    * CASE WHEN jsonb_typeof(p_spec) = 'array' OR p_spec ->> 'strategy' IN ('fixed', 'linear') THEN 1
           ELSE 1 + 0.1 * (hashtextextended(p_task::text, p_attempt) & 1023) / 1024.0 END)
$$;

-- JSON that is no larger than 1 MiB, or a note that it was.
CREATE FUNCTION accs.bounded(p jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN pg_column_size(p) > 1048576 THEN jsonb_build_object('omitted', format('%s bytes are more than 1 MiB', pg_column_size(p))) ELSE p END
$$;

-- Whoever is the owner, or the control host, acts for every node. A verb runs as the owner; session_user is who has logged in.
CREATE FUNCTION accs.speaks_for_all() RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT pg_has_role(session_user, current_user, 'MEMBER') OR coalesce(pg_has_role(session_user, to_regrole('accs_scheduler'), 'MEMBER'), false)
$$;

CREATE FUNCTION accs.check_size(p_rows int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_rows > 10000 THEN
    RAISE EXCEPTION 'one call is for at most 10,000 rows, and this one has %', p_rows USING ERRCODE = 'invalid_parameter_value', HINT = 'Divide it.';
  END IF;
END $$;

-- For the verbs of an attempt: who calls them may speak for this node, asks for no endless lease, and for a number of tasks that
-- one transaction can bear. A node belongs to the first login that registers it and does not speak for all.
-- (The verbs look themselves whether there is anything to check: a call costs as much as a small statement.)
CREATE FUNCTION accs.check_caller(p_node text, p_rows int DEFAULT 0, p_lease interval DEFAULT '1 s') RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_login text;
BEGIN
  PERFORM accs.check_size(p_rows);
  IF (p_lease > '0' AND p_lease <= accs.longest_lease()) IS NOT TRUE THEN
    RAISE EXCEPTION 'a lease of % is not possible: it lasts longer than 0 and at most %', p_lease, accs.longest_lease() USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF session_user <> current_user AND NOT accs.speaks_for_all() THEN
    SELECT coalesce(login, session_user) INTO v_login FROM public.nodes WHERE name = p_node;
    IF v_login IS DISTINCT FROM session_user::text THEN
      RAISE EXCEPTION 'not_your_node: "%" %, and this is the login "%"', p_node,
          CASE WHEN v_login IS NULL THEN 'is not registered' ELSE format('belongs to the login "%s"', v_login) END, session_user
        USING ERRCODE = 'AC006', HINT = format('To give it to this login: accsd db node-login %s; to start anew: accsd nodes remove %s.', p_node, p_node);
    END IF;
  END IF;
END $$;

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

-- Why a fenced write did not happen (D5), or that it happened before. p_outcome is what the caller says now: the same said
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

-- Locks the jobs of these tasks, in the order that everybody keeps. Nearly always all are live, and the narrow table knows their jobs.
CREATE FUNCTION accs.lock_jobs_of(p_task_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM public.jobs WHERE id = ANY (ARRAY(
    WITH known AS MATERIALIZED (SELECT job_id FROM accs.live WHERE task_id = ANY (p_task_ids))
    SELECT job_id FROM known
    UNION SELECT job_id FROM public.job_tasks WHERE id = ANY (p_task_ids) AND (SELECT count(*) FROM known) < cardinality(p_task_ids)))
   ORDER BY id FOR NO KEY UPDATE;
END $$;

-- Lets the first waiting tasks of each key and lane stand as claimable, as many as the key has room for, and holds the
-- others. Under the key's lock, and in a statement after it, so that the count of live ones is the true one. Ready rows
-- that a claim has locked are left alone: it checks the limit itself. A verb gathers all its keys and calls this once, at
-- its end: two calls in one transaction could lock two keys in the order in which another transaction does not.
CREATE FUNCTION accs.admit(p_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM accs.concurrency_keys WHERE key = ANY (p_keys) ORDER BY key FOR NO KEY UPDATE;
  WITH RECURSIVE room AS (
    SELECT k.key, greatest(0, k.max_running - (SELECT count(*) FROM accs.live l WHERE l.key = k.key))::int AS n
      FROM accs.concurrency_keys k WHERE k.key = ANY (p_keys)
  ), lane AS (   -- the distinct lanes of each key, by hopping through the index
    SELECT r.key, r.n, (SELECT min(w.lane) FROM accs.waiting w WHERE w.key = r.key AND (w.hold IS NULL OR w.hold = 'key')) AS id FROM room r
    UNION ALL
    SELECT l.key, l.n, (SELECT min(w.lane) FROM accs.waiting w WHERE w.key = l.key AND (w.hold IS NULL OR w.hold = 'key') AND w.lane > l.id)
      FROM lane l WHERE l.id IS NOT NULL
  ), first AS (
    SELECT f.task_id FROM lane l, LATERAL (
      SELECT w.task_id FROM accs.waiting w
       WHERE w.key = l.key AND w.lane = l.id AND (w.hold IS NULL OR w.hold = 'key')
       ORDER BY w.rank, w.order_seq, w.created_at, w.task_id LIMIT l.n) f
     WHERE l.id IS NOT NULL
  ), change AS (
    SELECT w.task_id, NULL::text AS hold FROM accs.waiting w
     WHERE w.task_id IN (SELECT task_id FROM first) AND w.hold = 'key'
    UNION ALL
    SELECT w.task_id, 'key' FROM accs.waiting w
     WHERE w.key = ANY (p_keys) AND w.hold IS NULL AND w.task_id NOT IN (SELECT task_id FROM first)
  ), free AS (
    SELECT w.task_id, c.hold FROM change c JOIN accs.waiting w ON w.task_id = c.task_id FOR UPDATE OF w SKIP LOCKED
  )
  UPDATE accs.waiting w SET hold = f.hold FROM free f WHERE w.task_id = f.task_id AND (w.hold IS NULL OR w.hold = 'key');
END $$;

-- Makes tasks wait that have just become runnable: at once, or until a due time. The caller admits the keys it returns.
CREATE FUNCTION accs.enqueue(p_task_ids uuid[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  v_keys text[];
BEGIN
  WITH fresh AS (
    INSERT INTO accs.waiting (task_id, lane, rank, order_seq, created_at, hold, due_at, key)
    SELECT t.id, t.lane, -j.priority, j.order_seq, t.created_at,
           CASE WHEN t.next_attempt_at > accs.clock() THEN 'backoff'
                WHEN j.workflow_id = ANY ((SELECT accs.paused_workflows())::uuid[]) THEN 'paused'
                WHEN t.concurrency_key IS NOT NULL THEN 'key' END,
           CASE WHEN t.next_attempt_at > accs.clock() THEN t.next_attempt_at END,
           t.concurrency_key
      FROM public.job_tasks t JOIN public.jobs j ON j.id = t.job_id
     WHERE t.id = ANY (p_task_ids) AND t.status = 'queued' AND t.remaining = 0
    RETURNING key, hold)
  SELECT array_agg(DISTINCT key) INTO v_keys FROM fresh WHERE hold = 'key';
  RETURN v_keys;
END $$;

-- Takes tasks out of waiting; the caller holds their jobs' locks, so that nobody else makes them wait again. Waits for a
-- claim under way, which may put a row back that must not run yet: as a new row, which the first DELETE can't see.
CREATE FUNCTION accs.unqueue(p_task_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  LOOP
    DELETE FROM accs.waiting WHERE task_id = ANY (p_task_ids);
    EXIT WHEN NOT EXISTS (SELECT FROM accs.waiting WHERE task_id = ANY (p_task_ids));
  END LOOP;
END $$;
