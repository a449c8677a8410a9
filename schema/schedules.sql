-- ---------------------------------------------------------------------------------------------------------------
-- Schedules: what starts jobs by itself, the plan of each, and everything that waits for a time
-- ---------------------------------------------------------------------------------------------------------------

-- Any client may INSERT one, and UPDATE its definition: triggers check it, count the revision and ask for a plan. What stands
-- under "state" belongs to the verbs. Times are instants but for nominal ones, which are local to the zone: SQL never converts
-- between zones.
CREATE TABLE public.schedules (
  id               uuid PRIMARY KEY DEFAULT accs.new_id(),
  name             text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 200),
  title            text,
  description      text,
  schedule_kind    text NOT NULL CHECK (schedule_kind = ANY ('{cron,rrule,once,interval,event,condition}')),
  schedule_expr    text NOT NULL CHECK (length(schedule_expr) BETWEEN 1 AND 20000),
  timezone         text NOT NULL DEFAULT 'UTC' CHECK (length(timezone) BETWEEN 1 AND 100),
  workflow         text NOT NULL CHECK (length(workflow) BETWEEN 1 AND 200),
  version          int CHECK (version >= 1),                              -- null: the newest active one, when it fires
  options          jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(options) = 'object' AND pg_column_size(options) <= 262144),
  priority         int NOT NULL DEFAULT 0,
  -- policies
  missed           text NOT NULL DEFAULT 'one' CHECK (missed IN ('skip', 'one', 'all')),
  grace            interval NOT NULL DEFAULT '60 s' CHECK (grace BETWEEN '0' AND '366 days'),
  catch_up         interval CHECK (catch_up BETWEEN '0' AND '3660 days'),   -- null: no limit for 'one', a day for 'all'
  catch_up_max     int NOT NULL DEFAULT 100 CHECK (catch_up_max BETWEEN 1 AND 1000),
  overlap          text NOT NULL DEFAULT 'skip' CHECK (overlap IN ('allow', 'skip', 'queue', 'queue_all', 'cancel')),
  run_key          text CHECK (length(run_key) BETWEEN 1 AND 200 AND run_key NOT LIKE 'schedule:%'),   -- null: one of its own
  spread           interval CHECK (spread BETWEEN '0' AND '366 days'),
  exclude          text[] NOT NULL DEFAULT '{}',                          -- calendars
  only_on          text[] NOT NULL DEFAULT '{}',
  start_at         timestamptz,
  end_at           timestamptz,
  max_runs         int CHECK (max_runs >= 1),
  pause_after      int CHECK (pause_after BETWEEN 1 AND 100),             -- failed jobs in a row that pause it
  pause_for        interval CHECK (pause_for > '0'),                      -- null: until somebody resumes it
  anchor           timestamp,                                             -- the phase of a rule; the planner sets it where nobody did
  -- of events and conditions
  filter           text CHECK (length(filter) <= 4096),
  gather           jsonb CHECK (jsonb_typeof(gather) = 'object'),
  cooldown         interval CHECK (cooldown > '0'),
  cooldown_trailing boolean NOT NULL DEFAULT false,
  reenter          boolean NOT NULL DEFAULT false,
  condition        jsonb CHECK (jsonb_typeof(condition) = 'object'),
  -- who wrote it
  created_by       text,
  created_at       timestamptz NOT NULL DEFAULT accs.clock(),
  updated_at       timestamptz NOT NULL DEFAULT accs.clock(),
  changed_by       text,                                                  -- who changes it, and why: for its history
  change_reason    text,
  -- state
  state            text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'ended', 'broken')),
  state_reason     text,
  state_since      timestamptz NOT NULL DEFAULT accs.clock(),
  paused_until     timestamptz,
  revision         int NOT NULL DEFAULT 1,
  runs             int NOT NULL DEFAULT 0,                                -- fired and caught up; not run_now, not backfilled
  refused_in_row   int NOT NULL DEFAULT 0,                                -- firings that raised: three make it broken
  failures_in_row  int NOT NULL DEFAULT 0,                                -- of its jobs, as last looked at for pause_after
  last_nominal     timestamp,
  last_job_id      uuid,
  settled_until    timestamptz NOT NULL DEFAULT accs.clock(),             -- what was due until then is settled
  CONSTRAINT times CHECK (coalesce(start_at, '2000-01-01Z') BETWEEN '0001-01-02Z' AND '9999-12-30Z'
    AND coalesce(end_at, '2000-01-01Z') BETWEEN '0001-01-02Z' AND '9999-12-30Z'),
  CONSTRAINT overlap_with_key CHECK (overlap <> 'allow' OR run_key IS NULL)   -- a key limits how many run at once
) WITH (fillfactor = 60);

-- The next occurrences of a schedule, as the planner has found them: data, so that SQL alone can fire. gap: the oldest ones of a
-- long outage, as one.
CREATE TABLE accs.plan_of (
  schedule_id   uuid PRIMARY KEY,
  revision      int NOT NULL,
  zone_version  text NOT NULL,
  planned_at    timestamptz NOT NULL DEFAULT accs.clock(),
  nominals      timestamp[] NOT NULL,
  folds         int[] NOT NULL,
  dues          timestamptz[] NOT NULL,
  notes         jsonb,                 -- by place, from 1: {"merged": {"into": …}} or {"excluded": {"calendar": …, "label": …}}
  options       jsonb,                 -- by place, where they are templated over the occurrence
  gap           jsonb,                 -- first, last, times
  exhausted     text                   -- why nothing follows these
);

