-- ---------------------------------------------------------------------------------------------------------------
-- Health: which builders are there, and what waits, runs, has failed, is stuck or overdue
-- ---------------------------------------------------------------------------------------------------------------

-- Each builder that makes passes, and what keeps its roles from their work. Written seldom: see note_builder.
CREATE TABLE accs.builders (
  name       text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
  seen_at    timestamptz NOT NULL DEFAULT accs.clock(),
  obstacles  jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(obstacles) = 'object')   -- a sentence by role
) WITH (fillfactor = 50);

CREATE INDEX schedules_broken ON public.schedules (id) WHERE state = 'broken';   -- scheduler_health

-- A builder is there. At each of its passes, so it writes only every 20 s, or where something has changed. One that has gone is
-- forgotten after a day.
CREATE FUNCTION accs.note_builder(p_name text, p_obstacles jsonb DEFAULT '{}') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  IF EXISTS (SELECT FROM accs.builders b WHERE b.name = p_name AND b.obstacles = p_obstacles
                AND b.seen_at BETWEEN v_now - interval '20 s' AND v_now) THEN   -- a clock that was set back counts as a change
    RETURN 'repeated';
  END IF;
  INSERT INTO accs.builders (name, seen_at, obstacles) VALUES (p_name, v_now, p_obstacles)
  ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at, obstacles = excluded.obstacles;
  DELETE FROM accs.builders b WHERE b.seen_at < v_now - interval '1 day';
  RETURN 'accepted';
END $$;
SELECT accs.is_verb('note_builder', may => '{scheduler}');

-- What waits (jobs, tasks that could be claimed or are held, rows of the agenda), what is live, what failed for good and nobody has
-- dealt with, what is live without a lease or for more than 10 minutes, whether a builder was seen within a minute; and of
-- schedules: what nobody has settled or planned for a minute, the broken ones, why all are held. Each is counted up to p_most, along
-- the narrow tables and an index: it is asked all the time.
CREATE FUNCTION accs.scheduler_health(p_most int DEFAULT 10000) RETURNS TABLE (
  pending int, running int, failed int, stuck_running int, poller_running boolean, overdue int, overdue_for interval, unplanned int,
  unplanned_for interval, broken int, hold text
) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  RETURN QUERY
  SELECT (SELECT count(*)::int FROM (
            SELECT FROM accs.pending_jobs UNION ALL SELECT FROM accs.waiting
            UNION ALL SELECT FROM accs.agenda a WHERE a.what <> ALL ('{replan,probe}') AND a.due_at <= v_now
            UNION ALL SELECT FROM accs.agenda a WHERE a.what = ANY ('{replan,probe}') AND a.due_at <= v_now LIMIT p_most) w),
         l.running, (SELECT count(*)::int FROM (
                       SELECT FROM public.dead_letters d WHERE d.redriven_at IS NULL AND d.dismissed_at IS NULL LIMIT p_most) d),
         l.stuck, EXISTS (SELECT FROM accs.builders b WHERE b.seen_at > v_now - interval '1 min'),
         o.n, o.longest, u.n, u.longest,
         (SELECT count(*)::int FROM (SELECT FROM public.schedules s WHERE s.state = 'broken' LIMIT p_most) b),
         (SELECT concat_ws(', ', coalesce(h.reason, 'no reason given'), 'by ' || h.by) FROM accs.schedule_hold h)
    FROM (SELECT count(*)::int AS running,
                 (count(*) FILTER (WHERE t.lease_until < v_now OR t.since < v_now - interval '600 s'))::int AS stuck
            FROM (SELECT v.lease_until, t.since FROM (SELECT * FROM accs.live LIMIT p_most) v
                  LEFT JOIN LATERAL (   -- one look-up for each, as in claim_tasks
                    SELECT coalesce(t.started_at, t.claimed_at) AS since FROM public.job_tasks t
                     WHERE t.id = v.task_id OFFSET 0) t ON true) t) l,
         (SELECT count(*)::int AS n, max(v_now - a.due_at) AS longest FROM (
            SELECT a.due_at FROM accs.agenda a WHERE a.what <> ALL ('{replan,probe}') AND a.due_at < v_now - interval '1 min'
             ORDER BY a.due_at LIMIT p_most) a) o,
         (SELECT count(*)::int AS n, max(v_now - a.due_at) AS longest FROM (
            SELECT a.due_at FROM accs.agenda a WHERE a.what = ANY ('{replan,probe}') AND a.what = 'replan'
               AND a.due_at < v_now - interval '1 min' ORDER BY a.due_at LIMIT p_most) a) u;
END $$;
SELECT accs.is_verb('scheduler_health', may => '{scheduler,api,archive,reader}');
