-- ---------------------------------------------------------------------------------------------------------------
-- Cache: the results of steps that say so are used again
-- ---------------------------------------------------------------------------------------------------------------

-- A step that says cache is resolved like one with expressions. If the same step has been done before, with the same input and not too
-- long ago, it is done at once, with that result and the event that says where it is from; no node is asked. Steps that do not say it
-- never come here (docs/decisions/0013).

-- The tasks that ran, or run, for a step with cache; those that were answered from here are no source themselves, so that no result is
-- older than it seems.
CREATE TABLE accs.cached_results (
  task_id     uuid PRIMARY KEY,
  generation  int NOT NULL,            -- in which it was resolved: after a retry its result is that of another input
  key         bytea NOT NULL,          -- sha256 of everything that decides the result
  made_at     timestamptz NOT NULL,
  keep        interval NOT NULL,       -- for so long after its end
  look_at     timestamptz NOT NULL     -- when it may be too old, and is looked at
);

CREATE INDEX cached_results_key ON accs.cached_results (key, made_at);     -- use_cache
CREATE INDEX cached_results_look_at ON accs.cached_results (look_at);      -- expire_results

-- Of all that decides a result, what the tasks of a step share. By the workflow's name, so that a new version does not forget. Null:
-- it can't be known, because a file has no checksum or the results of earlier steps are too large to be handed over.
CREATE FUNCTION accs.cache_base(p_task public.job_tasks, p_salt text) RETURNS bytea LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN i.known AND f.known THEN sha256(convert_to(jsonb_build_array(
           w.name, p_task.task_key, p_task.service_name, p_task.params, j.options, i.results, f.files, p_salt, o.files)::text, 'UTF8')) END
    FROM public.jobs j JOIN public.workflows w ON w.id = j.workflow_id, LATERAL (
      SELECT jsonb_object_agg(d.task_key, coalesce(d.results, '{}')) AS results,
             coalesce(bool_and(d.is_read) AND sum(pg_column_size(d.results)) <= 16777216, true) AS known
        FROM (SELECT m.task_key, v.results, m.items IS NULL OR v.results IS NOT NULL AS is_read
                FROM unnest(p_task.depends_on) AS k (key), LATERAL (
                  SELECT * FROM public.job_tasks t WHERE t.job_id = p_task.job_id AND t.task_key = k.key OFFSET 0) m, LATERAL (
                  SELECT CASE WHEN m.items IS NULL THEN m.results ELSE accs.results_of_items(m.id, 16777216) END AS results
                  OFFSET 0) v) d) i,
      LATERAL (
      SELECT jsonb_agg(jsonb_build_array(a.task_key, a.kind, a.content_type, a.checksum, m.name) ORDER BY a.task_key, m.name) AS files,
             coalesce(bool_and(a.checksum IS NOT NULL), true) AS known
        FROM accs.files_for(p_task) a, LATERAL (SELECT accs.name_of_file(a.key, a.task_key IS NOT NULL) AS name) m) f,
      LATERAL (   -- of its workflow
      SELECT jsonb_agg(jsonb_build_array(e ->> 'name', e ->> 'sha256') ORDER BY e ->> 'name') AS files
        FROM accs.file_sets s, jsonb_array_elements(s.files) e WHERE s.id = p_task.files) o
   WHERE j.id = p_task.job_id
$$;

-- The same with what one task is given. Of a secret that is its name; the moment is left out, or nothing would ever be the same.
CREATE FUNCTION accs.cache_key(p_base bytea, p_given jsonb) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT sha256(p_base || convert_to(jsonb_build_array(p_given -> 'with', p_given -> 'secrets', p_given -> 'tool')::text, 'UTF8'))
$$;

