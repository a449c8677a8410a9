-- ---------------------------------------------------------------------------------------------------------------
-- Conditions: samples that are judged, and start a job when a value crosses its threshold
-- ---------------------------------------------------------------------------------------------------------------

-- The state of each schedule of kind condition. level is what was last decided, and what it goes back to: the state is rising or
-- falling while a streak of samples speaks for the other level, and unknown while no value is known.
CREATE TABLE accs.conditions (
  schedule_id    uuid PRIMARY KEY,
  state          text NOT NULL DEFAULT 'unknown' CHECK (state IN ('clear', 'rising', 'raised', 'falling', 'unknown')),
  since          timestamptz NOT NULL DEFAULT accs.clock(),   -- of the state
  level          text CHECK (level IN ('clear', 'raised')),   -- null: nothing was decided yet
  streak         int NOT NULL DEFAULT 0,                      -- so many samples in a row speak for the other level
  streak_since   timestamptz,
  last_value     jsonb,
  last_at        timestamptz,
  last_error     text,                                        -- why the last sample had no value; null: it had one
  begun_at       timestamptz NOT NULL DEFAULT accs.clock(),   -- since when samples are awaited
  raised_at      timestamptz,                                 -- raised, or repeated, last
  last_fired_at  timestamptz
) WITH (fillfactor = 50);

-- The last 200 samples of each condition. verdict: judged; unknown (it has no value); ignored (an older one than the last); held
-- (it waits for the end of the hold); stale (no sample came for too long).
CREATE TABLE accs.condition_samples (
  id           bigint PRIMARY KEY DEFAULT nextval('accs.cause_seq'),
  schedule_id  uuid NOT NULL,
  at           timestamptz NOT NULL,
  received_at  timestamptz NOT NULL DEFAULT accs.clock(),
  key          text CHECK (length(key) BETWEEN 1 AND 200),
  value        jsonb,
  error        text,
  by           text,
  verdict      text NOT NULL CHECK (verdict IN ('judged', 'unknown', 'ignored', 'held', 'stale'))
);

CREATE INDEX condition_samples_of ON accs.condition_samples (schedule_id, id);
CREATE UNIQUE INDEX condition_samples_key ON accs.condition_samples (schedule_id, key) WHERE key IS NOT NULL;
CREATE INDEX condition_samples_held ON accs.condition_samples (schedule_id, id) WHERE verdict = 'held';
CREATE INDEX schedules_condition ON public.schedules (schedule_expr) WHERE schedule_kind = 'condition';   -- report_sample

-- What a schedule's condition says, read: one threshold, and how it is applied.
CREATE TYPE accs.judgement AS (
  above           numeric,
  below           numeric,
  equals          jsonb,       -- "is"
  clears          numeric,     -- clear_above or clear_below; null: where it is not raised
  samples         int,
  lasts           interval,    -- "for"
  clear_samples   int,
  repeat          interval,
  every           interval,
  stale           interval,
  on_unknown      text,
  fire_initially  boolean,
  is_probed       boolean
);

