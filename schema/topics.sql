-- ---------------------------------------------------------------------------------------------------------------
-- Topics: events of the outside world and of accsd's own, and the schedules of kind event that they start
-- ---------------------------------------------------------------------------------------------------------------

-- What happened, as somebody emitted it. An id is drawn from the sequence of all causes: no other cause of a firing has it.
CREATE TABLE public.events (
  id           bigint NOT NULL DEFAULT nextval('accs.cause_seq'),
  topic        text COLLATE "C" NOT NULL,             -- an archive is sorted by it
  payload      jsonb NOT NULL DEFAULT '{}',
  key          text,                                   -- the same (topic, key) again is the same event: accs.event_keys
  source       text,
  occurred_at  timestamptz,                            -- as the emitter says
  at           timestamptz NOT NULL DEFAULT accs.clock(),
  job_id       uuid,                                   -- the job that emitted it, or whose end it is
  depth        int NOT NULL DEFAULT 0,                 -- how many runs lie between this event and one that no run brought about
  chain        uuid[] NOT NULL DEFAULT '{}',           -- the schedules of those runs
  matched      int NOT NULL DEFAULT 0,                 -- how many subscriptions it met
  PRIMARY KEY (id, at)
) PARTITION BY RANGE (at);

CREATE TABLE public.events_default PARTITION OF public.events DEFAULT;
CREATE INDEX events_topic ON public.events (topic, id);   -- accsd events --topic

CREATE INDEX firings_cause ON public.firings (cause_id) WHERE cause_id <> 0;   -- what an event caused

CREATE FUNCTION accs.refuse_topic_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'events is the record of what was emitted: % is refused', TG_OP
    USING ERRCODE = 'AC005', HINT = 'Emit an event by accs.emit_event.';
END $$;
CREATE TRIGGER append_only BEFORE INSERT OR UPDATE OR DELETE ON public.events
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_topic_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.events FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_topic_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.events_default
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_topic_change();

CREATE FUNCTION accs.mark_of(e public.events) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT e.id $$;
INSERT INTO accs.monthly (name, at, refuse, aged_by, stays)
VALUES ('events', 'at', 'refuse_topic_change', 'at', 'EXISTS (SELECT FROM accs.inbox i WHERE i.event_id = e.id)');

-- The topic that each schedule of kind event listens to: literal, or with * (one more segment) or ** (one or more) as its last
-- segment. Derived from schedules by their triggers. plain: nothing of it is an expression, so SQL alone can settle its events.
CREATE TABLE accs.subscriptions (
  schedule_id  uuid PRIMARY KEY,
  topic        text COLLATE "C" NOT NULL,   -- whatever collation a caller brings (session_user has one), its index is used
  plain        boolean NOT NULL
);

CREATE INDEX subscriptions_topic ON accs.subscriptions (topic);   -- emit

