-- ---------------------------------------------------------------------------------------------------------------
-- The queue: what waits for a claim, what is live, and the concurrency keys between them
-- ---------------------------------------------------------------------------------------------------------------

-- How many tasks with a key may run at once.
CREATE TABLE accs.concurrency_keys (
  key          text PRIMARY KEY,
  max_running  int NOT NULL DEFAULT 1 CHECK (max_running >= 1)
);

-- What a claim looks at: the queued tasks whose dependencies are all satisfied, and what holds them.
CREATE TABLE accs.waiting (
  task_id     uuid PRIMARY KEY,
  lane        int NOT NULL,
  rank        int NOT NULL,          -- minus the job's priority, so that one ascending index is the global order
  order_seq   bigint NOT NULL,
  created_at  timestamptz NOT NULL,
  hold        text CHECK (hold IN ('backoff', 'key', 'paused', 'resolve')),
  due_at      timestamptz,
  key         text,
  CHECK ((hold IS NOT DISTINCT FROM 'backoff') = (due_at IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX waiting_claim ON accs.waiting (lane, rank, order_seq, created_at, task_id) WHERE hold IS NULL;  -- claim_tasks
CREATE INDEX waiting_due ON accs.waiting (lane, due_at) WHERE hold = 'backoff';                              -- promote
CREATE INDEX waiting_key ON accs.waiting (key, lane, rank, order_seq, created_at, task_id)                   -- admit
  WHERE key IS NOT NULL AND (hold IS NULL OR hold = 'key');
CREATE INDEX waiting_paused ON accs.waiting (task_id) WHERE hold = 'paused';                                 -- resume
CREATE INDEX waiting_resolve ON accs.waiting (rank, order_seq, created_at, task_id) WHERE hold = 'resolve';  -- tasks_to_resolve

-- What is starting or running. Leases, capacity and keys are counted here.
CREATE TABLE accs.live (
  task_id      uuid PRIMARY KEY,
  job_id       uuid NOT NULL,
  service      text NOT NULL,
  node         text NOT NULL,
  owner        text NOT NULL,
  attempt_id   int NOT NULL,
  key          text,
  progress     numeric NOT NULL DEFAULT 0,
  lease_until  timestamptz NOT NULL
) WITH (fillfactor = 70,
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- none on lease_until: what is live is little, reclaim reads all of it, and heartbeats stay HOT
CREATE INDEX live_node ON accs.live (node, service);                     -- capacity; an owner's own leases
CREATE INDEX live_key ON accs.live (key) WHERE key IS NOT NULL;          -- admit, claim_tasks

-- One NOTIFY for each service that got something claimable, and one for the resolver, once per statement.
CREATE FUNCTION accs.notify_services() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_notify(accs.channel_prefix() || coalesce(service, '_resolve'), '')
     FROM (SELECT DISTINCT l.service
             FROM (SELECT DISTINCT CASE WHEN hold IS NULL THEN lane END AS lane FROM fresh WHERE hold IS NULL OR hold = 'resolve') f
             LEFT JOIN accs.lanes l ON l.id = f.lane) s;
  RETURN NULL;
END $$;
CREATE TRIGGER notify_services AFTER INSERT ON accs.waiting
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION accs.notify_services();
CREATE TRIGGER notify_services_again AFTER UPDATE ON accs.waiting
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION accs.notify_services();

-- Whether a task lets those run that depend on it.
CREATE FUNCTION accs.satisfies(p_status text, p_code text, p_tolerated boolean) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT p_status = 'done' OR p_status = 'skipped' AND p_code IS DISTINCT FROM 'upstream_failed' OR p_tolerated IS TRUE
$$;

-- What a task still waits for, given by its job, the steps that it depends on and the step that it is an item of, if any: each of
-- those steps, and where one was multiplied, each of its tasks. The task of an item waits for its step alone, which has waited for the
-- others. p_open are tasks that count as open whatever they are, because they are about to be. By one look-up for each key, as in
-- claim_tasks, and of narrow rows: a step that was multiplied names all its tasks in dependants. p_open is read as rows, which are
-- hashed once and not compared one by one.
CREATE FUNCTION accs.unsatisfied(p_job uuid, p_depends_on text[], p_parent uuid, p_open uuid[] DEFAULT '{}') RETURNS SETOF uuid
LANGUAGE sql STABLE AS $$
  SELECT d.id FROM unnest(p_depends_on) AS k (key), LATERAL (
      SELECT id, status, error_code, tolerated, resolve FROM public.job_tasks
       WHERE job_id = p_job AND task_key = k.key OFFSET 0) m, LATERAL (
      SELECT m.id, m.status, m.error_code, m.tolerated WHERE p_parent IS NULL OR p_parent = m.id UNION ALL
      SELECT c.id, c.status, c.error_code, c.tolerated FROM public.job_tasks c
       WHERE m.resolve IS NOT NULL AND c.parent = m.id AND p_parent IS NULL) d
   WHERE NOT accs.satisfies(d.status, d.error_code, d.tolerated) OR d.id IN (SELECT unnest(p_open))
$$;

-- Locks the jobs of these tasks, in the order that everybody keeps, and says where their rows stand while they are locked. Nearly
-- always all are live, and the narrow table knows their jobs.
CREATE FUNCTION accs.lock_jobs_of(p_task_ids uuid[]) RETURNS tid[] LANGUAGE plpgsql AS $$
BEGIN
  RETURN ARRAY(
    SELECT ctid FROM public.jobs WHERE id = ANY (ARRAY(
      WITH known AS MATERIALIZED (SELECT job_id FROM accs.live WHERE task_id = ANY (p_task_ids))
      SELECT job_id FROM known
      UNION SELECT job_id FROM public.job_tasks WHERE id = ANY (p_task_ids) AND (SELECT count(*) FROM known) < cardinality(p_task_ids)))
     ORDER BY id FOR NO KEY UPDATE);
END $$;

-- Lets the first waiting tasks of each key and lane stand as claimable, as many as the key has room for, and holds the
-- others. Under the key's lock, and in a statement after it, so that the count of live ones is the true one. Ready rows
-- that a claim has locked are left alone: it checks the limit itself. A verb gathers all its keys and calls this once, at
-- its end: two calls in one transaction could lock two keys in the order in which another transaction does not.
-- Nothing happens where there are no keys, or null.
CREATE FUNCTION accs.admit(p_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_keys IS NULL OR p_keys = '{}' THEN
    RETURN;
  END IF;
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
SELECT accs.pin('admit');

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
                WHEN t.resolve THEN 'resolve'
                WHEN t.concurrency_key IS NOT NULL THEN 'key' END,
           CASE WHEN t.next_attempt_at > accs.clock() THEN t.next_attempt_at END,
           t.concurrency_key
      FROM public.job_tasks t JOIN public.jobs j ON j.id = t.job_id
     WHERE t.id = ANY (p_task_ids) AND t.status = 'queued' AND t.remaining = 0
    RETURNING key, hold)
  SELECT array_agg(DISTINCT key) INTO v_keys FROM fresh WHERE hold = 'key';
  RETURN v_keys;
END $$;
SELECT accs.pin('enqueue');

-- Takes tasks out of waiting; the caller holds their jobs' locks, so that nobody else makes them wait again. Waits for a
-- claim under way, which may put a row back that must not run yet: as a new row, which the first DELETE can't see.
CREATE FUNCTION accs.unqueue(p_task_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  LOOP
    DELETE FROM accs.waiting WHERE task_id = ANY (p_task_ids);
    EXIT WHEN NOT EXISTS (SELECT FROM accs.waiting WHERE task_id = ANY (p_task_ids));
  END LOOP;
END $$;
