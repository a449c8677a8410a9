-- ---------------------------------------------------------------------------------------------------------------
-- Redrive and retry: terminal is final but for these, and each opens a new generation
-- ---------------------------------------------------------------------------------------------------------------

-- Every task that ended in error, until it is redriven or dismissed.
CREATE TABLE public.dead_letters (
  id             bigserial PRIMARY KEY,
  job_id         uuid NOT NULL,
  job_task_id    uuid NOT NULL,
  generation     int NOT NULL,
  service_name   text NOT NULL,
  reason         text NOT NULL CHECK (reason IN ('attempts_exhausted', 'permanent_error', 'lost_too_often', 'poison')),
  error_code     text,
  error_message  text,
  created_at     timestamptz NOT NULL DEFAULT accs.clock(),
  redriven_at    timestamptz,
  dismissed_at   timestamptz,
  UNIQUE (job_task_id, generation)
);

CREATE INDEX dead_letters_open ON public.dead_letters (id) WHERE redriven_at IS NULL AND dismissed_at IS NULL;

-- Reopens terminal tasks of one job, whose lock the caller holds. What the tasks still depend on is counted anew. The caller
-- admits the keys it returns.
CREATE FUNCTION accs.reopen(p_job uuid, p_task_ids uuid[], p_source text, p_why text) RETURNS text[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_ready uuid[];
BEGIN
  PERFORM FROM public.job_tasks WHERE id = ANY (p_task_ids) ORDER BY id FOR NO KEY UPDATE;
  PERFORM accs.return_files(p_task_ids);
  WITH before AS MATERIALIZED (
    SELECT t.id, t.status, (SELECT count(*)::int FROM accs.unsatisfied(p_job, t.depends_on, t.parent, p_task_ids)) AS remaining,
           CASE t.status WHEN 'cancelled' THEN t.progress ELSE 1 END AS counted
      FROM public.job_tasks t WHERE t.id = ANY (p_task_ids)
  ), moved AS (
    UPDATE public.job_tasks t SET status = 'queued', generation = t.generation + 1, attempt = 0, lost = 0, remaining = b.remaining,
           progress = 0, next_attempt_at = NULL, started_at = NULL, finished_at = NULL, error_code = NULL, error_message = NULL,
           results = NULL, updated_at = v_now, tolerated = NULL, resolve = CASE WHEN t.resolve IS NOT NULL THEN true END,
           -- what its item gave it stays until its step is multiplied anew
           given = CASE WHEN t.parent IS NOT NULL THEN t.given - 'cached' END
      FROM before b WHERE t.id = b.id
    RETURNING t.id, t.task_key, t.step_no, t.generation, t.remaining, b.status AS from_status, b.counted
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data)
    SELECT p_job, id, v_now, p_source, 'warn', 'retry', from_status || ' → queued: ' || p_why,
           jsonb_build_object('from', from_status, 'to', 'queued', 'generation', generation) FROM moved
  ), settled AS (
    UPDATE public.dead_letters d SET redriven_at = v_now WHERE d.job_task_id = ANY (p_task_ids) AND d.redriven_at IS NULL
  ), failure AS (   -- what still stands in error, or cancelled, keeps the job from ending as done
    SELECT error_code, error_message FROM public.job_tasks
     WHERE job_id = p_job AND status IN ('error', 'cancelled') AND tolerated IS NULL AND id NOT IN (SELECT unnest(p_task_ids))
     ORDER BY finished_at, id LIMIT 1
  ), job AS (
    SELECT id, status FROM public.jobs WHERE id = p_job
  ), reopened AS (
    UPDATE public.jobs j SET status = 'running', generation = j.generation + 1, open_tasks = j.open_tasks + m.n, finished_at = NULL,
           updated_at = v_now, task_progress = j.task_progress - m.counted, progress = (j.task_progress - m.counted) / j.task_count,
           current_task_key = coalesce(m.first, j.current_task_key),
           error_code = (SELECT coalesce(error_code, 'error') FROM failure), error_message = (SELECT error_message FROM failure)
      FROM (SELECT count(*)::int AS n, sum(counted) AS counted,
                   (array_agg(task_key ORDER BY step_no) FILTER (WHERE remaining = 0))[1] AS first FROM moved) m
     WHERE j.id = p_job
    RETURNING j.id, j.generation, j.schedule_id, j.run_key
  ), run AS (   -- whoever runs it again does not ask whether its run key has room
    INSERT INTO accs.open_runs (job_id, key, schedule_id, waits, forced)
    SELECT id, run_key, schedule_id, false, true FROM reopened WHERE run_key IS NOT NULL ON CONFLICT DO NOTHING
  ), announced AS (
    INSERT INTO public.task_events (job_id, ts, source, level, type, message, data)
    SELECT r.id, v_now, p_source, 'warn', 'retry', job.status || ' → running: ' || p_why,
           jsonb_build_object('from', job.status, 'to', 'running', 'generation', r.generation)
      FROM reopened r, job WHERE job.status <> 'running'
  )
  SELECT array_agg(id) FILTER (WHERE remaining = 0) INTO v_ready FROM moved;
  RETURN accs.enqueue(v_ready);
