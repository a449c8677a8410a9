-- ---------------------------------------------------------------------------------------------------------------
-- The end of an attempt
-- ---------------------------------------------------------------------------------------------------------------

-- The strategies of the backoff. What grows is capped at an hour where the step gives no cap; attempt counts from 1.
CREATE FUNCTION accs.backoff_seconds(p_spec jsonb, p_attempt int, p_base double precision DEFAULT NULL)
RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE jsonb_typeof(p_spec)
    WHEN 'array' THEN (p_spec ->> (least(p_attempt, jsonb_array_length(p_spec)) - 1))::double precision
    ELSE least(
      coalesce((p_spec ->> 'cap')::double precision,
               CASE WHEN p_spec ->> 'strategy' = 'fixed' THEN 'infinity'::double precision ELSE 3600 END),
      coalesce((p_spec ->> 'base')::double precision, p_base, accs.backoff_base())
        * CASE p_spec ->> 'strategy' WHEN 'fixed' THEN 1
                                     WHEN 'linear' THEN p_attempt
                                     ELSE power(2::double precision, least(p_attempt, 901) - 1) END)
    END
$$;

-- Exponential delays get up to a tenth more, so that what failed together does not come back together. Derived from the
-- task and its attempt: the same call gives the same time.
CREATE FUNCTION accs.retry_delay(p_spec jsonb, p_attempt int, p_task uuid, p_base double precision) RETURNS interval
LANGUAGE sql IMMUTABLE AS $$
  SELECT make_interval(secs => accs.backoff_seconds(p_spec, p_attempt, p_base)
    * CASE WHEN jsonb_typeof(p_spec) = 'array' OR p_spec ->> 'strategy' IN ('fixed', 'linear') THEN 1
           ELSE 1 + 0.1 * (hashtextextended(p_task::text, p_attempt) & 1023) / 1024.0 END)
$$;

