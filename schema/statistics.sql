-- ---------------------------------------------------------------------------------------------------------------
-- Statistics: how busy nodes were, how attempts ended by the minute, how long steps usually take. None of it is on the way of a task:
-- a pass of the builder reads what has happened
-- ---------------------------------------------------------------------------------------------------------------

-- How many tasks of a service were live on a node, of how many slots: once a minute, where one of the two has changed. A node that is not
-- awake has no slots. After 14 days the last of each quarter of an hour is kept.
CREATE TABLE accs.samples (
  ts       timestamptz NOT NULL,
  node     text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  service  text NOT NULL,
  live     int NOT NULL,
  slots    int NOT NULL,
  PRIMARY KEY (node, service, ts)
);

CREATE INDEX samples_ts ON accs.samples (ts);   -- forget_statistics

-- How many attempts ended in each minute, and how. error: for good; retried: failed, and tried again; lost: the owner was gone (those that
-- were lost for good count as error, too). What was released is not counted. wait_s: for how long these attempts had been ready before
-- they were claimed; run_s: for how long those that were not lost had run, each in all.
CREATE TABLE accs.outcomes (
  minute   timestamptz NOT NULL,            -- when it begins
  service  text NOT NULL,
  seconds  int NOT NULL DEFAULT 60,         -- how long it is: after 14 days a quarter of an hour
  done     int NOT NULL DEFAULT 0,
  error    int NOT NULL DEFAULT 0,
  retried  int NOT NULL DEFAULT 0,
  lost     int NOT NULL DEFAULT 0,
  wait_s   double precision NOT NULL DEFAULT 0,
  run_s    double precision NOT NULL DEFAULT 0,
  PRIMARY KEY (minute, service, seconds)
) WITH (fillfactor = 70);

CREATE FUNCTION accs.quantile(p_values real[], p_share double precision) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
  SELECT percentile_cont(p_share) WITHIN GROUP (ORDER BY v) FROM unnest(p_values) AS u (v)
$$;

-- How long each step of a workflow (all versions) usually runs and waits, in seconds, by its last 200 attempts that were done: what has
-- become faster is known as fast soon. The tasks of a step that was multiplied count as the step.
CREATE TABLE accs.step_stats (
  workflow    text NOT NULL,
  task_key    text NOT NULL,
  n           bigint NOT NULL,              -- all that were ever counted
  runs        real[] NOT NULL,              -- the newest first
  waits       real[] NOT NULL,
  p50         double precision GENERATED ALWAYS AS (accs.quantile(runs, 0.5)) STORED,
  p95         double precision GENERATED ALWAYS AS (accs.quantile(runs, 0.95)) STORED,
  wait_p50    double precision GENERATED ALWAYS AS (accs.quantile(waits, 0.5)) STORED,
  updated_at  timestamptz NOT NULL,
  PRIMARY KEY (workflow, task_key)
) WITH (fillfactor = 50);

-- Where the pass stands. Its lock makes it one pass at a time, whichever builder makes it.
CREATE TABLE accs.statistics_position (
  only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  counted_to  bigint NOT NULL DEFAULT 0,                  -- task events up to this id are counted, but for accs.event_gaps
  sampled_at  timestamptz NOT NULL DEFAULT '-infinity',
  kept_at     timestamptz NOT NULL DEFAULT '-infinity'    -- when what is old was last put together
);
INSERT INTO accs.statistics_position DEFAULT VALUES;

-- Ids up to that position that no row had when the pass came by: their transaction was still under way, or has been rolled back. From the
-- pass after on, `before` is above every transaction that could own them: once all below it have ended, who is still missing never comes.
-- So an event is counted once, however late its transaction commits.
CREATE TABLE accs.event_gaps (
  ids     int8range NOT NULL,
  since   timestamptz NOT NULL,
  before  xid8
);