-- One narrow row for each subscription and event that is not settled. Whoever deletes it, under the schedule's lock, decides.
-- gathering: it waits in the window of that key (agenda, gather) for others.
CREATE TABLE accs.inbox (
  schedule_id  uuid NOT NULL,
  event_id     bigint NOT NULL,
  at           timestamptz NOT NULL,      -- the event's moment; of a replay the moment of that
  plain        boolean NOT NULL,
  why          text CHECK (why = ANY ('{paused,resumed,replay}')),   -- null: it was emitted
  gathering    text,
  options      jsonb,                     -- while it is gathered: filled in for this event
  PRIMARY KEY (schedule_id, event_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX inbox_plain ON accs.inbox (event_id) WHERE plain AND gathering IS NULL;               -- settle_plain_events
CREATE INDEX inbox_work ON accs.inbox (event_id) WHERE NOT plain AND gathering IS NULL;            -- events_to_settle
CREATE INDEX inbox_gathered ON accs.inbox (schedule_id, gathering, event_id) WHERE gathering IS NOT NULL;   -- settle_gathered

-- Which event was the first of a key, and until when the key means that one.
CREATE TABLE accs.event_keys (
  topic     text COLLATE "C" NOT NULL,
  key       text COLLATE "C" NOT NULL,
  event_id  bigint NOT NULL,
  until     timestamptz NOT NULL,
  PRIMARY KEY (topic, key)
);

CREATE INDEX event_keys_until ON accs.event_keys (until);   -- forget_event_keys

-- What is known of a subscription beside its ledger: how many events its filter left out, and when it ran last.
CREATE TABLE accs.event_tallies (
  schedule_id    uuid PRIMARY KEY,
  filtered       bigint NOT NULL DEFAULT 0,
  last_filtered  jsonb,                    -- a sample: id, topic, at, payload
  ran_at         timestamptz               -- of the event that ran last: a cooldown counts from there
) WITH (fillfactor = 70);

CREATE FUNCTION accs.max_depth() RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT 16 $$;
CREATE FUNCTION accs.most_inbox() RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT 10000 $$;

CREATE FUNCTION accs.is_topic(p text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT length(p) <= 200 AND p ~ '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){0,9}$'
$$;
CREATE FUNCTION accs.is_topic_pattern(p text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT length(p) <= 200 AND p ~ '^([A-Za-z0-9_-]+\.){0,9}([A-Za-z0-9_-]+|\*\*?)$'
$$;

-- The subscriptions that a topic can meet, by equality: itself, * in the place of its last segment, ** after each of its
-- beginnings. For a topic of n segments these are n + 2, however many subscriptions there are.
CREATE FUNCTION accs.patterns_of(p_topic text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY[p_topic, regexp_replace(p_topic, '[^.]*$', '*')]
         || ARRAY(SELECT concat_ws('.', nullif(array_to_string(s[1:n], '.'), ''), '**') FROM generate_series(0, cardinality(s) - 1) n)
    FROM string_to_array(p_topic, '.') s
$$;

CREATE FUNCTION accs.is_plain(s public.schedules) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT s.filter IS NULL AND NOT coalesce(s.gather ? 'by', false) AND strpos(s.options::text, '${') = 0
$$;

-- A schedule was written: its subscription follows. What the end of one leaves in its windows is settled like the rest of its inbox.
CREATE FUNCTION accs.keep_subscription() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  IF NEW.schedule_kind = 'event' AND NEW.state <> 'ended' AND accs.is_topic_pattern(NEW.schedule_expr) THEN
    INSERT INTO accs.subscriptions AS k (schedule_id, topic, plain) VALUES (NEW.id, NEW.schedule_expr, accs.is_plain(NEW))
    ON CONFLICT (schedule_id) DO UPDATE SET topic = excluded.topic, plain = excluded.plain
     WHERE (k.topic, k.plain) <> (excluded.topic, excluded.plain);
  ELSE
    DELETE FROM accs.subscriptions WHERE schedule_id = NEW.id;
    UPDATE accs.inbox SET gathering = NULL, options = NULL WHERE schedule_id = NEW.id AND gathering IS NOT NULL;
    DELETE FROM accs.agenda WHERE schedule_id = NEW.id AND what = 'gather';
  END IF;
  PERFORM accs.tell_schedulers();   -- accsd's own events may be wanted now
  RETURN NULL;
END $$;
CREATE TRIGGER subscribe AFTER INSERT ON public.schedules FOR EACH ROW WHEN (NEW.schedule_kind = 'event')
  EXECUTE FUNCTION accs.keep_subscription();
CREATE TRIGGER resubscribe AFTER UPDATE ON public.schedules FOR EACH ROW
  WHEN ((NEW.schedule_kind = 'event' OR OLD.schedule_kind = 'event')
        AND (NEW.revision <> OLD.revision OR (NEW.state = 'ended') <> (OLD.state = 'ended')))
  EXECUTE FUNCTION accs.keep_subscription();

-- Stores an event and puts it into the inbox of every subscription that it meets. Only INSERTs: it waits for nobody but for
-- whoever is emitting the same topic and key at this moment.
CREATE FUNCTION accs.emit(p_topic text, p_payload jsonb, p_key text, p_occurred_at timestamptz, p_source text, p_job uuid,
                          p_window interval, p_depth int, p_chain uuid[])
RETURNS TABLE (event_id bigint, answer text, matched int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_id    bigint := nextval('accs.cause_seq');
  v_first bigint;
  v_met   int;
BEGIN
  IF p_key IS NOT NULL THEN
    INSERT INTO accs.event_keys AS k (topic, key, event_id, until) VALUES (p_topic, p_key, v_id, v_now + p_window)
    ON CONFLICT (topic, key) DO UPDATE SET event_id = excluded.event_id, until = excluded.until WHERE k.until <= v_now;
    IF NOT FOUND THEN
      SELECT k.event_id INTO v_first FROM accs.event_keys k WHERE k.topic = p_topic AND k.key = p_key;
      RETURN QUERY SELECT v_first, 'repeated'::text, coalesce((SELECT e.matched FROM public.events e WHERE e.id = v_first), 0);
      RETURN;
    END IF;
  END IF;
  INSERT INTO accs.inbox (schedule_id, event_id, at, plain)
  SELECT s.schedule_id, v_id, v_now, s.plain FROM unnest(accs.patterns_of(p_topic)) AS p (topic),
         LATERAL (SELECT * FROM accs.subscriptions k WHERE k.topic = p.topic OFFSET 0) s;   -- fenced: one look-up for each
  GET DIAGNOSTICS v_met = ROW_COUNT;
  INSERT INTO public.events (id, topic, payload, key, source, occurred_at, at, job_id, depth, chain, matched)
  VALUES (v_id, p_topic, p_payload, p_key, p_source, p_occurred_at, v_now, p_job, p_depth, p_chain, v_met);
  IF v_met > 0 THEN
    PERFORM accs.tell_schedulers('event');
  END IF;
  RETURN QUERY SELECT v_id, 'accepted'::text, v_met;
END $$;

-- How deep in a chain of runs a job is, and through which schedules.
CREATE FUNCTION accs.depth_of(p_trigger jsonb) RETURNS int LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN jsonb_typeof(p_trigger -> 'depth') = 'number' THEN (p_trigger ->> 'depth')::int ELSE 0 END
$$;
CREATE FUNCTION accs.chain_of(p_trigger jsonb) RETURNS uuid[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY(SELECT c::uuid FROM jsonb_array_elements_text(
    CASE WHEN jsonb_typeof(p_trigger -> 'chain') = 'array' THEN p_trigger -> 'chain' ELSE '[]' END) c)
$$;

-- Emits an event in the caller's own transaction: a rollback takes it back, and once that transaction is committed the event is
-- not lost. The same (topic, key) within p_window is repeated, with the first event's id. p_job: the job in which it happens.
CREATE FUNCTION accs.emit_event(p_topic text, p_payload jsonb DEFAULT '{}', p_key text DEFAULT NULL, p_occurred_at timestamptz DEFAULT NULL,
                                p_source text DEFAULT NULL, p_job uuid DEFAULT NULL, p_window interval DEFAULT '24 hours')
RETURNS TABLE (event_id bigint, answer text, matched int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_source  text := left(coalesce(p_source, session_user), 200);
  v_trigger jsonb;
BEGIN
  IF accs.is_topic(p_topic) IS NOT TRUE THEN
    RAISE EXCEPTION 'an event can''t have the topic "%"', left(p_topic, 200) USING ERRCODE = 'invalid_parameter_value',
      HINT = 'A topic is 1 to 10 segments of A-Z a-z 0-9 _ -, joined by dots, at most 200 characters.';
  ELSIF p_topic = 'accs' OR p_topic LIKE 'accs.%' THEN
    RAISE EXCEPTION 'topic "%": topics that begin with accs. are accsd''s own', p_topic USING ERRCODE = 'AC006';
  ELSIF jsonb_typeof(p_payload) IS DISTINCT FROM 'object' THEN
    RAISE EXCEPTION 'the payload of an event is a JSON object' USING ERRCODE = 'invalid_parameter_value';
  ELSIF octet_length(p_payload::text) > 262144 THEN
    RAISE EXCEPTION 'the payload of an event has at most 256 KiB, not % bytes', octet_length(p_payload::text)
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Put it into the object store, and its address into the event.';
  ELSIF length(p_key) NOT BETWEEN 1 AND 200 THEN
    RAISE EXCEPTION 'the key of an event has 1 to 200 characters' USING ERRCODE = 'invalid_parameter_value';
  ELSIF p_window IS NULL OR p_window NOT BETWEEN '0' AND '366 days' THEN
    RAISE EXCEPTION 'a key is kept for at most 366 days, not for %', p_window USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_job IS NOT NULL THEN
    SELECT j.trigger INTO v_trigger FROM public.jobs j WHERE j.id = p_job;
  END IF;
  RETURN QUERY SELECT * FROM accs.emit(p_topic, p_payload, p_key, p_occurred_at, v_source, p_job, p_window,
    accs.depth_of(v_trigger), accs.chain_of(v_trigger));
END $$;
SELECT accs.is_verb('emit_event', pinned => true, may => '{agent,scheduler,api}');

-- What an evaluator has found for one event and one subscription: run (with its options, where they are templated, and the key
-- under which it is gathered), filtered, filter_error or refused (with the message).
CREATE TYPE accs.event_verdict AS (
  schedule_id  uuid,
  revision     int,
  event_id     bigint,
  verdict      text,
  options      jsonb,
  gathering    text,
  message      text
);

-- An event as a job's trigger and a run's task have it. A payload above 64 KiB is left out: its id stands for it.
CREATE FUNCTION accs.about_event(e public.events) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT jsonb_strip_nulls(jsonb_build_object('id', e.id, 'topic', e.topic, 'key', e.key, 'source', e.source, 'occurred_at', e.occurred_at,
           'at', e.at, 'job_id', e.job_id))
         || CASE WHEN octet_length(e.payload::text) <= 65536 THEN jsonb_build_object('payload', e.payload)
                 ELSE '{"payload_omitted": true}' END
$$;

-- Starts runs; one that raises an error is skipped, and the others go on.
CREATE FUNCTION accs.start_each(p_occasions accs.occasion[], p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_done accs.occasion[];
  v_occ  accs.occasion;
BEGIN
  BEGIN
    v_done := ARRAY(SELECT r FROM accs.start_runs(p_occasions, p_by) r);
  EXCEPTION WHEN OTHERS THEN
    IF SQLSTATE LIKE ANY ('{40%,53%,55%,57%,58%}') THEN
      RAISE;   -- nobody's fault: tried again as a whole
    ELSIF cardinality(p_occasions) = 1 THEN
      v_occ := p_occasions[1];
      v_occ.outcome := 'skipped';
      v_occ.reason := 'broken';
      v_occ.detail := coalesce(v_occ.detail, '{}') || jsonb_build_object('problem', left(SQLERRM, 2000));
      v_done := ARRAY[v_occ];
    ELSE
      FOREACH v_occ IN ARRAY p_occasions LOOP
        v_done := v_done || ARRAY(SELECT r FROM accs.start_each(ARRAY[v_occ], p_by) r);
      END LOOP;
    END IF;
  END;
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

-- What the occasions of events that were settled leave in their schedules' rows. Three in a row that raise an error break a
-- schedule, and the last run that it may have ends it.
CREATE FUNCTION accs.note_event_runs(p_done accs.occasion[], p_by text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_row record;
  v_s   public.schedules;
BEGIN
  FOR v_row IN
      SELECT d.schedule_id, count(*) FILTER (WHERE d.job_id IS NOT NULL)::int AS started, max(d.nominal) AS last_nominal,
             (array_agg(d.job_id ORDER BY d.cause_id DESC) FILTER (WHERE d.job_id IS NOT NULL))[1] AS last_job,
             max(d.due_at) FILTER (WHERE d.job_id IS NOT NULL) AS ran_at,
             count(*) FILTER (WHERE d.reason = 'broken' AND d.detail ? 'problem')::int AS raised,
             (array_agg(d.detail ->> 'problem') FILTER (WHERE d.reason = 'broken'))[1] AS problem
        FROM unnest(p_done) d GROUP BY d.schedule_id ORDER BY d.schedule_id LOOP
    UPDATE public.schedules s SET runs = s.runs + v_row.started, last_nominal = greatest(s.last_nominal, v_row.last_nominal),
           last_job_id = coalesce(v_row.last_job, s.last_job_id),
           refused_in_row = CASE WHEN v_row.started > 0 THEN 0 ELSE s.refused_in_row + v_row.raised END
     WHERE s.id = v_row.schedule_id RETURNING s.* INTO v_s;
    IF v_row.ran_at IS NOT NULL THEN
      INSERT INTO accs.event_tallies AS t (schedule_id, ran_at) VALUES (v_row.schedule_id, v_row.ran_at)
      ON CONFLICT (schedule_id) DO UPDATE SET ran_at = greatest(t.ran_at, excluded.ran_at);
    END IF;
    IF v_s.refused_in_row >= 3 AND v_s.state = 'active' THEN
      PERFORM accs.break_schedule(v_s, v_row.problem, p_by);
    ELSIF v_s.runs >= v_s.max_runs AND v_s.state <> 'ended' THEN
      PERFORM accs.move_schedule(v_row.schedule_id, 'ended', 'max_runs');
      PERFORM accs.note_schedule(v_row.schedule_id, 'ended', 'accsd', 'max_runs');
    END IF;
  END LOOP;
END $$;

-- A length of time in JSON, as PostgreSQL reads it: "90s", "5m", or seconds. Null for what is none: the planner has told its author.
CREATE FUNCTION accs.length_of(p jsonb) RETURNS interval LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN CASE WHEN jsonb_typeof(p) IN ('string', 'number') THEN (p #>> '{}')::interval END;
EXCEPTION WHEN data_exception THEN
  RETURN NULL;
END $$;

-- When a window closes: quiet after its last event, at_most after its first, at once when it has its size. What a cooldown
-- gathers closes with that.
CREATE FUNCTION accs.window_ends(s public.schedules, p_window text, p_first timestamptz, p_last timestamptz, p_events bigint)
RETURNS timestamptz LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p_window = 'cooldown' THEN (SELECT t.ran_at + s.cooldown FROM accs.event_tallies t WHERE t.schedule_id = s.id)
              WHEN jsonb_typeof(s.gather -> 'size') = 'number' AND p_events >= (s.gather ->> 'size')::numeric THEN accs.clock()
              WHEN s.gather ?| '{quiet,at_most,size}'
                THEN least(p_last + accs.length_of(s.gather -> 'quiet'), p_first + accs.length_of(s.gather -> 'at_most'), 'infinity')
              ELSE accs.clock() END
$$;

-- Decides about events: who filtered and rendered them says what was found, and the rest is decided here, under the lock of their
-- schedules. One that somebody else is changing is refused (locked), one that was edited since (stale); both are asked again.
CREATE FUNCTION accs.decide_events(p_verdicts accs.event_verdict[], p_by text)
RETURNS TABLE (schedule_id uuid, event_id bigint, answer text, outcome text, reason text, late interval, job_id uuid) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now      timestamptz := accs.clock();
  v_locked   uuid[];
  v_row      record;
  v_s        public.schedules;
  v_e        public.events;
  v_occ      accs.occasion;
  v_ran      timestamptz;
  v_start    accs.occasion[] := '{}';
  v_done     accs.occasion[] := '{}';
  v_one      accs.occasion[];
  v_took     tid[] := '{}';    -- by place: where the inbox was empty when it was last looked over, a join would read all of it for each
  v_filtered uuid[] := '{}';
  v_left_out bigint[] := '{}';
  v_gathered accs.event_verdict[] := '{}';
  v_careful  boolean;
  v_window   text;
BEGIN
  IF EXISTS (SELECT FROM accs.schedule_hold) THEN
    RETURN QUERY SELECT v.schedule_id, v.event_id, 'refused'::text, NULL::text, 'held'::text, NULL::interval, NULL::uuid
      FROM unnest(p_verdicts) v;
    RETURN;
  END IF;
  v_locked := ARRAY(SELECT s.id FROM public.schedules s WHERE s.id = ANY (ARRAY(SELECT DISTINCT v.schedule_id FROM unnest(p_verdicts) v))
                     ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED);
  RETURN QUERY SELECT v.schedule_id, v.event_id, 'refused'::text, NULL::text, 'locked'::text, NULL::interval, NULL::uuid
    FROM unnest(p_verdicts) v WHERE v.schedule_id <> ALL (v_locked);
  -- nobody else takes from the inbox of a schedule that is locked here, so that what is read now is ours
  FOR v_row IN
    SELECT v.*, i.at, i.why, i.place, e.event, s.schedule, a.disabled_at
      FROM unnest(p_verdicts) v
      JOIN LATERAL (SELECT s AS schedule, s.created_by FROM public.schedules s WHERE s.id = v.schedule_id OFFSET 0) s ON true
      LEFT JOIN LATERAL (SELECT i.at, i.why, i.ctid AS place FROM accs.inbox i WHERE i.schedule_id = v.schedule_id
                           AND i.event_id = v.event_id AND i.gathering IS NULL OFFSET 0) i ON true
      LEFT JOIN LATERAL (SELECT e AS event FROM public.events e WHERE e.id = v.event_id LIMIT 1) e ON true
      LEFT JOIN LATERAL (SELECT * FROM accs.actors WHERE name = s.created_by OFFSET 0) a ON true
     WHERE v.schedule_id = ANY (v_locked) ORDER BY v.event_id, v.schedule_id LOOP
    v_s := v_row.schedule;
    v_e := v_row.event;
    v_ran := NULL;
    IF v_row.place IS NULL THEN
      RETURN QUERY SELECT v_row.schedule_id, v_row.event_id, 'repeated'::text, NULL::text, NULL::text, NULL::interval, NULL::uuid;
      CONTINUE;
    ELSIF v_row.revision <> v_s.revision THEN
      RETURN QUERY SELECT v_row.schedule_id, v_row.event_id, 'refused'::text, NULL::text, 'stale'::text, NULL::interval, NULL::uuid;
      CONTINUE;
    END IF;
    IF v_row.verdict = 'filtered' THEN
      v_took := v_took || v_row.place;
      v_filtered := v_filtered || v_row.schedule_id;
      v_left_out := v_left_out || v_row.event_id;
      RETURN QUERY SELECT v_row.schedule_id, v_row.event_id, 'accepted'::text, 'filtered'::text, NULL::text, NULL::interval, NULL::uuid;
      CONTINUE;
    END IF;
    -- what was settled in this very call counts for those that have a limit
    v_careful := v_s.cooldown IS NOT NULL OR v_s.max_runs IS NOT NULL;
    IF v_careful THEN
      SELECT * INTO v_s FROM public.schedules s WHERE s.id = v_row.schedule_id;
      SELECT t.ran_at INTO v_ran FROM accs.event_tallies t WHERE t.schedule_id = v_row.schedule_id;
    END IF;
    v_occ := ROW(v_row.schedule_id, v_row.at AT TIME ZONE 'UTC', 0, v_row.event_id, v_row.at, 'skipped', 'refused', NULL, NULL, NULL, NULL,
                 v_row.options, NULL, false, NULL, NULL)::accs.occasion;
    v_window := NULL;
    IF v_e.id IS NULL THEN
      v_occ.detail := '{"problem": "the event is not kept any more"}';
    ELSIF v_row.verdict = 'filter_error' THEN
      v_occ.reason := 'filter_error';
      v_occ.detail := jsonb_build_object('problem', left(v_row.message, 2000));
    ELSIF v_row.verdict <> 'run' THEN
      v_occ.detail := jsonb_build_object('problem', left(v_row.message, 2000));
    ELSIF v_s.state = 'ended' OR v_s.schedule_kind <> 'event' THEN
      v_occ.reason := 'requested';
      v_occ.detail := jsonb_build_object('ended', coalesce(v_s.state_reason, 'the schedule listens to no topic any more'));
    ELSIF v_e.depth >= accs.max_depth() OR NOT v_s.reenter AND v_s.id = ANY (v_e.chain) THEN
      v_occ.reason := 'loop';
      v_occ.detail := jsonb_build_object('depth', v_e.depth, 'chain', v_e.chain);
    ELSIF v_row.why = 'paused' OR v_s.state = 'paused' AND v_row.at >= v_s.state_since THEN
      v_occ.reason := 'paused';
    ELSIF v_s.state = 'broken' THEN
      v_occ.reason := 'broken';
    ELSIF v_row.disabled_at IS NOT NULL THEN
      v_occ.reason := 'owner_disabled';
    ELSIF v_row.at < v_s.start_at OR v_row.at >= v_s.end_at THEN
      v_occ.reason := 'excluded';
      v_occ.detail := jsonb_strip_nulls(jsonb_build_object('start_at', v_s.start_at, 'end_at', v_s.end_at));
    ELSIF v_row.why IS NULL AND v_row.at < v_ran + v_s.cooldown AND NOT (v_s.cooldown_trailing OR v_s.gather IS NOT NULL AND EXISTS (
            SELECT FROM accs.agenda a WHERE a.schedule_id = v_s.id AND a.what = 'gather' AND a.key = coalesce(v_row.gathering, ''))) THEN
      v_occ.reason := 'cooldown';
      v_occ.detail := jsonb_build_object('until', v_ran + v_s.cooldown);
    ELSE
      v_occ.outcome := CASE v_row.why WHEN 'resumed' THEN 'caught_up' ELSE 'fired' END;
      v_occ.reason := CASE v_row.why WHEN 'resumed' THEN 'resumed' WHEN 'replay' THEN 'backfill' ELSE 'event' END;
      IF v_row.why IS NULL AND v_s.gather IS NOT NULL THEN
        v_window := coalesce(v_row.gathering, '');
      ELSIF v_row.why IS NULL AND v_row.at < v_ran + v_s.cooldown THEN
        v_window := 'cooldown';
      END IF;
    END IF;
    IF v_window IS NOT NULL THEN   -- it stays, and waits for others
      UPDATE accs.inbox SET gathering = v_window, options = v_row.options WHERE ctid = v_row.place;
      v_gathered := v_gathered || ROW(v_row.schedule_id, NULL, v_row.event_id, NULL, NULL, v_window, NULL)::accs.event_verdict;
      RETURN QUERY SELECT v_row.schedule_id, v_row.event_id, 'accepted'::text, 'gathered'::text, NULL::text, NULL::interval, NULL::uuid;
      CONTINUE;
    END IF;
    v_took := v_took || v_row.place;
    IF v_occ.outcome = 'skipped' THEN
      v_done := v_done || v_occ;
      CONTINUE;
    END IF;
    v_occ.trigger := jsonb_build_object('cause', 'event', 'event', accs.about_event(v_e), 'depth', v_e.depth + 1,
                                        'chain', v_e.chain || v_s.id);
    IF v_careful THEN
      v_one := ARRAY(SELECT r FROM accs.start_each(ARRAY[v_occ], p_by) r);
      PERFORM accs.note_event_runs(v_one, p_by);
      v_done := v_done || v_one;
    ELSE
      v_start := v_start || v_occ;
    END IF;
  END LOOP;

  DELETE FROM accs.inbox WHERE ctid = ANY (v_took);
  IF v_start <> '{}' THEN
    v_one := ARRAY(SELECT r FROM accs.start_each(v_start, p_by) r);
    PERFORM accs.note_event_runs(v_one, p_by);
    v_done := v_done || v_one;
  END IF;
  -- one of a pause that may not start, because another waits already, stays skipped
  PERFORM accs.record_firings(ARRAY(SELECT d FROM unnest(v_done) d WHERE d.outcome <> 'merged' OR NOT EXISTS (
    SELECT FROM public.firings f WHERE f.schedule_id = d.schedule_id AND f.nominal = d.nominal AND f.fold = 0 AND f.cause_id = d.cause_id)),
    p_by);
  INSERT INTO accs.event_tallies AS t (schedule_id, filtered, last_filtered)
  SELECT u.schedule_id, u.n, (SELECT accs.about_event(e) FROM public.events e WHERE e.id = u.last)
    FROM (SELECT u.schedule_id, count(*) AS n, max(u.event_id) AS last FROM unnest(v_filtered, v_left_out) AS u (schedule_id, event_id)
           GROUP BY 1 ORDER BY 1) u
  ON CONFLICT (schedule_id) DO UPDATE SET filtered = t.filtered + excluded.filtered, last_filtered = excluded.last_filtered;
  IF v_gathered <> '{}' THEN
    INSERT INTO accs.agenda AS a (schedule_id, what, key, due_at)
    SELECT s.id, 'gather', w.gathering, accs.window_ends(s, w.gathering, i.first, i.last, i.n)
      FROM (SELECT DISTINCT g.schedule_id, g.gathering FROM unnest(v_gathered) g ORDER BY 1, 2) w
      JOIN public.schedules s ON s.id = w.schedule_id,
           LATERAL (SELECT min(i.at) AS first, max(i.at) AS last, count(*) AS n FROM accs.inbox i
                     WHERE i.schedule_id = w.schedule_id AND i.gathering = w.gathering) i
    ON CONFLICT (schedule_id, what, key) DO UPDATE SET due_at = excluded.due_at;
    PERFORM accs.tell_schedulers();
  END IF;
  RETURN QUERY SELECT d.schedule_id, d.cause_id, 'accepted'::text, d.outcome, d.reason, greatest(v_now - d.due_at, '0'), d.job_id
    FROM unnest(v_done) d;
END $$;


-- What evaluators have before them: events of subscriptions with a filter, a gathering expression or templated options, the oldest
-- first; no more than about 4 MiB of payloads at once. Several may take the same: the first that settles wins.
CREATE FUNCTION accs.events_to_settle(p_limit int DEFAULT 200, p_except uuid[] DEFAULT '{}') RETURNS TABLE (
  schedule_id uuid, revision int, event_id bigint, topic text, payload jsonb, key text, source text, occurred_at timestamptz,
  at timestamptz, job_id uuid, depth int
) LANGUAGE sql STABLE AS $$
  SELECT w.schedule_id, w.revision, w.event_id, w.topic, w.payload, w.key, w.source, w.occurred_at, w.at, w.job_id, w.depth
    FROM (SELECT i.schedule_id, s.revision, i.event_id, e.topic, e.payload, e.key, e.source, e.occurred_at, e.at, e.job_id, e.depth,
                 sum(octet_length(e.payload::text)) OVER (ORDER BY i.event_id, i.schedule_id) - octet_length(e.payload::text) AS before
            FROM (SELECT * FROM accs.inbox i WHERE NOT i.plain AND i.gathering IS NULL AND i.schedule_id <> ALL (p_except)
                   ORDER BY i.event_id LIMIT p_limit) i
            JOIN LATERAL (SELECT * FROM public.schedules WHERE id = i.schedule_id OFFSET 0) s ON true
            LEFT JOIN LATERAL (SELECT * FROM public.events e WHERE e.id = i.event_id LIMIT 1) e ON true) w
   WHERE w.before IS NULL OR w.before < 4194304
   ORDER BY w.event_id, w.schedule_id
$$;
SELECT accs.is_verb('events_to_settle', pinned => true, may => '{scheduler}');

-- Settles events by what an evaluator has found: an array of {schedule_id, revision, event_id, verdict, options, gathering, message}.
CREATE FUNCTION accs.settle_events(p_verdicts jsonb, p_by text DEFAULT NULL)
RETURNS TABLE (schedule_id uuid, event_id bigint, answer text, outcome text, reason text, late interval, job_id uuid) LANGUAGE sql AS $$
  SELECT * FROM accs.decide_events(ARRAY(SELECT v FROM jsonb_populate_recordset(NULL::accs.event_verdict, p_verdicts) v), p_by)
$$;
SELECT accs.is_verb('settle_events', pinned => true, may => '{scheduler}');

-- Settles events of subscriptions in which nothing is an expression: SQL alone, so that psql can do it. A schedule that somebody is
-- changing is left for the next call.
CREATE FUNCTION accs.settle_plain_events(p_limit int DEFAULT 200, p_by text DEFAULT NULL)
RETURNS TABLE (schedule_id uuid, event_id bigint, answer text, outcome text, reason text, late interval, job_id uuid) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_verdicts accs.event_verdict[];
  v_changed  uuid[];
BEGIN
  IF EXISTS (SELECT FROM accs.schedule_hold) THEN
    RETURN;
  END IF;
  SELECT array_agg(ROW(w.schedule_id, w.revision, w.event_id, 'run', NULL, NULL, NULL)::accs.event_verdict) FILTER (WHERE w.plain),
         array_agg(DISTINCT w.schedule_id) FILTER (WHERE NOT w.plain)
    INTO v_verdicts, v_changed
    FROM (SELECT i.schedule_id, s.revision, i.event_id, accs.is_plain(s) AS plain
            FROM (SELECT * FROM accs.inbox i WHERE i.plain AND i.gathering IS NULL ORDER BY i.event_id OFFSET 0) i,
                 LATERAL (SELECT * FROM public.schedules s WHERE s.id = i.schedule_id FOR NO KEY UPDATE SKIP LOCKED) s
           ORDER BY i.event_id LIMIT p_limit) w;
  IF v_changed IS NOT NULL THEN   -- since they came, the schedule was given a filter or the like: an evaluator has to look
    UPDATE accs.inbox i SET plain = false WHERE i.schedule_id = ANY (v_changed) AND i.plain AND i.gathering IS NULL;
  END IF;
  RETURN QUERY SELECT * FROM accs.decide_events(v_verdicts, p_by);
END $$;
SELECT accs.is_verb('settle_plain_events', pinned => true, may => '{scheduler}');

-- A window has closed: one run with all of its events. Where it can't start (a run is still going on, an error) the window stays
-- open, and is tried again.
CREATE FUNCTION accs.settle_gathered(p_row public.schedules, p_key text, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_ran   timestamptz := (SELECT t.ran_at FROM accs.event_tallies t WHERE t.schedule_id = p_row.id);
  v_due   timestamptz;
  v_skip  text;
  v_again timestamptz;
  v_in    record;
  v_occ   accs.occasion;
  v_done  accs.occasion[] := '{}';
BEGIN
  SELECT least(a.due_at, v_now) INTO v_due FROM accs.agenda a WHERE a.schedule_id = p_row.id AND a.what = 'gather' AND a.key = p_key;
  v_skip := CASE WHEN p_row.state = 'paused' THEN 'paused'
                 WHEN EXISTS (SELECT FROM accs.actors c WHERE c.name = p_row.created_by AND c.disabled_at IS NOT NULL) THEN 'owner_disabled'
                 WHEN NOT EXISTS (SELECT FROM public.workflows w WHERE w.name = p_row.workflow AND w.is_active
                                     AND (p_row.version IS NULL OR w.version = p_row.version)) THEN 'workflow_inactive'
                 WHEN v_now < v_ran + p_row.cooldown AND NOT p_row.cooldown_trailing THEN 'cooldown' END;
  IF v_skip IS NULL AND p_row.state = 'broken' THEN
    v_again := v_now + interval '1 min';
  ELSIF v_skip IS NULL AND v_now < v_ran + p_row.cooldown THEN
    v_again := v_ran + p_row.cooldown;
  ELSIF v_skip IS NULL THEN
    SELECT count(*) AS n, min(e.at) AS first, max(e.at) AS last, jsonb_agg(e.id ORDER BY e.id) AS ids, max(e.depth) AS depth,
           (array_agg(accs.about_event(e.event) ORDER BY e.id DESC))[1] AS newest, (array_agg(e.options ORDER BY e.id DESC))[1] AS options,
           jsonb_agg(accs.about_event(e.event) - CASE WHEN e.bytes > 1048576 THEN 'payload' ELSE '' END ORDER BY e.id)
             FILTER (WHERE e.nth <= 1000) AS events
      INTO v_in
      FROM (SELECT i.event_id AS id, i.at, i.options, e AS event, e.depth, row_number() OVER (ORDER BY i.event_id) AS nth,
                   sum(octet_length(e.payload::text)) OVER (ORDER BY i.event_id) AS bytes
              FROM accs.inbox i JOIN public.events e ON e.id = i.event_id WHERE i.schedule_id = p_row.id AND i.gathering = p_key) e;
    IF v_in.n = 0 THEN
      v_skip := 'refused';   -- none of them is kept any more
    ELSE
      v_occ := ROW(p_row.id, v_now AT TIME ZONE 'UTC', 0, nextval('accs.cause_seq'), v_due, 'fired', 'event', NULL, NULL, NULL,
                   jsonb_build_object('gathered', v_in.n, 'first', v_in.first, 'last', v_in.last), v_in.options,
                   jsonb_build_object('cause', 'event', 'event', v_in.newest, 'events', v_in.events, 'event_ids', v_in.ids, 'gathered',
                     jsonb_build_object('count', v_in.n, 'first', v_in.first, 'last', v_in.last, 'by', p_key), 'depth', v_in.depth + 1,
                     'chain', (SELECT to_jsonb(array_agg(DISTINCT c) || p_row.id) FROM accs.inbox i
                                 JOIN public.events e ON e.id = i.event_id LEFT JOIN LATERAL unnest(e.chain) c ON true
                                WHERE i.schedule_id = p_row.id AND i.gathering = p_key AND c IS NOT NULL)),
                   false, NULL, NULL)::accs.occasion;
      v_done := ARRAY(SELECT r FROM accs.start_each(ARRAY[v_occ], p_by) r);
      IF v_done[1].job_id IS NULL THEN
        v_again := v_now + least(greatest(coalesce(accs.length_of(p_row.gather -> 'quiet'), '5 s'), '1 s'), '1 min');
        IF v_done[1].reason = 'broken' THEN
          PERFORM accs.note_event_runs(v_done, p_by);
          PERFORM accs.note_schedule(p_row.id, 'failed', coalesce(p_by, 'accsd'), 'gather: ' || (v_done[1].detail ->> 'problem'));
        END IF;
        v_done := '{}';
      END IF;
    END IF;
  END IF;
  IF v_again IS NOT NULL THEN
    UPDATE accs.agenda a SET due_at = v_again WHERE a.schedule_id = p_row.id AND a.what = 'gather' AND a.key = p_key;
    RETURN;
  END IF;
  WITH gone AS (
    DELETE FROM accs.inbox i WHERE i.schedule_id = p_row.id AND i.gathering = p_key RETURNING i.event_id, i.at
  )
  SELECT v_done || array_agg(ROW(p_row.id, g.at AT TIME ZONE 'UTC', 0, g.event_id, g.at,
           CASE WHEN v_skip IS NULL THEN 'merged' ELSE 'skipped' END, coalesce(v_skip, 'gathered'),
           CASE WHEN v_skip IS NULL THEN v_done[1].nominal END, NULL, NULL,
           CASE WHEN v_skip IS NULL THEN jsonb_build_object('run', v_done[1].cause_id) END, NULL, NULL, false, NULL, NULL)::accs.occasion
           ORDER BY g.event_id)
    INTO v_done FROM gone g;
  DELETE FROM accs.agenda a WHERE a.schedule_id = p_row.id AND a.what = 'gather' AND a.key = p_key;
  PERFORM accs.record_firings(v_done, p_by);
  PERFORM accs.note_event_runs(v_done, p_by);
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

-- The end of a pause: none, the newest, or all of the events that came during it go back into the inbox, to run. What came and was
-- not looked at yet was paused all the same.
CREATE FUNCTION accs.recover_events(p_row public.schedules, p_recover text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_plain boolean := accs.is_plain(p_row);
  v_done  accs.occasion[];
BEGIN
  UPDATE accs.inbox i SET why = 'paused'
   WHERE i.schedule_id = p_row.id AND i.gathering IS NULL AND i.why IS NULL AND i.at >= p_row.state_since;
  IF p_recover NOT IN ('one', 'all') THEN
    RETURN;
  END IF;
  WITH wanted AS (
    SELECT f.nominal, f.cause_id, f.due_at FROM public.firings f
     WHERE f.schedule_id = p_row.id AND f.outcome = 'skipped' AND f.reason = 'paused' AND f.settled_at >= p_row.state_since
       AND EXISTS (SELECT FROM public.events e WHERE e.id = f.cause_id)
    UNION ALL
    SELECT i.at AT TIME ZONE 'UTC', i.event_id, i.at FROM accs.inbox i WHERE i.schedule_id = p_row.id AND i.why = 'paused'
  ), chosen AS (
    SELECT * FROM wanted w WHERE p_recover = 'one' OR accs.clock() - w.due_at <= coalesce(p_row.catch_up, '1 day')
     ORDER BY w.cause_id DESC LIMIT CASE p_recover WHEN 'one' THEN 1 ELSE p_row.catch_up_max END
  ), back AS (
    INSERT INTO accs.inbox AS i (schedule_id, event_id, at, plain, why)
    SELECT p_row.id, c.cause_id, c.due_at, v_plain, 'resumed' FROM chosen c
    ON CONFLICT (schedule_id, event_id) DO UPDATE SET why = 'resumed'
  )
  SELECT array_agg(ROW(p_row.id, c.nominal, 0, c.cause_id, c.due_at, 'caught_up', 'resumed', NULL, NULL, NULL, NULL, NULL, NULL, false,
                       NULL, NULL)::accs.occasion) INTO v_done FROM chosen c;
  RETURN QUERY SELECT * FROM unnest(v_done);
END $$;

-- Gives events to one subscription again, whatever became of them there; gathering and cooldown do not count.
CREATE FUNCTION accs.replay_events(p_event_ids bigint[], p_which text, p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (event_id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row  public.schedules := accs.lock_schedule(p_which);
  v_made bigint[];
BEGIN
  PERFORM accs.check_size(cardinality(p_event_ids));
  IF v_row.schedule_kind <> 'event' OR v_row.state = 'ended' THEN
    RETURN QUERY SELECT u.id, 'refused'::text, CASE WHEN v_row.state = 'ended' THEN 'ended' ELSE 'not_by_event' END
      FROM unnest(p_event_ids) AS u (id);
    RETURN;
  END IF;
  WITH made AS (
    INSERT INTO accs.inbox AS i (schedule_id, event_id, at, plain, why)
    SELECT v_row.id, e.id, accs.clock(), accs.is_plain(v_row), 'replay' FROM public.events e WHERE e.id = ANY (p_event_ids) ORDER BY e.id
    ON CONFLICT DO NOTHING RETURNING i.event_id
  )
  SELECT array_agg(m.event_id ORDER BY m.event_id) INTO v_made FROM made m;
  IF v_made IS NOT NULL THEN
    PERFORM accs.note_schedule(v_row.id, 'replay', p_by, p_reason, NULL, jsonb_build_object('events', to_jsonb(v_made[1:100]), 'count',
      cardinality(v_made)));
    PERFORM accs.tell_schedulers();
  END IF;
  RETURN QUERY SELECT u.id, CASE WHEN u.id = ANY (v_made) THEN 'accepted' WHEN e.id IS NOT NULL THEN 'repeated' ELSE 'refused' END,
                      CASE WHEN e.id IS NULL THEN 'not_found' END
    FROM unnest(p_event_ids) WITH ORDINALITY AS u (id, n)
    LEFT JOIN LATERAL (SELECT e.id FROM public.events e WHERE e.id = u.id LIMIT 1) e ON true ORDER BY u.n;
END $$;
SELECT accs.is_verb('replay_events', may => '{scheduler,api}');

-- While all schedules are held, events wait; of one subscription no more than so many, and later ones are missed. Returns how many.
CREATE FUNCTION accs.trim_inbox(p_by text DEFAULT NULL) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_id   uuid;
  v_done accs.occasion[];
  v_n    int := 0;
BEGIN
  FOR v_id IN SELECT schedule_id FROM accs.inbox GROUP BY schedule_id HAVING count(*) > accs.most_inbox() ORDER BY schedule_id LOOP
    CONTINUE WHEN NOT EXISTS (SELECT FROM public.schedules WHERE id = v_id FOR NO KEY UPDATE SKIP LOCKED);
    WITH gone AS (
      DELETE FROM accs.inbox i WHERE i.schedule_id = v_id AND i.gathering IS NULL AND i.event_id > (
        SELECT b.event_id FROM accs.inbox b WHERE b.schedule_id = v_id ORDER BY b.event_id OFFSET accs.most_inbox() - 1 LIMIT 1)
      RETURNING i.event_id, i.at
    )
    SELECT array_agg(ROW(v_id, g.at AT TIME ZONE 'UTC', 0, g.event_id, g.at, 'missed', 'over_limit', NULL, NULL, NULL, NULL, NULL, NULL,
                         false, NULL, NULL)::accs.occasion) INTO v_done FROM gone g;
    PERFORM accs.record_firings(v_done, p_by);
    v_n := v_n + coalesce(cardinality(v_done), 0);
  END LOOP;
  RETURN v_n;
END $$;
SELECT accs.is_verb('trim_inbox', may => '{scheduler}');

-- Keys whose time is over are forgotten.
CREATE FUNCTION accs.forget_event_keys() RETURNS bigint LANGUAGE sql AS $$
  WITH gone AS (DELETE FROM accs.event_keys WHERE until <= accs.clock() RETURNING 1) SELECT count(*) FROM gone
$$;
SELECT accs.is_verb('forget_event_keys', may => '{scheduler}');

-- accsd's own events. Whoever listens hears of them in the transaction in which they happen; nobody does, nothing is stored.
CREATE FUNCTION accs.emit_own(p_topic text, p_payload jsonb, p_job uuid, p_trigger jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM unnest(accs.patterns_of(p_topic)) AS p (topic),
                         LATERAL (SELECT FROM accs.subscriptions k WHERE k.topic = p.topic OFFSET 0) s) THEN
    PERFORM accs.emit(p_topic, jsonb_strip_nulls(p_payload), NULL, NULL, 'accsd', p_job, NULL, accs.depth_of(p_trigger),
      accs.chain_of(p_trigger));
  END IF;
END $$;

-- The results of a job's last steps, those that no other waits for, by step; nothing where they are above 64 KiB.
CREATE FUNCTION accs.last_results(p_job uuid) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN octet_length(r.results::text) <= 65536 THEN r.results END
    FROM (SELECT jsonb_object_agg(t.task_key, t.results) AS results FROM public.job_tasks t
           WHERE t.job_id = p_job AND t.dependants IS NULL AND t.results IS NOT NULL) r
$$;

CREATE FUNCTION accs.emit_job_outcome() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  PERFORM accs.emit_own('accs.job.' || NEW.status, jsonb_build_object('workflow', w.name, 'version', w.version, 'job_id', NEW.id,
            'status', NEW.status, 'error_code', NEW.error_code, 'error_message', NEW.error_message, 'results', accs.last_results(NEW.id),
            'trigger', NEW.trigger - 'event' - 'events' - 'event_ids', 'finished_at', NEW.finished_at), NEW.id, NEW.trigger)
     FROM public.workflows w WHERE w.id = NEW.workflow_id;
  RETURN NULL;
END $$;

CREATE FUNCTION accs.emit_dead_task() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  PERFORM accs.emit_own('accs.task.dead', jsonb_build_object('workflow', w.name, 'version', w.version, 'job_id', NEW.job_id,
            'task_id', NEW.job_task_id, 'step', t.task_key, 'service', NEW.service_name, 'reason', NEW.reason, 'error_code', NEW.error_code,
            'error_message', NEW.error_message, 'dead_letter', NEW.id), NEW.job_id, j.trigger)
     FROM public.jobs j JOIN public.workflows w ON w.id = j.workflow_id LEFT JOIN public.job_tasks t ON t.id = NEW.job_task_id
    WHERE j.id = NEW.job_id;
  RETURN NULL;
END $$;

-- A due time that was missed. (One of an event is not told: what listens to that could feed itself.)
CREATE FUNCTION accs.emit_missed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  PERFORM accs.emit_own('accs.schedule.missed', jsonb_build_object('schedule', s.name, 'schedule_id', s.id, 'workflow', s.workflow,
            'nominal', to_char(NEW.nominal, 'YYYY-MM-DD"T"HH24:MI:SS'), 'timezone', s.timezone, 'reason', NEW.reason, 'times', NEW.times),
            NULL, NULL)
     FROM public.schedules s WHERE s.id = NEW.schedule_id;
  RETURN NULL;
END $$;

CREATE FUNCTION accs.emit_broken() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  PERFORM accs.emit_own('accs.schedule.broken', jsonb_build_object('schedule', NEW.name, 'schedule_id', NEW.id, 'workflow', NEW.workflow,
                          'problem', NEW.state_reason), NULL, jsonb_build_object('chain', jsonb_build_array(NEW.id)));
  RETURN NULL;
END $$;

CREATE FUNCTION accs.emit_failed_node() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
BEGIN
  PERFORM accs.emit_own('accs.node.failed', jsonb_build_object('node', NEW.node, 'because', NEW.because), NULL, NULL);
  RETURN NULL;
END $$;

-- Disabled, so that they cost nothing, until somebody subscribes to what they tell: choose_outcomes.
CREATE TRIGGER emit_outcome AFTER UPDATE OF status ON public.jobs
  FOR EACH ROW WHEN (OLD.status <> NEW.status AND NEW.status IN ('done', 'error', 'cancelled')) EXECUTE FUNCTION accs.emit_job_outcome();
ALTER TABLE public.jobs DISABLE TRIGGER emit_outcome;
CREATE TRIGGER emit_dead AFTER INSERT ON public.dead_letters FOR EACH ROW EXECUTE FUNCTION accs.emit_dead_task();
ALTER TABLE public.dead_letters DISABLE TRIGGER emit_dead;
CREATE TRIGGER emit_missed AFTER INSERT ON public.firings FOR EACH ROW WHEN (NEW.outcome = 'missed' AND NEW.cause_id = 0)
  EXECUTE FUNCTION accs.emit_missed();
ALTER TABLE public.firings DISABLE TRIGGER emit_missed;
CREATE TRIGGER emit_broken AFTER UPDATE OF state ON public.schedules FOR EACH ROW WHEN (NEW.state = 'broken' AND OLD.state <> 'broken')
  EXECUTE FUNCTION accs.emit_broken();
ALTER TABLE public.schedules DISABLE TRIGGER emit_broken;
CREATE TRIGGER emit_failed AFTER UPDATE OF state ON accs.power FOR EACH ROW WHEN (NEW.state = 'failed' AND OLD.state <> 'failed')
  EXECUTE FUNCTION accs.emit_failed_node();
ALTER TABLE accs.power DISABLE TRIGGER emit_failed;

INSERT INTO accs.locks VALUES ('outcomes');

-- Which triggers of accsd's own events are wanted, or not wanted any more.
CREATE FUNCTION accs.outcomes_to_choose() RETURNS TABLE (relation regclass, name name, wanted boolean) LANGUAGE sql STABLE AS $$
  SELECT t.tgrelid::regclass, t.tgname, w.wanted
    FROM (VALUES ('public.jobs'::regclass, 'emit_outcome', '{accs.job.done,accs.job.error,accs.job.cancelled}'::text[]),
                 ('public.dead_letters', 'emit_dead', '{accs.task.dead}'), ('public.firings', 'emit_missed', '{accs.schedule.missed}'),
                 ('public.schedules', 'emit_broken', '{accs.schedule.broken}'),
                 ('accs.power', 'emit_failed', '{accs.node.failed}')) AS k (relation, name, topics)
    JOIN pg_trigger t ON t.tgrelid = k.relation AND t.tgname = k.name,
         LATERAL (SELECT EXISTS (SELECT FROM accs.subscriptions s, unnest(k.topics) p
                                  WHERE s.topic = ANY (accs.patterns_of(p))) AS wanted) w
   WHERE (t.tgenabled <> 'D') <> w.wanted ORDER BY 1, 2
$$;

-- Enables the triggers that some subscription needs and disables the others: from then on they are told. In a transaction of its
-- own and not for long, because to change a trigger waits for the writers of its table, and everybody waits behind it.
CREATE FUNCTION accs.choose_outcomes() RETURNS text[] LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
DECLARE
  v_row  record;
  v_done text[] := '{}';
BEGIN
  PERFORM accs.lock('outcomes');
  FOR v_row IN SELECT * FROM accs.outcomes_to_choose() LOOP
    EXECUTE format('ALTER TABLE %s %s TRIGGER %I', v_row.relation, CASE WHEN v_row.wanted THEN 'ENABLE' ELSE 'DISABLE' END, v_row.name);
    v_done := v_done || (CASE WHEN v_row.wanted THEN '+' ELSE '-' END || v_row.name);
  END LOOP;
  RETURN v_done;
END $$;
SELECT accs.is_verb('choose_outcomes', may => '{scheduler}');

-- For an evaluator between its passes: are there events that SQL alone can settle, events to evaluate, triggers to choose; why all
-- is held.
CREATE FUNCTION accs.events_outlook() RETURNS TABLE (plain boolean, work boolean, choose boolean, hold text) LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT FROM accs.inbox i WHERE i.plain AND i.gathering IS NULL),
         EXISTS (SELECT FROM accs.inbox i WHERE NOT i.plain AND i.gathering IS NULL),
         EXISTS (SELECT FROM accs.outcomes_to_choose()),
         (SELECT concat_ws(', ', coalesce(h.reason, 'no reason given'), 'by ' || h.by) FROM accs.schedule_hold h)
$$;
SELECT accs.is_verb('events_outlook', may => '{scheduler}');