CREATE FUNCTION accs.check_cache(p_seconds double precision, p_salt text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_seconds NOT BETWEEN 1 AND 31536000 OR length(p_salt) > 200 THEN
    RAISE EXCEPTION 'a result is kept for 1 second to 365 days, with a salt of at most 200 characters'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
END $$;

-- Why a step that says cache runs all the same, where its own job is the reason: it has run before, so that somebody wants it to run
-- again; or who submitted the job did not want the cache.
CREATE FUNCTION accs.why_not_cached(p_task public.job_tasks) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p_task.attempt_id > 0 THEN 'retried' WHEN j.no_cache THEN 'no_cache' END FROM public.jobs j WHERE j.id = p_task.job_id
$$;

-- The newest result of a key that is not older than so many seconds. Bounded, because a step that fails again and again leaves many rows of
-- one key.
CREATE FUNCTION accs.result_of(p_key bytea, p_seconds double precision, OUT source public.job_tasks, OUT files bigint)
RETURNS SETOF record LANGUAGE sql STABLE AS $$
  SELECT s, (SELECT count(*) FROM public.task_artifacts a
              WHERE a.job_task_id = s.id AND a.kind = 'output' AND a.attempt_id = s.outcome_attempt_id)
    FROM (SELECT c.* FROM accs.cached_results c WHERE c.key = p_key ORDER BY c.made_at DESC LIMIT 100) c
    JOIN public.job_tasks s ON s.id = c.task_id
   WHERE s.status = 'done' AND s.generation = c.generation AND s.finished_at > accs.clock() - make_interval(secs => p_seconds)
   ORDER BY s.finished_at DESC, s.id LIMIT 1
$$;

-- Ends those of these tasks as done of whose keys there is a result, and notes the others, which are about to run. The caller holds
-- their jobs' locks and admits the keys. p_reasons: why a task does not want one; null: it does. A result alone is read in one
-- statement, and what becomes of its task afterwards changes nothing. Files are borrowed while the job that has them is locked:
-- neither is it removed meanwhile, nor is its step run again. Whoever finds it locked does not wait, because jobs are locked in
-- another order, and runs.
CREATE FUNCTION accs.use_cache(p_task_ids uuid[], p_keys bytea[], p_seconds double precision[], p_reasons text[],
                               OUT hits uuid[], OUT keys text[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now     timestamptz := accs.clock();
  v_locked  uuid[];
  v_results jsonb[];
BEGIN
  v_locked := ARRAY(SELECT j.id FROM public.jobs j WHERE j.id = ANY (ARRAY(
      SELECT (r.source).job_id FROM unnest(p_keys, p_seconds, p_reasons) AS u (key, seconds, reason), accs.result_of(u.key, u.seconds) r
       WHERE u.reason IS NULL AND r.files > 0))
     ORDER BY j.id FOR SHARE SKIP LOCKED);
  WITH looked AS MATERIALIZED (
    SELECT u.id, t.job_id, t.generation, u.key, u.seconds, make_interval(secs => u.seconds) AS keep, r.source, nullif(r.files, 0) AS files,
           CASE WHEN u.key IS NULL THEN 'unknown_input' WHEN u.reason IS NOT NULL THEN u.reason
                WHEN (r.source).id IS NULL THEN 'no_result'
                WHEN r.files > 0 AND (r.source).job_id <> ALL (v_locked) THEN 'busy' END AS reason
      FROM unnest(p_task_ids, p_keys, p_seconds, p_reasons) AS u (id, key, seconds, reason) JOIN public.job_tasks t ON t.id = u.id
      LEFT JOIN LATERAL accs.result_of(u.key, u.seconds) r ON u.reason IS NULL
  ), noted AS (
    INSERT INTO accs.cached_results AS c (task_id, generation, key, made_at, keep, look_at)
    SELECT l.id, l.generation, l.key, v_now, l.keep, v_now + l.keep FROM looked l
     WHERE l.reason IS NOT NULL AND l.key IS NOT NULL ORDER BY l.id
    ON CONFLICT (task_id) DO UPDATE SET generation = excluded.generation, key = excluded.key, made_at = excluded.made_at,
           keep = excluded.keep, look_at = excluded.look_at
  ), told AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data)
    SELECT l.job_id, l.id, v_now, 'resolver', 'info', 'cache',
           CASE l.reason WHEN 'retried' THEN 'runs: it is run again' WHEN 'no_cache' THEN 'runs: the job was submitted without cache'
                         WHEN 'unknown_input' THEN 'runs: a file of its input has no checksum, or the results before it exceed 16 MiB'
                         WHEN 'no_result' THEN 'runs: no result of the same input is known'
                         WHEN 'busy' THEN format('runs: something else happens to job %s, which has the result', (l.source).job_id)
                         ELSE format('done with the result of %s of job %s', (l.source).task_key, (l.source).job_id) END,
           jsonb_strip_nulls(jsonb_build_object('hit', l.reason IS NULL, 'reason', l.reason, 'key', encode(l.key, 'hex'),
             'seconds', l.seconds, 'job_id', (l.source).job_id, 'task_id', (l.source).id, 'finished_at', (l.source).finished_at,
             'files', l.files)) FROM looked l ORDER BY l.id
  ), borrowed AS (
    INSERT INTO accs.borrowed_files (job_task_id, bucket, key, job_id, owner, artifact_id, name, size_bytes, content_type, checksum,
                                     created_at)
    SELECT l.id, a.bucket, a.key, l.job_id, a.job_id, a.id, accs.name_of_file(a.key, true), a.size_bytes, a.content_type, a.checksum,
           a.created_at
      FROM looked l JOIN public.task_artifacts a
        ON a.job_task_id = (l.source).id AND a.kind = 'output' AND a.attempt_id = (l.source).outcome_attempt_id
     WHERE l.reason IS NULL AND l.files > 0
  ), marked AS (
    UPDATE public.job_tasks t SET given = coalesce(t.given, '{}') || jsonb_build_object('cached', jsonb_build_object(
             'job_id', (l.source).job_id, 'task_id', (l.source).id, 'finished_at', (l.source).finished_at))
      FROM (SELECT * FROM looked WHERE reason IS NULL ORDER BY id) l WHERE t.id = l.id
  )
  SELECT coalesce(array_agg(l.id ORDER BY l.id), '{}'), array_agg((l.source).results ORDER BY l.id) INTO hits, v_results
    FROM looked l WHERE l.reason IS NULL;
  IF hits <> '{}' THEN
    keys := accs.conclude(hits, v_results);
  END IF;
END $$;

-- Forgets the results of a workflow, or of one step of it: also of what runs now. The next tasks run.
CREATE FUNCTION accs.forget_results(p_workflow text, p_step text DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
  WITH gone AS (
    DELETE FROM accs.cached_results c USING public.job_tasks t, public.jobs j, public.workflows w
     WHERE t.id = c.task_id AND j.id = t.job_id AND w.id = j.workflow_id AND w.name = p_workflow
       AND (p_step IS NULL OR split_part(t.task_key, '[', 1) = p_step)   -- an item's key is that of its step, and a number in brackets
    RETURNING 1)
  SELECT count(*) FROM gone
$$;
SELECT accs.is_verb('forget_results', may => '{scheduler,api}');

-- Removes what is too old to be used, or never will have a result. How many were looked at: as many as p_limit means that there may be
-- more.
CREATE FUNCTION accs.expire_results(p_limit int DEFAULT 10000) RETURNS TABLE (looked_at bigint, removed bigint) LANGUAGE sql AS $$
  WITH due AS MATERIALIZED (
    SELECT c.* FROM accs.cached_results c WHERE c.look_at <= accs.clock() ORDER BY c.look_at LIMIT p_limit FOR UPDATE SKIP LOCKED
  ), judged AS MATERIALIZED (
    SELECT d.task_id, CASE WHEN t.status IN ('queued', 'starting', 'running') THEN accs.clock() + d.keep
                           WHEN t.status = 'done' AND t.finished_at + d.keep > accs.clock() THEN t.finished_at + d.keep END AS until
      FROM due d LEFT JOIN public.job_tasks t ON t.id = d.task_id AND t.generation = d.generation
  ), gone AS (
    DELETE FROM accs.cached_results c USING judged j WHERE c.task_id = j.task_id AND j.until IS NULL RETURNING 1
  ), kept AS (
    UPDATE accs.cached_results c SET look_at = j.until FROM judged j WHERE c.task_id = j.task_id AND j.until IS NOT NULL
  )
  SELECT (SELECT count(*) FROM judged), (SELECT count(*) FROM gone)
$$;
SELECT accs.is_verb('expire_results', may => '{scheduler}');