-- What ended attempts tell: how, for how long they had run, and how long they had been ready before they were claimed. A task's row knows
-- its last attempt; of an earlier one the job's events do. A task is ready when it was made, when all that it depends on has ended, or when
-- the last attempt or run of it said that it begins again. (Each is one look-up by index, as in claim_tasks.)
CREATE FUNCTION accs.attempts_ended(p_events public.task_events[])
RETURNS TABLE (ts timestamptz, workflow text, task_key text, service text, ended text, is_lost boolean, run double precision,
               wait double precision) LANGUAGE sql STABLE AS $$
  SELECT e.ts, f.name, coalesce(m.task_key, t.task_key), t.service_name,
         CASE e.data ->> 'to' WHEN 'queued' THEN 'retried' ELSE e.data ->> 'to' END, coalesce(e.data ->> 'outcome' = 'lost', false),
         extract(epoch FROM e.ts - a.started), extract(epoch FROM greatest(a.claimed - greatest(t.created_at, d.ended, b.due), '0'))
    FROM unnest(p_events) e, LATERAL (
         SELECT * FROM public.job_tasks t WHERE t.id = e.job_task_id OFFSET 0) t, LATERAL (
         SELECT j.workflow_id FROM public.jobs j WHERE j.id = e.job_id OFFSET 0) j, LATERAL (
         SELECT w.name FROM public.workflows w WHERE w.id = j.workflow_id OFFSET 0) f
    LEFT JOIN LATERAL (SELECT p.task_key, p.finished_at FROM public.job_tasks p WHERE p.id = t.parent OFFSET 0) m ON true
    CROSS JOIN LATERAL (
         SELECT t.claimed_at AS claimed, t.started_at AS started WHERE t.attempt_id = e.attempt_id
         UNION ALL
         SELECT min(s.ts) FILTER (WHERE s.data ->> 'to' = 'starting'), min(s.ts) FILTER (WHERE s.data ->> 'to' = 'running')
           FROM public.task_events s
          WHERE t.attempt_id <> e.attempt_id AND s.job_id = e.job_id AND s.ts BETWEEN e.ts - interval '1 day' AND e.ts
            AND s.job_task_id = e.job_task_id AND s.attempt_id = e.attempt_id AND s.type = 'status'
         HAVING t.attempt_id <> e.attempt_id) a
    LEFT JOIN LATERAL (
         SELECT max(x.finished_at) FILTER (WHERE x.finished_at <= a.claimed) AS ended FROM (
           SELECT m.finished_at WHERE t.parent IS NOT NULL
           UNION ALL
           SELECT greatest(u.finished_at, CASE WHEN u.items IS NOT NULL THEN (
                    SELECT max(c.finished_at) FROM public.job_tasks c WHERE c.parent = u.id) END)
             FROM unnest(t.depends_on) AS k (key), LATERAL (
               SELECT u.id, u.finished_at, u.items FROM public.job_tasks u WHERE u.job_id = t.job_id AND u.task_key = k.key OFFSET 0) u
            WHERE t.parent IS NULL) x) d ON true
    LEFT JOIN LATERAL (
         SELECT coalesce((p.data ->> 'next_attempt_at')::timestamptz, p.ts) AS due FROM public.task_events p
          WHERE (e.attempt_id > 1 OR t.generation > 0) AND p.job_id = e.job_id AND p.ts <= a.claimed AND p.job_task_id = e.job_task_id
            AND p.type IN ('status', 'retry') AND p.data ->> 'to' = 'queued'
          ORDER BY p.ts DESC LIMIT 1) b ON true
$$;