END $$;

-- The tasks below these, all the way down.
CREATE FUNCTION accs.downstream(p_task_ids uuid[]) RETURNS uuid[] LANGUAGE sql STABLE AS $$
  WITH RECURSIVE below AS (
    SELECT d.id FROM public.job_tasks t, unnest(t.dependants) AS d (id) WHERE t.id = ANY (p_task_ids)
    UNION
    SELECT d.id FROM below b JOIN public.job_tasks t ON t.id = b.id, unnest(t.dependants) AS d (id)
  ) SELECT coalesce(array_agg(id), '{}') FROM below
$$;

-- What can't run while the failures of a job stand that are not about to be reopened. A step that is done or was skipped for
-- a reason of its own satisfies what is below it.
CREATE FUNCTION accs.blocked(p_job uuid, p_reopened uuid[]) RETURNS uuid[] LANGUAGE sql STABLE AS $$
  WITH RECURSIVE below AS (
    SELECT c.id, c.dependants, accs.satisfies(c.status, c.error_code, c.tolerated) AS satisfies
      FROM public.job_tasks t, unnest(t.dependants) AS d (id) JOIN public.job_tasks c ON c.id = d.id
     WHERE t.job_id = p_job AND t.status IN ('error', 'cancelled') AND t.tolerated IS NULL AND t.id NOT IN (SELECT unnest(p_reopened))
    UNION
    SELECT c.id, c.dependants, accs.satisfies(c.status, c.error_code, c.tolerated)
      FROM below b, unnest(b.dependants) AS d (id) JOIN public.job_tasks c ON c.id = d.id WHERE NOT b.satisfies
  ) SELECT coalesce(array_agg(id), '{}') FROM below
$$;

