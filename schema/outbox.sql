-- ---------------------------------------------------------------------------------------------------------------
-- The outbox: what happens to jobs and schedules goes out as events, made in the transaction in which it happens
-- ---------------------------------------------------------------------------------------------------------------

-- What can be told to others (docs/outbox.md).
CREATE FUNCTION accs.outgoing_events() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY['job.submitted', 'job.started', 'job.retried', 'job.done', 'job.error', 'job.cancelled', 'task.done', 'task.error',
               'task.skipped', 'task.cancelled']
$$;

-- And of schedules. A target names these itself: no workflow's notify does, or every firing would have to look for one.
CREATE FUNCTION accs.schedule_events() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY['schedule.missed', 'schedule.skipped', 'schedule.broken']
$$;

-- One row for each event and target. Claimed: claim_id is set, and next_attempt_at is when the claim has run out. One that was
-- found behind another of its job has next_attempt_at = infinity, until that one is delivered or given up.
CREATE TABLE public.outbox_events (
  id               bigserial PRIMARY KEY,
  job_id           uuid,
  payload          jsonb NOT NULL CHECK (jsonb_typeof(payload) = 'object'),
  status           text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'delivered')),
  attempts         int NOT NULL DEFAULT 0,
  next_attempt_at  timestamptz NOT NULL DEFAULT accs.clock(),
  last_error       text,
  dispatched_at    timestamptz,
  created_at       timestamptz NOT NULL DEFAULT accs.clock(),
  -- additions
  target           text NOT NULL,               -- accs.outbox_targets
  event            text NOT NULL,
  claim_id         uuid,
  dead_at          timestamptz,                 -- given up; still pending, and sent again by redrive_outbox only
  redriven_at      timestamptz
);

-- claim_outbox: what is due, and who comes first
CREATE INDEX outbox_events_due ON public.outbox_events (target, next_attempt_at, id) WHERE status = 'pending' AND dead_at IS NULL;
CREATE INDEX outbox_events_order ON public.outbox_events (target, job_id, id) WHERE status = 'pending' AND dead_at IS NULL;
CREATE INDEX outbox_events_delivered ON public.outbox_events (dispatched_at) WHERE status = 'delivered';    -- prune_outbox
CREATE INDEX outbox_events_dead ON public.outbox_events (dead_at) WHERE status = 'pending' AND dead_at IS NOT NULL;

-- Who is told of what. Builders register the targets of their settings; address and secret stay there. The rest is the
-- circuit breaker: failures in a row, openings in a row, until when nobody calls, and the claim that then asks for all.
CREATE TABLE accs.outbox_targets (
  name           text PRIMARY KEY CHECK (name <> ''),
  address        text NOT NULL,             -- scheme, host and port, for eyes: a webhook's path may be a secret
  events         text[] NOT NULL               -- notify: and what workflows.notify names
                 CHECK (events <@ (accs.outgoing_events() || accs.schedule_events() || 'notify'::text)),
  workflows      text[],                    -- null: all of them
  registered_at  timestamptz NOT NULL DEFAULT accs.clock(),
  seen_at        timestamptz NOT NULL DEFAULT accs.clock(),   -- a builder that has it in its settings looked for events, to the minute
  failures       int NOT NULL DEFAULT 0,
  trips          int NOT NULL DEFAULT 0,
  open_until     timestamptz,
  probe_id       uuid,
  last_error     text
) WITH (fillfactor = 50);