-- One pass: counts the next p_limit events, and those that came late; once a minute it takes samples. Of several builders one makes it.
-- `more`: there are further events. What ended without a node (the resolver's) is nobody's attempt.
CREATE FUNCTION accs.count_events(p_limit int DEFAULT 5000) RETURNS TABLE (events int, samples int, more boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_at    accs.statistics_position;
  v_last  bigint;
  v_to    bigint;
  v_snap  pg_snapshot;
  v_seen  int8multirange;
BEGIN
  events := 0;
  samples := 0;
  more := false;
  SELECT * INTO v_at FROM accs.statistics_position FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN   -- another builder is at it
    RETURN NEXT;
    RETURN;
  END IF;
  IF v_at.sampled_at NOT BETWEEN v_now - interval '55 s' AND v_now THEN   -- a clock that was set back counts as a change
    samples := accs.take_samples();
    UPDATE accs.statistics_position SET sampled_at = v_now;
  END IF;

  -- Before the events are read: a transaction that has ended by now is seen then, and an id that was given out by now is there or a gap.
  v_snap := pg_current_snapshot();
  SELECT CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END INTO v_last FROM public.task_events_id_seq s;
  v_at.counted_to := least(v_at.counted_to, v_last);   -- a restored database may have begun anew
  v_to := least(v_last, v_at.counted_to + greatest(1, least(p_limit, 100000)));
  more := v_to < v_last;
  IF v_to > v_at.counted_to OR EXISTS (SELECT FROM accs.event_gaps) THEN
    WITH fresh AS MATERIALIZED (
      SELECT e FROM public.task_events e WHERE e.id BETWEEN v_at.counted_to + 1 AND v_to
      UNION ALL
      SELECT l.e FROM accs.event_gaps g, LATERAL (
        SELECT e FROM public.task_events e WHERE e.id >= lower(g.ids) AND e.id < upper(g.ids) OFFSET 0) l
    ), measured AS MATERIALIZED (
      SELECT m.* FROM accs.attempts_ended(ARRAY(
        SELECT f.e FROM fresh f WHERE (f.e).type IN ('status', 'retry') AND (f.e).attempt_id IS NOT NULL AND (f.e).source <> 'resolver'
           AND ((f.e).data ->> 'to' IN ('done', 'error') OR (f.e).data ->> 'outcome' IN ('lost', 'error')))) m
    ), counted AS (
      INSERT INTO accs.outcomes AS o (minute, service, done, error, retried, lost, wait_s, run_s)
      SELECT date_trunc('minute', m.ts), m.service, count(*) FILTER (WHERE m.ended = 'done'), count(*) FILTER (WHERE m.ended = 'error'),
             count(*) FILTER (WHERE m.ended = 'retried' AND NOT m.is_lost), count(*) FILTER (WHERE m.is_lost), coalesce(sum(m.wait), 0),
             coalesce(sum(m.run) FILTER (WHERE NOT m.is_lost), 0)
        FROM measured m GROUP BY 1, 2
      ON CONFLICT (minute, service, seconds) DO UPDATE SET done = o.done + excluded.done, error = o.error + excluded.error,
             retried = o.retried + excluded.retried, lost = o.lost + excluded.lost, wait_s = o.wait_s + excluded.wait_s,
             run_s = o.run_s + excluded.run_s
    ), learnt AS (
      INSERT INTO accs.step_stats AS s (workflow, task_key, n, runs, waits, updated_at)
      SELECT m.workflow, m.task_key, count(*), (array_agg(m.run ORDER BY m.ts DESC))[1:200],
             (array_agg(coalesce(m.wait, 0) ORDER BY m.ts DESC))[1:200], v_now
        FROM measured m WHERE m.ended = 'done' AND m.run IS NOT NULL GROUP BY 1, 2
      ON CONFLICT (workflow, task_key) DO UPDATE SET n = s.n + excluded.n, runs = (excluded.runs || s.runs)[1:200],
             waits = (excluded.waits || s.waits)[1:200], updated_at = v_now
    )
    SELECT coalesce(range_agg(int8range((f.e).id, (f.e).id, '[]')), '{}'), count(*) INTO v_seen, events FROM fresh f;

    WITH known AS (
      DELETE FROM accs.event_gaps RETURNING *)
    INSERT INTO accs.event_gaps (ids, since, before)
    SELECT r.ids, g.since, coalesce(g.before, pg_snapshot_xmax(v_snap)) FROM known g, unnest(int8multirange(g.ids) - v_seen) AS r (ids)
     WHERE (g.before <= pg_snapshot_xmin(v_snap) AND g.since < v_now - interval '1 min' OR g.since < v_now - interval '1 day') IS NOT TRUE;
    INSERT INTO accs.event_gaps (ids, since)
    SELECT r.ids, v_now FROM unnest(int8multirange(int8range(v_at.counted_to + 1, v_to + 1)) - v_seen) AS r (ids);
  END IF;
  UPDATE accs.statistics_position SET counted_to = v_to WHERE counted_to <> v_to;
  RETURN NEXT;
END $$;
SELECT accs.is_verb('count_events', may => '{scheduler}');
-- Plans by index, as those of pinned verbs; but a range of ids is found by a bitmap.
ALTER FUNCTION accs.count_events SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
  SET enable_mergejoin = off SET jit = off;

-- What has changed since each node's last sample of a service.
CREATE FUNCTION accs.take_samples() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_now   timestamptz := accs.clock();
  v_taken int;
BEGIN
  INSERT INTO accs.samples (ts, node, service, live, slots)
  SELECT v_now, c.node, c.service, c.live, c.slots
    FROM (SELECT s.node, s.service, (SELECT count(*)::int FROM accs.live l WHERE l.node = s.node AND l.service = s.service) AS live,
                 CASE WHEN n.awake_state = 'awake' AND n.last_seen > v_now - interval '2 min'
                      THEN coalesce((n.max_concurrency ->> s.service)::int, 0) ELSE 0 END AS slots
            FROM accs.slots s JOIN public.nodes n ON n.name = s.node WHERE NOT n.labels ? 'accs.kind') c
    LEFT JOIN LATERAL (SELECT p.live, p.slots FROM accs.samples p WHERE p.node = c.node AND p.service = c.service
                        ORDER BY p.ts DESC LIMIT 1) p ON true
   WHERE (c.live, c.slots) IS DISTINCT FROM (coalesce(p.live, 0), coalesce(p.slots, 0))
  ON CONFLICT DO NOTHING;
  GET DIAGNOSTICS v_taken = ROW_COUNT;
  RETURN v_taken;
END $$;

-- Once an hour: what is older than 14 days is put together by the quarter of an hour, and what is older than 400 days is forgotten. What a
-- node's power was at that time stays known. Returns how many rows there are less.
CREATE FUNCTION accs.forget_statistics() RETURNS int LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_fine  timestamptz := date_bin('15 min', accs.clock() - interval '14 days', '2000-01-01Z');
  v_old   timestamptz := accs.clock() - interval '400 days';
  v_at    accs.statistics_position;
  v_n     int;
  v_less  int := 0;
BEGIN
  SELECT * INTO v_at FROM accs.statistics_position FOR UPDATE SKIP LOCKED;
  IF NOT FOUND OR v_at.kept_at BETWEEN v_now - interval '50 min' AND v_now THEN
    RETURN 0;
  END IF;
  WITH fine AS (
    DELETE FROM accs.outcomes WHERE seconds = 60 AND minute < v_fine RETURNING *
  ), coarse AS (
    INSERT INTO accs.outcomes AS o (minute, service, seconds, done, error, retried, lost, wait_s, run_s)
    SELECT date_bin('15 min', minute, '2000-01-01Z'), service, 900, sum(done), sum(error), sum(retried), sum(lost), sum(wait_s), sum(run_s)
      FROM fine GROUP BY 1, 2
    ON CONFLICT (minute, service, seconds) DO UPDATE SET done = o.done + excluded.done, error = o.error + excluded.error,
           retried = o.retried + excluded.retried, lost = o.lost + excluded.lost, wait_s = o.wait_s + excluded.wait_s,
           run_s = o.run_s + excluded.run_s
    RETURNING 1)
  SELECT (SELECT count(*) FROM fine) - (SELECT count(*) FROM coarse) INTO v_less;
  -- those that have become old since the last time, and an hour before it, if builders were away
  DELETE FROM accs.samples s
   WHERE s.ts < v_fine AND s.ts >= greatest(v_old, date_bin('15 min', v_at.kept_at, '2000-01-01Z') - interval '14 days 1 hour')
     AND EXISTS (SELECT FROM accs.samples l WHERE l.node = s.node AND l.service = s.service AND l.ts > s.ts
                    AND l.ts < date_bin('15 min', s.ts, '2000-01-01Z') + interval '15 min');
  GET DIAGNOSTICS v_n = ROW_COUNT;
  v_less := v_less + v_n;
  DELETE FROM accs.outcomes WHERE minute < v_old;
  GET DIAGNOSTICS v_n = ROW_COUNT;
  v_less := v_less + v_n;
  DELETE FROM accs.samples s WHERE s.ts < v_old
     AND EXISTS (SELECT FROM accs.samples l WHERE l.node = s.node AND l.service = s.service AND l.ts > s.ts AND l.ts < v_old);
  GET DIAGNOSTICS v_n = ROW_COUNT;
  v_less := v_less + v_n;
  DELETE FROM accs.power_log p WHERE p.ts < v_old
     AND EXISTS (SELECT FROM accs.power_log l WHERE l.node = p.node AND l.ts > p.ts AND l.ts < v_old);
  GET DIAGNOSTICS v_n = ROW_COUNT;
  v_less := v_less + v_n;
  DELETE FROM accs.step_stats WHERE updated_at < v_old;
  GET DIAGNOSTICS v_n = ROW_COUNT;
  UPDATE accs.statistics_position SET kept_at = v_now;
  RETURN v_less + v_n;
END $$;
SELECT accs.is_verb('forget_statistics', may => '{scheduler}');
