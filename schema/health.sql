-- ---------------------------------------------------------------------------------------------------------------
-- Health: which daemons are there, and what waits, runs, has failed, is stuck or overdue
-- ---------------------------------------------------------------------------------------------------------------

-- Each process of accsd, and what keeps its roles from their work. A machine may have several, which do different things.
CREATE TABLE accs.daemons (
  name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),           -- the node's
  roles      text[] NOT NULL CHECK (roles <> '{}' AND roles <@ '{builder,agent,gateway}'),
  version    text CHECK (length(version) <= 100),
  since      timestamptz,                                                    -- when it began, by its own clock
  last_seen  timestamptz NOT NULL DEFAULT accs.clock(),
  hearing    text CHECK (length(hearing) <= 500),                            -- whether notifications arrive: listening, or why not
  problems   jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(problems) = 'object' AND pg_column_size(problems) <= 65536),
  PRIMARY KEY (name, roles)
) WITH (fillfactor = 50);

CREATE INDEX schedules_broken ON public.schedules (id) WHERE state = 'broken';   -- scheduler_health

-- A daemon is there: each says it every 20 or 30 s. Said again within 15 s it is written only where something has changed. One that has
-- gone is forgotten after a day. p_problems are sentences by role.
CREATE FUNCTION accs.note_daemon(p_name text, p_roles text[], p_version text DEFAULT NULL, p_since timestamptz DEFAULT NULL,
                                 p_hearing text DEFAULT NULL, p_problems jsonb DEFAULT '{}') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_now   timestamptz := accs.clock();
  v_roles text[] := ARRAY(SELECT DISTINCT u.role FROM unnest(p_roles) AS u (role) ORDER BY 1);
BEGIN
  IF session_user <> current_user AND NOT accs.speaks_for_all() THEN   -- an agent's login is no builder, and says nothing of others' nodes
    IF 'builder' = ANY (v_roles) OR EXISTS (SELECT FROM public.nodes n WHERE n.name = p_name AND n.login <> session_user)
       OR 'gateway' = ANY (v_roles) AND NOT coalesce(pg_has_role(session_user, to_regrole('accs_api'), 'MEMBER'), false) THEN
      RAISE EXCEPTION 'the login "%" does not speak for a daemon "%" that is %', session_user, p_name, array_to_string(v_roles, ', ')
        USING ERRCODE = 'AC006', HINT = 'A builder logs in as accs_scheduler, and each node by a login of its own or one that they share.';
    END IF;
  END IF;
  IF EXISTS (SELECT FROM accs.daemons d WHERE d.name = p_name AND d.roles = v_roles
                AND (d.version, d.since, d.hearing, d.problems) IS NOT DISTINCT FROM (p_version, p_since, p_hearing, p_problems)
                AND d.last_seen BETWEEN v_now - interval '15 s' AND v_now) THEN   -- a clock that was set back counts as a change
    RETURN 'repeated';
  END IF;
  INSERT INTO accs.daemons (name, roles, version, since, last_seen, hearing, problems)
  VALUES (p_name, v_roles, p_version, p_since, v_now, left(p_hearing, 500), p_problems)
  ON CONFLICT (name, roles) DO UPDATE SET version = excluded.version, since = excluded.since, last_seen = excluded.last_seen,
         hearing = excluded.hearing, problems = excluded.problems;
  DELETE FROM accs.daemons d WHERE d.last_seen < v_now - interval '1 day';
  RETURN 'accepted';
END $$;
SELECT accs.is_verb('note_daemon', may => '{agent,scheduler,api}');

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
         l.stuck, EXISTS (SELECT FROM accs.daemons d WHERE 'builder' = ANY (d.roles) AND d.last_seen > v_now - interval '1 min'),
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
