-- ---------------------------------------------------------------------------------------------------------------
-- Resolve: steps with expressions, between their last dependency and their claim
-- ---------------------------------------------------------------------------------------------------------------

-- A step with a condition, a templated input, a delay or a list to go through waits with hold = 'resolve' when all that it depends on is
-- there. A resolver reads what its expressions refer to, evaluates them outside of any transaction and says here what follows. Whoever is
-- killed before has changed nothing; of two who say the same, one is first. Nothing is evaluated in SQL, in a claim or on a node, and what
-- waits to be resolved wakes no node.

-- What waits to be resolved, in the order of the claims. The workflow's steps are named by its id and the time of its last change, so that
-- a resolver reads them once.
CREATE FUNCTION accs.tasks_to_resolve(p_limit int DEFAULT 100) RETURNS TABLE (
  task_id uuid, job_id uuid, task_key text, generation int, workflow_id uuid, workflow_changed_at timestamptz, options jsonb, trigger jsonb,
  job_created_at timestamptz, now timestamptz
) LANGUAGE sql STABLE AS $$
  SELECT t.id, t.job_id, t.task_key, t.generation, j.workflow_id, f.updated_at, j.options, j.trigger, j.created_at, accs.clock()
    FROM (SELECT * FROM accs.waiting WHERE hold = 'resolve' ORDER BY rank, order_seq, created_at, task_id LIMIT p_limit) w
    JOIN public.job_tasks t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id JOIN public.workflows f ON f.id = j.workflow_id
   ORDER BY w.rank, w.order_seq, w.created_at, w.task_id
$$;
SELECT accs.is_verb('tasks_to_resolve', pinned => true, may => '{scheduler}');

-- The results of the items of a step, in their order; null if they are larger than so many bytes. Reads no more of them than that: ten
-- thousand results may be larger than one value can be.
CREATE FUNCTION accs.results_of_items(p_parent uuid, p_bytes bigint) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN NOT EXISTS (
      SELECT FROM (SELECT sum(octet_length(c.results::text)) OVER (ORDER BY c.item_no ROWS UNBOUNDED PRECEDING) AS so_far
                     FROM public.job_tasks c WHERE c.parent = p_parent) r WHERE r.so_far > p_bytes) THEN (
      SELECT coalesce(jsonb_agg(CASE WHEN c.status = 'done' THEN coalesce(c.results, '{}') END ORDER BY c.item_no), '[]')
        FROM public.job_tasks c WHERE c.parent = p_parent AND c.error_code IS DISTINCT FROM 'not_in_list') END
$$;

-- The results of earlier steps that expressions refer to; of a step that was multiplied the list of its tasks' results, null where one was
-- skipped or failed. size is that of the JSON; what does not fit into p_bytes together with those before it is left out, and comes
-- without results. So does a list of more than 4 MiB, whose size nobody counts: no expression may use it.
CREATE FUNCTION accs.step_results(p_job_ids uuid[], p_task_keys text[], p_bytes bigint DEFAULT 33554432)
RETURNS TABLE (job_id uuid, task_key text, status text, results jsonb, size bigint) LANGUAGE sql STABLE AS $$
  SELECT r.job_id, r.task_key, r.status, CASE WHEN sum(r.size) OVER (ORDER BY r.n) <= p_bytes THEN r.results END, r.size
    FROM (SELECT a.n, t.job_id, t.task_key, t.status, v.results, octet_length(v.results::text)::bigint AS size
            FROM unnest(p_job_ids, p_task_keys) WITH ORDINALITY AS a (job_id, task_key, n), LATERAL (
              SELECT * FROM public.job_tasks t WHERE t.job_id = a.job_id AND t.task_key = a.task_key OFFSET 0) t, LATERAL (
              SELECT CASE WHEN t.items IS NULL THEN t.results ELSE accs.results_of_items(t.id, 4194304) END AS results OFFSET 0) v
           WHERE t.status IN ('done', 'skipped')) r