-- Everything that waits for a time: one index says what is due next. key tells several of one kind apart.
--   occurrence  the next planned one, at place pos of the plan     snoozed     one whose due time was moved; key is its nominal time and
-- fold
--   resume      the end of a pause                                 review      a job failed: is the schedule to be paused?
--   release     a run key became free while somebody held it       gather      a window of events that closes
--   backfill    the next page of one                               replan      the planner has to look (Python)
--   probe       a condition is to be measured (Python)             judge       a condition may be stale, or has samples from a hold
CREATE TABLE accs.agenda (
  schedule_id  uuid NOT NULL,
  what         text NOT NULL CHECK (what = ANY ('{occurrence,snoozed,resume,review,release,gather,backfill,replan,probe,judge}')),
  key          text NOT NULL DEFAULT '',
  due_at       timestamptz NOT NULL,
  pos          int NOT NULL DEFAULT 1,
  PRIMARY KEY (schedule_id, what, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX agenda_due ON accs.agenda (due_at) WHERE what <> ALL ('{replan,probe}');    -- settle_due
CREATE INDEX agenda_work ON accs.agenda (what, due_at) WHERE what = ANY ('{replan,probe}');   -- the planner, the probes

-- Occurrences that are not to run. (A snoozed one has its row in firings and in the agenda.)
CREATE TABLE accs.schedule_marks (
  schedule_id  uuid NOT NULL,
  nominal      timestamp NOT NULL,
  fold         int NOT NULL DEFAULT 0,
  by           text,
  reason       text,
  at           timestamptz NOT NULL DEFAULT accs.clock(),
  PRIMARY KEY (schedule_id, nominal, fold)
);

-- Who did what to a schedule, when and why; before and after hold what has changed. Append-only.
CREATE TABLE accs.schedule_history (
  id           bigint PRIMARY KEY DEFAULT nextval('accs.audit_seq'),
  schedule_id  uuid NOT NULL,
  ts           timestamptz NOT NULL DEFAULT accs.clock(),
  what         text NOT NULL,
  by           text,
  reason       text,
  revision     int,
  before       jsonb,
  after        jsonb,
  via          text NOT NULL DEFAULT accs.via(),
  request_id   text DEFAULT left(nullif(current_setting('accs.request_id', true), ''), 200)
);

CREATE INDEX schedule_history_of ON accs.schedule_history (schedule_id, id);

-- The audit with what was done to schedules: one list, in the order of its ids. (What a schedule's history tells of the schedulers
-- themselves is in it too: they have names.)
CREATE VIEW accs.audit_trail AS
  SELECT a.id, a.ts, a.actor, a.via, a.action, a.kind, a.target, a.reason, a.answer, a.detail, a.request_id FROM accs.audit a
  UNION ALL
  SELECT h.id, h.ts, h.by, h.via, h.what, 'schedule', coalesce((SELECT s.name FROM public.schedules s WHERE s.id = h.schedule_id),
         h.schedule_id::text), h.reason, 'accepted', nullif(jsonb_strip_nulls(jsonb_build_object('revision', h.revision, 'before', h.before,
         'after', h.after)), '{}'), h.request_id
    FROM accs.schedule_history h;

-- While there is a row, nothing is settled: it is as if all schedulers were down.
CREATE TABLE accs.schedule_hold (
  only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  since     timestamptz NOT NULL DEFAULT accs.clock(),
  by        text,
  reason    text
);

-- Days on which schedules do not fire (schedules.exclude), or on which alone they do (only_on). entries: [{"from", "to",
-- "label"}], local dates.
CREATE TABLE public.calendars (
  name        text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
  timezone    text,               -- whose dates they are; null: those of each schedule's own zone
  entries     jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(entries) = 'array' AND pg_column_size(entries) <= 1048576),
  created_by  text,
  created_at  timestamptz NOT NULL DEFAULT accs.clock(),
  updated_at  timestamptz NOT NULL DEFAULT accs.clock()
);

-- With which rules of each zone plans were last made: a planner whose rules are older plans nothing in that zone.
CREATE TABLE accs.zones (
  name     text PRIMARY KEY,
  version  text NOT NULL,
  digest   text NOT NULL,
  since    timestamptz NOT NULL DEFAULT accs.clock(),
  by       text
);

-- p_what 'event': only whoever settles events has to look.
CREATE FUNCTION accs.tell_schedulers(p_what text DEFAULT '') RETURNS void LANGUAGE sql AS $$
  SELECT pg_notify(accs.channel_prefix() || '_schedule', p_what)
$$;

CREATE FUNCTION accs.note_schedule(p_schedule uuid, p_what text, p_by text, p_reason text, p_before jsonb DEFAULT NULL,
  p_after jsonb DEFAULT NULL,
                                   p_revision int DEFAULT NULL)
RETURNS void LANGUAGE sql AS $$
  INSERT INTO accs.schedule_history (schedule_id, what, by, reason, revision, before, after)
  VALUES (p_schedule, p_what, coalesce(p_by, session_user), left(p_reason, 2000), p_revision, p_before, p_after)
$$;

-- Lets the planner look at schedules now.
CREATE FUNCTION accs.ask_for_plans(p_ids uuid[]) RETURNS void LANGUAGE sql AS $$
  INSERT INTO accs.agenda AS a (schedule_id, what, due_at) SELECT u.id, 'replan', accs.clock()
    FROM (SELECT DISTINCT unnest(p_ids) AS id ORDER BY 1) u
  ON CONFLICT (schedule_id, what, key) DO UPDATE SET due_at = least(a.due_at, excluded.due_at);
  SELECT accs.tell_schedulers()
$$;

-- What a writer may not give: it belongs to the state machine.
CREATE FUNCTION accs.refuse_schedule_state() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    RAISE EXCEPTION 'schedule "%": a schedule is ended, and stays with its ledger', OLD.name
      USING ERRCODE = 'AC002', HINT = format('SELECT accs.end_schedule(%L)', OLD.name);
  END IF;
  RAISE EXCEPTION 'schedule "%": its state is not written by hand', NEW.name
    USING ERRCODE = 'AC002', HINT = 'Call accs.pause_schedule, resume_schedule or end_schedule; a new one begins as active.';
END $$;
CREATE TRIGGER guard_insert BEFORE INSERT ON public.schedules FOR EACH ROW
  WHEN (NOT accs.in_verb() AND (NEW.state <> 'active' OR NEW.revision <> 1 OR NEW.runs <> 0 OR NEW.last_nominal IS NOT NULL
                                OR NEW.last_job_id IS NOT NULL OR NEW.paused_until IS NOT NULL OR NEW.settled_until <> accs.clock()))
  EXECUTE FUNCTION accs.refuse_schedule_state();
CREATE TRIGGER guard_state BEFORE UPDATE OF id, state, state_reason, state_since, paused_until, revision, runs, refused_in_row,
  failures_in_row,
  last_nominal, last_job_id, settled_until, created_at ON public.schedules
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_schedule_state();
CREATE TRIGGER guard_delete BEFORE DELETE ON public.schedules FOR EACH ROW WHEN (NOT accs.in_verb())
  EXECUTE FUNCTION accs.refuse_schedule_state();

-- The definition of a schedule, as its history shows it. (The first: what its plan is made from.)
CREATE FUNCTION accs.timing_of(s public.schedules) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT jsonb_build_object('schedule_kind', s.schedule_kind, 'schedule_expr', s.schedule_expr, 'timezone', s.timezone, 'spread', s.spread,
                            'exclude', s.exclude, 'only_on', s.only_on, 'start_at', s.start_at, 'end_at', s.end_at, 'anchor', s.anchor,
                            'condition', s.condition)
$$;
CREATE FUNCTION accs.definition_of(s public.schedules) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT accs.timing_of(s) || jsonb_build_object('name', s.name, 'title', s.title, 'description', s.description, 'workflow', s.workflow,
    'version', s.version, 'options', s.options, 'priority', s.priority, 'missed', s.missed, 'grace', s.grace, 'catch_up', s.catch_up,
    'catch_up_max', s.catch_up_max, 'overlap', s.overlap, 'run_key', s.run_key, 'max_runs', s.max_runs, 'pause_after', s.pause_after,
    'pause_for', s.pause_for, 'filter', s.filter, 'gather', s.gather, 'cooldown', s.cooldown, 'cooldown_trailing', s.cooldown_trailing,
      'reenter', s.reenter,
    'created_by', s.created_by)
$$;

-- The members of p_to that differ from p_from.
CREATE FUNCTION accs.differences(p_from jsonb, p_to jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(p_to) WHERE value IS DISTINCT FROM p_from -> key
$$;

-- What its owner may, as far as the database can tell. (The least interval is the planner's to check.)
CREATE FUNCTION accs.check_owner(s public.schedules, p_new boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_actor accs.actors;
BEGIN
  SELECT * INTO v_actor FROM accs.actors WHERE name = s.created_by;
  IF (v_actor.limits ->> 'max_priority')::int < s.priority THEN
    RAISE EXCEPTION 'schedule "%": % may give a priority of % at most', s.name, s.created_by, v_actor.limits ->> 'max_priority'
      USING ERRCODE = 'AC006';
  ELSIF p_new AND (v_actor.limits ->> 'schedules')::int <= (
      SELECT count(*) FROM public.schedules o WHERE o.created_by = s.created_by AND o.state <> 'ended') THEN
    RAISE EXCEPTION 'schedule "%": % has % schedules already, which is the limit', s.name, s.created_by, v_actor.limits ->> 'schedules'
      USING ERRCODE = 'AC006', HINT = 'End one of them first.';
  END IF;
END $$;

-- Verbs and addresses take a name or an id: no name may be taken for the id of another schedule.
CREATE FUNCTION accs.check_name(p_name text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF p_name ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN
    RAISE EXCEPTION 'a schedule can''t be called "%", which looks like the id of one', p_name
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give it a name that is no UUID.';
  END IF;
END $$;

CREATE FUNCTION accs.begin_schedule() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  NEW.created_by := coalesce(NEW.created_by, session_user);
  NEW.settled_until := accs.clock();
  PERFORM accs.check_owner(NEW, true);
  PERFORM accs.check_name(NEW.name);
  RETURN NEW;
END $$;
CREATE TRIGGER begin_schedule BEFORE INSERT ON public.schedules FOR EACH ROW EXECUTE FUNCTION accs.begin_schedule();

CREATE FUNCTION accs.note_new_schedules() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs,
  pg_temp AS $$
BEGIN
  INSERT INTO accs.schedule_history (schedule_id, what, by, reason, revision, after)
  SELECT f.id, 'created', coalesce(f.changed_by, f.created_by), f.change_reason, 1,
         jsonb_strip_nulls(accs.definition_of(f::public.schedules))
    FROM fresh f ORDER BY f.id;
  IF FOUND THEN
    PERFORM accs.ask_for_plans(ARRAY(SELECT id FROM fresh));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER note_new_schedules AFTER INSERT ON public.schedules REFERENCING NEW TABLE AS fresh
  FOR EACH STATEMENT EXECUTE FUNCTION accs.note_new_schedules();

-- An edit, by whichever way it comes. What is due is settled under the old definition first; what follows is planned anew from now
-- on if the times have changed. The same definition again changes nothing.
CREATE FUNCTION accs.change_schedule() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
DECLARE
  v_old    jsonb := accs.definition_of(OLD);
  v_new    jsonb := accs.definition_of(NEW);
  v_retime boolean := accs.timing_of(OLD) IS DISTINCT FROM accs.timing_of(NEW);
  v_done   record;
BEGIN
  IF v_old = v_new OR OLD.anchor IS NULL AND v_old - 'anchor' = v_new - 'anchor' THEN
    RETURN NEW;   -- or the planner has set the anchor
  END IF;
  PERFORM accs.check_owner(NEW, false);
  PERFORM accs.check_name(NEW.name);
  FOR v_done IN SELECT * FROM accs.settle(ARRAY[OLD.id], NEW.changed_by) LOOP
    NEW.runs := v_done.runs;
    NEW.last_nominal := v_done.last_nominal;
    NEW.last_job_id := v_done.last_job_id;
    NEW.settled_until := v_done.settled_until;
    NEW.state := v_done.state;
    NEW.state_reason := v_done.state_reason;
  END LOOP;
  NEW.revision := OLD.revision + 1;
  NEW.updated_at := accs.clock();
  IF v_retime OR NEW.state = 'broken' OR NEW.state = 'ended' AND NEW.max_runs IS DISTINCT FROM OLD.max_runs THEN
    IF NEW.state IN ('ended', 'broken') THEN
      NEW.state := 'active';
      NEW.state_reason := NULL;
      NEW.state_since := accs.clock();
      NEW.refused_in_row := 0;
    END IF;
    NEW.settled_until := greatest(NEW.settled_until, accs.clock());
    DELETE FROM accs.agenda WHERE schedule_id = OLD.id AND what IN ('occurrence', 'probe');
    DELETE FROM accs.plan_of WHERE schedule_id = OLD.id;
    PERFORM accs.ask_for_plans(ARRAY[OLD.id]);
  ELSIF v_old -> 'options' <> v_new -> 'options'
        OR (v_old -> 'filter', v_old -> 'gather') IS DISTINCT FROM (v_new -> 'filter', v_new -> 'gather') THEN
    PERFORM accs.ask_for_plans(ARRAY[OLD.id]);   -- they may be templated over the occurrence; an expression is to be checked
  END IF;
  PERFORM accs.note_schedule(OLD.id, 'edited', NEW.changed_by, NEW.change_reason, accs.differences(v_new, v_old),
    accs.differences(v_old, v_new),
                             NEW.revision);
  RETURN NEW;
END $$;
CREATE TRIGGER change_schedule BEFORE UPDATE OF name, title, description, schedule_kind, schedule_expr, timezone, workflow, version,
  options,
  priority, missed, grace, catch_up, catch_up_max, overlap, run_key, spread, exclude, only_on, start_at, end_at, max_runs, pause_after,
    pause_for,
  anchor, filter, gather, cooldown, cooldown_trailing, reenter, condition, created_by ON public.schedules
  FOR EACH ROW EXECUTE FUNCTION accs.change_schedule();

-- A calendar that changes replans the schedules that name it; what is settled stays as it is.
CREATE FUNCTION accs.note_calendar() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  IF TG_OP <> 'UPDATE' OR (OLD.entries, OLD.name, OLD.timezone) IS DISTINCT FROM (NEW.entries, NEW.name, NEW.timezone) THEN
    PERFORM accs.ask_for_plans(ARRAY(
      SELECT id FROM public.schedules
       WHERE state <> 'ended' AND (exclude || only_on) && ARRAY[CASE WHEN TG_OP <> 'INSERT' THEN OLD.name END, CASE
         WHEN TG_OP <> 'DELETE' THEN NEW.name END]));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER note_calendar AFTER INSERT OR UPDATE OR DELETE ON public.calendars FOR EACH ROW EXECUTE FUNCTION accs.note_calendar();
CREATE TRIGGER touch BEFORE UPDATE ON public.calendars FOR EACH ROW EXECUTE FUNCTION accs.touch();

-- The schedule of this name or id, locked. AC004 if there is none.
CREATE FUNCTION accs.lock_schedule(p_which text) RETURNS public.schedules LANGUAGE plpgsql AS $$
DECLARE
  v_found public.schedules;
BEGIN
  SELECT * INTO v_found FROM public.schedules WHERE name = p_which OR id::text = p_which ORDER BY name = p_which DESC
         LIMIT 1 FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no schedule "%"', left(p_which, 200) USING ERRCODE = 'AC004', HINT = 'accsd schedules list shows them.';
  END IF;
  RETURN v_found;
END $$;

-- Writes a schedule by its name, given as JSON with the columns of its definition; what is not given is the default, or stays as
-- it is. The same definition again is repeated. p_if_revision refuses an edit of what somebody else has changed meanwhile.
CREATE FUNCTION accs.put_schedule(p_definition jsonb, p_by text DEFAULT NULL, p_reason text DEFAULT NULL, p_if_revision int DEFAULT NULL)
RETURNS TABLE (id uuid, answer text, reason text, revision int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_known   text[] := ARRAY(SELECT jsonb_object_keys(accs.definition_of(NULL::public.schedules)));
  v_unknown text;
  v_row     public.schedules;
  v_new     public.schedules;
BEGIN
  IF jsonb_typeof(p_definition) IS DISTINCT FROM 'object' OR p_definition ->> 'name' IS NULL THEN
    RAISE EXCEPTION 'a schedule is a JSON object with a name' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT k INTO v_unknown FROM jsonb_object_keys(p_definition) k WHERE k <> ALL (v_known) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'a schedule has no "%"', v_unknown USING ERRCODE = 'invalid_parameter_value', HINT = array_to_string(v_known, ', ');
  END IF;
  SELECT * INTO v_row FROM public.schedules s WHERE s.name = p_definition ->> 'name' FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    IF p_if_revision > 0 THEN
      RETURN QUERY SELECT NULL::uuid, 'refused'::text, 'not_found'::text, NULL::int;
      RETURN;
    END IF;
    IF p_definition ->> 'schedule_kind' = 'event' THEN   -- each event has its run, unless somebody says otherwise
      p_definition := '{"overlap": "allow"}' || p_definition;
    END IF;
    EXECUTE format('INSERT INTO public.schedules (%1$s, created_by, changed_by, change_reason)
                    SELECT %1$s, coalesce(created_by, $2), $2, $3 FROM jsonb_populate_record(NULL::public.schedules, $1)
                    ON CONFLICT (name) DO NOTHING RETURNING *',
                   (SELECT string_agg(quote_ident(k), ', ') FROM jsonb_object_keys(p_definition - 'created_by') k))
      INTO v_new USING p_definition, p_by, p_reason;
    IF v_new.id IS NULL THEN   -- somebody else has made it at this moment
      RETURN QUERY SELECT NULL::uuid, 'refused'::text, 'conflict'::text, NULL::int;
    ELSE
      RETURN QUERY SELECT v_new.id, 'accepted'::text, NULL::text, v_new.revision;
    END IF;
    RETURN;
  END IF;
  IF p_if_revision IS NOT NULL AND p_if_revision <> v_row.revision THEN
    RETURN QUERY SELECT v_row.id, 'refused'::text, 'conflict'::text, v_row.revision;
    RETURN;
  END IF;
  v_new := jsonb_populate_record(v_row, p_definition - 'created_by');
  IF accs.definition_of(v_new) = accs.definition_of(v_row) THEN
    IF v_row.state = 'ended' AND v_row.state_reason = 'cancelled' THEN   -- somebody wants it again, from now on
      UPDATE public.schedules s SET state = 'active', state_reason = NULL, state_since = accs.clock(), settled_until = accs.clock()
       WHERE s.id = v_row.id;
      PERFORM accs.note_schedule(v_row.id, 'revived', p_by, p_reason);
      PERFORM accs.ask_for_plans(ARRAY[v_row.id]);
      RETURN QUERY SELECT v_row.id, 'accepted'::text, NULL::text, v_row.revision;
      RETURN;
    END IF;
    RETURN QUERY SELECT v_row.id, 'repeated'::text, NULL::text, v_row.revision;
    RETURN;
  END IF;
  EXECUTE format('UPDATE public.schedules SET (%1$s, changed_by, change_reason) = (SELECT %1$s, $2, $3 FROM jsonb_populate_record($4, $1))
                   WHERE id = $5 RETURNING *',
                 (SELECT string_agg(quote_ident(k), ', ') FROM jsonb_object_keys(p_definition - 'created_by') k))
    INTO v_new USING p_definition, p_by, p_reason, v_row, v_row.id;
  RETURN QUERY SELECT v_new.id, 'accepted'::text, NULL::text, v_new.revision;
END $$;
SELECT accs.is_verb('put_schedule', may => '{scheduler,api}');

CREATE FUNCTION accs.move_schedule(p_id uuid, p_state text, p_reason text, p_until timestamptz DEFAULT NULL) RETURNS void LANGUAGE sql AS $$
  UPDATE public.schedules SET state = p_state, state_reason = left(p_reason, 2000), state_since = accs.clock(),
    paused_until = p_until WHERE id = p_id
$$;

-- Ends a schedule: nothing follows. Its open jobs run on, unless they are to be cancelled.
CREATE FUNCTION accs.end_schedule(p_which text, p_by text DEFAULT NULL, p_reason text DEFAULT NULL, p_cancel boolean DEFAULT false)
RETURNS TABLE (answer text, reason text, cancelled int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row  public.schedules := accs.lock_schedule(p_which);
  v_jobs uuid[];
BEGIN
  IF v_row.state <> 'ended' THEN
    PERFORM accs.settle_one(v_row.id, p_by);
    PERFORM accs.settle_snoozed_away(v_row.id, p_by);   -- it finds them in the agenda
    DELETE FROM accs.agenda WHERE schedule_id = v_row.id;
    DELETE FROM accs.plan_of WHERE schedule_id = v_row.id;
    PERFORM accs.move_schedule(v_row.id, 'ended', 'cancelled');
    PERFORM accs.note_schedule(v_row.id, 'ended', p_by, p_reason);
  END IF;
  IF p_cancel THEN
    v_jobs := ARRAY(SELECT r.job_id FROM accs.open_runs r WHERE r.schedule_id = v_row.id);
    PERFORM accs.cancel(v_jobs, coalesce(p_reason, 'schedule ' || v_row.name || ' was ended'), p_by);
  END IF;
  RETURN QUERY SELECT CASE v_row.state WHEN 'ended' THEN 'repeated' ELSE 'accepted' END, NULL::text, coalesce(cardinality(v_jobs), 0);
END $$;
SELECT accs.is_verb('end_schedule', may => '{scheduler,api}');

-- Pauses a schedule, until p_until or until somebody resumes it. What is due before is settled first.
CREATE FUNCTION accs.pause_schedule(p_which text, p_reason text DEFAULT NULL, p_by text DEFAULT NULL, p_until timestamptz DEFAULT NULL)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row public.schedules := accs.lock_schedule(p_which);
BEGIN
  IF v_row.state IN ('ended', 'broken') THEN
    RETURN QUERY SELECT 'refused'::text, v_row.state;
  ELSIF v_row.state = 'paused' AND v_row.paused_until IS NOT DISTINCT FROM p_until THEN
    RETURN QUERY SELECT 'repeated'::text, NULL::text;
  ELSE
    PERFORM accs.settle_one(v_row.id, p_by);
    SELECT * INTO v_row FROM public.schedules s WHERE s.id = v_row.id;
    IF v_row.state = 'ended' THEN
      RETURN QUERY SELECT 'refused'::text, v_row.state;
      RETURN;
    END IF;
    PERFORM accs.move_schedule(v_row.id, 'paused', p_reason, p_until);
    IF v_row.state = 'paused' THEN   -- only its end has moved: it is the same pause
      UPDATE public.schedules s SET state_since = v_row.state_since WHERE s.id = v_row.id;
    END IF;
    PERFORM accs.note_schedule(v_row.id, 'paused', p_by, p_reason, NULL, jsonb_strip_nulls(jsonb_build_object('until', p_until)));
    DELETE FROM accs.agenda WHERE schedule_id = v_row.id AND what = 'resume';
    IF p_until IS NOT NULL THEN
      INSERT INTO accs.agenda (schedule_id, what, due_at) VALUES (v_row.id, 'resume', p_until);
      PERFORM accs.tell_schedulers();
    END IF;
    RETURN QUERY SELECT 'accepted'::text, NULL::text;
  END IF;
END $$;
SELECT accs.is_verb('pause_schedule', may => '{scheduler,api}');

-- Stops every schedule: nothing is settled until the hold is lifted, and then everything is as if all schedulers had been down.
CREATE FUNCTION accs.hold_schedules(p_reason text DEFAULT NULL, p_by text DEFAULT NULL,
  p_lift boolean DEFAULT false) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF p_lift THEN
    DELETE FROM accs.schedule_hold;
  ELSE
    INSERT INTO accs.schedule_hold (by, reason) VALUES (coalesce(p_by, session_user), p_reason) ON CONFLICT DO NOTHING;
  END IF;
  IF NOT FOUND THEN
    RETURN accs.audited(CASE WHEN p_lift THEN 'lift_hold' ELSE 'hold_schedules' END, 'schedules', NULL, 'repeated', p_by, p_reason);
  END IF;
  PERFORM accs.tell_schedulers();
  RETURN accs.audited(CASE WHEN p_lift THEN 'lift_hold' ELSE 'hold_schedules' END, 'schedules', NULL, 'accepted', p_by, p_reason);
END $$;
SELECT accs.is_verb('hold_schedules', may => '{scheduler,api}');

-- Newer rules of its zone have moved times of a schedule: its history says which is the first of them, in words.
CREATE FUNCTION accs.note_moved(p_row public.schedules, p_old accs.plan_of, p_by text) RETURNS void LANGUAGE sql AS $$
  WITH moved AS (
    SELECT o.nominal, o.due AS was, n.due AS is_now, p.zone_version
      FROM accs.plan_of p, unnest(p.nominals, p.folds, p.dues) AS n (nominal, fold, due)
      JOIN unnest(p_old.nominals, p_old.folds, p_old.dues) AS o (nominal, fold, due) ON (o.nominal, o.fold) = (n.nominal, n.fold)
     WHERE p.schedule_id = p_row.id AND o.due <> n.due AND n.due > accs.clock()
  )
  SELECT accs.note_schedule(p_row.id, 'moved', p_by,
           format('%s in %s is %s UTC now, was %s (time zone rules %s, before %s)',
                  to_char(m.nominal, 'YYYY-MM-DD HH24:MI'), p_row.timezone,
                  to_char(m.is_now AT TIME ZONE 'UTC', 'HH24:MI'), to_char(m.was AT TIME ZONE 'UTC', 'HH24:MI'), m.zone_version,
                  p_old.zone_version)
           || CASE WHEN count(*) OVER () > 1 THEN format('; %s planned times have moved', count(*) OVER ()) ELSE '' END,
           jsonb_build_object('due', m.was), jsonb_build_object('nominal', m.nominal, 'due', m.is_now))
    FROM moved m ORDER BY m.nominal LIMIT 1
$$;

-- Takes the plans that a planner has made: an array of {id, revision, zone, zone_version, zone_digest, anchor, nominals, folds,
-- dues, notes, options, gap, exhausted, problem, unnamed}. One that was made for another revision, or with older rules of its
-- zone, is refused. A problem leaves the schedule broken. unnamed: snoozed occurrences that the rule does not name any more.
CREATE FUNCTION accs.plan_schedules(p_plans jsonb, p_by text DEFAULT NULL) RETURNS TABLE (id uuid, answer text,
  reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now  timestamptz := accs.clock();
  v_plan record;
  v_row  public.schedules;
  v_old  accs.plan_of;
  v_dues timestamptz[];
  v_next timestamptz;
  v_gone jsonb;
BEGIN
  -- before anything else, and in the order of note_zones: nobody brings newer rules while these plans are written
  PERFORM FROM accs.zones z WHERE z.name IN (SELECT p ->> 'zone' FROM jsonb_array_elements(p_plans) p) ORDER BY z.name FOR SHARE;
  FOR v_plan IN SELECT (p ->> 'id')::uuid AS id, p FROM jsonb_array_elements(p_plans) p ORDER BY 1 LOOP
    SELECT * INTO v_row FROM public.schedules s WHERE s.id = v_plan.id FOR NO KEY UPDATE;
    IF NOT FOUND OR v_row.state = 'ended' THEN
      DELETE FROM accs.agenda WHERE schedule_id = v_plan.id AND what = 'replan';
      RETURN QUERY SELECT v_plan.id, 'refused'::text, 'ended'::text;
      CONTINUE;
    ELSIF v_row.revision <> (v_plan.p ->> 'revision')::int OR v_row.settled_until <> (v_plan.p ->> 'after')::timestamptz THEN
      RETURN QUERY SELECT v_plan.id, 'refused'::text, 'stale'::text;   -- the row that asks for a plan stays: it is made again
      CONTINUE;
    ELSIF EXISTS (SELECT FROM accs.zones z WHERE z.name = v_plan.p ->> 'zone' AND z.digest <> v_plan.p ->> 'zone_digest') THEN
      RETURN QUERY SELECT v_plan.id, 'refused'::text, 'other_rules'::text;   -- of its zone; whoever has the newer ones plans it
      CONTINUE;
    END IF;
    IF v_plan.p ? 'problem' THEN
      PERFORM accs.break_schedule(v_row, v_plan.p ->> 'problem', p_by);
      RETURN QUERY SELECT v_plan.id, 'accepted'::text, NULL::text;
      CONTINUE;
    ELSIF v_row.schedule_kind IN ('event', 'condition') THEN   -- it waits for no time of its own; a condition is probed from now on
      DELETE FROM accs.agenda a WHERE a.schedule_id = v_row.id AND a.what IN ('occurrence', 'replan');
      DELETE FROM accs.plan_of o WHERE o.schedule_id = v_row.id;
      PERFORM accs.plan_probe(v_row);
      RETURN QUERY SELECT v_plan.id, 'accepted'::text, NULL::text;
      CONTINUE;
    END IF;
    v_dues := ARRAY(SELECT d::timestamptz FROM jsonb_array_elements_text(v_plan.p -> 'dues') WITH ORDINALITY u (d, n) ORDER BY n);
    SELECT * INTO v_old FROM accs.plan_of o WHERE o.schedule_id = v_row.id;
    INSERT INTO accs.plan_of AS o (schedule_id, revision, zone_version, nominals, folds, dues, notes, options, gap, exhausted)
    SELECT v_row.id, v_row.revision, v_plan.p ->> 'zone_version',
           ARRAY(SELECT d::timestamp FROM jsonb_array_elements_text(v_plan.p -> 'nominals') WITH ORDINALITY u (d, n) ORDER BY n),
           ARRAY(SELECT d::int FROM jsonb_array_elements_text(v_plan.p -> 'folds') WITH ORDINALITY u (d, n) ORDER BY n),
           v_dues, nullif(v_plan.p -> 'notes', 'null'), nullif(v_plan.p -> 'options', 'null'), nullif(v_plan.p -> 'gap', 'null'),
             v_plan.p ->> 'exhausted'
    ON CONFLICT (schedule_id) DO UPDATE SET revision = excluded.revision, zone_version = excluded.zone_version,
           planned_at = excluded.planned_at, nominals = excluded.nominals, folds = excluded.folds, dues = excluded.dues,
             notes = excluded.notes,
           options = excluded.options, gap = excluded.gap, exhausted = excluded.exhausted;
    UPDATE public.schedules s SET anchor = (v_plan.p ->> 'anchor')::timestamp
     WHERE s.id = v_row.id AND s.anchor IS NULL AND v_plan.p ->> 'anchor' IS NOT NULL;
    IF v_old.revision = v_row.revision AND v_old.zone_version <> v_plan.p ->> 'zone_version' THEN
      PERFORM accs.note_moved(v_row, v_old, p_by);
    END IF;
    PERFORM accs.settle_snoozed_away(v_row.id, p_by, ARRAY(SELECT jsonb_array_elements_text(v_plan.p -> 'unnamed')));
    WITH gone AS (
    DELETE FROM accs.schedule_marks m   -- skips of what the rule does not name any more
     WHERE m.schedule_id = v_row.id AND m.nominal <= (SELECT max(n::timestamp) FROM jsonb_array_elements_text(v_plan.p -> 'nominals') n)
       AND NOT EXISTS (SELECT FROM jsonb_array_elements_text(v_plan.p -> 'nominals') WITH ORDINALITY AS n (at, i)
                         JOIN jsonb_array_elements_text(v_plan.p -> 'folds') WITH ORDINALITY AS f (fold, i) ON f.i = n.i
                        WHERE n.at::timestamp = m.nominal AND f.fold::int = m.fold)
    RETURNING m.nominal)
    SELECT nullif(jsonb_strip_nulls(jsonb_build_object('skips', (SELECT jsonb_agg(g.nominal ORDER BY 1) FROM gone g),
                                                       'snoozes', nullif(v_plan.p -> 'unnamed', '[]'))), '{}') INTO v_gone;
    IF v_gone IS NOT NULL THEN
      PERFORM accs.note_schedule(v_row.id, 'dropped', p_by, 'its rule does not name these times any more', v_gone);
    END IF;
    DELETE FROM accs.agenda a WHERE a.schedule_id = v_row.id AND a.what = 'replan';
    DELETE FROM accs.agenda a WHERE a.schedule_id = v_row.id AND a.what = 'occurrence';
    IF v_dues = '{}' THEN
      IF NOT EXISTS (SELECT FROM accs.agenda a WHERE a.schedule_id = v_row.id AND a.what = 'snoozed') THEN
        PERFORM accs.move_schedule(v_row.id, 'ended', coalesce(v_plan.p ->> 'exhausted', 'never'));
        PERFORM accs.note_schedule(v_row.id, 'ended', 'accsd', coalesce(v_plan.p ->> 'exhausted', 'never'));
      END IF;
    ELSE
      v_next := CASE WHEN v_row.state = 'paused' THEN v_dues[1] + interval '1 min' ELSE v_dues[1] END;
      INSERT INTO accs.agenda (schedule_id, what, due_at) VALUES (v_row.id, 'occurrence', v_next);
      IF v_next < v_now + interval '15 min' THEN   -- a machine may have to be woken for it
        PERFORM pg_notify(accs.channel_prefix() || 'builder', '');
      END IF;
    END IF;
    RETURN QUERY SELECT v_plan.id, 'accepted'::text, NULL::text;
  END LOOP;
  PERFORM accs.tell_schedulers();
END $$;
SELECT accs.is_verb('plan_schedules', may => '{scheduler}');

-- The schedule is broken: what it names can't be planned or started. Others go on; an edit mends it.
CREATE FUNCTION accs.break_schedule(s public.schedules, p_problem text, p_by text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM accs.agenda WHERE schedule_id = s.id AND what IN ('occurrence', 'replan', 'probe');
  DELETE FROM accs.plan_of WHERE schedule_id = s.id;
  IF s.state <> 'broken' OR s.state_reason IS DISTINCT FROM left(p_problem, 2000) THEN
    PERFORM accs.move_schedule(s.id, 'broken', p_problem);
    PERFORM accs.note_schedule(s.id, 'broken', coalesce(p_by, 'accsd'), p_problem);
  END IF;
END $$;

-- With which rules of a zone this planner plans. Answers older where newer ones are on record: it must not plan there. Where the
-- rules have changed, the schedules of the zone are planned anew.
CREATE FUNCTION accs.note_zones(p_zones text[], p_version text, p_digests text[], p_by text DEFAULT NULL)
RETURNS TABLE (name text, answer text, recorded text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_zone record;
  v_old  accs.zones;
BEGIN
  FOR v_zone IN SELECT u.name, u.digest FROM unnest(p_zones, p_digests) AS u (name, digest) ORDER BY 1 LOOP
    INSERT INTO accs.zones (name, version, digest, by) VALUES (v_zone.name, p_version, v_zone.digest, p_by) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      RETURN QUERY SELECT v_zone.name, 'accepted'::text, p_version;
      CONTINUE;
    END IF;
    SELECT * INTO v_old FROM accs.zones z WHERE z.name = v_zone.name FOR UPDATE;
    IF v_old.version = p_version THEN   -- a digest begins with the present year: in the next one it is another, of the same rules
      UPDATE accs.zones z SET digest = v_zone.digest, by = p_by WHERE z.name = v_zone.name AND z.digest <> v_zone.digest;
      RETURN QUERY SELECT v_zone.name, 'repeated'::text, v_old.version;
    ELSIF v_old.digest = v_zone.digest THEN
      UPDATE accs.zones z SET version = p_version, by = p_by WHERE z.name = v_zone.name AND z.version COLLATE "C" < p_version COLLATE "C";
      RETURN QUERY SELECT v_zone.name, 'repeated'::text, v_old.version;
    ELSIF v_old.version COLLATE "C" > p_version COLLATE "C" THEN
      RETURN QUERY SELECT v_zone.name, 'older'::text, v_old.version;
    ELSE
      UPDATE accs.zones z SET version = p_version, digest = v_zone.digest, since = accs.clock(), by = p_by WHERE z.name = v_zone.name;
      PERFORM accs.ask_for_plans(ARRAY(SELECT s.id FROM public.schedules s WHERE s.timezone = v_zone.name AND s.state <> 'ended'));
      RETURN QUERY SELECT v_zone.name, 'accepted'::text, p_version;
    END IF;
  END LOOP;
END $$;
SELECT accs.is_verb('note_zones', may => '{scheduler}');

-- What the planner has before it: schedules whose plan is short, outdated or absent. Several planners may take the same one: the
-- first that writes wins.
CREATE FUNCTION accs.schedules_to_plan(p_limit int DEFAULT 100, p_except_zones text[] DEFAULT '{}') RETURNS TABLE (
  id uuid, name text, revision int, schedule_kind text, schedule_expr text, timezone text, spread interval, exclude text[], only_on text[],
  start_at timestamptz, end_at timestamptz, anchor timestamp, options jsonb, condition jsonb, filter text,
    gather jsonb, created_at timestamptz, settled_until timestamptz,
  state text, least_interval_sec double precision, calendars jsonb, snoozed text[], planned timestamptz, now timestamptz
) LANGUAGE sql STABLE AS $$
  SELECT s.id, s.name, s.revision, s.schedule_kind, s.schedule_expr, s.timezone, s.spread, s.exclude, s.only_on, s.start_at, s.end_at,
         s.anchor,
         s.options, s.condition, s.filter, s.gather, s.created_at, s.settled_until, s.state,
         (c.limits ->> 'least_interval_sec')::double precision,
         (SELECT jsonb_object_agg(k.name, jsonb_build_object('entries', k.entries, 'timezone', k.timezone)) FROM public.calendars k
           WHERE k.name = ANY (s.exclude || s.only_on)),
         ARRAY(SELECT a.key FROM accs.agenda a WHERE a.schedule_id = s.id AND a.what = 'snoozed'),
         (SELECT p.dues[1] FROM accs.plan_of p WHERE p.schedule_id = s.id), accs.clock()
    FROM accs.agenda a JOIN public.schedules s ON s.id = a.schedule_id LEFT JOIN accs.actors c ON c.name = s.created_by
   WHERE a.what = ANY ('{replan,probe}') AND a.what = 'replan' AND a.due_at <= accs.clock() AND s.timezone <> ALL (p_except_zones)
   ORDER BY a.due_at LIMIT p_limit
$$;
SELECT accs.is_verb('schedules_to_plan', may => '{scheduler}');