-- An event for each target that wants it. The order of the ids is the order of a job's events: its transitions hold its lock.
-- By loops: one statement with joins took three times as long for what is nearly always one event and one target.
CREATE FUNCTION accs.announce(p_events text[], p_job uuid, p_workflow uuid, p_about jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now      timestamptz := accs.clock();
  v_target   record;
  v_workflow record;
  v_event    text;
  v_news     boolean := false;
BEGIN
  FOR v_target IN SELECT t.name, t.events, t.workflows, t.open_until FROM accs.outbox_targets t
                   WHERE t.events && (p_events || 'notify'::text) LOOP
    IF v_workflow IS NULL THEN
      SELECT w.name, w.version, w.notify INTO v_workflow FROM public.workflows w WHERE w.id = p_workflow;
    END IF;
    CONTINUE WHEN v_workflow.name <> ALL (v_target.workflows);
    FOREACH v_event IN ARRAY p_events LOOP
      CONTINUE WHEN v_event <> ALL (v_target.events) AND ('notify' <> ALL (v_target.events) OR v_event <> ALL (v_workflow.notify));
      INSERT INTO public.outbox_events (job_id, target, event, payload)
      VALUES (p_job, v_target.name, v_event, p_about || jsonb_build_object('id', accs.new_id(), 'version', 1, 'event', v_event, 'at', v_now,
                'workflow', jsonb_build_object('name', v_workflow.name, 'version', v_workflow.version)));
      v_news := v_news OR v_target.open_until IS NULL OR v_target.open_until <= v_now;
    END LOOP;
  END LOOP;
  IF v_news THEN   -- nobody is woken for a receiver that is left alone for now; no service's name begins with _
    PERFORM pg_notify(accs.channel_prefix() || '_outbox', '');
  END IF;
END $$;

CREATE FUNCTION accs.about_job(p_job public.jobs) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT jsonb_build_object('job', jsonb_build_object(
    'id', p_job.id, 'status', p_job.status, 'generation', p_job.generation,
    'error_code', p_job.error_code, 'error_message', p_job.error_message,
    'idempotency_key', p_job.idempotency_key, 'created_by', p_job.created_by, 'trace_id', p_job.trace_id,
    'created_at', p_job.created_at, 'scheduled_at', p_job.scheduled_at, 'started_at', p_job.started_at, 'finished_at', p_job.finished_at))
$$;

CREATE FUNCTION accs.announce_job() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_events text[];
BEGIN
  v_events := CASE WHEN TG_OP = 'INSERT' AND NEW.status = 'running' THEN ARRAY['job.submitted', 'job.started']
                   WHEN TG_OP = 'INSERT' THEN ARRAY['job.submitted']
                   WHEN NEW.status <> 'running' THEN ARRAY['job.' || NEW.status]
                   WHEN OLD.status = 'queued' THEN ARRAY['job.started'] ELSE ARRAY['job.retried'] END;
  PERFORM accs.announce(v_events, NEW.id, NEW.workflow_id, accs.about_job(NEW));
  RETURN NULL;
END $$;

-- New jobs, for note_new_jobs, which has read that a workflow subscribes to that; where a target wants it of all,
-- announce_submitted has told it.
CREATE FUNCTION accs.announce_subscribed_jobs(p_job_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM accs.outbox_targets t WHERE t.events && ARRAY['job.submitted', 'job.started']) THEN
    PERFORM accs.announce(CASE j.status WHEN 'running' THEN ARRAY['job.submitted', 'job.started'] ELSE ARRAY['job.submitted'] END,
                          j.id, j.workflow_id, accs.about_job(j))
       FROM unnest(p_job_ids) WITH ORDINALITY AS u (id, n) JOIN public.jobs j ON j.id = u.id ORDER BY u.n;
  END IF;
END $$;

CREATE FUNCTION accs.announce_task() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM accs.announce(ARRAY['task.' || NEW.status], j.id, j.workflow_id, jsonb_build_object('job', jsonb_build_object(
            'id', j.id, 'idempotency_key', j.idempotency_key, 'trace_id', j.trace_id), 'task', jsonb_build_object(
            'id', NEW.id, 'key', NEW.task_key, 'service', NEW.service_name, 'status', NEW.status, 'generation', NEW.generation,
            'attempt', NEW.attempt, 'attempt_id', NEW.attempt_id, 'error_code', NEW.error_code, 'error_message', NEW.error_message,
            'started_at', NEW.started_at, 'finished_at', NEW.finished_at)))
     FROM public.jobs j WHERE j.id = NEW.job_id;
  RETURN NULL;
END $$;

-- A schedule, and what is to be told of it, to each target that wants that. It belongs to no job, so it keeps no order.
CREATE FUNCTION accs.announce_schedule(p_event text, s public.schedules, p_about jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  INSERT INTO public.outbox_events (target, event, payload)
  SELECT t.name, p_event, jsonb_build_object('id', accs.new_id(), 'version', 1, 'event', p_event, 'at', v_now,
           'workflow', jsonb_build_object('name', s.workflow),
           'schedule', jsonb_build_object('id', s.id, 'name', s.name, 'kind', s.schedule_kind, 'timezone', s.timezone) || p_about)
    FROM accs.outbox_targets t WHERE p_event = ANY (t.events) AND (t.workflows IS NULL OR s.workflow = ANY (t.workflows));
  IF FOUND AND EXISTS (SELECT FROM accs.outbox_targets t WHERE p_event = ANY (t.events) AND coalesce(t.open_until <= v_now, true)) THEN
    PERFORM pg_notify(accs.channel_prefix() || '_outbox', '');
  END IF;
END $$;

CREATE FUNCTION accs.announce_firing() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM accs.announce_schedule('schedule.' || NEW.outcome, s, jsonb_build_object('reason', NEW.reason, 'nominal', NEW.nominal,
            'fold', NEW.fold, 'due_at', NEW.due_at, 'times', coalesce(NEW.times, 1)))
     FROM public.schedules s WHERE s.id = NEW.schedule_id;
  RETURN NULL;
END $$;

CREATE FUNCTION accs.announce_broken() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM accs.announce_schedule('schedule.broken', NEW, jsonb_build_object('problem', NEW.state_reason));
  RETURN NULL;
END $$;

-- Disabled, so that they cost nothing, until a target wants what they tell: choose_announcements. By row, because the
-- transition tables of a statement trigger are filled even while it is disabled. announce_subscribed stands in for announce_task while
-- targets want of tasks only what workflows subscribe to: the others' tasks are passed over by its WHEN, which calls nothing.
CREATE TRIGGER announce_submitted AFTER INSERT ON public.jobs FOR EACH ROW EXECUTE FUNCTION accs.announce_job();
CREATE TRIGGER announce_outcome AFTER UPDATE OF status ON public.jobs FOR EACH ROW WHEN (OLD.status <> NEW.status)
  EXECUTE FUNCTION accs.announce_job();
CREATE TRIGGER announce_task AFTER UPDATE OF status ON public.job_tasks
  FOR EACH ROW WHEN (OLD.status <> NEW.status AND NEW.status IN ('done', 'error', 'skipped', 'cancelled'))
  EXECUTE FUNCTION accs.announce_task();
ALTER TABLE public.jobs DISABLE TRIGGER announce_submitted;
ALTER TABLE public.jobs DISABLE TRIGGER announce_outcome;
ALTER TABLE public.job_tasks DISABLE TRIGGER announce_task;
CREATE TRIGGER announce_subscribed AFTER UPDATE OF status ON public.job_tasks
  FOR EACH ROW WHEN (NEW.notify IS NOT NULL AND OLD.status <> NEW.status AND 'task.' || NEW.status = ANY (NEW.notify))
  EXECUTE FUNCTION accs.announce_task();
ALTER TABLE public.job_tasks DISABLE TRIGGER announce_subscribed;
CREATE TRIGGER announce_firing AFTER INSERT ON public.firings FOR EACH ROW WHEN (NEW.outcome IN ('missed', 'skipped'))
  EXECUTE FUNCTION accs.announce_firing();
CREATE TRIGGER announce_unsnoozed AFTER UPDATE ON public.firings   -- one that was snoozed has had its row
  FOR EACH ROW WHEN (OLD.outcome <> NEW.outcome AND NEW.outcome IN ('missed', 'skipped')) EXECUTE FUNCTION accs.announce_firing();
CREATE TRIGGER announce_broken AFTER UPDATE OF state ON public.schedules
  FOR EACH ROW WHEN (NEW.state = 'broken' AND OLD.state <> 'broken') EXECUTE FUNCTION accs.announce_broken();
ALTER TABLE public.firings DISABLE TRIGGER announce_firing;
ALTER TABLE public.firings DISABLE TRIGGER announce_unsnoozed;
ALTER TABLE public.schedules DISABLE TRIGGER announce_broken;

-- Enables the triggers that some target needs and disables the others. To change one waits for the writers of its table, so
-- that is done only where it differs; whoever commits later has told.
CREATE FUNCTION accs.choose_announcements() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_row record;
BEGIN
  FOR v_row IN
    SELECT t.tgrelid::regclass AS relation, t.tgname, w.wanted
      FROM (VALUES ('announce_submitted', ARRAY['job.submitted', 'job.started'], '{}'),
                   ('announce_outcome', ARRAY['job.started', 'job.retried', 'job.done', 'job.error', 'job.cancelled', 'notify'], '{}'),
                   ('announce_task', ARRAY['task.done', 'task.error', 'task.skipped', 'task.cancelled'], '{}'),
                   ('announce_subscribed', ARRAY['notify'],
                    ARRAY['task.done', 'task.error', 'task.skipped', 'task.cancelled']),
                   ('announce_firing', ARRAY['schedule.missed', 'schedule.skipped'], '{}'),
                   ('announce_unsnoozed', ARRAY['schedule.missed', 'schedule.skipped'], '{}'),
                   ('announce_broken', ARRAY['schedule.broken'], '{}')) AS k (name, events, unless)
      JOIN pg_trigger t ON t.tgname = k.name   -- of a partitioned table its own: the partitions follow
       AND t.tgrelid = ANY (ARRAY['public.jobs', 'public.job_tasks', 'public.firings', 'public.schedules']::regclass[]),
           LATERAL (SELECT EXISTS (SELECT FROM accs.outbox_targets o WHERE o.events && k.events)
                           AND NOT EXISTS (SELECT FROM accs.outbox_targets o WHERE o.events && k.unless) AS wanted) w
     WHERE (t.tgenabled <> 'D') <> w.wanted
     ORDER BY 1, 2 LOOP
    EXECUTE format('ALTER TABLE %s %s TRIGGER %I', v_row.relation, CASE WHEN v_row.wanted THEN 'ENABLE' ELSE 'DISABLE' END, v_row.tgname);
  END LOOP;
END $$;

-- A target, or what it wants from now on. It is told of what happens after this commits. While a trigger waits for a long writer
-- everybody waits behind it: so not for long, and less than deadlock_timeout, or a finish would be the one that has to give way.
CREATE FUNCTION accs.register_outbox_target(p_name text, p_address text, p_events text[], p_workflows text[] DEFAULT NULL)
RETURNS text LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
BEGIN
  PERFORM accs.lock('outbox_targets');
  IF EXISTS (SELECT FROM accs.outbox_targets
              WHERE (name, address, events) = (p_name, p_address, p_events) AND workflows IS NOT DISTINCT FROM p_workflows) THEN
    RETURN 'repeated';
  END IF;
  INSERT INTO accs.outbox_targets AS t (name, address, events, workflows) VALUES (p_name, p_address, p_events, p_workflows)
  ON CONFLICT (name) DO UPDATE SET address = excluded.address, events = excluded.events, workflows = excluded.workflows,
         registered_at = accs.clock(), failures = 0, trips = 0, open_until = NULL, probe_id = NULL;
  UPDATE public.outbox_events SET next_attempt_at = accs.clock()   -- while it was forgotten, those before them may have been pruned
   WHERE target = p_name AND status = 'pending' AND dead_at IS NULL AND next_attempt_at = 'infinity';
  PERFORM accs.choose_announcements();
  RETURN 'accepted';
END $$;
SELECT accs.is_verb('register_outbox_target', may => '{scheduler}');

-- Nothing more is told to it. What waits for it stays, and is sent if it is registered again before that is pruned.
CREATE FUNCTION accs.forget_outbox_target(p_name text, p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
BEGIN
  PERFORM accs.lock('outbox_targets');
  DELETE FROM accs.outbox_targets WHERE name = p_name;
  IF NOT FOUND THEN
    RETURN accs.audited('forget_outbox_target', 'outbox_target', p_name, 'refused', p_by, p_reason, 'not_found');
  END IF;
  PERFORM accs.choose_announcements();
  RETURN accs.audited('forget_outbox_target', 'outbox_target', p_name, 'accepted', p_by, p_reason);
END $$;
SELECT accs.is_verb('forget_outbox_target', may => '{scheduler,api}');

-- Takes events that are due, for p_lease: of up to p_jobs jobs the first one that waits and up to p_each in all, to be sent
-- one after the other. While the breaker is open there is nothing; when its time is over, one event of one claim asks for all.
-- It looks at no more events than it may take: those that it finds behind another of their job it sends out of sight (infinity), and
-- settle_outbox brings back the first of them when that one has gone. Nobody else is there meanwhile: both hold the target's lock. (Else
-- 50,000 events of one job were looked at by each claim, for 0.4 to 1.7 s.)
-- Lock order: the target, then its events. (A backlog comes faster than statistics of it. Without
-- enable_sort = off it was sorted, and read through for each event: 1.7 s for 200,000 that wait.)
CREATE FUNCTION accs.claim_outbox(p_target text, p_claim uuid, p_lease interval, p_jobs int, p_each int)
RETURNS TABLE (id bigint, job_id uuid, event text, payload jsonb, attempts int, age interval) LANGUAGE plpgsql SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
  v_now    timestamptz := accs.clock();
  v_target accs.outbox_targets;
  v_event  record;
  v_head   bigint;
  v_jobs   uuid[] := '{}';
  v_heads  bigint[] := '{}';
  v_behind bigint[] := '{}';
BEGIN
  SELECT * INTO v_target FROM accs.outbox_targets WHERE name = p_target FOR NO KEY UPDATE;
  IF v_target.name IS NULL THEN
    RETURN;
  END IF;
  IF v_target.seen_at < v_now - interval '1 min' THEN
    UPDATE accs.outbox_targets SET seen_at = v_now WHERE name = p_target;
  END IF;
  IF v_target.open_until > v_now THEN
    RETURN;
  END IF;
  FOR v_event IN
    SELECT e.id, e.job_id FROM public.outbox_events e
     WHERE e.target = p_target AND e.status = 'pending' AND e.dead_at IS NULL AND e.next_attempt_at <= v_now
     ORDER BY e.next_attempt_at, e.id LIMIT greatest(p_jobs * p_each, 100) LOOP
    v_head := NULL;
    IF v_event.job_id IS NULL THEN
      v_head := v_event.id;
    ELSIF v_event.job_id <> ALL (v_jobs) THEN   -- once for each job: until they are vacuumed, all that was delivered of it is passed over
      v_jobs := v_jobs || v_event.job_id;
      SELECT CASE WHEN p.next_attempt_at <= v_now THEN p.id END INTO v_head FROM public.outbox_events p
       WHERE p.target = p_target AND p.job_id = v_event.job_id AND p.status = 'pending' AND p.dead_at IS NULL ORDER BY p.id LIMIT 1;
    END IF;
    IF v_head IS NOT NULL THEN
      v_heads := v_heads || v_head;
    END IF;
    IF v_event.id <> ALL (v_heads) THEN
      v_behind := v_behind || v_event.id;
    END IF;
    EXIT WHEN cardinality(v_heads) >= CASE WHEN v_target.open_until IS NULL THEN p_jobs ELSE 1 END;
  END LOOP;
  -- somebody may redrive them at this moment. (By id only, here and below: no partial index shall look as good as the primary key.)
  v_heads := ARRAY(SELECT e.id FROM public.outbox_events e
                    WHERE e.id = ANY (v_heads) AND e.next_attempt_at <= v_now FOR UPDATE SKIP LOCKED);
  IF v_heads <> '{}' AND v_target.open_until IS NOT NULL THEN
    p_each := 1;
    UPDATE accs.outbox_targets SET open_until = v_now + p_lease, probe_id = p_claim WHERE name = p_target;
  END IF;
  RETURN QUERY
  WITH taken AS (
    UPDATE public.outbox_events e SET claim_id = p_claim, next_attempt_at = v_now + p_lease
     WHERE e.id = ANY (v_heads || ARRAY(
       SELECT n.id FROM unnest(v_heads) AS h (id) JOIN public.outbox_events o ON o.id = h.id, LATERAL (
         -- up to one that is under way: the first was sent back to be tried again (redrive_outbox)
         SELECT f.id, bool_or(f.claim_id IS NOT NULL AND f.next_attempt_at > v_now) OVER (ORDER BY f.id) AS is_taken FROM (
           SELECT f.id, f.claim_id, f.next_attempt_at FROM public.outbox_events f
            WHERE f.target = p_target AND f.job_id = o.job_id AND f.id > o.id
              AND f.status = 'pending' AND f.dead_at IS NULL ORDER BY f.id LIMIT p_each - 1) f) n WHERE NOT n.is_taken))
    RETURNING e.*)
  SELECT t.id, t.job_id, t.event, t.payload, t.attempts, v_now - coalesce(t.redriven_at, t.created_at) FROM taken t ORDER BY t.id;
  IF v_behind <> '{}' THEN   -- but for those that were taken with the one before them
    UPDATE public.outbox_events SET next_attempt_at = 'infinity', claim_id = NULL WHERE id = ANY (ARRAY(
      SELECT b.id FROM public.outbox_events b WHERE b.id = ANY (v_behind) AND b.next_attempt_at <= v_now FOR UPDATE SKIP LOCKED));
  END IF;
END $$;
SELECT accs.is_verb('claim_outbox', pinned => true, may => '{scheduler}');

-- How it went: delivered, failed (again after its delay), dead (given up), or returned (not sent: it waits as long as the one
-- before it). Only for who still has the claim; the others were too late, and somebody else may have sent the event too. After
-- p_trip failures in a row the breaker opens for p_rest, each time in a row for twice as long, up to p_longest.
CREATE FUNCTION accs.settle_outbox(p_target text, p_claim uuid, p_ids bigint[], p_outcomes text[], p_delays interval[], p_errors text[],
                                   p_trip int, p_rest interval, p_longest interval)
RETURNS TABLE (id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now     timestamptz := accs.clock();
  v_target  accs.outbox_targets;
  v_settled record;
BEGIN
  SELECT * INTO v_target FROM accs.outbox_targets WHERE name = p_target FOR NO KEY UPDATE;
  WITH moved AS (
    UPDATE public.outbox_events e SET status = CASE s.outcome WHEN 'delivered' THEN 'delivered' ELSE 'pending' END,
           attempts = e.attempts + CASE s.outcome WHEN 'returned' THEN 0 ELSE 1 END,
           dispatched_at = CASE s.outcome WHEN 'delivered' THEN v_now END, dead_at = CASE s.outcome WHEN 'dead' THEN v_now END,
           next_attempt_at = v_now + coalesce(s.delay, '0'), last_error = coalesce(s.error, e.last_error),
           claim_id = CASE s.outcome WHEN 'delivered' THEN e.claim_id END
      FROM unnest(p_ids, p_outcomes, p_delays, p_errors) AS s (id, outcome, delay, error)
     WHERE e.id = s.id AND e.target = p_target AND e.claim_id = p_claim AND e.status = 'pending'
    RETURNING e.id, s.outcome, s.error)
  SELECT coalesce(array_agg(m.id), '{}') AS ids, array_agg(m.id) FILTER (WHERE m.outcome IN ('delivered', 'dead')) AS gone,
         count(*) FILTER (WHERE m.outcome = 'delivered') AS delivered,
         count(*) FILTER (WHERE m.outcome IN ('failed', 'dead')) AS failed, max(m.error) AS error INTO v_settled FROM moved m;
  IF v_settled.gone IS NOT NULL THEN   -- the next in turn comes into sight again
    UPDATE public.outbox_events e SET next_attempt_at = v_now WHERE e.next_attempt_at = 'infinity' AND e.id = ANY (ARRAY(
      SELECT n.id FROM (SELECT g.job_id, max(g.id) AS id FROM public.outbox_events g WHERE g.id = ANY (v_settled.gone) GROUP BY g.job_id) l,
             LATERAL (SELECT o.id FROM public.outbox_events o WHERE o.target = p_target AND o.job_id = l.job_id AND o.id > l.id
                         AND o.status = 'pending' AND o.dead_at IS NULL ORDER BY o.id LIMIT 1) n));
  END IF;

  IF v_settled.failed > 0 THEN
    v_target.failures := v_settled.failed + CASE WHEN v_settled.delivered > 0 THEN 0 ELSE coalesce(v_target.failures, 0) END;
    IF v_target.probe_id = p_claim OR v_target.open_until IS NULL AND v_target.failures >= p_trip THEN   -- not those that failed beside it
      v_target.trips := v_target.trips + 1;
      v_target.open_until := v_now + least(p_longest, p_rest * 2.0 ^ least(v_target.trips - 1, 20));
    END IF;
    UPDATE accs.outbox_targets SET failures = v_target.failures, trips = v_target.trips, open_until = v_target.open_until, probe_id = NULL,
           last_error = v_settled.error WHERE name = p_target;
  ELSIF v_settled.delivered > 0 AND v_target.failures > 0 THEN
    UPDATE accs.outbox_targets SET failures = 0, trips = 0, open_until = NULL, probe_id = NULL WHERE name = p_target;
    IF v_target.trips > 0 THEN   -- it was away, and what it missed need not wait any longer
      UPDATE public.outbox_events e SET next_attempt_at = v_now
       WHERE e.target = p_target AND e.status = 'pending' AND e.dead_at IS NULL AND e.next_attempt_at > v_now
         AND e.next_attempt_at < 'infinity' AND e.claim_id IS NULL;
    END IF;
  ELSIF v_target.probe_id = p_claim THEN   -- nothing was asked after all
    UPDATE accs.outbox_targets SET open_until = v_now, probe_id = NULL WHERE name = p_target;
  END IF;
  RETURN QUERY
  SELECT u.id, CASE WHEN u.id = ANY (v_settled.ids) THEN 'accepted' WHEN e.claim_id = p_claim THEN 'repeated' ELSE 'refused' END,
         CASE WHEN e.id IS NULL THEN 'not_found' WHEN u.id = ANY (v_settled.ids) OR e.claim_id = p_claim THEN NULL ELSE 'stale_claim' END
    FROM unnest(p_ids) AS u (id) LEFT JOIN public.outbox_events e ON e.id = u.id;
END $$;
SELECT accs.is_verb('settle_outbox', pinned => true, may => '{scheduler}');

-- Sends events again, whatever became of them; without ids those that were given up, of one target or of all. Who does that
-- has seen to the receiver, so the breaker closes. An event that is under way stays so.
CREATE FUNCTION accs.redrive_outbox(p_ids bigint[] DEFAULT NULL, p_target text DEFAULT NULL, p_by text DEFAULT NULL,
                                    p_reason text DEFAULT NULL)
RETURNS TABLE (id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_moved bigint[];
  v_said  record;
BEGIN
  IF p_ids IS NULL THEN
    p_ids := ARRAY(SELECT e.id FROM public.outbox_events e
                    WHERE e.status = 'pending' AND e.dead_at IS NOT NULL AND (p_target IS NULL OR e.target = p_target));
  END IF;
  UPDATE accs.outbox_targets SET failures = 0, trips = 0, open_until = NULL, probe_id = NULL
   WHERE failures > 0 AND name IN (SELECT e.target FROM public.outbox_events e WHERE e.id = ANY (p_ids));
  WITH moved AS (
    UPDATE public.outbox_events e SET status = 'pending', attempts = 0, next_attempt_at = v_now, dispatched_at = NULL, dead_at = NULL,
           claim_id = NULL, redriven_at = v_now
     WHERE e.id = ANY (p_ids) AND NOT (e.status = 'pending' AND e.claim_id IS NOT NULL AND e.next_attempt_at > v_now)
    RETURNING e.id)
  SELECT coalesce(array_agg(m.id), '{}') INTO v_moved FROM moved m;
  PERFORM pg_notify(accs.channel_prefix() || '_outbox', '');
  SELECT array_agg(s.id) AS ids, array_agg(s.answer) AS answers, array_agg(s.reason) AS reasons INTO v_said FROM (
    SELECT u.id, CASE WHEN u.id = ANY (v_moved) THEN 'accepted' WHEN e.id IS NULL THEN 'refused' ELSE 'repeated' END AS answer,
           CASE WHEN e.id IS NULL THEN 'not_found' END AS reason
      FROM unnest(p_ids) AS u (id) LEFT JOIN public.outbox_events e ON e.id = u.id) s;
  PERFORM accs.audit_each('redrive_outbox', 'outgoing_event', v_said.ids::text[], v_said.answers, v_said.reasons, p_by, p_reason,
                          jsonb_strip_nulls(jsonb_build_object('target', p_target)));
  RETURN QUERY SELECT * FROM unnest(v_said.ids, v_said.answers, v_said.reasons);
END $$;
SELECT accs.is_verb('redrive_outbox', may => '{scheduler,api}');

-- Removes what was delivered, or given up, so long ago; up to p_limit rows of each. What still waits is never removed, unless
-- its target was forgotten: nobody will send it, and it would keep its job from leaving.
CREATE FUNCTION accs.prune_outbox(p_keep interval, p_keep_dead interval, p_limit int DEFAULT 1000) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_gone int;
BEGIN
  DELETE FROM public.outbox_events WHERE id = ANY (ARRAY(
    (SELECT e.id FROM public.outbox_events e WHERE e.status = 'delivered' AND e.dispatched_at < accs.clock() - p_keep
      ORDER BY e.dispatched_at LIMIT p_limit)
    UNION ALL
    (SELECT e.id FROM public.outbox_events e WHERE e.status = 'pending' AND e.dead_at < accs.clock() - p_keep_dead
      ORDER BY e.dead_at LIMIT p_limit)
    UNION ALL
    (SELECT e.id FROM public.outbox_events e WHERE e.status = 'pending' AND e.dead_at IS NULL AND e.created_at < accs.clock() - p_keep_dead
        AND NOT EXISTS (SELECT FROM accs.outbox_targets t WHERE t.name = e.target) LIMIT p_limit)));
  GET DIAGNOSTICS v_gone = ROW_COUNT;
  -- the net: one that waits for another which somebody has deleted by hand
  UPDATE public.outbox_events e SET next_attempt_at = accs.clock()
   WHERE e.status = 'pending' AND e.dead_at IS NULL AND e.next_attempt_at = 'infinity'
     AND NOT EXISTS (SELECT FROM public.outbox_events p WHERE p.target = e.target AND p.job_id = e.job_id AND p.id < e.id
                        AND p.status = 'pending' AND p.dead_at IS NULL);
  RETURN v_gone;
END $$;
SELECT accs.is_verb('prune_outbox', may => '{scheduler}');

-- In how long a target's next event is due, or has to be looked at; null: none waits.
CREATE FUNCTION accs.outbox_outlook(p_target text) RETURNS interval LANGUAGE sql STABLE SET enable_sort = off AS $$
  SELECT (SELECT greatest(e.next_attempt_at, t.open_until) - accs.clock()
            FROM public.outbox_events e JOIN accs.outbox_targets t ON t.name = e.target
           WHERE e.target = p_target AND e.status = 'pending' AND e.dead_at IS NULL AND e.next_attempt_at < 'infinity'
           ORDER BY e.next_attempt_at, e.id LIMIT 1)
$$;
SELECT accs.is_verb('outbox_outlook', pinned => true, may => '{scheduler}');