-- A number is seconds; a text is 90s, 10m or 1h30m.
CREATE FUNCTION accs.duration_of(p_written jsonb) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE jsonb_typeof(p_written) WHEN 'number' THEN make_interval(secs => p_written::double precision)
                                      WHEN 'string' THEN (p_written #>> '{}')::interval END
$$;

CREATE FUNCTION accs.judgement_of(p_condition jsonb) RETURNS accs.judgement LANGUAGE sql IMMUTABLE AS $$
  SELECT ROW((c -> 'above')::numeric, (c -> 'below')::numeric, c -> 'is',
             coalesce(c -> 'clear_below', c -> 'clear_above')::numeric,
             coalesce((c -> 'samples')::int, 1), coalesce(accs.duration_of(c -> 'for'), '0'), coalesce((c -> 'clear_samples')::int, 1),
             accs.duration_of(c -> 'repeat'), accs.duration_of(c -> 'every'),
             coalesce(accs.duration_of(c -> 'stale'), 3 * accs.duration_of(c -> 'every')),
             coalesce(c ->> 'on_unknown', 'keep'), coalesce((c -> 'fire_initially')::boolean, false),
             coalesce(jsonb_typeof(c -> 'source') = 'object', false))::accs.judgement
    FROM jsonb_strip_nulls(p_condition) c
$$;

-- A condition begins, or is another one now: its first sample decides the state. What can't be judged is refused; the planner
-- finds the other mistakes.
CREATE FUNCTION accs.begin_condition() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp AS $$
DECLARE
  v_how accs.judgement;
BEGIN
  IF TG_OP = 'UPDATE' AND (OLD.schedule_kind, OLD.schedule_expr, OLD.condition)
                          IS NOT DISTINCT FROM (NEW.schedule_kind, NEW.schedule_expr, NEW.condition) THEN
    RETURN NULL;
  END IF;
  DELETE FROM accs.agenda WHERE schedule_id = NEW.id AND what = 'judge';
  DELETE FROM accs.conditions WHERE schedule_id = NEW.id;
  DELETE FROM accs.condition_samples WHERE schedule_id = NEW.id AND verdict = 'held';
  IF NEW.schedule_kind = 'condition' THEN
    BEGIN
      v_how := accs.judgement_of(NEW.condition);
    EXCEPTION WHEN data_exception OR feature_not_supported THEN
      RAISE EXCEPTION 'schedule "%": its condition can''t be read: %', NEW.name, SQLERRM USING ERRCODE = 'invalid_parameter_value',
        HINT = 'A threshold is a number, a duration is a number of seconds or a text such as 90s, 10m or 1h30m.';
    END;
    IF num_nonnulls(v_how.above, v_how.below, v_how.equals) <> 1 THEN
      RAISE EXCEPTION 'schedule "%": a condition says when it is raised: above, below or is, and one of them', NEW.name
        USING ERRCODE = 'invalid_parameter_value', HINT = '{"above": 100, "clear_below": 80, "for": "5m"}';
    END IF;
    INSERT INTO accs.conditions (schedule_id) VALUES (NEW.id);
    IF v_how.stale IS NOT NULL THEN
      INSERT INTO accs.agenda (schedule_id, what, due_at) VALUES (NEW.id, 'judge', accs.clock() + v_how.stale);
      PERFORM accs.tell_schedulers();
    END IF;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER begin_condition AFTER INSERT ON public.schedules
  FOR EACH ROW WHEN (NEW.schedule_kind = 'condition') EXECUTE FUNCTION accs.begin_condition();
CREATE TRIGGER change_condition AFTER UPDATE OF schedule_kind, schedule_expr, condition ON public.schedules
  FOR EACH ROW WHEN (OLD.schedule_kind = 'condition' OR NEW.schedule_kind = 'condition') EXECUTE FUNCTION accs.begin_condition();

-- The planner has found the condition to be sound: its probe has its place in the agenda from now on. The phase is the schedule's own.
-- So has its staleness, which a schedule that was broken has lost.
CREATE FUNCTION accs.plan_probe(p_row public.schedules) RETURNS void LANGUAGE sql AS $$
  INSERT INTO accs.agenda (schedule_id, what, due_at)
  SELECT p_row.id, 'judge', accs.clock() + j.stale FROM accs.judgement_of(p_row.condition) j
   WHERE p_row.schedule_kind = 'condition' AND j.stale IS NOT NULL
  ON CONFLICT DO NOTHING;
  INSERT INTO accs.agenda (schedule_id, what, due_at)
  SELECT p_row.id, 'probe', accs.clock() + j.every * ((hashtextextended(p_row.id::text, 0) & 65535) / 65536.0)
    FROM accs.judgement_of(p_row.condition) j WHERE p_row.schedule_kind = 'condition' AND j.is_probed AND j.every > '0'
  ON CONFLICT DO NOTHING
$$;

-- What the job that a sample starts is told of it.
CREATE FUNCTION accs.sample_trigger(p_row public.schedules, p_cause bigint, p_at timestamptz, p_detail jsonb) RETURNS jsonb
LANGUAGE sql STABLE AS $$
  SELECT jsonb_build_object('cause', 'condition', 'condition', p_row.schedule_expr, 'sample',
                            p_detail || jsonb_build_object('id', p_cause, 'at', p_at))
$$;

-- A crossing (or a repetition) on its way into the ledger. The caller has locked the schedule, and its agenda is in order: jobs come
-- after it.
CREATE FUNCTION accs.fire_condition(p_row public.schedules, p_cause bigint, p_at timestamptz, p_detail jsonb, p_by text)
RETURNS accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
  v_why text;
  v_occ accs.occasion;
BEGIN
  v_why := CASE WHEN p_row.state = 'paused' THEN 'paused'
                WHEN EXISTS (SELECT FROM accs.actors a WHERE a.name = p_row.created_by AND a.disabled_at IS NOT NULL) THEN 'owner_disabled'
                WHEN v_now < p_row.start_at THEN 'excluded'
                WHEN v_now < (SELECT c.last_fired_at FROM accs.conditions c WHERE c.schedule_id = p_row.id) + p_row.cooldown
                  THEN 'cooldown' END;
  v_occ := ROW(p_row.id, p_at AT TIME ZONE 'UTC', 0, p_cause, p_at, CASE WHEN v_why IS NULL THEN 'fired' ELSE 'skipped' END,
               coalesce(v_why, 'condition'), NULL, NULL, NULL, p_detail, NULL,
               accs.sample_trigger(p_row, p_cause, p_at, p_detail), false, NULL, NULL)::accs.occasion;
  BEGIN
    IF v_why IS NULL THEN
      SELECT * INTO v_occ FROM accs.start_runs(ARRAY[v_occ], p_by);
    END IF;
    PERFORM accs.record_firings(ARRAY[v_occ], p_by);
    UPDATE public.schedules s SET runs = s.runs + (v_occ.job_id IS NOT NULL)::int, last_job_id = coalesce(v_occ.job_id, s.last_job_id),
           last_nominal = v_occ.nominal, refused_in_row = 0 WHERE s.id = p_row.id;
  EXCEPTION WHEN OTHERS THEN
    IF SQLSTATE LIKE ANY ('{40%,53%,55%,57%,58%}') THEN
      RAISE;   -- nobody's fault: tried again as a whole
    END IF;
    v_occ.outcome := 'skipped';
    v_occ.reason := 'broken';
    v_occ.detail := p_detail || jsonb_build_object('problem', left(SQLERRM, 2000));
    PERFORM accs.record_firings(ARRAY[v_occ], p_by);
    UPDATE public.schedules s SET refused_in_row = s.refused_in_row + 1 WHERE s.id = p_row.id;
    IF p_row.refused_in_row >= 2 THEN
      PERFORM accs.break_schedule(p_row, v_occ.detail ->> 'problem', p_by);
    END IF;
  END;
  IF v_occ.outcome = 'fired' THEN
    UPDATE accs.conditions c SET last_fired_at = v_now WHERE c.schedule_id = p_row.id;
  END IF;
  IF v_occ.job_id IS NOT NULL AND p_row.max_runs <= p_row.runs + 1 THEN
    DELETE FROM accs.agenda WHERE schedule_id = p_row.id AND what IN ('probe', 'judge');
    PERFORM accs.move_schedule(p_row.id, 'ended', 'max_runs');
    PERFORM accs.note_schedule(p_row.id, 'ended', 'accsd', 'max_runs');
  END IF;
  RETURN v_occ;
END $$;

-- One sample with a value: moves the state, and fires where the value has crossed its threshold. The caller has locked the schedule.
-- Between the thresholds the level stays what it was, and a streak towards the other one ends.
CREATE FUNCTION accs.judge_sample(p_row public.schedules, p_id bigint, p_value jsonb, p_at timestamptz, p_by text)
RETURNS accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_how   accs.judgement := accs.judgement_of(p_row.condition);
  v_was   accs.conditions;
  v_now   accs.conditions;
  v_high  boolean;
  v_low   boolean;
  v_fires jsonb;
BEGIN
  SELECT * INTO STRICT v_was FROM accs.conditions WHERE schedule_id = p_row.id;
  v_now := v_was;
  IF p_at - v_was.last_at > v_how.stale THEN   -- the streak is of another time
    v_now.streak := 0;
    v_now.streak_since := NULL;
  END IF;
  v_high := CASE WHEN v_how.above IS NOT NULL THEN p_value::numeric > v_how.above
                 WHEN v_how.below IS NOT NULL THEN p_value::numeric < v_how.below ELSE p_value = v_how.equals END;
  v_low := NOT v_high AND CASE WHEN v_how.clears IS NULL THEN true
                               WHEN v_how.above IS NOT NULL THEN p_value::numeric < v_how.clears ELSE p_value::numeric > v_how.clears END;
  IF v_was.level IS NULL AND NOT v_how.fire_initially THEN
    v_now.level := CASE WHEN v_high THEN 'raised' ELSE 'clear' END;
  ELSE
    v_now.level := coalesce(v_was.level, 'clear');
    IF v_now.level = 'clear' AND v_high OR v_now.level = 'raised' AND v_low THEN
      v_now.streak := v_now.streak + 1;
      v_now.streak_since := coalesce(v_now.streak_since, p_at);
    ELSE
      v_now.streak := 0;
      v_now.streak_since := NULL;
    END IF;
    IF v_now.level = 'clear' AND v_high AND v_now.streak >= v_how.samples AND p_at - v_now.streak_since >= v_how.lasts THEN
      v_now.level := 'raised';
      v_fires := jsonb_build_object('value', p_value, 'streak', v_now.streak, 'streak_since', v_now.streak_since);
    ELSIF v_now.level = 'raised' AND v_low AND v_now.streak >= v_how.clear_samples THEN
      v_now.level := 'clear';
    ELSIF v_now.level = 'raised' AND v_now.streak = 0 AND p_at - v_was.raised_at >= v_how.repeat THEN
      v_fires := jsonb_build_object('value', p_value, 'streak', 0, 'repeat', true);
    END IF;
  END IF;
  IF v_now.level <> coalesce(v_was.level, 'clear') THEN
    v_now.streak := 0;
    v_now.streak_since := NULL;
  END IF;
  v_now.state := CASE WHEN v_now.streak = 0 THEN v_now.level WHEN v_now.level = 'clear' THEN 'rising' ELSE 'falling' END;
  IF v_fires IS NOT NULL OR v_now.level = 'raised' AND v_was.level IS NULL THEN
    v_now.raised_at := p_at;
  END IF;
  UPDATE accs.conditions c SET state = v_now.state, since = CASE WHEN c.state = v_now.state THEN c.since ELSE p_at END,
         level = v_now.level, streak = v_now.streak, streak_since = v_now.streak_since, last_value = p_value, last_at = p_at,
         last_error = NULL, raised_at = v_now.raised_at WHERE c.schedule_id = p_row.id;
  UPDATE accs.condition_samples SET verdict = 'judged' WHERE id = p_id AND verdict <> 'judged';
  IF v_how.stale IS NOT NULL THEN   -- a row that is there moves on by itself when it is due
    INSERT INTO accs.agenda (schedule_id, what, due_at) VALUES (p_row.id, 'judge', p_at + v_how.stale) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      PERFORM accs.tell_schedulers();
    END IF;
  END IF;
  IF v_fires IS NULL THEN
    RETURN NULL;
  END IF;
  RETURN accs.fire_condition(p_row, p_id, p_at, v_fires, p_by);
END $$;

-- Nothing is known of the condition any more: it is unknown, which is not false. A pause that stopped its probe is no reason to act.
CREATE FUNCTION accs.judge_stale(p_row public.schedules, p_by text) RETURNS accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_how accs.judgement := accs.judgement_of(p_row.condition);
  v_was accs.conditions;
  v_act text := CASE WHEN v_how.is_probed AND p_row.state = 'paused' THEN 'keep' ELSE v_how.on_unknown END;
  v_at  timestamptz;
  v_id  bigint;
BEGIN
  SELECT * INTO STRICT v_was FROM accs.conditions WHERE schedule_id = p_row.id;
  v_at := coalesce(v_was.last_at, v_was.begun_at) + v_how.stale;
  INSERT INTO accs.condition_samples (schedule_id, at, error, by, verdict)
  VALUES (p_row.id, v_at, 'no sample with a value for ' || v_how.stale, p_by, 'stale') RETURNING id INTO v_id;
  UPDATE accs.conditions c SET streak = 0, streak_since = NULL, level = CASE v_act WHEN 'raise' THEN 'raised' WHEN 'clear' THEN 'clear'
           ELSE c.level END,
         state = CASE v_act WHEN 'raise' THEN 'raised' WHEN 'clear' THEN 'clear' ELSE 'unknown' END,
         since = CASE WHEN c.state = CASE v_act WHEN 'raise' THEN 'raised' WHEN 'clear' THEN 'clear' ELSE 'unknown' END
                   THEN c.since ELSE v_at END,
         raised_at = CASE WHEN v_act = 'raise' AND c.level IS DISTINCT FROM 'raised' THEN v_at ELSE c.raised_at END
   WHERE c.schedule_id = p_row.id;
  IF v_act = 'raise' AND v_was.level IS DISTINCT FROM 'raised' THEN
    RETURN accs.fire_condition(p_row, v_id, v_at, jsonb_build_object('value', NULL, 'streak', 0, 'unknown', true), p_by);
  END IF;
  RETURN NULL;
END $$;

-- Judges the samples that a hold kept waiting, in their order. The caller has locked the schedule.
CREATE FUNCTION accs.judge_held(p_row public.schedules, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_row    public.schedules := p_row;
  v_sample accs.condition_samples;
  v_fired  accs.occasion;
BEGIN
  FOR v_sample IN SELECT * FROM accs.condition_samples WHERE schedule_id = p_row.id AND verdict = 'held' ORDER BY at, id LOOP
    IF v_row.state IN ('ended', 'broken') OR v_sample.at < (SELECT c.last_at FROM accs.conditions c WHERE c.schedule_id = p_row.id) THEN
      UPDATE accs.condition_samples SET verdict = 'ignored' WHERE id = v_sample.id;
      CONTINUE;
    END IF;
    v_fired := accs.judge_sample(v_row, v_sample.id, v_sample.value, v_sample.at, p_by);
    IF v_fired.schedule_id IS NOT NULL THEN
      RETURN NEXT v_fired;
      SELECT * INTO v_row FROM public.schedules WHERE id = p_row.id;
    END IF;
  END LOOP;
END $$;

-- A row 'judge' of the agenda is due: samples waited for the end of a hold, or perhaps the condition is stale.
CREATE FUNCTION accs.settle_condition(p_row public.schedules, p_by text) RETURNS SETOF accs.occasion LANGUAGE plpgsql AS $$
DECLARE
  v_row   public.schedules;
  v_until timestamptz;
  v_fired accs.occasion;
BEGIN
  RETURN QUERY SELECT * FROM accs.judge_held(p_row, p_by);
  SELECT * INTO v_row FROM public.schedules WHERE id = p_row.id;
  SELECT coalesce(c.last_at, c.begun_at) + (accs.judgement_of(v_row.condition)).stale INTO v_until
    FROM accs.conditions c WHERE c.schedule_id = p_row.id;
  IF v_row.state IN ('active', 'paused') AND v_until > accs.clock() THEN
    UPDATE accs.agenda SET due_at = v_until WHERE schedule_id = p_row.id AND what = 'judge';
    RETURN;
  END IF;
  DELETE FROM accs.agenda WHERE schedule_id = p_row.id AND what = 'judge';
  IF v_row.state IN ('active', 'paused') AND v_until IS NOT NULL THEN
    v_fired := accs.judge_stale(v_row, p_by);
    IF v_fired.schedule_id IS NOT NULL THEN
      RETURN NEXT v_fired;
    END IF;
  END IF;
END $$;

-- Records a sample of one condition and judges it. The caller has locked the schedule. Without a value it is unknown: it neither
-- feeds nor breaks a streak.
CREATE FUNCTION accs.take_sample(p_row public.schedules, p_value jsonb, p_error text, p_at timestamptz, p_key text, p_by text)
RETURNS TABLE (answer text, reason text, sample_id bigint, state text, outcome text, outcome_reason text, job_id uuid)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row   public.schedules := p_row;
  v_how   accs.judgement := accs.judgement_of(p_row.condition);
  v_now   timestamptz := accs.clock();
  v_at    timestamptz := least(coalesce(p_at, v_now), v_now);
  v_last  timestamptz;
  v_id    bigint;
  v_is    text;
  v_fired accs.occasion;
BEGIN
  IF v_row.end_at <= v_now AND v_row.state IN ('active', 'paused') THEN
    DELETE FROM accs.agenda WHERE schedule_id = v_row.id;
    PERFORM accs.move_schedule(v_row.id, 'ended', 'end_at');
    PERFORM accs.note_schedule(v_row.id, 'ended', 'accsd', 'end_at');
    v_row.state := 'ended';
  END IF;
  SELECT s.id INTO v_id FROM accs.condition_samples s WHERE s.schedule_id = v_row.id AND s.key = p_key;
  v_is := CASE WHEN v_id IS NOT NULL THEN 'repeated'
               WHEN v_row.state IN ('ended', 'broken') THEN v_row.state
               WHEN p_at > v_now + interval '1 min' THEN 'in_the_future'
               WHEN jsonb_typeof(p_value) NOT IN ('number', 'boolean') THEN 'not_a_value'
               WHEN jsonb_typeof(p_value) = 'boolean' AND v_how.equals IS NULL THEN 'not_a_number'
               WHEN length(p_value::text) > 100 THEN 'too_long' END;
  IF v_is IS NULL AND EXISTS (SELECT FROM accs.schedule_hold) THEN
    v_is := CASE WHEN (SELECT count(*) FROM accs.condition_samples s WHERE s.schedule_id = v_row.id AND s.verdict = 'held') >= 1000
                 THEN 'over_limit' ELSE 'held' END;
  ELSIF v_is IS NULL THEN
    FOR v_fired IN SELECT * FROM accs.judge_held(v_row, p_by) LOOP
      SELECT * INTO v_row FROM public.schedules s WHERE s.id = p_row.id;
    END LOOP;
    v_fired := NULL;
    IF v_row.state IN ('ended', 'broken') THEN
      v_is := v_row.state;
    END IF;
  END IF;
  IF v_is IS NOT NULL AND v_is <> 'held' THEN
    RETURN QUERY SELECT CASE v_is WHEN 'repeated' THEN v_is ELSE 'refused' END, nullif(v_is, 'repeated'), v_id, c.state, NULL::text,
      NULL::text, NULL::uuid FROM accs.conditions c WHERE c.schedule_id = v_row.id;
    RETURN;
  END IF;
  SELECT c.last_at INTO v_last FROM accs.conditions c WHERE c.schedule_id = v_row.id;
  INSERT INTO accs.condition_samples (schedule_id, at, key, value, error, by, verdict)
  VALUES (v_row.id, v_at, p_key, p_value, left(coalesce(p_error, CASE WHEN p_value IS NULL THEN 'it has no value' END), 2000), p_by,
          CASE WHEN p_value IS NULL THEN 'unknown' WHEN v_is = 'held' THEN v_is WHEN v_at < v_last THEN 'ignored' ELSE 'judged' END)
  RETURNING id INTO v_id;
  DELETE FROM accs.condition_samples s WHERE s.schedule_id = v_row.id AND s.verdict <> 'held' AND s.id <= (
    SELECT o.id FROM accs.condition_samples o WHERE o.schedule_id = v_row.id ORDER BY o.id DESC OFFSET 200 LIMIT 1);
  IF p_value IS NULL THEN
    UPDATE accs.conditions c SET last_error = left(coalesce(p_error, 'it has no value'), 2000) WHERE c.schedule_id = v_row.id;
  ELSIF v_is = 'held' THEN
    INSERT INTO accs.agenda AS a (schedule_id, what, due_at) VALUES (v_row.id, 'judge', v_now)
    ON CONFLICT (schedule_id, what, key) DO UPDATE SET due_at = least(a.due_at, excluded.due_at);
  ELSIF v_at >= v_last OR v_last IS NULL THEN
    v_fired := accs.judge_sample(v_row, v_id, p_value, v_at, p_by);
  END IF;
  RETURN QUERY SELECT CASE WHEN v_is IS NULL AND p_value IS NOT NULL AND v_at < v_last THEN 'refused' ELSE 'accepted' END,
    CASE WHEN v_is = 'held' THEN v_is WHEN p_value IS NOT NULL AND v_at < v_last THEN 'older' END,
    v_id, c.state, v_fired.outcome, v_fired.reason, v_fired.job_id FROM accs.conditions c WHERE c.schedule_id = v_row.id;
END $$;

-- A sample from outside: a number, true or false, or null where it could not be measured. It goes to every schedule that has this
-- condition and no probe of its own. With a key the same call again is repeated; one that is older than the last is only recorded.
CREATE FUNCTION accs.report_sample(p_name text, p_value jsonb, p_at timestamptz DEFAULT NULL, p_key text DEFAULT NULL,
  p_by text DEFAULT NULL)
RETURNS TABLE (schedule text, answer text, reason text, sample_id bigint, state text, outcome text, outcome_reason text, job_id uuid)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_ids uuid[] := ARRAY(SELECT s.id FROM public.schedules s WHERE s.schedule_kind = 'condition' AND s.schedule_expr = p_name
                         ORDER BY s.id FOR NO KEY UPDATE);
  v_row public.schedules;
BEGIN
  PERFORM accs.lock_runs(v_ids);
  FOR v_row IN SELECT * FROM public.schedules s WHERE s.id = ANY (v_ids) ORDER BY s.id LOOP
    IF (accs.judgement_of(v_row.condition)).is_probed THEN
      RETURN QUERY SELECT v_row.name, 'refused'::text, 'has_a_probe'::text, NULL::bigint, c.state, NULL::text, NULL::text, NULL::uuid
        FROM accs.conditions c WHERE c.schedule_id = v_row.id;
    ELSE
      RETURN QUERY SELECT v_row.name, t.* FROM accs.take_sample(v_row, nullif(p_value, 'null'), NULL, p_at, p_key,
        coalesce(p_by, session_user)) t;
    END IF;
  END LOOP;
  IF v_ids = '{}' THEN
    RAISE EXCEPTION 'there is no condition "%"', left(p_name, 200) USING ERRCODE = 'AC004', HINT = 'accsd conditions list shows them.';
  END IF;
END $$;
SELECT accs.is_verb('report_sample', may => '{scheduler,api}');

-- Probes that are due, for whoever runs them now: each is moved on first, so that no other one takes it. A paused schedule is not
-- probed, and nothing is while all schedules are held.
CREATE FUNCTION accs.take_probes(p_limit int DEFAULT 16) RETURNS TABLE (
  schedule_id uuid, schedule text, name text, revision int, condition jsonb, every interval, begun_at timestamptz, taken_at timestamptz
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  IF EXISTS (SELECT FROM accs.schedule_hold) THEN
    RETURN;
  END IF;
  RETURN QUERY
  WITH due AS MATERIALIZED (
    SELECT a.schedule_id, a.due_at FROM accs.agenda a
     WHERE a.what = ANY ('{replan,probe}') AND a.what = 'probe' AND a.due_at <= accs.clock()
     ORDER BY a.due_at LIMIT p_limit FOR UPDATE SKIP LOCKED
  ), each AS MATERIALIZED (
    SELECT d.due_at, s.*, (accs.judgement_of(s.condition)).every AS apart
      FROM due d, LATERAL (SELECT * FROM public.schedules WHERE id = d.schedule_id OFFSET 0) s
  ), moved AS (
    UPDATE accs.agenda a SET due_at = e.due_at + e.apart * (floor(extract(epoch FROM accs.clock() - e.due_at)
                                                                    / extract(epoch FROM e.apart)) + 1)::double precision
      FROM each e WHERE a.schedule_id = e.id AND a.what = 'probe'
  )
  SELECT e.id, e.name, e.schedule_expr, e.revision, e.condition, e.apart, c.begun_at, accs.clock()
    FROM each e JOIN accs.conditions c ON c.schedule_id = e.id WHERE e.state = 'active' ORDER BY e.due_at;
END $$;
SELECT accs.is_verb('take_probes', may => '{scheduler}');

-- What a probe has found, as of the time at which it was taken: a value, or why there is none. One that was made for another revision
-- is refused.
CREATE FUNCTION accs.record_probe(p_schedule uuid, p_revision int, p_value jsonb, p_error text, p_at timestamptz, p_by text DEFAULT NULL)
RETURNS TABLE (answer text, reason text, sample_id bigint, state text, outcome text, outcome_reason text, job_id uuid)
LANGUAGE plpgsql AS $$
DECLARE
  v_row public.schedules;
BEGIN
  SELECT * INTO v_row FROM public.schedules s WHERE s.id = p_schedule FOR NO KEY UPDATE;
  IF NOT FOUND OR v_row.revision <> p_revision OR v_row.schedule_kind <> 'condition' OR v_row.state = 'paused' THEN
    RETURN QUERY SELECT 'refused'::text, CASE WHEN v_row.state = 'paused' THEN 'paused' ELSE 'stale' END, NULL::bigint, NULL::text,
      NULL::text, NULL::text, NULL::uuid;
    RETURN;
  END IF;
  RETURN QUERY SELECT * FROM accs.take_sample(v_row, nullif(p_value, 'null'), p_error, p_at, 'probe/' || p_at, p_by);
END $$;
SELECT accs.is_verb('record_probe', may => '{scheduler}');

-- When the last event of a topic came since then; null: none did. A pattern has no index: it is looked for from the newest event back.
CREATE FUNCTION accs.last_event_at(p_topic text, p_since timestamptz) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_since timestamptz := coalesce(p_since, '-infinity');
BEGIN
  IF accs.is_topic(p_topic) THEN
    RETURN (SELECT e.at FROM public.events e WHERE e.topic = p_topic AND e.at >= v_since ORDER BY e.id DESC LIMIT 1);
  END IF;
  RETURN (SELECT e.at FROM public.events e WHERE p_topic = ANY (accs.patterns_of(e.topic)) AND e.at >= v_since ORDER BY e.id DESC LIMIT 1);
END $$;

-- What accsd knows by itself, as a value: waiting (tasks of a service that could be claimed or are held), oldest_wait (in seconds),
-- dead_letters (open ones, of a service or of all), node_away (p_silent: unseen for so long), silence (seconds since the last event
-- of a topic, or since p_since where none came).
CREATE FUNCTION accs.measure(p_what text, p_of text DEFAULT NULL, p_silent interval DEFAULT '60 s', p_since timestamptz DEFAULT NULL)
RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_found jsonb;
BEGIN
  CASE p_what
    WHEN 'waiting' THEN
      SELECT to_jsonb(count(*)) INTO v_found FROM accs.lanes l JOIN accs.waiting w ON w.lane = l.id WHERE l.service = p_of;
    WHEN 'oldest_wait' THEN
      SELECT to_jsonb(coalesce(round(extract(epoch FROM accs.clock() - min(w.created_at)), 3), 0)) INTO v_found
        FROM accs.lanes l JOIN accs.waiting w ON w.lane = l.id WHERE l.service = p_of AND w.hold IS NULL;
    WHEN 'dead_letters' THEN
      SELECT to_jsonb(count(*)) INTO v_found FROM public.dead_letters d
       WHERE d.redriven_at IS NULL AND d.dismissed_at IS NULL AND (p_of IS NULL OR d.service_name = p_of);
    WHEN 'node_away' THEN
      SELECT to_jsonb(n.awake_state <> 'sleep' AND coalesce(p.state, 'unknown') <> ALL ('{asleep,waking,booting}')
                      AND (n.awake_state <> 'awake' OR coalesce(n.last_seen <= accs.clock() - p_silent, true))) INTO v_found
        FROM public.nodes n LEFT JOIN accs.power p ON p.node = n.name WHERE n.name = p_of;
      IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no node "%"', left(p_of, 200) USING ERRCODE = 'AC004';
      END IF;
    WHEN 'silence' THEN
      v_found := to_jsonb(round(extract(epoch FROM accs.clock() - coalesce(accs.last_event_at(p_of, p_since), p_since, accs.clock())), 3));
    ELSE
      RAISE EXCEPTION 'accsd does not measure "%"', p_what USING ERRCODE = 'invalid_parameter_value';
  END CASE;
  RETURN v_found;
END $$;
SELECT accs.is_verb('measure', may => '{scheduler}');
