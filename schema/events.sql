-- ---------------------------------------------------------------------------------------------------------------
-- Events: append-only, monthly partitions made ahead of time, a default partition as the net
-- ---------------------------------------------------------------------------------------------------------------

CREATE TABLE public.task_events (
  id           bigserial,
  job_id       uuid NOT NULL,
  job_task_id  uuid,
  ts           timestamptz NOT NULL DEFAULT accs.clock(),
  source       text NOT NULL,
  level        text NOT NULL DEFAULT 'info' CHECK (level = ANY ('{debug,info,warn,error}')),
  type         text NOT NULL,
  message      text,
  data         jsonb,
  -- addition: the attempt that it belongs to; as a column, because building it into data cost a tenth of the throughput
  attempt_id   int
) PARTITION BY RANGE (ts);

-- No primary key: a sequence that nobody else writes makes the ids, nothing looks for one of them alone, and its index would be a
-- tenth of all that the server does for a task (docs/decisions/0001).
CREATE INDEX task_events_job ON public.task_events (job_id, ts DESC);   -- a job's timeline, and within it a task's
-- What has happened lately, and what came after an event that somebody has read (accsd/db/feed.py). One index for both: a second BRIN
-- on id alone cost a job 2 to 6 % more instructions.
CREATE INDEX task_events_ts ON public.task_events USING brin (ts, id) WITH (autosummarize = on);

CREATE FUNCTION accs.refuse_event_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'task_events is append-only: % is refused', TG_OP
    USING ERRCODE = 'AC005', HINT = 'History leaves the database partition by partition, after it was archived.';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON public.task_events
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_event_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.task_events
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_event_change();

CREATE TABLE public.task_events_default PARTITION OF public.task_events DEFAULT;
ALTER TABLE public.task_events_default REPLICA IDENTITY FULL;   -- make_months moves its rows, also where they are published
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.task_events_default
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_event_change();

CREATE FUNCTION accs.mark_of(e public.task_events) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT e.id $$;
INSERT INTO accs.monthly (name, at, refuse, aged_by) VALUES ('task_events', 'ts', 'refuse_event_change', 'ts');

-- What only a verb that changes something may write.
CREATE FUNCTION accs.own_event_types() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT '{status,retry,wake,repair,changed,cache}'::text[]
$$;

-- JSON that is no larger than 1 MiB, or a note that it was.
CREATE FUNCTION accs.bounded(p jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN pg_column_size(p) > 1048576
              THEN jsonb_build_object('omitted', format('%s bytes are more than 1 MiB', pg_column_size(p))) ELSE p END
$$;

-- Arrays in, so that an agent can send what has gathered in one round trip. An agent's login speaks only of tasks that a node of its own
-- has held, and in the name of their services.
CREATE FUNCTION accs.append_events(
  p_job_ids uuid[], p_task_ids uuid[], p_sources text[], p_levels text[], p_types text[], p_messages text[], p_data jsonb[]
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
  PERFORM accs.check_size(cardinality(p_job_ids));
  IF p_types && accs.own_event_types() THEN
    RAISE EXCEPTION 'events of the types % are written by the verbs that they tell of', array_to_string(accs.own_event_types(), ', ')
      USING ERRCODE = 'AC005';
  END IF;
  IF NOT (accs.speaks_for_all() OR coalesce(pg_has_role(session_user, to_regrole('accs_api'), 'MEMBER'), false)) AND EXISTS (
    SELECT FROM unnest(p_job_ids, p_task_ids, p_sources) AS e (job_id, task_id, source)
     WHERE NOT EXISTS (SELECT FROM public.job_tasks t JOIN public.nodes n ON n.name = t.claimed_by AND n.login = session_user
                        WHERE t.id = e.task_id AND t.job_id = e.job_id
                          AND e.source IN ('agent:' || t.service_name, 'service:' || t.service_name))) THEN
    RAISE EXCEPTION 'the login "%" writes events only of tasks that a node of its own has held', session_user USING ERRCODE = 'AC006';
  END IF;
  RETURN QUERY
  INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data)
  SELECT e.job_id, e.task_id, accs.clock(), left(e.source, 200), coalesce(e.level, 'info'), left(e.type, 100), left(e.message, 65536),
         accs.bounded(e.data)
    FROM unnest(p_job_ids, p_task_ids, p_sources, p_levels, p_types, p_messages, p_data)
         AS e (job_id, task_id, source, level, type, message, data)
  RETURNING id;
END $$;
SELECT accs.is_verb('append_events', may => '{agent,scheduler,api}');

-- What attempts say of themselves, in the order given. Only of those that hold their lease: a zombie's words are dropped.
-- Answers for each attempt how many were accepted; none: it is stale. Without a lock: an attempt that ends at this moment
-- has said it while it was alive.
CREATE FUNCTION accs.append_task_events(
  p_owner text, p_task_ids uuid[], p_attempt_ids int[], p_levels text[], p_types text[], p_messages text[], p_data jsonb[]
) RETURNS TABLE (task_id uuid, attempt_id int, accepted int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  IF session_user <> current_user OR cardinality(p_task_ids) > 10000 THEN
    PERFORM accs.check_attempt(p_owner, cardinality(p_task_ids));
  END IF;
  RETURN QUERY
  WITH said AS MATERIALIZED (
    SELECT s.*, l.job_id, l.service
      FROM unnest(p_task_ids, p_attempt_ids, p_levels, p_types, p_messages, p_data) WITH ORDINALITY
             AS s (task_id, attempt_id, level, type, message, data, n)
      LEFT JOIN accs.live l ON l.task_id = s.task_id AND l.attempt_id = s.attempt_id AND l.owner = p_owner AND l.lease_until > v_now
  ), logged AS (
    INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
    SELECT s.job_id, s.task_id, v_now, 'service:' || s.service, coalesce(s.level, 'info'),
           CASE WHEN s.type <> ALL (accs.own_event_types()) THEN left(s.type, 100) ELSE 'log' END, left(s.message, 65536),
           accs.bounded(s.data), s.attempt_id
      FROM said s WHERE s.job_id IS NOT NULL ORDER BY s.n
  )
  SELECT s.task_id, s.attempt_id, count(s.job_id)::int FROM said s GROUP BY s.task_id, s.attempt_id;
END $$;
SELECT accs.is_verb('append_task_events', pinned => true, may => '{agent,scheduler}');