-- Sends dead letters back to work, with what was skipped because of them, unless another failure still stands above it.
CREATE FUNCTION accs.send_back(p_dead_letter_ids bigint[], p_by text)
RETURNS TABLE (dead_letter_id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row   record;
  v_below uuid[];
  v_keys  text[];
BEGIN
  PERFORM FROM public.jobs WHERE id = ANY (ARRAY(SELECT d.job_id FROM public.dead_letters d WHERE d.id = ANY (p_dead_letter_ids)))
    ORDER BY id FOR NO KEY UPDATE;
  RETURN QUERY SELECT u.id, 'refused'::text, 'not_found'::text FROM unnest(p_dead_letter_ids) AS u (id)
                WHERE NOT EXISTS (SELECT FROM public.dead_letters d WHERE d.id = u.id);
  FOR v_row IN
    SELECT d.job_id, array_agg(d.id) AS letters,
           array_agg(d.job_task_id) FILTER (WHERE t.status = 'error' AND t.generation = d.generation AND d.redriven_at IS NULL
             -- the steps below go on without what is tolerated: it can be redriven when they have ended, and they with it
             AND NOT (t.tolerated IS TRUE AND EXISTS (SELECT FROM public.job_tasks b
                        WHERE b.id = ANY (accs.downstream(ARRAY[t.id])) AND b.status IN ('queued', 'starting', 'running')))) AS tasks
      FROM public.dead_letters d JOIN public.job_tasks t ON t.id = d.job_task_id
     WHERE d.id = ANY (p_dead_letter_ids) GROUP BY d.job_id ORDER BY d.job_id
  LOOP
    RETURN QUERY
    SELECT d.id, CASE WHEN d.redriven_at IS NOT NULL THEN 'repeated' WHEN d.job_task_id = ANY (v_row.tasks) THEN 'accepted'
                      ELSE 'refused' END,
           CASE WHEN d.job_task_id = ANY (v_row.tasks) OR d.redriven_at IS NOT NULL THEN NULL ELSE 'not_in_expected_state' END
      FROM public.dead_letters d WHERE d.id = ANY (v_row.letters);
    IF v_row.tasks IS NOT NULL THEN
      v_below := accs.downstream(v_row.tasks);   -- read once; what stands in a sub-select is hashed
      v_keys := v_keys || accs.reopen(v_row.job_id, v_row.tasks || ARRAY(
        SELECT t.id FROM public.job_tasks t
         WHERE t.id = ANY (v_below)
           AND (t.status = 'skipped' AND t.error_code = 'upstream_failed' OR t.id IN (SELECT unnest(accs.downstream(ARRAY(
                  SELECT b.id FROM public.job_tasks b WHERE b.id = ANY (v_row.tasks) AND b.tolerated)))))
           AND t.id NOT IN (SELECT unnest(accs.blocked(v_row.job_id, v_row.tasks)))),
        coalesce(p_by, 'operator'), 'redriven');
    END IF;
  END LOOP;
  PERFORM accs.admit(v_keys);
END $$;

CREATE FUNCTION accs.redrive(p_dead_letter_ids bigint[], p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (dead_letter_id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
DECLARE
  v_sent record;
BEGIN
  SELECT array_agg(s.dead_letter_id) AS ids, array_agg(s.answer) AS answers, array_agg(s.reason) AS reasons INTO v_sent
    FROM accs.send_back(p_dead_letter_ids, p_by) s;
  PERFORM accs.audit_each('redrive', 'dead_letter', v_sent.ids::text[], v_sent.answers, v_sent.reasons, p_by, p_reason);
  RETURN QUERY SELECT * FROM unnest(v_sent.ids, v_sent.answers, v_sent.reasons);
END $$;
SELECT accs.is_verb('redrive', may => '{scheduler,api}');

CREATE FUNCTION accs.dismiss(p_dead_letter_ids bigint[], p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (dead_letter_id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
DECLARE
  v_said record;
BEGIN
  WITH done AS (
    UPDATE public.dead_letters SET dismissed_at = accs.clock()
     WHERE id = ANY (p_dead_letter_ids) AND dismissed_at IS NULL AND redriven_at IS NULL RETURNING id
  )
  SELECT array_agg(s.id) AS ids, array_agg(s.answer) AS answers, array_agg(s.reason) AS reasons INTO v_said FROM (
    SELECT u.id, CASE WHEN done.id IS NOT NULL THEN 'accepted' WHEN d.dismissed_at IS NOT NULL THEN 'repeated' ELSE 'refused' END AS answer,
           CASE WHEN d.id IS NULL THEN 'not_found' WHEN done.id IS NULL AND d.dismissed_at IS NULL THEN 'already_redriven' END AS reason
      FROM unnest(p_dead_letter_ids) AS u (id) LEFT JOIN done ON done.id = u.id LEFT JOIN public.dead_letters d ON d.id = u.id) s;
  PERFORM accs.audit_each('dismiss', 'dead_letter', v_said.ids::text[], v_said.answers, v_said.reasons, p_by, p_reason);
  RETURN QUERY SELECT * FROM unnest(v_said.ids, v_said.answers, v_said.reasons);
END $$;
SELECT accs.is_verb('dismiss', may => '{scheduler,api}');

-- Runs finished jobs again: what has not succeeded, or, with a step named, that step and everything below it. A job that is
-- running again already because of the same call is repeated.
CREATE FUNCTION accs.run_again(p_job_ids uuid[], p_from_steps text[], p_by text) RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_said  record;
  v_row   record;
  v_step  uuid;
  v_tasks uuid[];
  v_keys  text[];
  v_no    text;
BEGIN
  PERFORM FROM public.jobs WHERE id = ANY (p_job_ids) ORDER BY id FOR NO KEY UPDATE;
  FOR v_said IN SELECT u.id, u.step FROM unnest(p_job_ids, p_from_steps) AS u (id, step) ORDER BY u.id LOOP
    -- read one by one: the same job may have been named before
    SELECT v_said.id, v_said.step, j.id AS found, j.status, j.task_count, j.generation INTO v_row
      FROM (SELECT) one LEFT JOIN public.jobs j ON j.id = v_said.id;
    v_no := NULL;
    v_tasks := NULL;
    IF v_row.found IS NULL THEN
      v_no := 'not_found';
    ELSIF v_row.status IN ('queued', 'running') THEN
      IF v_row.status = 'running' AND v_row.generation > 0 THEN
        RETURN QUERY SELECT v_row.id, 'repeated'::text, NULL::text, v_row.status, NULL::int, NULL::text, NULL::timestamptz;
        CONTINUE;
      END IF;
      v_no := 'not_in_expected_state';
    ELSIF v_row.task_count = 0 THEN
      v_no := 'never_instantiated';
    ELSIF v_row.step IS NULL THEN
      v_tasks := ARRAY(SELECT id FROM public.job_tasks WHERE job_id = v_row.id
                          AND (status IN ('error', 'cancelled') OR status = 'skipped' AND error_code = 'upstream_failed'));
      -- what went on without a task that is retried now goes on again with it
      v_tasks := ARRAY(SELECT unnest(v_tasks) UNION SELECT unnest(accs.downstream(ARRAY(
        SELECT id FROM public.job_tasks WHERE id = ANY (v_tasks) AND tolerated))));
      IF v_tasks = '{}' THEN
        v_no := 'nothing_to_retry';
      END IF;
    ELSE
      -- a task of a step that was multiplied, but without an item, could do nothing
      SELECT id INTO v_step FROM public.job_tasks
       WHERE job_id = v_row.id AND task_key = v_row.step
         AND (parent IS NULL OR given IS NOT NULL AND error_code IS DISTINCT FROM 'not_in_list');
      IF NOT FOUND THEN
        v_no := 'step_not_found';
      ELSIF EXISTS (SELECT FROM public.job_tasks t, accs.unsatisfied(t.job_id, t.depends_on, t.parent) WHERE t.id = v_step) THEN
        v_no := 'earlier_step_unfinished';
      ELSE
        v_tasks := v_step || accs.downstream(ARRAY[v_step]);
        -- what stands below another failure could not run: it stays as it is
        v_tasks := ARRAY(SELECT unnest(v_tasks) EXCEPT SELECT unnest(accs.blocked(v_row.id, v_tasks)));
      END IF;
    END IF;
    IF v_no IS NULL THEN
      v_keys := v_keys || accs.reopen(v_row.id, v_tasks, coalesce(p_by, 'operator'),
                                      CASE WHEN v_row.step IS NULL THEN 'retried' ELSE 'retried from ' || v_row.step END);
      RETURN QUERY SELECT v_row.id, 'accepted'::text, NULL::text, v_row.status, NULL::int, NULL::text, NULL::timestamptz;
    ELSE
      RETURN QUERY SELECT v_row.id, 'refused'::text, v_no, v_row.status, NULL::int, NULL::text, NULL::timestamptz;
    END IF;
  END LOOP;
  PERFORM accs.admit(v_keys);
END $$;

CREATE FUNCTION accs.retry_jobs(p_job_ids uuid[], p_from_steps text[] DEFAULT NULL, p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS SETOF accs.answer LANGUAGE sql AS $$
  SELECT * FROM accs.audit_answers('retry_jobs', 'job', ARRAY(SELECT r FROM accs.run_again(p_job_ids, p_from_steps, p_by) r),
    p_by, p_reason,
    jsonb_strip_nulls(jsonb_build_object('from_steps', nullif(ARRAY(SELECT DISTINCT s FROM unnest(p_from_steps[1:20]) s WHERE s IS NOT NULL
                                                                     ORDER BY s), '{}'))))
$$;
SELECT accs.is_verb('retry_jobs', may => '{scheduler,api}');