$$;
SELECT accs.is_verb('step_results', pinned => true, may => '{scheduler}');

-- What a resolver has found of one task.
CREATE TYPE accs.resolved AS (
  task_id     uuid,
  generation  int,
  verdict     text,              -- run | skip | error | done
  given       jsonb,             -- run: with, now
  delay       double precision,  -- run: so many seconds later
  reason      text,              -- skip: condition_false, input_skipped; error: its code
  message     text,
  results     jsonb,             -- done: without a node
  cache_for   double precision,  -- run: unless there is a result of the same input that is not older than so many seconds
  salt        text               -- and of the same salt
);

-- The tasks of these verdicts that still wait to be resolved, in the same generation; locked with their jobs.
CREATE FUNCTION accs.lock_unresolved(p_task_ids uuid[], p_generations int[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
BEGIN
  PERFORM accs.lock_jobs_of(p_task_ids);
  RETURN ARRAY(
    SELECT t.id FROM (SELECT w.task_id FROM accs.waiting w WHERE w.task_id = ANY (p_task_ids) AND w.hold = 'resolve'
                       ORDER BY w.task_id FOR UPDATE) w
      JOIN public.job_tasks t ON t.id = w.task_id
      JOIN unnest(p_task_ids, p_generations) AS u (id, generation) ON u.id = t.id AND u.generation = t.generation
     WHERE t.status = 'queued' AND t.resolve AND t.remaining = 0 ORDER BY t.id);
END $$;

-- What a task can be given: an object, whose "with" is one.
CREATE FUNCTION accs.check_given(p_given jsonb[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM unnest(p_given) AS u (given)
              WHERE jsonb_typeof(u.given) <> 'object' OR jsonb_typeof(u.given -> 'with') <> 'object') THEN
    RAISE EXCEPTION 'what a task is given must be an object, and so must be its "with"' USING ERRCODE = 'invalid_parameter_value';
  END IF;
END $$;

-- So many seconds from now, at most a leap year; null: at once.
CREATE FUNCTION accs.later(p_seconds double precision) RETURNS timestamptz LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p_seconds > 0 THEN accs.clock() + make_interval(secs => least(p_seconds, 31622400)) END
$$;

-- Says what follows for tasks that wait to be resolved. Each is answered: accepted, repeated (somebody said it before), or refused because
-- it does not wait any more, or waits in another generation. Of several verdicts on one task the first counts.
CREATE FUNCTION accs.resolve_tasks(p_verdicts jsonb) RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_said  accs.resolved[];
  v_asked uuid[];
  v_generations int[];
  v_ids   uuid[];
  v_keys  text[];
  v_held  text[];
  v_hits  uuid[] := '{}';   -- done, with the result of an earlier task
  v_some  record;
BEGIN
  v_said := ARRAY(SELECT v FROM jsonb_populate_recordset(NULL::accs.resolved, p_verdicts) v);
  PERFORM accs.check_size(cardinality(v_said)), accs.check_given(ARRAY(SELECT s.given FROM unnest(v_said) s));
  FOR v_some IN SELECT s.* FROM unnest(v_said) s LOOP
    IF (v_some.verdict IN ('run', 'skip', 'error', 'done')) IS NOT TRUE OR pg_column_size(v_some.results) > accs.max_result_bytes() THEN
      RAISE EXCEPTION 'a verdict is run, skip, error or done, with results of at most % bytes', accs.max_result_bytes()
        USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM accs.check_reason(v_some.reason), accs.check_cache(v_some.cache_for, v_some.salt);
  END LOOP;
  v_asked := ARRAY(SELECT s.task_id FROM unnest(v_said) s);
  v_generations := ARRAY(SELECT s.generation FROM unnest(v_said) s);
  v_ids := accs.lock_unresolved(v_asked, v_generations);
  v_said := ARRAY(SELECT s.said FROM (SELECT DISTINCT ON (u.task_id) u.task_id, u.n, v_said[u.n::int] AS said
                    FROM unnest(v_said) WITH ORDINALITY AS u (task_id, generation, verdict, given, delay, reason, message, results,
                                                                    cache_for, salt, n)
                    JOIN public.job_tasks t ON t.id = u.task_id AND t.generation = u.generation
                   WHERE u.task_id = ANY (v_ids) ORDER BY u.task_id, u.n) s);
  v_keys := accs.drop_items(ARRAY(SELECT s.task_id FROM unnest(v_said) s WHERE s.verdict <> 'error'), 'resolver');

  SELECT array_agg(s.task_id) AS ids, array_agg(accs.cache_key(accs.cache_base(t, s.salt), s.given)) AS keys,
         array_agg(s.cache_for) AS seconds, array_agg(accs.why_not_cached(t)) AS reasons INTO v_some
    FROM unnest(v_said) s JOIN public.job_tasks t ON t.id = s.task_id WHERE s.verdict = 'run' AND s.cache_for IS NOT NULL;
  IF v_some.ids IS NOT NULL THEN
    SELECT c.hits, v_keys || c.keys INTO v_hits, v_keys FROM accs.use_cache(v_some.ids, v_some.keys, v_some.seconds, v_some.reasons) c;
  END IF;

  WITH said AS (
    SELECT s.task_id, accs.inputs_of_items(t) || coalesce(s.given, '{}') AS given,
           accs.later(s.delay) AS due
      FROM unnest(v_said) s JOIN public.job_tasks t ON t.id = s.task_id
     WHERE s.verdict = 'run' AND s.task_id <> ALL (v_hits) ORDER BY s.task_id
  ), told AS (
    UPDATE public.job_tasks t SET resolve = false, given = s.given, next_attempt_at = s.due, updated_at = v_now
      FROM said s WHERE t.id = s.task_id RETURNING t.id, t.job_id, t.next_attempt_at
  ), freed AS (
    UPDATE accs.waiting w SET due_at = t.next_attempt_at,
           hold = CASE WHEN t.next_attempt_at IS NOT NULL THEN 'backoff'
                       WHEN j.workflow_id = ANY ((SELECT accs.paused_workflows())::uuid[]) THEN 'paused'
                       WHEN w.key IS NOT NULL THEN 'key' END
      FROM told t JOIN public.jobs j ON j.id = t.job_id WHERE w.task_id = t.id
    RETURNING w.key, w.hold)
  SELECT array_agg(DISTINCT key) INTO v_held FROM freed WHERE hold = 'key';
  v_keys := v_keys || v_held;

  SELECT array_agg(s.task_id) AS ids, array_agg(s.reason) AS reasons, array_agg(left(s.message, 2000)) AS messages INTO v_some
    FROM unnest(v_said) s WHERE s.verdict = 'skip';
  IF v_some.ids IS NOT NULL THEN
    v_keys := v_keys || (SELECT k.keys FROM accs.skip(v_some.ids, v_some.reasons, 'resolver', v_some.messages) k);
  END IF;

  SELECT array_agg(s.task_id ORDER BY s.task_id) AS ids, array_agg(s.results ORDER BY s.task_id) AS results INTO v_some
    FROM unnest(v_said) s WHERE s.verdict = 'done';
  IF v_some.ids IS NOT NULL THEN
    v_keys := v_keys || accs.conclude(v_some.ids, v_some.results);
  END IF;

  SELECT array_agg(s.task_id ORDER BY s.task_id) AS ids, array_agg(s.reason ORDER BY s.task_id) AS codes,
         array_agg(s.message ORDER BY s.task_id) AS messages INTO v_some
    FROM unnest(v_said) s WHERE s.verdict = 'error';
  IF v_some.ids IS NOT NULL THEN
    PERFORM accs.begin_without_node(v_some.ids, 'starting');
    v_keys := v_keys || accs.end_attempts(v_some.ids, 'error', v_some.codes, v_some.messages,
                                          array_fill(true, ARRAY[cardinality(v_some.ids)]), 'resolver');
  END IF;

  PERFORM accs.admit(v_keys);
  RETURN QUERY SELECT * FROM accs.unresolved_answers(v_asked, v_generations, v_ids);
END $$;
SELECT accs.is_verb('resolve_tasks', pinned => true, may => '{scheduler}');

CREATE FUNCTION accs.unresolved_answers(p_task_ids uuid[], p_generations int[], p_moved uuid[]) RETURNS SETOF accs.answer
LANGUAGE sql STABLE AS $$
  SELECT u.id, CASE WHEN r.reason IS NOT NULL THEN 'refused' WHEN u.id = ANY (p_moved) THEN 'accepted' ELSE 'repeated' END, r.reason,
         t.status, t.attempt_id, t.lease_owner, t.lease_until
    FROM unnest(p_task_ids, p_generations) AS u (id, generation) LEFT JOIN public.job_tasks t ON t.id = u.id,
         LATERAL (SELECT CASE WHEN t.id IS NULL THEN 'not_found' WHEN t.generation IS DISTINCT FROM u.generation THEN 'stale_generation'
                              WHEN t.resolve IS NULL OR t.status = 'cancelled' OR t.resolve AND t.status = 'queued'
                                THEN 'not_in_expected_state' END AS reason) r
$$;

-- The lists of results of the steps that a task depends on and that were multiplied, by key, as a part of what it is given. What is too
-- large to hand over is left out, as in claim_tasks.
CREATE FUNCTION accs.inputs_of_items(p_task public.job_tasks) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN count(*) = 0 THEN '{}'
              WHEN sum(pg_column_size(v.results)) > 16777216 OR bool_or(v.results IS NULL)
                THEN jsonb_build_object('omitted', jsonb_agg(m.task_key))
              ELSE jsonb_build_object('inputs', jsonb_object_agg(m.task_key, v.results)) END
    FROM unnest(p_task.depends_on) AS k (key), LATERAL (
      SELECT t.id, t.task_key FROM public.job_tasks t
       WHERE t.job_id = p_task.job_id AND t.task_key = k.key AND t.items IS NOT NULL OFFSET 0) m, LATERAL (
      SELECT accs.results_of_items(m.id, 16777216) AS results OFFSET 0) v
$$;

-- Takes tasks that no node takes out of waiting and moves them to where an attempt of theirs can end: its events are those of any attempt.
-- They are live for nobody, because they end in the same transaction.
CREATE FUNCTION accs.begin_without_node(p_task_ids uuid[], p_status text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  PERFORM accs.unqueue(p_task_ids);
  WITH moved AS (
    UPDATE public.job_tasks t SET status = p_status,
           resolve = CASE WHEN t.resolve IS NOT NULL THEN false END,   -- an item has been resolved
           attempt_id = t.attempt_id + 1, claimed_by = NULL, claimed_at = v_now,
           started_at = CASE p_status WHEN 'running' THEN v_now END, lease_owner = 'resolver', lease_until = v_now, updated_at = v_now
      FROM (SELECT u.id FROM unnest(p_task_ids) AS u (id) ORDER BY u.id) s WHERE t.id = s.id
    RETURNING t.id, t.job_id, t.attempt_id)
  INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
  SELECT m.job_id, m.id, v_now, 'resolver', 'info', 'status', e.f || ' → ' || e.t, jsonb_strip_nulls(jsonb_build_object(
           'from', e.f, 'to', e.t, 'owner', CASE e.t WHEN 'starting' THEN 'resolver' END)), m.attempt_id
    FROM moved m, (VALUES (1, 'queued', 'starting'), (2, 'starting', 'running')) AS e (n, f, t)
   WHERE e.n = 1 OR p_status = 'running' ORDER BY m.id, e.n;
END $$;

-- Ends tasks as done that needed no node; the caller holds their jobs' locks and admits the keys.
CREATE FUNCTION accs.conclude(p_task_ids uuid[], p_results jsonb[]) RETURNS text[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_jobs  uuid[];
  v_ended int[];
  v_gain  numeric[];
  v_current text[];
  v_keys  text[];
  v_dependants uuid[];
BEGIN
  PERFORM accs.begin_without_node(p_task_ids, 'running');
  WITH moved AS (
    UPDATE public.job_tasks t SET status = 'done', results = coalesce(s.results, '{}'), progress = 1, finished_at = v_now,
           updated_at = v_now, lease_owner = NULL, lease_until = NULL, error_code = NULL, error_message = NULL, outcome = 'done',
           outcome_attempt_id = t.attempt_id
      FROM (SELECT u.* FROM unnest(p_task_ids, p_results) AS u (id, results) ORDER BY u.id) s WHERE t.id = s.id
    RETURNING t.id, t.job_id, t.attempt_id, t.dependants, t.items, t.concurrency_key
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
    SELECT job_id, id, v_now, 'resolver', 'info', 'status', 'running → done',
           jsonb_strip_nulls(jsonb_build_object('from', 'running', 'to', 'done', 'items', items)), attempt_id FROM moved
  )
  SELECT array_agg(job_id), array_agg(1), array_agg(1::numeric),
         array_agg(DISTINCT concurrency_key) FILTER (WHERE concurrency_key IS NOT NULL),
         (SELECT array_agg(d.id) FROM moved m, unnest(m.dependants) AS d (id))
    INTO v_jobs, v_ended, v_gain, v_keys, v_dependants FROM moved;
  SELECT v_keys || max(u.keys), v_jobs || array_agg(u.job_id), v_ended || array_fill(0, ARRAY[count(*)::int]),
         v_gain || array_fill(0::numeric, ARRAY[count(*)::int]), array_fill(NULL::text, ARRAY[cardinality(v_jobs)]) || array_agg(u.task_key)
    INTO v_keys, v_jobs, v_ended, v_gain, v_current FROM accs.unblock(v_dependants) u;
  PERFORM accs.count_down(v_jobs, v_ended, v_gain, v_current);
  RETURN v_keys;
END $$;

-- Multiplies a step that waits to be resolved: it becomes one task for each item and is done itself, with their number. p_given is
-- what each task is given; null: the item is skipped. The tasks do what the step says, and wait for what it waited for and for the
-- step itself; the steps below wait for each of them by their own countdown, which is the join. p_parallel: how many may run at once.
-- p_tolerate: how many may fail for good without stopping what is below. p_delays: so many seconds later, task by task. p_cache_for:
-- an item of whose input there is a result that is not older than so many seconds, with the same p_salt, is done with it.
-- A step that is multiplied once more (after a retry) keeps the tasks that it has: each item goes to the task of its number, what is
-- too many is skipped, and what is missing is made.
CREATE FUNCTION accs.fan_out(p_task uuid, p_generation int, p_given jsonb[], p_parallel int DEFAULT NULL, p_tolerate int DEFAULT 0,
                             p_delays double precision[] DEFAULT NULL, p_cache_for double precision DEFAULT NULL, p_salt text DEFAULT NULL)
RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_n     int := coalesce(cardinality(p_given), 0);
  v_step  public.job_tasks;
  v_job   public.jobs;
  v_had   int;
  v_large jsonb;     -- the steps above whose results are too large for items
  v_below uuid[];    -- the steps below
  v_fresh uuid[];    -- tasks that are made
  v_again uuid[];    -- tasks of an earlier generation that had ended
  v_left  uuid[];    -- tasks without an item
  v_idle  uuid[];    -- tasks whose item is skipped
  v_keys  text[];
BEGIN
  IF v_n > 10000 THEN
    RAISE EXCEPTION 'a step becomes at most 10,000 tasks, not %', v_n USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_parallel < 1 OR p_tolerate < 0 THEN
    RAISE EXCEPTION 'at least one task runs at once, and no fewer than none may fail' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM accs.check_given(p_given), accs.check_cache(p_cache_for, p_salt);
  IF accs.lock_unresolved(ARRAY[p_task], ARRAY[p_generation]) = '{}' THEN
    RETURN QUERY SELECT * FROM accs.unresolved_answers(ARRAY[p_task], ARRAY[p_generation], '{}');
    RETURN;
  END IF;
  SELECT * INTO v_step FROM public.job_tasks WHERE id = p_task;
  SELECT * INTO v_job FROM public.jobs WHERE id = v_step.job_id;
  v_had := (SELECT count(*) FROM public.job_tasks WHERE parent = p_task);
  IF v_job.task_count + greatest(0, v_n - v_had) > 100000 THEN
    RETURN QUERY SELECT p_task, 'refused'::text, 'too_many_tasks'::text, v_step.status, v_step.attempt_id, NULL::text, NULL::timestamptz;
    RETURN;
  END IF;
  -- Each item would be handed the list that it was made from, and the cost of a list would grow with its square: what is large is left
  -- out for items. It is measured here, once, as JSON: PostgreSQL may have compressed it to a hundredth.
  v_large := (SELECT jsonb_build_object('omitted', jsonb_agg(k.key)) FROM unnest(v_step.depends_on) AS k (key), LATERAL (
                SELECT u.results FROM public.job_tasks u WHERE u.job_id = v_step.job_id AND u.task_key = k.key OFFSET 0) d
               WHERE octet_length(d.results::text) > 4096 HAVING count(*) > 0);
  -- from 1, and taken apart once: the items are looked up one by one
  p_given := ARRAY(SELECT CASE WHEN v_large IS NULL THEN u.given ELSE u.given || v_large END
                     FROM unnest(p_given) WITH ORDINALITY AS u (given, n) ORDER BY u.n);
  v_below := ARRAY(SELECT unnest(v_step.dependants) EXCEPT SELECT id FROM public.job_tasks WHERE parent = p_task);
  IF p_parallel IS NOT NULL THEN
    v_step.concurrency_key := 'map/' || p_task;
    INSERT INTO accs.concurrency_keys AS k (key, max_running) VALUES (v_step.concurrency_key, p_parallel)
    ON CONFLICT (key) DO UPDATE SET max_running = excluded.max_running;
  END IF;

  WITH made AS (
    INSERT INTO public.job_tasks (id, job_id, task_key, service_name, depends_on, max_attempts, priority, params, assigned_node, created_at,
                                  updated_at, step_no, lane, dependants, requires, concurrency_key, timeout_sec, backoff, notify, given,
                                  next_attempt_at, parent, item_no, files)
    SELECT accs.task_id(v_step.job_id, n), v_step.job_id, format('%s[%s]', v_step.task_key, i), v_step.service_name,
           v_step.depends_on || v_step.task_key, v_step.max_attempts, v_step.priority, v_step.params, v_step.assigned_node, v_now, v_now, n,
           v_step.lane, nullif(v_below, '{}'), v_step.requires, v_step.concurrency_key, v_step.timeout_sec, v_step.backoff, v_step.notify,
           p_given[i + 1], accs.later(p_delays[i + 1]), p_task, i, v_step.files
      FROM generate_series(v_had, v_n - 1) i, LATERAL (SELECT v_job.task_count + 1 + i - v_had AS n) s
    RETURNING id)
  SELECT coalesce(array_agg(id), '{}') INTO v_fresh FROM made;
  WITH before AS MATERIALIZED (
    SELECT id, item_no, status FROM public.job_tasks WHERE parent = p_task AND item_no < least(v_n, v_had) ORDER BY id FOR NO KEY UPDATE
  ), moved AS (
    UPDATE public.job_tasks t SET given = p_given[b.item_no + 1], concurrency_key = v_step.concurrency_key, updated_at = v_now,
           next_attempt_at = accs.later(p_delays[b.item_no + 1]), status = 'queued',
           generation = t.generation + (b.status <> 'queued')::int,
           remaining = CASE b.status WHEN 'queued' THEN t.remaining ELSE 1 END, finished_at = NULL, error_code = NULL, error_message = NULL
      FROM before b WHERE t.id = b.id
    RETURNING t.id, t.generation, b.status AS from_status
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data)
    SELECT v_step.job_id, id, v_now, 'resolver', 'info', 'retry', from_status || ' → queued: it has an item again',
           jsonb_build_object('from', from_status, 'to', 'queued', 'generation', generation) FROM moved WHERE from_status <> 'queued'
  )
  SELECT coalesce(array_agg(id) FILTER (WHERE from_status <> 'queued'), '{}') INTO v_again FROM moved;
  UPDATE public.job_tasks t SET remaining = t.remaining + cardinality(v_fresh || v_again), updated_at = v_now
    FROM (SELECT u.id FROM unnest(v_below) AS u (id) ORDER BY u.id) b WHERE t.id = b.id;
  UPDATE public.jobs SET task_count = task_count + cardinality(v_fresh), open_tasks = open_tasks + cardinality(v_fresh || v_again),
         task_progress = task_progress - cardinality(v_again) WHERE id = v_step.job_id;

  -- those that are skipped free what is below from them: not the last, since the step itself is still open
  v_left := ARRAY(SELECT id FROM public.job_tasks WHERE parent = p_task AND item_no >= v_n AND status = 'queued');
  v_idle := ARRAY(SELECT id FROM public.job_tasks WHERE parent = p_task AND item_no < v_n AND given IS NULL);
  IF v_left || v_idle <> '{}' THEN
    v_keys := (SELECT k.keys FROM accs.skip(v_left || v_idle, array_fill('not_in_list'::text, ARRAY[cardinality(v_left)])
                                            || array_fill('condition_false'::text, ARRAY[cardinality(v_idle)]), 'resolver') k);
  END IF;
  UPDATE public.job_tasks SET items = v_n, tolerate = nullif(p_tolerate, 0), dependants = nullif(v_below || ARRAY(
         SELECT id FROM public.job_tasks WHERE parent = p_task AND item_no < least(v_n, v_had) ORDER BY id), '{}') WHERE id = p_task;
  v_keys := v_keys || accs.conclude(ARRAY[p_task], ARRAY[jsonb_build_object('count', v_n)]);
  -- the new ones were made with nothing to wait for, so that each is written once; the step has counted down those that it had
  UPDATE public.job_tasks SET dependants = nullif(v_below || ARRAY(SELECT id FROM public.job_tasks WHERE parent = p_task ORDER BY id), '{}')
   WHERE id = p_task;
  IF p_cache_for IS NOT NULL THEN   -- v_step is as it was before: it tells whether this is a retry
    SELECT v_keys || c.keys INTO v_keys
      FROM (SELECT array_agg(t.id) AS ids, array_agg(accs.cache_key(b.base, t.given)) AS keys, array_agg(p_cache_for) AS seconds,
                   array_agg(accs.why_not_cached(v_step)) AS reasons
              FROM (SELECT accs.cache_base(v_step, p_salt) AS base OFFSET 0) b, public.job_tasks t
             WHERE t.parent = p_task AND t.item_no < v_n AND t.status = 'queued') i,
           LATERAL accs.use_cache(i.ids, i.keys, i.seconds, i.reasons) c;
  END IF;
  v_keys := v_keys || accs.enqueue(v_fresh);
  PERFORM accs.admit(v_keys);
  RETURN QUERY SELECT * FROM accs.accepted(ARRAY[p_task]);
END $$;
SELECT accs.is_verb('fan_out', may => '{scheduler}');