-- Takes ended tasks off their jobs' counts and closes the jobs that have no open task left; the caller holds the jobs'
-- locks. One element for each change; a job may come several times. What a task adds to its job's progress: 1 when done,
-- skipped or error, what it last reported while live or after a cancel, else 0.
CREATE FUNCTION accs.count_down(p_job_ids uuid[], p_ended int[], p_progress numeric[], p_current text[] DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now  timestamptz := accs.clock();
  v_runs uuid[];
BEGIN
  WITH change AS (
    SELECT c.id, sum(c.ended)::int AS ended, sum(c.progress) AS progress, max(c.current) AS current
      FROM unnest(p_job_ids, p_ended, p_progress, p_current) AS c (id, ended, progress, current) GROUP BY c.id ORDER BY c.id
  ), counted AS (
    UPDATE public.jobs j SET open_tasks = j.open_tasks - c.ended, task_progress = j.task_progress + c.progress,
           progress = (j.task_progress + c.progress) / j.task_count, current_task_key = coalesce(c.current, j.current_task_key),
           updated_at = v_now,
           status = CASE WHEN j.open_tasks > c.ended THEN j.status WHEN j.error_code IS NULL THEN 'done' ELSE 'error' END,
           finished_at = CASE WHEN j.open_tasks = c.ended THEN v_now END
      FROM change c WHERE j.id = c.id
    RETURNING j.id, j.status, j.error_code, j.schedule_id, j.run_key
  ), logged AS (
    INSERT INTO public.task_events (job_id, ts, source, level, type, message, data)
    SELECT id, v_now, 'builder', CASE status WHEN 'done' THEN 'info' ELSE 'error' END, 'status', 'running → ' || status,
           CASE status WHEN 'done' THEN '{"from": "running", "to": "done"}'
                       ELSE jsonb_build_object('from', 'running', 'to', status, 'error_code', error_code) END
      FROM counted WHERE status <> 'running'
  )
  SELECT array_agg(id) INTO v_runs FROM counted WHERE status <> 'running' AND (schedule_id IS NOT NULL OR run_key IS NOT NULL);
  IF v_runs IS NOT NULL THEN
    PERFORM accs.end_runs(v_runs);
  END IF;
END $$;

-- The dependants of satisfied tasks have that many dependencies less; those that have none left wait for a claim. What has ended
-- stays as it is: its dependencies are counted when it is reopened. (The condition is not in WHERE, where the planner would read
-- all tasks to find the queued ones.) Two parents in one call touch their child once. Returns, for each job, the first step that
-- became runnable, and on every row all the keys that the caller has to admit.
CREATE FUNCTION accs.unblock(p_dependants uuid[]) RETURNS TABLE (job_id uuid, task_key text, keys text[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH freed AS (
    UPDATE public.job_tasks t SET remaining = t.remaining - CASE t.status WHEN 'queued' THEN d.n ELSE 0 END, updated_at = accs.clock()
      FROM (SELECT u.id, count(*)::int AS n FROM unnest(p_dependants) AS u (id) GROUP BY u.id ORDER BY u.id) d
     WHERE t.id = ANY (p_dependants) AND t.id = d.id
    RETURNING t.id, t.job_id, t.step_no, t.task_key, t.lane, t.created_at, t.next_attempt_at, t.concurrency_key, t.resolve,
              t.remaining = 0 AND t.status = 'queued' AS runnable
  ), queued AS (   -- as in enqueue
    INSERT INTO accs.waiting (task_id, lane, rank, order_seq, created_at, hold, due_at, key)
    SELECT f.id, f.lane, -j.priority, j.order_seq, f.created_at,
           CASE WHEN f.next_attempt_at > accs.clock() THEN 'backoff'
                WHEN j.workflow_id = ANY ((SELECT accs.paused_workflows())::uuid[]) THEN 'paused'
                WHEN f.resolve THEN 'resolve'
                WHEN f.concurrency_key IS NOT NULL THEN 'key' END,
           CASE WHEN f.next_attempt_at > accs.clock() THEN f.next_attempt_at END,
           f.concurrency_key
      FROM freed f JOIN public.jobs j ON j.id = f.job_id
     WHERE f.runnable AND j.id = ANY (ARRAY(SELECT job_id FROM freed WHERE runnable))
    RETURNING key, hold
  )
  SELECT DISTINCT ON (f.job_id) f.job_id, f.task_key, (SELECT array_agg(DISTINCT key) FROM queued WHERE hold = 'key')
    FROM freed f WHERE f.runnable ORDER BY f.job_id, f.step_no;
END $$;
SELECT accs.pin('unblock', p_hashes => true);   -- its conditions are quadratic in nested loops

-- Everything below these tasks that is still queued is skipped: it can't run any more. Not through a step that was skipped
-- before: what depends on that one has been satisfied, and may be waiting for a claim or live.
CREATE FUNCTION accs.skip_downstream(p_task_ids uuid[]) RETURNS TABLE (job_id uuid, skipped int) LANGUAGE sql AS $$
  WITH RECURSIVE below AS (
    SELECT d.id FROM public.job_tasks t, unnest(t.dependants) AS d (id) WHERE t.id = ANY (p_task_ids)
    UNION
    SELECT d.id FROM below b, LATERAL (   -- one look-up for each, as in claim_tasks
             SELECT dependants FROM public.job_tasks WHERE id = b.id AND status = 'queued' OFFSET 0) t, unnest(t.dependants) AS d (id)
  ), moved AS (
    UPDATE public.job_tasks t SET status = 'skipped', finished_at = accs.clock(), updated_at = accs.clock(),
           error_code = 'upstream_failed', error_message = 'a step that it depends on has failed'
     WHERE t.id = ANY (ARRAY(SELECT id FROM below ORDER BY id)) AND t.status = 'queued'
    RETURNING t.id, t.job_id
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data)
    SELECT job_id, id, accs.clock(), 'builder', 'warn', 'status', 'queued → skipped',
           '{"from": "queued", "to": "skipped", "reason": "upstream_failed"}' FROM moved
  )
  SELECT job_id, count(*)::int FROM moved GROUP BY job_id
$$;

-- Ends attempts without success. The caller holds the jobs' locks and has checked the fence. p_outcome:
--   error     spends an attempt: retry after the backoff, or error for good (attempts exhausted, or permanent)
--   released  given back: spends nothing
--   lost      the owner is gone: spends no attempt, but accs.max_lost() owners are enough
-- The caller admits the keys it returns.
CREATE FUNCTION accs.end_attempts(
  p_task_ids uuid[], p_outcome text, p_codes text[], p_messages text[], p_permanent boolean[], p_source text,
  p_delay interval DEFAULT NULL, p_base double precision DEFAULT NULL
) RETURNS text[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now    timestamptz := accs.clock();
  v_again  uuid[];
  v_dead   uuid[];
  v_borne  uuid[];           -- of those that fail for good, the ones that their step tolerates
  v_keys   text[];
  v_freed  text[];
  v_jobs   uuid[];
  v_ended  int[];
  v_gain   numeric[];
BEGIN
  WITH ended AS (
    SELECT s.id, t.parent, left(s.code, 200) AS code, left(s.message, 65536) AS message, t.status AS from_status,
           t.attempt + (p_outcome = 'error')::int AS attempt, t.lost + (p_outcome = 'lost')::int AS lost,
           CASE p_outcome WHEN 'error' THEN coalesce(s.permanent, false) OR t.attempt + 1 >= t.max_attempts
                          -- nobody but the process that is gone could carry out a one-off (accsd run)
                          WHEN 'lost' THEN t.lost + 1 >= accs.max_lost() OR t.service_name = 'accs.run' ELSE false END AS final,
           CASE p_outcome WHEN 'lost' THEN 'lost_too_often'
                          WHEN 'error' THEN CASE WHEN s.permanent THEN 'permanent_error' ELSE 'attempts_exhausted' END END AS why,
           CASE p_outcome WHEN 'error' THEN v_now + accs.retry_delay(t.backoff, t.attempt + 1, t.id, p_base) ELSE v_now + p_delay END AS due
      FROM unnest(p_task_ids, p_codes, p_messages, p_permanent) AS s (id, code, message, permanent) JOIN public.job_tasks t ON t.id = s.id
  ), said AS MATERIALIZED (
    SELECT e.*, e.final AND e.parent IS NOT NULL
                AND row_number() OVER (PARTITION BY e.parent, e.final ORDER BY e.id) <= coalesce(
                  (SELECT m.tolerate - (SELECT count(*) FROM public.job_tasks c WHERE c.parent = m.id AND c.tolerated)
                     FROM public.job_tasks m WHERE m.id = e.parent AND m.tolerate > 0), 0) AS borne
      FROM ended e ORDER BY e.id
  ), moved AS (
    UPDATE public.job_tasks t SET status = CASE WHEN s.final THEN 'error' ELSE 'queued' END, attempt = s.attempt, lost = s.lost,
           next_attempt_at = CASE WHEN NOT s.final THEN s.due END, finished_at = CASE WHEN s.final THEN v_now END,
           progress = CASE WHEN s.final THEN t.progress ELSE 0 END, updated_at = v_now, lease_owner = NULL, lease_until = NULL,
           error_code = CASE WHEN p_outcome = 'released' THEN t.error_code ELSE s.code END,
           error_message = CASE WHEN p_outcome = 'released' THEN t.error_message ELSE s.message END,
           outcome = p_outcome, outcome_attempt_id = t.attempt_id, tolerated = nullif(s.borne, false)
      FROM said s WHERE t.id = s.id
    RETURNING t.id, t.job_id, t.task_key, t.service_name, t.generation, t.attempt_id, t.attempt, t.lost, t.next_attempt_at,
              t.error_code, t.error_message, s.final, s.borne, s.why, s.from_status, s.code, s.message
  ), freed AS (
    DELETE FROM accs.live WHERE task_id = ANY (ARRAY(SELECT id FROM moved)) RETURNING task_id, job_id, progress, key, node
  ), concluded AS (   -- an agent that went away says nothing about its services
    INSERT INTO accs.conclusions (ts, node, service, workflow_id, task_key, task_id, passed, lost, permanent, code, message)
    SELECT v_now, f.node, m.service_name, j.workflow_id, m.task_key, m.id, false, p_outcome = 'lost',
           coalesce(m.why = 'permanent_error', false), m.code, left(m.message, 500)
      FROM moved m JOIN freed f ON f.task_id = m.id JOIN public.jobs j ON j.id = m.job_id
     WHERE p_outcome = 'error' OR p_outcome = 'lost' AND m.code <> 'worker_lost'
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
    SELECT job_id, id, v_now, coalesce(p_source, 'agent:' || service_name),
           CASE WHEN borne THEN 'warn' WHEN final THEN 'error' WHEN p_outcome = 'released' THEN 'info' ELSE 'warn' END,
           CASE WHEN final OR p_outcome <> 'error' THEN 'status' ELSE 'retry' END,
           coalesce(message, from_status || ' → ' || CASE WHEN final THEN 'error' ELSE 'queued' END),
           jsonb_strip_nulls(jsonb_build_object('from', from_status, 'to', CASE WHEN final THEN 'error' ELSE 'queued' END,
             'outcome', p_outcome, 'error_code', code, 'attempt', attempt, 'lost', nullif(lost, 0), 'next_attempt_at', next_attempt_at,
             'tolerated', nullif(borne, false))), attempt_id FROM moved
  ), buried AS (
    INSERT INTO public.dead_letters (job_id, job_task_id, generation, service_name, reason, error_code, error_message, created_at)
    SELECT job_id, id, generation, service_name, why, code, message, v_now FROM moved WHERE final
  ), blamed AS (   -- the job keeps its first failure
    UPDATE public.jobs j SET error_code = coalesce(f.code, 'error'), error_message = f.message
      FROM (SELECT DISTINCT ON (job_id) job_id, code, message FROM moved WHERE final AND NOT borne ORDER BY job_id, id) f
     WHERE j.id = f.job_id AND j.error_code IS NULL
  )
  SELECT array_agg(m.id) FILTER (WHERE NOT final), array_agg(m.id) FILTER (WHERE final), array_agg(m.id) FILTER (WHERE borne),
         (SELECT array_agg(DISTINCT key) FILTER (WHERE key IS NOT NULL) FROM freed),
         (SELECT array_agg(job_id ORDER BY task_id) FROM freed), (SELECT array_agg(-progress ORDER BY task_id) FROM freed)
    INTO v_again, v_dead, v_borne, v_freed, v_jobs, v_gain FROM moved m;

  IF p_outcome <> 'released' THEN
    PERFORM pg_notify(accs.channel_prefix() || '_health', '');
  END IF;
  v_ended := array_fill(0, ARRAY[coalesce(cardinality(v_jobs), 0)]);   -- none was live where the resolver speaks
  IF v_again IS NOT NULL THEN
    v_keys := accs.enqueue(v_again);
  END IF;
  IF v_dead IS NOT NULL THEN
    -- counted once for the task itself and once for what is skipped below it
    SELECT v_jobs || array_agg(c.job_id), v_ended || array_agg(c.n), v_gain || array_agg(c.n::numeric) INTO v_jobs, v_ended, v_gain
      FROM (SELECT t.job_id, 1 AS n FROM public.job_tasks t WHERE t.id = ANY (v_dead)
            UNION ALL SELECT s.job_id, s.skipped
              FROM accs.skip_downstream(ARRAY(SELECT unnest(v_dead) EXCEPT SELECT unnest(v_borne))) s) c;
  END IF;
  IF v_borne IS NOT NULL THEN
    SELECT v_keys || max(u.keys) INTO v_keys
      FROM accs.unblock(ARRAY(SELECT unnest(dependants) FROM public.job_tasks WHERE id = ANY (v_borne))) u;
  END IF;
  IF v_dead IS NOT NULL OR 0 <> ANY (v_gain) THEN
    PERFORM accs.count_down(v_jobs, v_ended, v_gain);
  END IF;
  RETURN v_keys || v_freed;
END $$;
SELECT accs.pin('end_attempts');

-- Ends attempts, done or error, fenced. Outcomes default to done. A row that is refused says why and what the
-- database holds, and leaves an event; a row said before is repeated and changes nothing. With p_quiet only what was not accepted
-- is answered.
CREATE FUNCTION accs.finish_tasks(
  p_task_ids uuid[], p_attempt_ids int[], p_owner text, p_outcomes text[] DEFAULT NULL, p_results jsonb[] DEFAULT NULL,
  p_error_codes text[] DEFAULT NULL, p_error_messages text[] DEFAULT NULL, p_permanent boolean[] DEFAULT NULL,
  p_backoff_base double precision DEFAULT NULL, p_quiet boolean DEFAULT false
) RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now        timestamptz := accs.clock();
  v_jobs       tid[];
  v_moved      uuid[];
  v_dependants uuid[];
  v_failed     record;
  v_keys       text[];
  v_passed     accs.live[];
  v_runs       uuid[];
BEGIN
  IF session_user <> current_user OR cardinality(p_task_ids) > 10000 THEN
    PERFORM accs.check_attempt(p_owner, cardinality(p_task_ids));
  END IF;
  v_jobs := accs.lock_jobs_of(p_task_ids);
  IF p_outcomes IS NOT NULL AND 'error' = ANY (p_outcomes) OR pg_column_size(p_results) > 16777216 THEN
    -- what is done and what failed are written one after the other, and a hash that is split has another order: the rows are locked
    -- by id first, as a heartbeat does
    PERFORM FROM public.job_tasks WHERE id = ANY (p_task_ids) AND lease_owner = p_owner ORDER BY id FOR NO KEY UPDATE;
  END IF;

  WITH said AS (
    SELECT s.id, s.attempt_id, s.results
      FROM unnest(p_task_ids, p_attempt_ids, p_outcomes, p_results) AS s (id, attempt_id, outcome, results)
     WHERE coalesce(s.outcome, 'done') = 'done' AND coalesce(pg_column_size(s.results), 0) <= accs.max_result_bytes()
  ), moved AS (
    UPDATE public.job_tasks t SET status = 'done', results = coalesce(s.results, t.results, '{}'), progress = 1, finished_at = v_now,
           updated_at = v_now, lease_owner = NULL, lease_until = NULL, error_code = NULL, error_message = NULL,
           outcome = 'done', outcome_attempt_id = t.attempt_id
      FROM said s
     WHERE t.id = ANY (p_task_ids)
       AND t.id = s.id AND t.attempt_id = s.attempt_id AND t.lease_owner = p_owner AND t.lease_until > v_now AND t.status = 'running'
    RETURNING t.id, t.job_id, t.attempt_id, t.service_name, t.dependants
  ), freed AS (
    DELETE FROM accs.live l WHERE l.task_id = ANY (ARRAY(SELECT id FROM moved)) RETURNING l
  ), waiting AS (
    SELECT u.id, count(*)::int AS n FROM (SELECT unnest(dependants) AS id FROM moved WHERE dependants IS NOT NULL) u GROUP BY u.id
  ), next AS (   -- the first step of each job that unblock will find runnable
    SELECT DISTINCT ON (t.job_id) t.job_id, t.task_key FROM public.job_tasks t JOIN waiting w ON w.id = t.id
     WHERE t.id = ANY (ARRAY(SELECT id FROM waiting)) AND t.remaining = w.n AND t.status = 'queued' ORDER BY t.job_id, t.step_no
  ), counted AS (   -- as in count_down
    UPDATE public.jobs j SET open_tasks = j.open_tasks - c.ended, task_progress = j.task_progress + c.gain,
           progress = (j.task_progress + c.gain) / j.task_count, updated_at = v_now,
           current_task_key = coalesce(n.task_key, j.current_task_key),
           status = CASE WHEN j.open_tasks > c.ended THEN j.status WHEN j.error_code IS NULL THEN 'done' ELSE 'error' END,
           finished_at = CASE WHEN j.open_tasks = c.ended THEN v_now END
      FROM (SELECT (f.l).job_id, count(*)::int AS ended, sum(1 - (f.l).progress) AS gain FROM freed f GROUP BY (f.l).job_id) c
      LEFT JOIN next n ON n.job_id = c.job_id
     WHERE j.ctid = ANY (v_jobs) AND j.id = c.job_id
    RETURNING j.id, j.status, j.error_code, j.schedule_id, j.run_key
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
    SELECT job_id, id, v_now, 'agent:' || service_name, 'info', 'status', 'running → done',
           '{"from": "running", "to": "done"}'::jsonb, attempt_id FROM moved
    UNION ALL
    SELECT id, NULL, v_now, 'builder', CASE status WHEN 'done' THEN 'info' ELSE 'error' END, 'status', 'running → ' || status,
           CASE status WHEN 'done' THEN '{"from": "running", "to": "done"}'
                       ELSE jsonb_build_object('from', 'running', 'to', status, 'error_code', error_code) END, NULL
      FROM counted WHERE status <> 'running'
  )
  SELECT (SELECT coalesce(array_agg(id), '{}') FROM moved),
         (SELECT array_agg(u.id) FROM (SELECT unnest(dependants) AS id FROM moved WHERE dependants IS NOT NULL) u),
         (SELECT array_agg(DISTINCT (f.l).key) FROM freed f WHERE (f.l).key IS NOT NULL),
         -- something has failed lately, or a node is on trial: it must be noted which nodes pass
         CASE WHEN EXISTS (SELECT FROM accs.conclusions WHERE NOT passed) OR EXISTS (SELECT FROM accs.quarantines)
              THEN (SELECT array_agg(f.l) FROM freed f) END,
         (SELECT array_agg(id) FROM counted WHERE status <> 'running' AND (schedule_id IS NOT NULL OR run_key IS NOT NULL))
    INTO v_moved, v_dependants, v_keys, v_passed, v_runs;
  IF 1 < ANY (p_attempt_ids) THEN   -- the outputs of an earlier attempt are not results
    DELETE FROM public.task_artifacts a USING public.job_tasks t
     WHERE t.id = ANY (v_moved) AND a.job_task_id = ANY (v_moved) AND a.job_task_id = t.id AND a.kind = 'output'
       AND a.attempt_id < t.outcome_attempt_id;
  END IF;
  IF v_dependants IS NOT NULL OR p_task_ids = '{}' THEN   -- a call for nothing has it planned
    SELECT v_keys || max(u.keys) INTO v_keys FROM accs.unblock(v_dependants) u;
  END IF;
  IF v_runs IS NOT NULL THEN
    PERFORM accs.end_runs(v_runs);
  END IF;
  IF v_passed IS NOT NULL THEN
    PERFORM accs.note_passes(v_passed);
  END IF;

  IF p_outcomes IS NOT NULL AND 'error' = ANY (p_outcomes) THEN
    SELECT array_agg(s.id ORDER BY s.id) AS ids, array_agg(s.code ORDER BY s.id) AS codes, array_agg(s.message ORDER BY s.id) AS messages,
           array_agg(s.permanent ORDER BY s.id) AS permanent INTO v_failed
      FROM (SELECT DISTINCT ON (s.id) s.* FROM unnest(p_task_ids, p_attempt_ids, p_outcomes, p_error_codes, p_error_messages, p_permanent)
              AS s (id, attempt_id, outcome, code, message, permanent) WHERE s.outcome = 'error' ORDER BY s.id) s
      JOIN public.job_tasks t   -- locked above: start_tasks takes no job lock
        ON t.id = ANY (p_task_ids) AND t.id = s.id AND t.attempt_id = s.attempt_id AND t.lease_owner = p_owner
           AND t.lease_until > v_now AND t.status IN ('starting', 'running');
    IF v_failed.ids IS NOT NULL THEN
      v_keys := v_keys || accs.end_attempts(v_failed.ids, 'error', v_failed.codes, v_failed.messages, v_failed.permanent, NULL, NULL,
                                            p_backoff_base);
      v_moved := v_moved || v_failed.ids;
    END IF;
  END IF;
  IF v_keys IS NOT NULL THEN   -- asked here, because a call costs as much as a small statement
    PERFORM accs.admit(v_keys);
  END IF;

  IF p_quiet IS NOT TRUE THEN
    RETURN QUERY SELECT * FROM accs.accepted(v_moved);
  END IF;
  IF cardinality(v_moved) < cardinality(p_task_ids) THEN
    RETURN QUERY SELECT * FROM accs.refusals(p_task_ids, p_attempt_ids, p_owner, p_outcomes, 'done', v_moved, p_results);
  END IF;
END $$;
SELECT accs.is_verb('finish_tasks', hashes => true, may => '{agent,scheduler}');

-- Explains what a fenced write did not do, row by row, and leaves an event for each refusal.
CREATE FUNCTION accs.refusals(p_task_ids uuid[], p_attempt_ids int[], p_owner text, p_outcomes text[], p_outcome text, p_except uuid[],
                              p_results jsonb[] DEFAULT NULL)
RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH said AS (
    SELECT s.id, s.attempt_id, coalesce(s.outcome, p_outcome) AS outcome,
           pg_column_size(s.results) > accs.max_result_bytes() AS too_large
      FROM unnest(p_task_ids, p_attempt_ids, p_outcomes, p_results) AS s (id, attempt_id, outcome, results) WHERE s.id <> ALL (p_except)
  ), told AS MATERIALIZED (
    SELECT s.attempt_id, s.outcome, e.id, e.answer,
           CASE WHEN e.answer = 'refused' AND s.too_large AND e.db_status = 'running' AND e.db_attempt_id = s.attempt_id
                     AND e.db_lease_owner = p_owner
                THEN 'result_too_large' ELSE e.reason END AS reason,
           e.db_status, e.db_attempt_id, e.db_lease_owner, e.db_lease_until
      FROM said s, LATERAL accs.explain(ARRAY[s.id], ARRAY[s.attempt_id], p_owner, ARRAY[s.outcome]) e
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
    SELECT t.job_id, t.id, accs.clock(), 'agent:' || t.service_name, 'warn', 'refused', format('%s refused: %s', o.outcome, o.reason),
           jsonb_build_object('reason', o.reason, 'said', o.outcome, 'owner', p_owner, 'db_status', o.db_status,
             'db_attempt_id', o.db_attempt_id, 'db_lease_owner', o.db_lease_owner, 'db_lease_until', o.db_lease_until), o.attempt_id
      FROM told o JOIN public.job_tasks t ON t.id = o.id WHERE o.answer = 'refused'
  )
  SELECT o.id, o.answer, o.reason, o.db_status, o.db_attempt_id, o.db_lease_owner, o.db_lease_until FROM told o;
END $$;
SELECT accs.pin('refusals');

-- Gives tasks back without spending an attempt (the agent drains, or its machine can't do the work now). p_lost counts it
-- among the owners lost, which are bounded; p_code and p_reason say what was lost, and stay with the task.
CREATE FUNCTION accs.release_tasks(p_task_ids uuid[], p_attempt_ids int[], p_owner text, p_reason text DEFAULT NULL,
                                   p_lost boolean DEFAULT false, p_delay interval DEFAULT NULL, p_code text DEFAULT 'worker_lost')
RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_outcome text := CASE WHEN p_lost THEN 'lost' ELSE 'released' END;
  v_ids  uuid[];
  v_keys text[];
BEGIN
  IF session_user <> current_user OR cardinality(p_task_ids) > 10000 THEN
    PERFORM accs.check_attempt(p_owner, cardinality(p_task_ids));
  END IF;
  PERFORM accs.lock_jobs_of(p_task_ids);
  SELECT coalesce(array_agg(DISTINCT t.id), '{}') INTO v_ids FROM unnest(p_task_ids, p_attempt_ids) AS s (id, attempt_id)
    JOIN (SELECT * FROM public.job_tasks WHERE id = ANY (p_task_ids) ORDER BY id FOR NO KEY UPDATE) t
      ON t.id = s.id AND t.attempt_id = s.attempt_id AND t.lease_owner = p_owner AND t.lease_until > accs.clock()
         AND t.status IN ('starting', 'running');
  IF v_ids <> '{}' THEN
    v_keys := accs.end_attempts(v_ids, v_outcome,
                                array_fill(CASE WHEN p_lost THEN coalesce(p_code, 'worker_lost') END, ARRAY[cardinality(v_ids)]),
                                array_fill(p_reason, ARRAY[cardinality(v_ids)]), NULL, NULL, p_delay);
    PERFORM accs.admit(v_keys);
  END IF;
  RETURN QUERY SELECT * FROM accs.accepted(v_ids);
  IF cardinality(v_ids) < cardinality(p_task_ids) THEN
    RETURN QUERY SELECT * FROM accs.refusals(p_task_ids, p_attempt_ids, p_owner, NULL, v_outcome, v_ids);
  END IF;
END $$;
SELECT accs.is_verb('release_tasks', pinned => true, may => '{agent,scheduler}');

-- Takes back what its owner has not kept: leases that ran out more than p_grace ago, the oldest first. The rows are read
-- without a lock and looked at again under their jobs' locks: a heartbeat or a finish in between wins.
CREATE FUNCTION accs.reclaim_tasks(p_limit int DEFAULT 100, p_grace interval DEFAULT '1 s') RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now  timestamptz := accs.clock();
  v_want uuid[];
  v_ids  uuid[];
  v_keys text[];
BEGIN
  v_want := ARRAY(SELECT task_id FROM accs.live WHERE lease_until <= v_now - p_grace ORDER BY lease_until LIMIT p_limit);
  IF v_want = '{}' THEN
    RETURN;
  END IF;
  PERFORM accs.lock_jobs_of(v_want);
  -- the task's row is locked too: a heartbeat takes no job lock
  v_ids := ARRAY(SELECT id FROM public.job_tasks
                  WHERE id = ANY (v_want) AND status IN ('starting', 'running') AND lease_until <= v_now - p_grace
                  ORDER BY id FOR NO KEY UPDATE);
  IF v_ids <> '{}' THEN
    v_keys := accs.end_attempts(v_ids, 'lost', array_fill('worker_lost'::text, ARRAY[cardinality(v_ids)]),
      ARRAY(SELECT format('%s did not keep its lease', lease_owner) FROM public.job_tasks WHERE id = ANY (v_ids) ORDER BY id),
      NULL, 'builder');
    PERFORM accs.admit(v_keys);
  END IF;
  RETURN QUERY
  SELECT u.id, CASE WHEN u.id = ANY (v_ids) THEN 'accepted' ELSE 'refused' END,
         CASE WHEN u.id = ANY (v_ids) THEN NULL WHEN t.id IS NULL THEN 'not_found'
              WHEN t.status IN ('starting', 'running') THEN 'lease_still_valid' ELSE 'done_or_stale' END,
         t.status, t.attempt_id, t.lease_owner, t.lease_until
    FROM unnest(v_want) AS u (id) LEFT JOIN public.job_tasks t ON t.id = u.id;
END $$;
SELECT accs.is_verb('reclaim_tasks', pinned => true, may => '{scheduler}');
