-- ---------------------------------------------------------------------------------------------------------------
-- Firings: the ledger of every due time, run keys, and the verbs that settle what is due
-- ---------------------------------------------------------------------------------------------------------------

-- One row for each due time of a schedule, whatever became of it. The nominal time is that of the wall clock in the schedule's
-- zone, and the row's identity: an instant may move (summer time, new zone rules, a snooze), a nominal time does not. cause_id is
-- 0 for times, else the event, sample or number of the call that caused it (and nominal is then the moment, in UTC).
CREATE TABLE public.firings (
  schedule_id    uuid NOT NULL,
  nominal        timestamp NOT NULL,
  fold           int NOT NULL DEFAULT 0,     -- 1: the second pass of a repeated hour
  cause_id       bigint NOT NULL DEFAULT 0,
  outcome        text NOT NULL,
  reason         text NOT NULL,
  due_at         timestamptz NOT NULL,
  settled_at     timestamptz NOT NULL,
  late           interval NOT NULL,
  job_id         uuid,
  revision       int NOT NULL,
  settled_by     text,
  merged_into    timestamp,                  -- the nominal time of the firing that stands for this one
  until_nominal  timestamp,                  -- this row stands for all from nominal to here
  times          int,                        -- how many those are
  detail         jsonb,
  PRIMARY KEY (schedule_id, nominal, fold, cause_id),
  CONSTRAINT known_outcome CHECK (CASE outcome
    WHEN 'fired' THEN reason = ANY ('{on_time,released,run_now,backfill,event,condition}')
    WHEN 'caught_up' THEN reason = ANY ('{late,resumed,backfill}')
    WHEN 'skipped' THEN reason = ANY ('{overlap,paused,excluded,requested,cooldown,workflow_inactive,refused,owner_disabled,loop}')
                        OR reason = ANY ('{quota,filter_error,broken}')
    WHEN 'missed' THEN reason = ANY ('{down,too_old,over_limit}')
    WHEN 'merged' THEN reason = ANY ('{dst_gap,catch_up,overlap_queue,gathered}')
    WHEN 'snoozed' THEN reason = 'requested'
    ELSE false END)
) PARTITION BY RANGE (nominal);

CREATE TABLE public.firings_default PARTITION OF public.firings DEFAULT;
CREATE SEQUENCE accs.cause_seq;

CREATE FUNCTION accs.refuse_firing_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'firings is the record of what was due: % is refused', TG_OP
    USING ERRCODE = 'AC005', HINT = 'A settled occurrence is run again by accs.start_backfill or accs.run_now.';
END $$;
CREATE TRIGGER append_only BEFORE INSERT OR UPDATE OR DELETE ON public.firings
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_firing_change();
-- what is final stays, but for what a resume or a backfill makes up for
CREATE TRIGGER guard_outcome BEFORE UPDATE ON public.firings FOR EACH ROW
  WHEN (OLD.outcome <> NEW.outcome AND OLD.outcome <> 'snoozed'
        AND NOT ((OLD.outcome = 'missed' OR OLD.outcome = 'skipped') AND NEW.outcome = 'caught_up'))
  EXECUTE FUNCTION accs.refuse_firing_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.firings FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_firing_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.firings_default
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_firing_change();

-- A row changes when a resume or a backfill makes up for it: its mark covers all of it. Rows of years ago, by a backfill, are as new as
-- their backfill. A snooze has not ended.
CREATE FUNCTION accs.mark_of(e public.firings) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT hash_record_extended(e, 0) $$;
INSERT INTO accs.monthly (name, at, refuse, aged_by, stays)
VALUES ('firings', 'nominal', 'refuse_firing_change', 'settled_at', $$e.outcome = 'snoozed'$$);

-- How many jobs of a key may be open at once, and those that are, or wait for it. A key is locked to start a run. The end of a job
-- never waits for it: what it can't release at once, because a scheduler has the key, the scheduler releases next (agenda,
-- release).
CREATE TABLE accs.run_keys (
  key       text PRIMARY KEY,
  max_open  int NOT NULL DEFAULT 1 CHECK (max_open >= 1)
) WITH (fillfactor = 70);

CREATE TABLE accs.open_runs (
  job_id       uuid PRIMARY KEY,
  key          text NOT NULL,
  schedule_id  uuid,
  nominal      timestamp,
  waits        boolean NOT NULL,                 -- its job is queued until the key has room
  forced       boolean NOT NULL DEFAULT false,   -- it runs whether the key has room or not
  order_seq    bigint GENERATED ALWAYS AS IDENTITY
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX open_runs_key ON accs.open_runs (key, waits, order_seq);       -- start_runs, end_runs
CREATE INDEX open_runs_schedule ON accs.open_runs (schedule_id);            -- accsd schedules show; the queue policy

-- A due time, event or sample on its way into the ledger.
CREATE TYPE accs.occasion AS (
  schedule_id    uuid,
  nominal        timestamp,
  fold           int,
  cause_id       bigint,
  due_at         timestamptz,
  outcome        text,
  reason         text,
  merged_into    timestamp,
  until_nominal  timestamp,
  times          int,
  detail         jsonb,
  options        jsonb,        -- null: the schedule's
  trigger        jsonb,        -- what is known of the cause beside the time
  forced         boolean,
  run_key        text,         -- null: the schedule's
  job_id         uuid
);

-- Lets waiting runs of these keys start, as many as there is room for. With p_wait it waits for whoever has a key.
CREATE FUNCTION accs.release_runs(p_keys text[], p_wait boolean) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  v_keys text[];
  v_jobs uuid[];
BEGIN
  IF p_wait THEN
    v_keys := ARRAY(SELECT key FROM accs.run_keys WHERE key = ANY (p_keys) ORDER BY key FOR NO KEY UPDATE);
  ELSE
    v_keys := ARRAY(SELECT key FROM accs.run_keys WHERE key = ANY (p_keys) ORDER BY key FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
  -- a run that somebody is about to cancel is passed over: the next one may start
  v_jobs := ARRAY(SELECT n.job_id FROM (
    SELECT k.key, k.max_open - (SELECT count(*) FROM accs.open_runs o WHERE o.key = k.key AND NOT o.waits AND NOT o.forced) AS room
      FROM accs.run_keys k WHERE k.key = ANY (v_keys)) k, LATERAL (
    SELECT o.job_id FROM accs.open_runs o WHERE o.key = k.key AND o.waits AND k.room > 0 ORDER BY o.order_seq LIMIT greatest(k.room, 0)
       FOR UPDATE SKIP LOCKED) n);
  IF v_jobs <> '{}' THEN
    UPDATE accs.open_runs SET waits = false WHERE job_id = ANY (v_jobs);
    UPDATE accs.pending_jobs p SET due_at = coalesce(j.scheduled_at, j.created_at) FROM public.jobs j WHERE j.id = p.job_id
      AND p.job_id = ANY (v_jobs);
    PERFORM pg_notify(accs.channel_prefix() || 'builder', '');
  END IF;
  RETURN v_keys;
END $$;

-- Jobs of schedules have ended: their keys have room. Called by the verbs that end jobs, in their transaction, for jobs with a
-- schedule or a run key.
CREATE FUNCTION accs.end_runs(p_job_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_keys text[];
  v_free text[];
BEGIN
  WITH gone AS (DELETE FROM accs.open_runs WHERE job_id = ANY (p_job_ids) RETURNING key)
  SELECT array_agg(DISTINCT key) INTO v_keys FROM gone;
  v_keys := ARRAY(SELECT k FROM unnest(v_keys) k WHERE EXISTS (SELECT FROM accs.open_runs o WHERE o.key = k AND o.waits));
  IF v_keys <> '{}' THEN
    v_free := accs.release_runs(v_keys, false);
    IF cardinality(v_free) < cardinality(v_keys) THEN   -- a row of its own for each job: it meets nobody else's
      INSERT INTO accs.agenda (schedule_id, what, key, due_at)
      SELECT j.schedule_id, 'release', j.run_key || '/' || j.id, accs.clock() FROM public.jobs j
       WHERE j.id = ANY (p_job_ids) AND j.run_key = ANY (v_keys) AND j.run_key <> ALL (v_free) AND j.schedule_id IS NOT NULL
      ON CONFLICT DO NOTHING;
      PERFORM accs.tell_schedulers();
    END IF;
  END IF;
  INSERT INTO accs.agenda (schedule_id, what, key, due_at)
  SELECT s.id, 'review', j.id::text, accs.clock() FROM public.jobs j JOIN public.schedules s ON s.id = j.schedule_id
   WHERE j.id = ANY (p_job_ids) AND j.status = 'error' AND s.pause_after IS NOT NULL AND s.state = 'active'
  ON CONFLICT DO NOTHING;
  IF FOUND THEN
    PERFORM accs.tell_schedulers();
  END IF;
END $$;
SELECT accs.pin('end_runs');

-- For who starts runs of several schedules one after the other, in one transaction: the jobs that they may overtake are locked before any
-- run key is, and then the keys of all. Otherwise it would have the key of one while it waits for a job of the next, and whoever
-- has that job may wait for the key.
CREATE FUNCTION accs.lock_runs(p_schedules uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_cancel text[];
  v_keys   text[];
  v_jobs   uuid[];
BEGIN
  SELECT array_agg(DISTINCT k.key) FILTER (WHERE k.overlap = 'cancel'), array_agg(DISTINCT k.key) INTO v_cancel, v_keys
    FROM (SELECT coalesce(s.run_key, 'schedule:' || s.id) AS key, s.overlap FROM public.schedules s
           WHERE s.id = ANY (p_schedules) AND s.overlap <> 'allow') k;
  IF v_cancel IS NULL OR cardinality(v_keys) < 2 THEN
    RETURN;   -- nothing is overtaken, or there is no second key
  END IF;
  LOOP
    v_jobs := ARRAY(SELECT j.id FROM public.jobs j WHERE j.id IN (SELECT o.job_id FROM accs.open_runs o WHERE o.key = ANY (v_cancel))
                     ORDER BY j.id FOR NO KEY UPDATE);
    BEGIN
      INSERT INTO accs.run_keys (key) SELECT k FROM unnest(v_keys) k ORDER BY k ON CONFLICT DO NOTHING;
      PERFORM FROM accs.run_keys WHERE key = ANY (v_keys) ORDER BY key FOR NO KEY UPDATE;
      IF EXISTS (SELECT FROM accs.open_runs o WHERE o.key = ANY (v_cancel) AND o.job_id <> ALL (v_jobs)) THEN
        RAISE EXCEPTION 'a run has started meanwhile' USING ERRCODE = 'AC005';
      END IF;
      RETURN;
    EXCEPTION WHEN SQLSTATE 'AC005' THEN
      NULL;   -- the keys are free again, and it looks again: from now on with that job, too
    END;
  END LOOP;
END $$;

-- Starts the runs of these occasions, in their order; the caller has locked their schedules. What may not start now, by the
-- schedule's overlap, is skipped, merged or waits. Returns the occasions with what became of them.
CREATE FUNCTION accs.start_runs(p_occasions accs.occasion[], p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now    timestamptz := accs.clock();
  v_cancel text[];
  v_keys   text[];
BEGIN
  -- what an overlap of cancel overtakes ends first: jobs come before run keys in the lock order
  SELECT array_agg(DISTINCT coalesce(o.run_key, s.run_key, 'schedule:' || s.id)) INTO v_cancel FROM unnest(p_occasions) o
    JOIN public.schedules s ON s.id = o.schedule_id WHERE s.overlap = 'cancel' AND o.forced IS NOT TRUE;
  IF v_cancel IS NOT NULL THEN
    PERFORM accs.cancel(ARRAY(SELECT job_id FROM accs.open_runs WHERE key = ANY (v_cancel)),
                             'overtaken by the next run of its schedule', coalesce(p_by, 'scheduler'));
  END IF;
  SELECT array_agg(DISTINCT coalesce(o.run_key, s.run_key, 'schedule:' || s.id)) INTO v_keys FROM unnest(p_occasions) o
    JOIN public.schedules s ON s.id = o.schedule_id WHERE s.overlap <> 'allow' OR o.run_key IS NOT NULL;
  IF v_keys IS NOT NULL THEN
    INSERT INTO accs.run_keys (key) SELECT k FROM unnest(v_keys) k ORDER BY k ON CONFLICT DO NOTHING;
    PERFORM FROM accs.run_keys WHERE key = ANY (v_keys) ORDER BY key FOR NO KEY UPDATE;
  END IF;

  RETURN QUERY
  WITH asked AS MATERIALIZED (
    SELECT u.*, accs.new_id() AS new_job, s.overlap, s.name, s.created_by, s.revision, s.timezone, s.priority, s.last_job_id,
           w.id AS workflow_id,
           coalesce(u.options, s.options) AS job_options,
           CASE WHEN s.overlap <> 'allow' OR u.run_key IS NOT NULL THEN coalesce(u.run_key, s.run_key, 'schedule:' || s.id) END AS key,
           CASE WHEN u.outcome = 'caught_up' AND s.overlap = 'skip' AND s.missed = 'all' OR u.run_key IS NOT NULL THEN 'queue_all'
             ELSE s.overlap END AS policy
      FROM unnest(p_occasions) WITH ORDINALITY AS u (schedule_id, nominal, fold, cause_id, due_at, outcome, reason, merged_into,
        until_nominal, times,
                                                     detail, options, trigger, forced, run_key, job_id, n),
           LATERAL (SELECT * FROM public.schedules WHERE id = u.schedule_id OFFSET 0) s
      LEFT JOIN LATERAL (SELECT w.id FROM public.workflows w
                          WHERE w.name = s.workflow AND w.is_active AND (s.version IS NULL OR w.version = s.version)
                          ORDER BY w.version DESC LIMIT 1) w ON true
  ), room AS (
    SELECT k.key, k.max_open - (SELECT count(*) FROM accs.open_runs o WHERE o.key = k.key AND NOT o.waits AND NOT o.forced) AS n
      FROM accs.run_keys k WHERE k.key = ANY (v_keys)
  ), placed AS (
    SELECT a.*, r.n AS room, count(*) FILTER (WHERE a.forced IS NOT TRUE) OVER (PARTITION BY a.key ORDER BY a.n) AS place,
           row_number() OVER (PARTITION BY a.schedule_id ORDER BY a.n DESC) AS from_last
      FROM asked a LEFT JOIN room r ON r.key = a.key WHERE a.workflow_id IS NOT NULL
  ), decided AS (
    SELECT p.*,
           CASE WHEN p.key IS NULL OR p.forced THEN 'open'
                WHEN p.policy = 'cancel' AND p.from_last > 1 THEN 'merge'   -- the next one of this batch would overtake it at once
                WHEN p.policy = 'cancel' THEN CASE WHEN p.room > 0 THEN 'open' ELSE 'wait' END
                WHEN p.place <= p.room THEN 'open'
                WHEN p.policy = 'queue_all' THEN 'wait'
                WHEN p.policy = 'skip' THEN 'skip'
                WHEN p.policy = 'queue' AND first_value(p.n) OVER behind = p.n
                     AND NOT EXISTS (SELECT FROM accs.open_runs o WHERE o.schedule_id = p.schedule_id AND o.waits) THEN 'wait'
                ELSE 'merge' END AS start,
           coalesce((SELECT o.nominal FROM accs.open_runs o WHERE o.schedule_id = p.schedule_id AND o.waits ORDER BY o.order_seq LIMIT 1),
                    CASE WHEN p.policy = 'cancel' THEN last_value(p.nominal) OVER whole
                      ELSE first_value(p.nominal) OVER behind END) AS merge_into
      FROM placed p
    WINDOW behind AS (PARTITION BY p.schedule_id, p.key IS NOT NULL AND p.place > p.room ORDER BY p.n),
           whole AS (PARTITION BY p.schedule_id ORDER BY p.n ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
  ), given AS (
    SELECT array_agg(d.workflow_id ORDER BY d.n) AS workflows, array_agg(d.job_options ORDER BY d.n) AS options,
           array_agg(coalesce((d.trigger ->> 'priority')::int, d.priority) ORDER BY d.n) AS priorities,
             array_agg(d.new_job ORDER BY d.n) AS jobs,
           -- the second net under the ledger; a run that is asked for by name has its own key
           array_agg(CASE WHEN d.trigger ? 'key' THEN d.trigger ->> 'key'
                          ELSE format('schedule/%s/%s/%s/%s', d.schedule_id, to_char(d.nominal, 'YYYY-MM-DD"T"HH24:MI:SS.US'), d.fold,
                            d.cause_id) END
                     ORDER BY d.n) AS keys,
           array_agg(jsonb_strip_nulls(coalesce(d.trigger, '{}') - 'key' - 'priority' || jsonb_build_object(
             'cause', coalesce(d.trigger ->> 'cause', 'schedule'), 'schedule', d.name, 'schedule_id', d.schedule_id, 'revision', d.revision,
             'nominal', to_char(d.nominal, 'YYYY-MM-DD"T"HH24:MI:SS'), 'fold', nullif(d.fold, 0), 'timezone',
               CASE WHEN d.cause_id = 0 THEN d.timezone ELSE 'UTC' END, 'due_at',
               d.due_at,
             'fired_at', v_now, 'late_sec', round(extract(epoch FROM v_now - d.due_at), 3), 'outcome', d.outcome, 'reason', d.reason,
             'previous', CASE WHEN d.last_job_id IS NOT NULL THEN (
               SELECT jsonb_build_object('job_id', j.id, 'status', j.status, 'finished_at', j.finished_at)
                 FROM public.jobs j WHERE j.id = d.last_job_id) END)) ORDER BY d.n) AS triggers,
           array_agg(ROW(d.schedule_id, d.key, d.start = 'wait', d.created_by)::accs.run ORDER BY d.n) AS runs
      FROM decided d WHERE d.start IN ('open', 'wait')
  ), submitted AS MATERIALIZED (
    SELECT s.* FROM given g, LATERAL accs.submit_jobs(g.workflows, g.options, g.priorities, NULL, g.keys, g.jobs, NULL, NULL, g.triggers,
           g.runs)
           WITH ORDINALITY AS s (job_id, answer, reason, status, n) WHERE g.workflows IS NOT NULL
  ), begun AS MATERIALIZED (
    SELECT d.*, s.job_id AS made, s.answer, s.reason AS refusal
      FROM (SELECT d.*, row_number() OVER (ORDER BY d.n) AS i FROM decided d WHERE d.start IN ('open', 'wait')) d JOIN submitted s
        ON s.n = d.i
  ), noted AS (
    INSERT INTO accs.open_runs (job_id, key, schedule_id, nominal, waits, forced)
    SELECT made, key, schedule_id, nominal, start = 'wait', coalesce(forced, false) FROM begun WHERE answer = 'accepted'
           AND key IS NOT NULL ORDER BY n
    ON CONFLICT DO NOTHING
  )
  SELECT a.schedule_id, a.nominal, a.fold, a.cause_id, a.due_at,
         CASE WHEN a.workflow_id IS NULL OR b.answer = 'refused' OR d.start = 'skip' THEN 'skipped'
           WHEN d.start = 'merge' THEN 'merged' ELSE a.outcome END,
         CASE WHEN a.workflow_id IS NULL OR b.refusal = 'workflow_inactive' THEN 'workflow_inactive'
           WHEN b.answer = 'refused' THEN 'refused'
              WHEN d.start = 'skip' THEN 'overlap' WHEN d.start = 'merge' THEN 'overlap_queue' ELSE a.reason END,
         CASE WHEN d.start = 'merge' THEN d.merge_into ELSE a.merged_into END, a.until_nominal, a.times,
         CASE WHEN d.start = 'skip' THEN coalesce(a.detail, '{}') || jsonb_build_object('run_key', a.key, 'blocked_by', (
                SELECT o.job_id FROM accs.open_runs o WHERE o.key = a.key ORDER BY o.waits, o.order_seq LIMIT 1))
              WHEN b.refusal IS NOT NULL THEN coalesce(a.detail, '{}') || jsonb_build_object('refusal', b.refusal) ELSE a.detail END,
         a.options, a.trigger, a.forced, a.run_key, CASE WHEN b.answer <> 'refused' THEN b.made END
    FROM asked a LEFT JOIN decided d ON d.n = a.n LEFT JOIN begun b ON b.n = a.n ORDER BY a.n;
  -- what waits must not be due before its key has room; its row was made by the job's own trigger, which the statement above could not see
  UPDATE accs.pending_jobs p SET due_at = 'infinity' FROM accs.open_runs o
   WHERE o.job_id = p.job_id AND o.waits AND o.key = ANY (v_keys) AND p.due_at < 'infinity';
END $$;

-- Writes occasions into the ledger. One that was snoozed, or skipped or missed and made up for, has its row already.
CREATE FUNCTION accs.record_firings(p_occasions accs.occasion[], p_by text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.firings AS f (schedule_id, nominal, fold, cause_id, outcome, reason, due_at, settled_at, late, job_id, revision,
    settled_by,
                                   merged_into, until_nominal, times, detail)
  SELECT o.schedule_id, o.nominal, o.fold, o.cause_id, o.outcome, o.reason, o.due_at, accs.clock(), greatest(accs.clock() - o.due_at,
         '0'), o.job_id,
         s.revision, p_by, o.merged_into, o.until_nominal, o.times, o.detail
    FROM unnest(p_occasions) o JOIN public.schedules s ON s.id = o.schedule_id
  ON CONFLICT (schedule_id, nominal, fold, cause_id) DO UPDATE SET outcome = excluded.outcome, reason = excluded.reason,
    due_at = excluded.due_at,
         settled_at = excluded.settled_at, late = excluded.late, job_id = coalesce(excluded.job_id, f.job_id), revision = excluded.revision,
         settled_by = excluded.settled_by, merged_into = excluded.merged_into, detail = coalesce(f.detail, '{}')
           || coalesce(excluded.detail, '{}');
END $$;

-- What is due of these schedules, classified. The caller has locked them and their rows in the agenda. A long outage is settled at
-- most 100 firings a schedule and pass; the rest follows.
CREATE FUNCTION accs.due_occasions(p_ids uuid[]) RETURNS TABLE (occasion accs.occasion, places int) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH due AS (   -- places: how many of the plan's occurrences are due
    SELECT s.*, a.pos, p.notes, p.options AS planned_options, p.gap, p.nominals, p.folds, p.dues, ac.disabled_at IS NOT NULL AS is_disabled,
           (ac.limits ->> 'runs_per_hour')::int - CASE WHEN ac.limits ? 'runs_per_hour' THEN (
             SELECT count(*) FROM public.schedules o JOIN public.firings f ON f.schedule_id = o.id
              WHERE o.created_by = ac.name AND f.outcome IN ('fired', 'caught_up')
                AND f.settled_at > accs.clock() - interval '1 hour') END AS quota,
           (SELECT count(*) FROM unnest(p.dues[a.pos:]) d WHERE d <= accs.clock())::int AS n_due,
           p.exhausted IS NOT NULL OR p.dues[cardinality(p.dues)] > accs.clock() AS covered,
           w.id IS NOT NULL AS can_start
      FROM unnest(p_ids) AS u (id), LATERAL (SELECT * FROM public.schedules WHERE id = u.id OFFSET 0) s
      JOIN LATERAL (SELECT * FROM accs.agenda WHERE schedule_id = s.id AND what = 'occurrence' AND key = ''
        AND due_at <= accs.clock() OFFSET 0) a ON true
      JOIN LATERAL (SELECT * FROM accs.plan_of WHERE schedule_id = s.id OFFSET 0) p ON true
      LEFT JOIN LATERAL (SELECT * FROM accs.actors WHERE name = s.created_by OFFSET 0) ac ON true
      LEFT JOIN LATERAL (SELECT w.id FROM public.workflows w WHERE w.name = s.workflow AND w.is_active
        AND (s.version IS NULL OR w.version = s.version)
                          LIMIT 1) w ON true
  ), each AS (
    SELECT d.*, o.nominal AS o_nominal, o.fold AS o_fold, o.due AS o_due, d.pos + o.i::int - 1 AS place, o.i::int AS i,
           d.notes -> (d.pos + o.i::int - 1)::text AS note, d.planned_options -> (d.pos + o.i::int - 1)::text AS o_options,
           d.state = 'active' AND accs.clock() - o.due > d.grace AS is_late,
           EXISTS (SELECT FROM accs.schedule_marks m WHERE m.schedule_id = d.id AND m.nominal = o.nominal AND m.fold = o.fold) AS is_marked
      FROM due d, LATERAL unnest(d.nominals[d.pos:d.pos + d.n_due - 1], d.folds[d.pos:d.pos + d.n_due - 1],
        d.dues[d.pos:d.pos + d.n_due - 1])
                    WITH ORDINALITY AS o (nominal, fold, due, i)
  ), classed AS (
    SELECT e.*, CASE WHEN e.note ? 'merged' THEN 'merged' WHEN e.note ? 'excluded' THEN 'excluded' WHEN e.is_marked THEN 'requested'
                     WHEN e.state <> 'active' THEN 'paused' WHEN e.is_disabled THEN 'owner_disabled'
                       WHEN NOT e.can_start THEN 'workflow_inactive'
                     WHEN e.is_late THEN 'late' ELSE 'on_time' END AS class,
           bool_or(e.is_late) OVER (PARTITION BY e.id) AND NOT e.covered AND e.missed <> 'skip' AS must_wait
      FROM each e
  ), judged AS (
    SELECT c.*, CASE WHEN c.class = 'late' THEN row_number() OVER late END AS from_newest,
           CASE WHEN c.class = 'late' THEN first_value(c.o_due) OVER late END AS newest_due,
           CASE WHEN c.class = 'late' THEN first_value(c.o_nominal) OVER late END AS newest,
           CASE WHEN c.class = 'late' THEN count(*) OVER (PARTITION BY c.id, c.class) END AS late_ones
      FROM classed c WHERE NOT c.must_wait
    WINDOW late AS (PARTITION BY c.id, c.class ORDER BY c.i DESC)
  ), told AS (
    SELECT j.*, CASE j.class WHEN 'merged' THEN 'merged' WHEN 'on_time' THEN 'fired'
                  WHEN 'late' THEN CASE
                    WHEN j.missed = 'skip' THEN 'missed'
                    WHEN j.missed = 'one' THEN CASE WHEN accs.clock() - j.newest_due > j.catch_up THEN 'missed'
                                                    WHEN j.from_newest = 1 THEN 'caught_up' ELSE 'merged' END
                    WHEN accs.clock() - j.o_due > coalesce(j.catch_up, '1 day') OR j.from_newest > j.catch_up_max THEN 'missed'
                      ELSE 'caught_up' END
                  ELSE 'skipped' END AS says,
                CASE j.class WHEN 'merged' THEN 'dst_gap'
                  WHEN 'late' THEN CASE
                    WHEN j.missed = 'skip' THEN 'down'
                    WHEN j.missed = 'one' THEN CASE WHEN accs.clock() - j.newest_due > j.catch_up THEN 'too_old'
                                                    WHEN j.from_newest = 1 THEN 'late' ELSE 'catch_up' END
                    WHEN accs.clock() - j.o_due > coalesce(j.catch_up, '1 day') THEN 'too_old'
                    WHEN j.from_newest > j.catch_up_max THEN 'over_limit' ELSE 'late' END
                  ELSE j.class END AS because
      FROM judged j
  ), counted AS (
    SELECT t.*, count(*) FILTER (WHERE t.says IN ('fired', 'caught_up')) OVER (PARTITION BY t.id ORDER BY t.i) AS starts,
           count(*) FILTER (WHERE t.says IN ('fired', 'caught_up')) OVER (PARTITION BY t.created_by ORDER BY t.o_due, t.id, t.i) > t.quota
             AND t.says IN ('fired', 'caught_up') AS is_too_much,
           count(*) FILTER (WHERE t.says = 'merged'
             AND t.because = 'catch_up') OVER (PARTITION BY t.id) + coalesce((t.gap ->> 'times')::int, 0) AS merged_ones
      FROM told t
  ), kept AS (   -- a pass's share, and no more than max_runs
    SELECT c.* FROM counted c WHERE c.starts <= 100 AND c.starts <= coalesce(c.max_runs - c.runs, 1000000)
  )
  SELECT ROW(k.id, k.o_nominal, k.o_fold, 0, k.o_due, CASE WHEN k.is_too_much THEN 'skipped' ELSE k.says END,
             CASE WHEN k.is_too_much THEN 'quota' ELSE k.because END,
             CASE WHEN k.because = 'catch_up' THEN k.newest WHEN k.class = 'merged' THEN (k.note #>> '{merged,into}')::timestamp END,
               NULL, NULL,
             CASE WHEN k.class = 'excluded' THEN k.note -> 'excluded'
                  WHEN k.is_marked THEN (SELECT jsonb_strip_nulls(jsonb_build_object('by', m.by, 'reason', m.reason, 'at', m.at))
                    FROM accs.schedule_marks m
                                          WHERE m.schedule_id = k.id AND m.nominal = k.o_nominal AND m.fold = k.o_fold) END,
             k.o_options,
             CASE WHEN k.says = 'caught_up' AND k.missed = 'one' AND k.merged_ones > 0 THEN jsonb_build_object('merged',
               jsonb_build_object('count', k.merged_ones)) END,
             false, NULL, NULL)::accs.occasion, k.place
    FROM kept k
  UNION ALL   -- the oldest ones of a long outage are one row
  SELECT ROW(j.id, (j.gap ->> 'first')::timestamp, 0, 0, j.o_due,
             CASE WHEN j.state <> 'active' THEN 'skipped' WHEN j.missed = 'one' AND coalesce(accs.clock() - j.newest_due <= j.catch_up,
               true) THEN 'merged' ELSE 'missed' END,
             CASE WHEN j.state <> 'active' THEN 'paused' WHEN j.missed = 'skip' THEN 'down' WHEN j.missed = 'all' THEN 'over_limit'
                  WHEN coalesce(accs.clock() - j.newest_due <= j.catch_up, true) THEN 'catch_up' ELSE 'too_old' END,
             CASE WHEN j.state = 'active' AND j.missed = 'one' THEN j.newest END, (j.gap ->> 'last')::timestamp, (j.gap ->> 'times')::int,
             NULL, NULL, NULL, false, NULL, NULL)::accs.occasion, 0
    FROM judged j WHERE j.gap IS NOT NULL AND j.i = 1;
END $$;

-- Settles what is due of these schedules now, all in one go, and moves the agenda on. The caller has locked them, and writes what
-- is returned into their rows (a trigger that changes a schedule could not update it).
CREATE FUNCTION accs.settle(p_ids uuid[], p_by text) RETURNS TABLE (
  id uuid, runs int, last_nominal timestamp, last_job_id uuid, settled_until timestamptz, state text, state_reason text,
    settled accs.occasion[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_due   accs.occasion[];
  v_start accs.occasion[];
  v_done  accs.occasion[];
  v_upto  jsonb;
BEGIN
  SELECT array_agg(d.occasion ORDER BY (d.occasion).due_at, (d.occasion).nominal), jsonb_object_agg((d.occasion).schedule_id, d.upto)
    INTO v_due, v_upto
    FROM (SELECT d.occasion, max(d.places) OVER (PARTITION BY (d.occasion).schedule_id) AS upto FROM accs.due_occasions(p_ids) d) d;
  -- an occurrence that has its row already is settled, wherever its instant lies now
  v_due := ARRAY(SELECT d FROM unnest(v_due) d
                  WHERE NOT EXISTS (SELECT FROM public.firings f WHERE f.schedule_id = d.schedule_id AND f.nominal = d.nominal
                    AND f.fold = d.fold
                                       AND f.cause_id = 0)
                  ORDER BY d.due_at, d.nominal);
  v_start := ARRAY(SELECT d FROM unnest(v_due) d WHERE d.outcome IN ('fired', 'caught_up') ORDER BY d.due_at, d.nominal);
  v_done := ARRAY(SELECT d FROM unnest(v_due) d WHERE d.outcome NOT IN ('fired', 'caught_up'));
  IF v_start <> '{}' THEN
    v_done := v_done || ARRAY(SELECT r FROM accs.start_runs(v_start, p_by) r);
  END IF;
  IF v_done <> '{}' THEN
    PERFORM accs.record_firings(v_done, p_by);
    DELETE FROM accs.schedule_marks WHERE ctid = ANY (ARRAY(
      SELECT m.ctid FROM unnest(v_done) d, LATERAL (SELECT m.ctid FROM accs.schedule_marks m
        WHERE m.schedule_id = d.schedule_id AND m.nominal = d.nominal AND m.fold = d.fold OFFSET 0) m));
  END IF;

  RETURN QUERY
  WITH was AS MATERIALIZED (
    SELECT s.id, s.runs, s.last_nominal, s.last_job_id, s.settled_until, s.state, s.state_reason, s.max_runs, a.pos, p.dues, p.exhausted,
           p.gap,
           coalesce((v_upto ->> s.id::text)::int, 0) AS upto
      FROM unnest(p_ids) AS u (id), LATERAL (SELECT * FROM public.schedules WHERE id = u.id OFFSET 0) s
      JOIN LATERAL (SELECT * FROM accs.agenda WHERE schedule_id = s.id AND what = 'occurrence' AND key = ''
        AND due_at <= v_now OFFSET 0) a ON true
      LEFT JOIN LATERAL (SELECT * FROM accs.plan_of WHERE schedule_id = s.id OFFSET 0) p ON true
  ), done AS (
    SELECT d.schedule_id, count(*) FILTER (WHERE d.job_id IS NOT NULL) AS started,
           max(d.nominal) FILTER (WHERE d.until_nominal IS NULL) AS last_nominal,
           (array_agg(d.job_id ORDER BY d.due_at DESC, d.nominal DESC) FILTER (WHERE d.job_id IS NOT NULL))[1] AS last_job,
             array_agg(d) AS all
      FROM unnest(v_done) d GROUP BY d.schedule_id
  ), now AS (
    SELECT w.*, w.runs + coalesce(d.started, 0)::int AS new_runs, d.last_nominal AS new_nominal, d.last_job, d.all,
           greatest(w.pos, w.upto + 1) AS next_pos,
           CASE WHEN w.upto > 0 THEN w.dues[w.upto] END AS new_until
      FROM was w LEFT JOIN done d ON d.schedule_id = w.id
  ), next AS (
    SELECT n.*, n.dues[n.next_pos] AS next_due,
           CASE WHEN n.max_runs <= n.new_runs THEN 'max_runs' WHEN n.next_pos > coalesce(cardinality(n.dues),
             0) THEN n.exhausted END AS ends,
           -- what is left of the plan, or nothing was settled because the plan does not reach the present
           n.exhausted IS NULL AND (coalesce(cardinality(n.dues), 0) - n.next_pos < 8 OR n.upto = 0 AND n.dues[n.pos] <= v_now) AS short
      FROM now n
  ), moved AS (
    UPDATE accs.agenda a SET pos = n.next_pos, due_at = CASE WHEN n.upto = 0 OR n.next_due IS NULL THEN 'infinity'
             WHEN n.state = 'paused' THEN n.next_due + interval '1 min' ELSE n.next_due END
      FROM next n WHERE a.schedule_id = n.id AND a.what = 'occurrence' AND a.key = '' AND n.ends IS NULL
  ), gone AS (
    DELETE FROM accs.agenda a USING next n WHERE a.schedule_id = n.id AND a.what IN ('occurrence', 'replan') AND n.ends IS NOT NULL
  ), filled AS (
    UPDATE accs.plan_of p SET gap = NULL FROM next n WHERE p.schedule_id = n.id AND n.gap IS NOT NULL AND n.upto > 0
  ), noted AS (
    INSERT INTO accs.schedule_history (schedule_id, what, by, reason) SELECT n.id, 'ended', 'accsd', n.ends FROM next n
     WHERE n.ends IS NOT NULL AND NOT EXISTS (SELECT FROM accs.agenda a WHERE a.schedule_id = n.id AND a.what = 'snoozed')
  ), asked AS (
    INSERT INTO accs.agenda AS a (schedule_id, what, due_at) SELECT n.id, 'replan', v_now FROM next n WHERE n.short
      AND n.ends IS NULL ORDER BY n.id
    ON CONFLICT (schedule_id, what, key) DO UPDATE SET due_at = least(a.due_at, excluded.due_at)
    RETURNING a.schedule_id
  )
  SELECT n.id, n.new_runs, coalesce(n.new_nominal, n.last_nominal), coalesce(n.last_job, n.last_job_id),
         greatest(n.settled_until, n.new_until),
         CASE WHEN n.ends IS NULL OR EXISTS (SELECT FROM accs.agenda a WHERE a.schedule_id = n.id
           AND a.what = 'snoozed') THEN n.state ELSE 'ended' END,
         coalesce(n.ends, n.state_reason), coalesce(n.all, '{}')
    FROM next n WHERE (SELECT count(*) FROM asked) >= 0;
  IF EXISTS (SELECT FROM accs.agenda a WHERE a.what = ANY ('{replan,probe}') AND a.what = 'replan' AND a.due_at <= v_now
    AND a.schedule_id = ANY (p_ids)) THEN
    PERFORM accs.tell_schedulers();
  END IF;
END $$;

-- Writes what settle has found into the schedules' rows, and returns what was settled.
CREATE FUNCTION accs.settle_many(p_ids uuid[], p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_done accs.occasion[];
BEGIN
  WITH found AS MATERIALIZED (
    SELECT * FROM accs.settle(p_ids, p_by)
  ), written AS (
    UPDATE public.schedules s SET runs = f.runs, last_nominal = f.last_nominal, last_job_id = f.last_job_id,
      settled_until = f.settled_until,
           state = f.state, state_reason = f.state_reason, state_since = CASE WHEN s.state = f.state THEN s.state_since
             ELSE accs.clock() END,
           refused_in_row = 0
      FROM found f WHERE s.id = f.id
  )
  SELECT array_agg(d) INTO v_done FROM found f, unnest(f.settled) d;
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

CREATE FUNCTION accs.settle_one(p_id uuid, p_by text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM accs.agenda WHERE schedule_id = p_id ORDER BY what, key FOR UPDATE;
  PERFORM accs.settle_many(ARRAY[p_id], p_by);
END $$;

-- A snoozed occurrence whose time has come: it runs, by whatever the overlap says.
CREATE FUNCTION accs.settle_snoozed(p_id uuid, p_key text, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row  public.schedules;
  v_occ  accs.occasion;
  v_done accs.occasion[];
BEGIN
  SELECT * INTO v_row FROM public.schedules WHERE id = p_id;
  SELECT f.schedule_id, f.nominal, f.fold, f.cause_id, a.due_at, CASE WHEN v_row.state = 'active' THEN 'fired' ELSE 'skipped' END,
         CASE WHEN v_row.state = 'active' THEN 'released' ELSE 'paused' END, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, NULL
    INTO v_occ FROM public.firings f JOIN accs.agenda a ON a.schedule_id = f.schedule_id AND a.what = 'snoozed' AND a.key = p_key
   WHERE f.schedule_id = p_id AND f.nominal = split_part(p_key, '/', 1)::timestamp AND f.fold = split_part(p_key, '/', 2)::int
     AND f.cause_id = 0
     AND f.outcome = 'snoozed';
  DELETE FROM accs.agenda WHERE schedule_id = p_id AND what = 'snoozed' AND key = p_key;
  IF v_occ.schedule_id IS NULL THEN
    RETURN;
  END IF;
  v_done := CASE WHEN v_occ.outcome = 'fired' THEN ARRAY(SELECT r FROM accs.start_runs(ARRAY[v_occ], p_by) r) ELSE ARRAY[v_occ] END;
  PERFORM accs.record_firings(v_done, p_by);
  UPDATE public.schedules s SET runs = s.runs + (v_done[1].job_id IS NOT NULL)::int, last_job_id = coalesce(v_done[1].job_id, s.last_job_id)
   WHERE s.id = p_id;
  IF v_row.state <> 'ended' AND NOT EXISTS (SELECT FROM accs.agenda WHERE schedule_id = p_id AND what IN ('occurrence', 'snoozed',
    'replan')) THEN
    PERFORM accs.move_schedule(p_id, 'ended', coalesce((SELECT exhausted FROM accs.plan_of WHERE schedule_id = p_id), 'once'));
    PERFORM accs.note_schedule(p_id, 'ended', 'accsd', 'nothing follows');
  END IF;
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

-- Snoozed occurrences that the schedule does not name any more (null: all of them) do not run.
CREATE FUNCTION accs.settle_snoozed_away(p_id uuid, p_by text, p_keys text[] DEFAULT NULL) RETURNS void LANGUAGE sql AS $$
  WITH gone AS (DELETE FROM accs.agenda WHERE schedule_id = p_id AND what = 'snoozed' AND (p_keys IS NULL OR key = ANY (p_keys))
    RETURNING key)
  UPDATE public.firings f SET outcome = 'skipped', reason = 'requested', settled_at = accs.clock(), settled_by = p_by,
         detail = coalesce(f.detail, '{}') || '{"dropped": "the schedule does not name it any more"}'
    FROM gone g WHERE f.schedule_id = p_id AND f.nominal = split_part(g.key, '/', 1)::timestamp AND f.fold = split_part(g.key, '/', 2)::int
     AND f.cause_id = 0 AND f.outcome = 'snoozed'
$$;

-- The end of a pause: nothing, the latest, or all of what was skipped during this pause runs now.
CREATE FUNCTION accs.resume_one(p_row public.schedules, p_recover text, p_by text,
  p_reason text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now  timestamptz := accs.clock();
  v_made accs.occasion[];
  v_done accs.occasion[];
BEGIN
  UPDATE accs.agenda SET due_at = least(due_at, v_now) WHERE schedule_id = p_row.id AND what = 'occurrence'
     AND (SELECT p.dues[pos] <= v_now FROM accs.plan_of p WHERE p.schedule_id = p_row.id);
  PERFORM accs.settle_many(ARRAY[p_row.id], p_by);   -- what came due during the pause is settled before the resume decides
  DELETE FROM accs.agenda WHERE schedule_id = p_row.id AND what = 'resume';
  IF (SELECT s.state FROM public.schedules s WHERE s.id = p_row.id) = 'paused' THEN
    PERFORM accs.move_schedule(p_row.id, 'active', NULL);
  END IF;
  UPDATE public.schedules s SET failures_in_row = 0 WHERE s.id = p_row.id;
  PERFORM accs.note_schedule(p_row.id, 'resumed', p_by, p_reason, NULL, jsonb_build_object('recover', p_recover));
  UPDATE accs.agenda a SET due_at = p.dues[a.pos] FROM accs.plan_of p
   WHERE a.schedule_id = p_row.id AND a.what = 'occurrence' AND p.schedule_id = a.schedule_id AND a.due_at < 'infinity';
  IF p_row.schedule_kind = 'event' THEN
    v_done := ARRAY(SELECT r FROM accs.recover_events(p_row, p_recover) r);   -- they are evaluated again
  ELSIF p_recover IN ('one', 'all') THEN
    v_made := ARRAY(
      SELECT ROW(f.schedule_id, f.nominal, f.fold, f.cause_id, f.due_at, 'caught_up', 'resumed', NULL, NULL, NULL, NULL, NULL,
             CASE WHEN p_row.schedule_kind = 'condition' THEN accs.sample_trigger(p_row, f.cause_id, f.due_at, f.detail) END, false, NULL,
                 NULL)::accs.occasion
        FROM (SELECT f.* FROM public.firings f
               WHERE f.schedule_id = p_row.id AND f.outcome = 'skipped' AND f.reason = 'paused' AND f.settled_at >= p_row.state_since
                 AND f.until_nominal IS NULL AND (p_recover = 'one' OR v_now - f.due_at <= coalesce(p_row.catch_up, '1 day'))
               ORDER BY f.nominal DESC, f.fold DESC LIMIT CASE p_recover WHEN 'one' THEN 1 ELSE p_row.catch_up_max END) f
       ORDER BY f.nominal, f.fold);
    IF v_made <> '{}' THEN
      v_done := ARRAY(SELECT r FROM accs.start_runs(v_made, p_by) r);
      v_done := ARRAY(SELECT r FROM unnest(v_done) r WHERE r.job_id IS NOT NULL);   -- what may not start stays skipped
      PERFORM accs.record_firings(v_done, p_by);
      UPDATE public.schedules s SET runs = s.runs + cardinality(v_done), last_job_id = coalesce(v_done[cardinality(v_done)].job_id,
        s.last_job_id)
       WHERE s.id = p_row.id;
    END IF;
  END IF;
  PERFORM accs.tell_schedulers();
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

CREATE FUNCTION accs.resume_schedule(p_which text, p_recover text DEFAULT 'none', p_reason text DEFAULT NULL, p_by text DEFAULT NULL)
RETURNS TABLE (answer text, reason text, recovered int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row public.schedules := accs.lock_schedule(p_which);
  v_n   int;
BEGIN
  IF p_recover NOT IN ('none', 'one', 'all') THEN
    RAISE EXCEPTION 'a resume recovers none, one or all, not "%"', p_recover USING ERRCODE = 'invalid_parameter_value';
  ELSIF v_row.state <> 'paused' THEN
    RETURN QUERY SELECT CASE v_row.state WHEN 'active' THEN 'repeated' ELSE 'refused' END, CASE
      WHEN v_row.state <> 'active' THEN v_row.state END, 0;
    RETURN;
  END IF;
  SELECT count(*) INTO v_n FROM accs.resume_one(v_row, p_recover, p_by, p_reason);
  RETURN QUERY SELECT 'accepted'::text, NULL::text, v_n;
END $$;
SELECT accs.is_verb('resume_schedule', may => '{scheduler,api}');

-- A job of this schedule failed: N in a row pause it.
CREATE FUNCTION accs.review_schedule(p_row public.schedules) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_failed uuid[];
BEGIN
  SELECT array_agg(l.id) INTO v_failed FROM (
    SELECT j.id, bool_and(j.status = 'error') OVER (ORDER BY f.settled_at DESC, f.nominal DESC) AS so
      FROM (SELECT job_id, settled_at, nominal FROM public.firings WHERE schedule_id = p_row.id AND job_id IS NOT NULL
             ORDER BY settled_at DESC, nominal DESC LIMIT 200) f
      JOIN public.jobs j ON j.id = f.job_id WHERE j.status IN ('done', 'error')) l WHERE l.so;
  UPDATE public.schedules SET failures_in_row = coalesce(cardinality(v_failed), 0) WHERE id = p_row.id;
  IF p_row.state = 'active' AND cardinality(v_failed) >= p_row.pause_after THEN
    PERFORM accs.move_schedule(p_row.id, 'paused', format('its last %s jobs failed', cardinality(v_failed)),
      accs.clock() + p_row.pause_for);
    PERFORM accs.note_schedule(p_row.id, 'paused', 'accsd', format('its last %s jobs failed', cardinality(v_failed)), NULL,
                               jsonb_build_object('jobs', to_jsonb(v_failed[1:20])));
    IF p_row.pause_for IS NOT NULL THEN
      INSERT INTO accs.agenda (schedule_id, what, due_at) VALUES (p_row.id, 'resume', accs.clock() + p_row.pause_for)
        ON CONFLICT DO NOTHING;
    END IF;
  END IF;
END $$;

-- What became of one row of the agenda that is no plain occurrence.
CREATE FUNCTION accs.settle_other(p_due accs.agenda, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_row public.schedules;
BEGIN
  SELECT * INTO v_row FROM public.schedules WHERE id = p_due.schedule_id;
  CASE p_due.what
    WHEN 'snoozed' THEN
      RETURN QUERY SELECT * FROM accs.settle_snoozed(p_due.schedule_id, p_due.key, p_by);
    WHEN 'resume' THEN
      IF v_row.state = 'paused' THEN
        RETURN QUERY SELECT * FROM accs.resume_one(v_row, 'none', 'accsd', 'its pause is over');
      END IF;
    WHEN 'review' THEN
      PERFORM accs.review_schedule(v_row);
    WHEN 'release' THEN
      PERFORM accs.release_runs(ARRAY[left(p_due.key, -37)], true);
    WHEN 'backfill' THEN
      RETURN QUERY SELECT * FROM accs.settle_backfill(p_due.key::uuid, p_by);
    WHEN 'gather' THEN
      RETURN QUERY SELECT * FROM accs.settle_gathered(v_row, p_due.key, p_by);
    WHEN 'judge' THEN
      RETURN QUERY SELECT * FROM accs.settle_condition(v_row, p_by);
    ELSE NULL;
  END CASE;
  IF p_due.what IN ('resume', 'review', 'release') THEN
    DELETE FROM accs.agenda WHERE schedule_id = p_due.schedule_id AND what = p_due.what AND key = p_due.key;
  END IF;
END $$;

-- A firing raised an error. It is recorded, and the schedule goes on; three in a row make it broken.
CREATE FUNCTION accs.record_broken(p_due accs.agenda, p_problem text, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_row public.schedules;
  v_occ accs.occasion[];
BEGIN
  SELECT * INTO v_row FROM public.schedules WHERE id = p_due.schedule_id;
  IF p_due.what <> 'occurrence' THEN
    DELETE FROM accs.agenda WHERE schedule_id = p_due.schedule_id AND what = p_due.what AND key = p_due.key;
    IF p_due.what = 'gather' THEN   -- its events are looked at again
      UPDATE accs.inbox SET gathering = NULL, options = NULL WHERE schedule_id = p_due.schedule_id AND gathering = p_due.key;
    END IF;
    PERFORM accs.note_schedule(v_row.id, 'failed', coalesce(p_by, 'accsd'), p_due.what || ': ' || p_problem);
    RETURN;
  END IF;
  v_occ := ARRAY(SELECT ROW(v_row.id, o.nominal, o.fold, 0, o.due, 'skipped', 'broken', NULL, NULL, NULL, jsonb_build_object('problem',
    left(p_problem, 2000)),
                            NULL, NULL, false, NULL, NULL)::accs.occasion
                   FROM accs.plan_of p, LATERAL unnest(p.nominals[p_due.pos:], p.folds[p_due.pos:], p.dues[p_due.pos:]) AS o (nominal,
                     fold, due)
                  WHERE p.schedule_id = v_row.id AND o.due <= accs.clock()
                    AND NOT EXISTS (SELECT FROM public.firings f WHERE f.schedule_id = v_row.id AND f.nominal = o.nominal
                      AND f.fold = o.fold AND f.cause_id = 0));
  PERFORM accs.record_firings(v_occ, p_by);
  UPDATE public.schedules SET refused_in_row = refused_in_row + 1, settled_until = greatest(settled_until,
    (SELECT max(o.due_at) FROM unnest(v_occ) o))
   WHERE id = v_row.id;
  IF v_row.refused_in_row >= 2 THEN
    PERFORM accs.break_schedule(v_row, p_problem, p_by);
  ELSE
    UPDATE accs.agenda a SET pos = a.pos + cardinality(v_occ), due_at = coalesce(p.dues[a.pos + cardinality(v_occ)], 'infinity')
      FROM accs.plan_of p
     WHERE a.schedule_id = v_row.id AND a.what = 'occurrence' AND p.schedule_id = v_row.id;
    PERFORM accs.ask_for_plans(ARRAY[v_row.id]);
  END IF;
  RETURN QUERY SELECT * FROM unnest(v_occ);
END $$;

-- Settles what is due, p_limit rows of the agenda at a time: what is due on time first, then what is late. Any number of
-- schedulers may call it at once: each takes what no other has. Nothing waits for anybody: a schedule that somebody is changing is
-- left for the next call. A row that raises an error does not stop the others.
CREATE FUNCTION accs.settle_due(p_limit int DEFAULT 200, p_by text DEFAULT NULL)
RETURNS TABLE (schedule_id uuid, nominal timestamp, outcome text, reason text, late interval, times int, job_id uuid) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now  timestamptz := accs.clock();
  v_rows accs.agenda[];
  v_row  accs.agenda;
  v_ids  uuid[];
  v_done accs.occasion[] := '{}';
BEGIN
  IF EXISTS (SELECT FROM accs.schedule_hold) THEN
    RETURN;
  END IF;
  v_rows := ARRAY(SELECT a FROM accs.agenda a JOIN public.schedules s ON s.id = a.schedule_id
                   WHERE a.what <> ALL ('{replan,probe}') AND a.due_at <= v_now AND a.due_at > v_now - interval '1 min'
                   ORDER BY a.due_at LIMIT p_limit FOR UPDATE OF a SKIP LOCKED FOR NO KEY UPDATE OF s SKIP LOCKED);
  IF cardinality(v_rows) < p_limit THEN
    v_rows := v_rows || ARRAY(SELECT a FROM accs.agenda a JOIN public.schedules s ON s.id = a.schedule_id
                   WHERE a.what <> ALL ('{replan,probe}') AND a.due_at <= v_now - interval '1 min'
                   ORDER BY a.due_at LIMIT p_limit - cardinality(v_rows) FOR UPDATE OF a SKIP LOCKED FOR NO KEY UPDATE OF s SKIP LOCKED);
  END IF;
  v_ids := ARRAY(SELECT DISTINCT r.schedule_id FROM unnest(v_rows) r WHERE r.what = 'occurrence');
  IF EXISTS (SELECT FROM unnest(v_rows) r WHERE r.what <> 'occurrence') THEN
    PERFORM accs.lock_runs(ARRAY(SELECT DISTINCT r.schedule_id FROM unnest(v_rows) r));   -- the others start theirs one by one
  END IF;
  IF v_ids <> '{}' THEN
    BEGIN
      v_done := ARRAY(SELECT d FROM accs.settle_many(v_ids, p_by) d);
      v_rows := ARRAY(SELECT r FROM unnest(v_rows) r WHERE r.what <> 'occurrence');
    EXCEPTION WHEN OTHERS THEN
      IF SQLSTATE LIKE ANY ('{40%,53%,55%,57%,58%}') THEN
        RAISE;   -- nobody's fault: tried again as a whole
      END IF;
      PERFORM accs.lock_runs(v_ids);   -- one by one
    END;
  END IF;
  FOREACH v_row IN ARRAY v_rows LOOP
    BEGIN
      v_done := v_done || CASE WHEN v_row.what = 'occurrence' THEN ARRAY(SELECT d FROM accs.settle_many(ARRAY[v_row.schedule_id], p_by) d)
                               ELSE ARRAY(SELECT d FROM accs.settle_other(v_row, p_by) d) END;
    EXCEPTION WHEN OTHERS THEN
      IF SQLSTATE LIKE ANY ('{40%,53%,55%,57%,58%}') THEN
        RAISE;
      END IF;
      v_done := v_done || ARRAY(SELECT d FROM accs.record_broken(v_row, SQLERRM, p_by) d);
    END;
  END LOOP;
  RETURN QUERY SELECT d.schedule_id, d.nominal, d.outcome, d.reason, greatest(v_now - d.due_at, '0'), coalesce(d.times, 1), d.job_id
    FROM unnest(v_done) d;
END $$;
SELECT accs.is_verb('settle_due', may => '{scheduler}');
-- Its statements are large: to plan one takes longer than to carry it out. Joins within a batch are free to be hash joins.
ALTER FUNCTION accs.settle_due SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off;

-- For a scheduler between its passes: how long until something is due (0: now), until a plan or a probe is wanted; why all is
-- held; the time.
CREATE FUNCTION accs.scheduler_outlook() RETURNS TABLE (next_due interval, next_plan interval, next_probe interval, hold text,
  now timestamptz)
LANGUAGE sql STABLE AS $$
  SELECT (SELECT greatest(a.due_at - accs.clock(), '0') FROM accs.agenda a
           WHERE a.what <> ALL ('{replan,probe}') AND a.due_at < 'infinity' ORDER BY a.due_at LIMIT 1),
         (SELECT greatest(a.due_at - accs.clock(), '0') FROM accs.agenda a
           WHERE a.what = ANY ('{replan,probe}') AND a.what = 'replan' AND a.due_at < 'infinity' ORDER BY a.due_at LIMIT 1),
         (SELECT greatest(a.due_at - accs.clock(), '0') FROM accs.agenda a
           WHERE a.what = ANY ('{replan,probe}') AND a.what = 'probe' AND a.due_at < 'infinity' ORDER BY a.due_at LIMIT 1),
         (SELECT concat_ws(', ', coalesce(h.reason, 'no reason given'), 'by ' || h.by) FROM accs.schedule_hold h), accs.clock()
$$;
SELECT accs.is_verb('scheduler_outlook', may => '{scheduler,api}');

-- The next occurrence that is not settled: a snoozed one, or the first of the plan.
CREATE FUNCTION accs.next_occurrence(p_id uuid) RETURNS TABLE (nominal timestamp, fold int, due_at timestamptz,
  is_snoozed boolean) LANGUAGE sql STABLE AS $$
  SELECT split_part(a.key, '/', 1)::timestamp, split_part(a.key, '/', 2)::int, a.due_at, true FROM accs.agenda a
   WHERE a.schedule_id = p_id AND a.what = 'snoozed'
  UNION ALL
  SELECT p.nominals[a.pos], p.folds[a.pos], p.dues[a.pos], false FROM accs.agenda a JOIN accs.plan_of p ON p.schedule_id = a.schedule_id
   WHERE a.schedule_id = p_id AND a.what = 'occurrence' AND p.nominals[a.pos] IS NOT NULL
  ORDER BY 3, 1 LIMIT 1
$$;
SELECT accs.is_verb('next_occurrence', may => '{scheduler,api,archive,reader}');

-- Moves the due time of the next occurrence, and of no other. Repeated, it counts from the due time that it has.
CREATE FUNCTION accs.snooze(p_which text, p_for interval DEFAULT NULL, p_until timestamptz DEFAULT NULL, p_reason text DEFAULT NULL,
  p_by text DEFAULT NULL)
RETURNS TABLE (answer text, reason text, nominal timestamp, due_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row  public.schedules := accs.lock_schedule(p_which);
  v_next record;
  v_due  timestamptz;
  v_key  text;
BEGIN
  IF (p_for IS NULL) = (p_until IS NULL) THEN
    RAISE EXCEPTION 'a snooze is for a time, or until a time' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM accs.settle_one(v_row.id, p_by);
  SELECT * INTO v_next FROM accs.next_occurrence(v_row.id);
  IF v_row.schedule_kind IN ('event', 'condition') OR NOT FOUND THEN
    RETURN QUERY SELECT 'refused'::text, CASE WHEN v_row.schedule_kind IN ('event', 'condition') THEN 'not_by_time'
      ELSE 'nothing_ahead' END, NULL::timestamp,
                        NULL::timestamptz;
    RETURN;
  END IF;
  v_due := coalesce(p_until, v_next.due_at + p_for);
  IF v_due <= v_next.due_at OR v_due > v_next.due_at + interval '31 days' THEN
    RETURN QUERY SELECT 'refused'::text, CASE WHEN v_due <= v_next.due_at THEN 'not_later' ELSE 'too_long' END, v_next.nominal,
      v_next.due_at;
    RETURN;
  END IF;
  v_key := to_char(v_next.nominal, 'YYYY-MM-DD"T"HH24:MI:SS.US') || '/' || v_next.fold;
  IF v_next.is_snoozed THEN
    UPDATE accs.agenda a SET due_at = v_due WHERE a.schedule_id = v_row.id AND a.what = 'snoozed' AND a.key = v_key;
  ELSE
    INSERT INTO accs.agenda (schedule_id, what, key, due_at) VALUES (v_row.id, 'snoozed', v_key, v_due);
    UPDATE accs.agenda a SET pos = a.pos + 1, due_at = coalesce(p.dues[a.pos + 1], 'infinity') FROM accs.plan_of p
     WHERE a.schedule_id = v_row.id AND a.what = 'occurrence' AND p.schedule_id = a.schedule_id;
    DELETE FROM accs.agenda a USING accs.plan_of p WHERE a.schedule_id = v_row.id AND a.what = 'occurrence'
      AND p.schedule_id = a.schedule_id
       AND p.exhausted IS NOT NULL AND a.pos > cardinality(p.dues);
    UPDATE public.schedules s SET settled_until = greatest(s.settled_until, v_next.due_at) WHERE s.id = v_row.id;
    PERFORM accs.ask_for_plans(ARRAY[v_row.id]) FROM accs.agenda a JOIN accs.plan_of p ON p.schedule_id = a.schedule_id
      WHERE a.schedule_id = v_row.id AND a.what = 'occurrence' AND cardinality(p.dues) - a.pos < 8 AND p.exhausted IS NULL;
  END IF;
  INSERT INTO public.firings AS f (schedule_id, nominal, fold, outcome, reason, due_at, settled_at, late, revision, settled_by, detail)
  VALUES (v_row.id, v_next.nominal, v_next.fold, 'snoozed', 'requested', v_due, accs.clock(), '0', v_row.revision,
    coalesce(p_by, session_user),
          jsonb_strip_nulls(jsonb_build_object('was_due', v_next.due_at, 'until', v_due, 'by', coalesce(p_by, session_user), 'reason',
            p_reason)))
  ON CONFLICT (schedule_id, nominal, fold, cause_id) DO UPDATE SET due_at = excluded.due_at, settled_at = excluded.settled_at,
         detail = f.detail || (excluded.detail - 'was_due');
  PERFORM accs.note_schedule(v_row.id, 'snoozed', p_by, p_reason, jsonb_build_object('due_at', v_next.due_at),
                             jsonb_build_object('nominal', v_next.nominal, 'due_at', v_due));
  PERFORM accs.tell_schedulers();
  RETURN QUERY SELECT 'accepted'::text, NULL::text, v_next.nominal, v_due;
END $$;
SELECT accs.is_verb('snooze', may => '{scheduler,api}');

-- Gives every snoozed occurrence its own due time back; one whose time has passed runs now.
CREATE FUNCTION accs.unsnooze(p_which text, p_reason text DEFAULT NULL, p_by text DEFAULT NULL) RETURNS TABLE (answer text,
  reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row public.schedules := accs.lock_schedule(p_which);
BEGIN
  UPDATE accs.agenda a SET due_at = greatest((f.detail ->> 'was_due')::timestamptz, accs.clock()) FROM public.firings f
   WHERE a.schedule_id = v_row.id AND a.what = 'snoozed' AND f.schedule_id = v_row.id AND f.nominal = split_part(a.key, '/', 1)::timestamp
     AND f.fold = split_part(a.key, '/', 2)::int AND f.cause_id = 0;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'repeated'::text, NULL::text;
    RETURN;
  END IF;
  PERFORM accs.note_schedule(v_row.id, 'unsnoozed', p_by, p_reason);
  PERFORM accs.tell_schedulers();
  RETURN QUERY SELECT 'accepted'::text, NULL::text;
END $$;
SELECT accs.is_verb('unsnooze', may => '{scheduler,api}');

-- Marks an occurrence that is ahead: it is skipped when it is due. Whether the rule names it, the caller knows
-- (planning/recurrence); one that is planned and not named is refused here too.
CREATE FUNCTION accs.skip_occurrence(p_which text, p_nominal timestamp, p_fold int DEFAULT 0, p_reason text DEFAULT NULL,
  p_by text DEFAULT NULL,
                                     p_skip boolean DEFAULT true)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row  public.schedules := accs.lock_schedule(p_which);
  v_plan accs.plan_of;
BEGIN
  SELECT * INTO v_plan FROM accs.plan_of p WHERE p.schedule_id = v_row.id;
  IF EXISTS (SELECT FROM public.firings f WHERE f.schedule_id = v_row.id AND f.nominal = p_nominal AND f.fold = p_fold AND f.cause_id = 0
                AND f.outcome <> 'snoozed') THEN
    RETURN QUERY SELECT 'refused'::text, 'already_settled'::text;
    RETURN;
  ELSIF p_nominal <> ALL (v_plan.nominals) AND p_nominal <= (SELECT max(n) FROM unnest(v_plan.nominals) n) THEN
    RETURN QUERY SELECT 'refused'::text, 'not_an_occurrence'::text;
    RETURN;
  END IF;
  IF p_skip THEN
    INSERT INTO accs.schedule_marks (schedule_id, nominal, fold, by, reason) VALUES (v_row.id, p_nominal, p_fold,
      coalesce(p_by, session_user), p_reason)
    ON CONFLICT DO NOTHING;
  ELSE
    DELETE FROM accs.schedule_marks m WHERE m.schedule_id = v_row.id AND m.nominal = p_nominal AND m.fold = p_fold;
  END IF;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'repeated'::text, NULL::text;
    RETURN;
  END IF;
  PERFORM accs.note_schedule(v_row.id, CASE WHEN p_skip THEN 'skip' ELSE 'unskip' END, p_by, p_reason, NULL,
                             jsonb_build_object('nominal', p_nominal, 'fold', p_fold));
  RETURN QUERY SELECT 'accepted'::text, NULL::text;
END $$;
SELECT accs.is_verb('skip_occurrence', may => '{scheduler,api}');

-- A run at once, whatever the schedule's state; it moves no due time. With a key the same call again is the same job.
CREATE FUNCTION accs.run_now(p_which text, p_options jsonb DEFAULT NULL, p_key text DEFAULT NULL, p_force boolean DEFAULT false,
                             p_reason text DEFAULT NULL, p_by text DEFAULT NULL)
RETURNS TABLE (answer text, reason text, job_id uuid, state text, detail jsonb) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row  public.schedules := accs.lock_schedule(p_which);
  v_key  text := CASE WHEN p_key IS NOT NULL THEN format('run_now/%s/%s', v_row.id, p_key) END;
  v_occ  accs.occasion;
  v_done accs.occasion[];
  v_job  uuid;
BEGIN
  IF v_key IS NOT NULL THEN
    SELECT j.id INTO v_job FROM public.jobs j WHERE j.idempotency_key = v_key;
    IF FOUND THEN
      RETURN QUERY SELECT 'repeated'::text, NULL::text, v_job, v_row.state, NULL::jsonb;
      RETURN;
    END IF;
  END IF;
  v_occ := ROW(v_row.id, accs.clock() AT TIME ZONE 'UTC', 0, nextval('accs.cause_seq'), accs.clock(), 'fired', 'run_now', NULL, NULL, NULL,
               jsonb_strip_nulls(jsonb_build_object('by', coalesce(p_by, session_user), 'reason', p_reason)), v_row.options
                 || coalesce(p_options, '{}'),
               jsonb_strip_nulls(jsonb_build_object('cause', 'run_now', 'by', coalesce(p_by, session_user), 'key', v_key)), p_force, NULL,
                 NULL)::accs.occasion;
  v_done := ARRAY(SELECT r FROM accs.start_runs(ARRAY[v_occ], p_by) r);
  PERFORM accs.record_firings(v_done, p_by);
  UPDATE public.schedules s SET last_job_id = coalesce(v_done[1].job_id, s.last_job_id) WHERE s.id = v_row.id;
  PERFORM accs.note_schedule(v_row.id, 'run_now', p_by, p_reason, NULL, jsonb_strip_nulls(jsonb_build_object('job_id', v_done[1].job_id,
    'outcome', v_done[1].outcome)));
  RETURN QUERY SELECT CASE WHEN v_done[1].job_id IS NULL THEN 'refused' ELSE 'accepted' END, CASE
    WHEN v_done[1].job_id IS NULL THEN v_done[1].reason END,
                      v_done[1].job_id, v_row.state, v_done[1].detail;
END $$;
SELECT accs.is_verb('run_now', may => '{scheduler,api}');

-- How many jobs of a run key may be open at once.
CREATE FUNCTION accs.set_run_limit(p_key text, p_max_open int, p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  v_said jsonb := jsonb_build_object('max_open', p_max_open);
BEGIN
  INSERT INTO accs.run_keys AS k (key, max_open) VALUES (p_key, p_max_open)
  ON CONFLICT (key) DO UPDATE SET max_open = excluded.max_open WHERE k.max_open <> excluded.max_open;
  IF NOT FOUND THEN
    RETURN accs.audited('set_run_limit', 'run_key', p_key, 'repeated', p_by, p_reason, NULL, v_said);
  END IF;
  PERFORM accs.release_runs(ARRAY[p_key], true);
  RETURN accs.audited('set_run_limit', 'run_key', p_key, 'accepted', p_by, p_reason, NULL, v_said);
END $$;
SELECT accs.is_verb('set_run_limit', may => '{scheduler,api}');

-- Runs for times that lie behind: the occurrences that the caller has found by the present rule, worked off page by page.
CREATE TABLE accs.backfills (
  id           uuid PRIMARY KEY DEFAULT accs.new_id(),
  schedule_id  uuid NOT NULL,
  revision     int NOT NULL,
  nominals     timestamp[] NOT NULL,      -- in the order in which they are to run
  folds        int[] NOT NULL,
  dues         timestamptz[] NOT NULL,
  pos          int NOT NULL DEFAULT 1,
  parallel     int NOT NULL DEFAULT 1 CHECK (parallel BETWEEN 1 AND 1000),
  existing     text NOT NULL DEFAULT 'none' CHECK (existing IN ('none', 'failed', 'all')),
  forced       boolean NOT NULL DEFAULT false,
  options      jsonb,
  priority     int,
  by           text,
  reason       text,
  created_at   timestamptz NOT NULL DEFAULT accs.clock(),
  ended_at     timestamptz,
  state        text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'cancelled')),
  key          text UNIQUE,               -- the same key again, with the same that was asked, is the same backfill
  asked        jsonb,
  started      int NOT NULL DEFAULT 0,
  left_alone   int NOT NULL DEFAULT 0,    -- they had run already
  refused      int NOT NULL DEFAULT 0
);

CREATE INDEX backfills_of ON accs.backfills (schedule_id, id);

-- What a backfill would do to each occurrence: run, or leave it because of what the ledger says.
CREATE FUNCTION accs.preview_backfill(p_schedule uuid, p_nominals timestamp[], p_folds int[], p_existing text)
RETURNS TABLE (nominal timestamp, fold int, would text, outcome text, job_id uuid) LANGUAGE sql STABLE AS $$
  SELECT u.nominal, u.fold,
         CASE WHEN f.outcome IN ('fired', 'caught_up') AND NOT (p_existing = 'all' OR p_existing = 'failed' AND j.status IN ('error',
           'cancelled'))
                OR f.outcome IN ('snoozed', 'merged') THEN 'leave' ELSE 'run' END,
         f.outcome, f.job_id
    FROM unnest(p_nominals, p_folds) WITH ORDINALITY AS u (nominal, fold, n)
    LEFT JOIN public.firings f ON f.schedule_id = p_schedule AND f.nominal = u.nominal AND f.fold = u.fold AND f.cause_id = 0
    LEFT JOIN public.jobs j ON j.id = f.job_id ORDER BY u.n
$$;
SELECT accs.is_verb('preview_backfill', may => '{scheduler,api}');

-- The token of a dry run: a backfill that was started with it is refused if it would do something else by now.
CREATE FUNCTION accs.backfill_token(p_schedule uuid, p_revision int, p_nominals timestamp[], p_folds int[],
  p_existing text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT encode(sha256(convert_to(concat_ws('/', p_schedule, p_revision, p_existing,
           (SELECT string_agg(concat_ws(',', p.nominal, p.fold, p.would, p.outcome), ';') FROM accs.preview_backfill(p_schedule,
             p_nominals, p_folds, p_existing) p)), 'UTF8')), 'hex')
$$;

-- With a key the same again (p_asked, in the caller's own words) is the same backfill, whatever has become of its times since.
CREATE FUNCTION accs.start_backfill(p_which text, p_revision int, p_nominals timestamp[], p_folds int[], p_dues timestamptz[],
                                    p_parallel int DEFAULT 1, p_existing text DEFAULT 'none', p_options jsonb DEFAULT NULL,
                                    p_priority int DEFAULT NULL, p_force boolean DEFAULT false, p_dry_run boolean DEFAULT false,
                                    p_token text DEFAULT NULL, p_reason text DEFAULT NULL, p_by text DEFAULT NULL,
                                    p_key text DEFAULT NULL, p_asked jsonb DEFAULT NULL)
RETURNS TABLE (answer text, reason text, id uuid, token text, would_run int, would_leave int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row   public.schedules := accs.lock_schedule(p_which);
  v_known accs.backfills;
  v_token text;
  v_n     record;
  v_id    uuid;
BEGIN
  SELECT * INTO v_known FROM accs.backfills b WHERE b.key = p_key;
  IF FOUND THEN
    RETURN QUERY SELECT CASE WHEN same THEN 'repeated' ELSE 'refused' END, CASE WHEN NOT same THEN 'idempotency_mismatch' END, v_known.id,
                        NULL::text, NULL::int, NULL::int
      FROM (SELECT v_known.schedule_id = v_row.id AND v_known.asked IS NOT DISTINCT FROM p_asked AS same) c;
    RETURN;
  ELSIF cardinality(p_nominals) = 0 THEN
    RETURN QUERY SELECT 'refused'::text, 'not_an_occurrence'::text, NULL::uuid, NULL::text, NULL::int, NULL::int;
    RETURN;
  ELSIF v_row.revision <> p_revision THEN
    RETURN QUERY SELECT 'refused'::text, 'conflict'::text, NULL::uuid, NULL::text, NULL::int, NULL::int;
    RETURN;
  ELSIF cardinality(p_nominals) > 100000 THEN
    RAISE EXCEPTION 'a backfill has at most 100000 occurrences, not %', cardinality(p_nominals) USING ERRCODE = 'invalid_parameter_value';
  END IF;
  v_token := accs.backfill_token(v_row.id, v_row.revision, p_nominals, p_folds, p_existing);
  SELECT count(*) FILTER (WHERE would = 'run')::int AS run, count(*) FILTER (WHERE would = 'leave')::int AS leave INTO v_n
    FROM accs.preview_backfill(v_row.id, p_nominals, p_folds, p_existing);
  IF p_token IS NOT NULL AND p_token <> v_token THEN
    RETURN QUERY SELECT 'refused'::text, 'plan_changed'::text, NULL::uuid, v_token, v_n.run, v_n.leave;
    RETURN;
  ELSIF p_dry_run THEN
    RETURN QUERY SELECT 'accepted'::text, 'dry_run'::text, NULL::uuid, v_token, v_n.run, v_n.leave;
    RETURN;
  END IF;
  INSERT INTO accs.backfills (schedule_id, revision, nominals, folds, dues, parallel, existing, forced, options, priority, by, reason, key,
                              asked)
  VALUES (v_row.id, v_row.revision, p_nominals, p_folds, p_dues, p_parallel, p_existing, p_force, p_options,
    coalesce(p_priority, v_row.priority - 1),
          coalesce(p_by, session_user), p_reason, p_key, p_asked) ON CONFLICT (key) DO NOTHING RETURNING backfills.id INTO v_id;
  IF v_id IS NULL THEN   -- of another schedule: calls for one come one after the other
    RETURN QUERY SELECT 'refused'::text, 'idempotency_mismatch'::text, (SELECT b.id FROM accs.backfills b WHERE b.key = p_key), NULL::text,
                        NULL::int, NULL::int;
    RETURN;
  END IF;
  INSERT INTO accs.run_keys (key, max_open) VALUES ('backfill:' || v_id, p_parallel);
  INSERT INTO accs.agenda (schedule_id, what, key, due_at) VALUES (v_row.id, 'backfill', v_id::text, accs.clock());
  PERFORM accs.note_schedule(v_row.id, 'backfill', p_by, p_reason, NULL, jsonb_build_object('id', v_id, 'run', v_n.run, 'leave',
    v_n.leave));
  PERFORM accs.tell_schedulers();
  RETURN QUERY SELECT 'accepted'::text, NULL::text, v_id, v_token, v_n.run, v_n.leave;
END $$;
SELECT accs.is_verb('start_backfill', may => '{scheduler,api}');

-- The next page of a backfill: as many runs as its key has room for, so that what runs on time never stands behind it. Then it
-- looks again a little later.
CREATE FUNCTION accs.settle_backfill(p_id uuid, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_fill accs.backfills;
  v_row  public.schedules;
  v_key  text := 'backfill:' || p_id;
  v_room int;
  v_occ  accs.occasion[];
  v_done accs.occasion[];
  v_upto int;
BEGIN
  SELECT * INTO v_fill FROM accs.backfills WHERE id = p_id AND state = 'running' FOR UPDATE;
  IF NOT FOUND THEN
    DELETE FROM accs.agenda WHERE what = 'backfill' AND key = p_id::text;
    RETURN;
  END IF;
  SELECT * INTO v_row FROM public.schedules WHERE id = v_fill.schedule_id;
  v_room := least(v_fill.parallel - (SELECT count(*) FROM accs.open_runs o WHERE o.key = v_key), 100);
  -- it gives way to the schedule's own runs, unless it is forced
  IF NOT v_fill.forced AND v_row.overlap <> 'allow' AND EXISTS (
       SELECT FROM accs.open_runs o WHERE o.key = coalesce(v_row.run_key, 'schedule:' || v_row.id)) THEN
    v_room := 0;
  END IF;
  IF v_room > 0 THEN
    SELECT array_agg(ROW(v_row.id, w.nominal, w.fold, 0, w.due, CASE WHEN w.outcome IN ('missed', 'skipped') THEN 'caught_up'
           ELSE coalesce(w.outcome, 'fired') END,
                         'backfill', NULL, NULL, NULL, jsonb_build_object('backfill', p_id), v_row.options || coalesce(v_fill.options,
                           '{}'),
                         jsonb_build_object('cause', 'backfill', 'backfill', p_id, 'by', v_fill."by", 'priority', v_fill.priority,
                                            'key', format('backfill/%s/%s/%s', p_id, w.nominal, w.fold)), false, v_key,
                                              NULL)::accs.occasion ORDER BY w.n)
             FILTER (WHERE w.would = 'run'), max(w.n)
      INTO v_occ, v_upto
      FROM (SELECT p.*, v_fill.pos + p.i::int - 1 AS n, v_fill.dues[v_fill.pos + p.i::int - 1] AS due,
                   count(*) FILTER (WHERE p.would = 'run') OVER (ORDER BY p.i) AS runs
              FROM (SELECT p.*, row_number() OVER () AS i FROM accs.preview_backfill(v_row.id, v_fill.nominals[v_fill.pos:v_fill.pos + 999],
                           v_fill.folds[v_fill.pos:v_fill.pos + 999], v_fill.existing) p) p) w
     WHERE w.runs <= v_room;
    IF v_occ IS NOT NULL THEN
      v_done := ARRAY(SELECT r FROM accs.start_runs(v_occ, p_by) r);
      PERFORM accs.record_firings(ARRAY(SELECT r FROM unnest(v_done) r WHERE r.job_id IS NOT NULL), p_by);
    END IF;
    UPDATE accs.backfills SET pos = coalesce(v_upto, cardinality(nominals)) + 1, started = started + (SELECT count(*)
      FROM unnest(v_done) d WHERE d.job_id IS NOT NULL),
           refused = refused + (SELECT count(*) FROM unnest(v_done) d WHERE d.job_id IS NULL),
           left_alone = left_alone + coalesce(v_upto - v_fill.pos + 1, 0) - coalesce(cardinality(v_done), 0)
     WHERE id = p_id RETURNING * INTO v_fill;
  END IF;
  IF v_fill.pos > cardinality(v_fill.nominals) THEN
    UPDATE accs.backfills SET state = 'done', ended_at = accs.clock() WHERE id = p_id;
    DELETE FROM accs.agenda WHERE what = 'backfill' AND key = p_id::text AND schedule_id = v_row.id;
  ELSE
    UPDATE accs.agenda SET due_at = accs.clock() + interval '1 s' WHERE schedule_id = v_row.id AND what = 'backfill' AND key = p_id::text;
  END IF;
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

-- Ends a backfill; its open jobs run on, unless they are to be cancelled.
CREATE FUNCTION accs.cancel_backfill(p_id uuid, p_cancel boolean DEFAULT false, p_reason text DEFAULT NULL,
  p_by text DEFAULT NULL) RETURNS TABLE (answer text, reason text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_fill accs.backfills;
BEGIN
  SELECT * INTO v_fill FROM accs.backfills b WHERE b.id = p_id FOR UPDATE;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'refused'::text, 'not_found'::text;
    RETURN;
  ELSIF v_fill.state <> 'running' THEN
    RETURN QUERY SELECT CASE v_fill.state WHEN 'cancelled' THEN 'repeated' ELSE 'refused' END, CASE v_fill.state
      WHEN 'done' THEN 'already_finished' END;
    RETURN;
  END IF;
  -- its row in the agenda goes when it is due next
  UPDATE accs.backfills SET state = 'cancelled', ended_at = accs.clock() WHERE id = p_id;
  PERFORM accs.note_schedule(v_fill.schedule_id, 'backfill_cancelled', p_by, p_reason, NULL, jsonb_build_object('id', p_id));
  IF p_cancel THEN
    PERFORM accs.cancel(ARRAY(SELECT o.job_id FROM accs.open_runs o WHERE o.key = 'backfill:' || p_id),
      coalesce(p_reason, 'its backfill was cancelled'), p_by);
  END IF;
  RETURN QUERY SELECT 'accepted'::text, NULL::text;
END $$;
SELECT accs.is_verb('cancel_backfill', may => '{scheduler,api}');

-- The state of a schedule in one word, with what a person wants to know of it.
CREATE VIEW accs.schedule_states AS
  SELECT s.id, s.name,
         CASE WHEN s.state = 'active' AND h.only_row THEN 'held' WHEN s.state = 'active' AND n.is_snoozed THEN 'snoozed'
           ELSE s.state END AS state,
         CASE WHEN s.state = 'active' AND h.only_row THEN h.reason ELSE s.state_reason END AS reason,
         CASE WHEN s.state = 'active' AND h.only_row THEN h.since ELSE s.state_since END AS since, s.paused_until,
         n.nominal AS next_nominal, n.fold AS next_fold, n.due_at AS next_due,
         (SELECT count(*)::int FROM accs.open_runs o WHERE o.schedule_id = s.id AND NOT o.waits) AS open_jobs,
         (SELECT count(*)::int FROM accs.open_runs o WHERE o.schedule_id = s.id AND o.waits) AS waiting_jobs
    FROM public.schedules s LEFT JOIN accs.schedule_hold h ON true
    LEFT JOIN LATERAL accs.next_occurrence(s.id) n ON s.state <> 'ended';
