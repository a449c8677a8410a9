-- Least privilege (run by the schema's owner, who needs CREATEROLE the first time; may be run again at any time).
--
--   accs_scheduler  the control host: submits by plain INSERT, instantiates, reclaims, cleans up; speaks for every node
--   accs_archive    the control host's history: only it removes months and finished jobs
--   accs_agent      a node: executes the verbs of an attempt and nothing else, for the nodes that its login registered
--   accs_api        a gateway: submits and operates through verbs, reads
--   accs_gateway    a gateway with a door for the workers of other systems: accs_api and accs_agent in one, and names nodes by labels
--   accs_reader     reads
--   accs_probe      what statements of conditions may read: nothing but what somebody grants it. Nobody logs in as it; it owns the
--                   function accs.probe, which runs a statement with its rights. What was granted to it stays
--
-- A grant is what the role's own process calls, and no more: each verb says beside its function which roles may call it (schema/,
-- accs.is_verb). Roles belong to the whole cluster, so this is a step of its own. They have no password yet: \password accs_agent.

DO $roles$
DECLARE
  v_role text;
  v_verb text;
BEGIN
  FOREACH v_role IN ARRAY ARRAY['accs_scheduler', 'accs_archive', 'accs_agent', 'accs_api', 'accs_gateway', 'accs_reader'] LOOP
    IF to_regrole(v_role) IS NULL THEN   -- whoever may not make roles can still grant to those that are there
      BEGIN
        EXECUTE format('CREATE ROLE %I LOGIN', v_role);
        EXECUTE format('ALTER ROLE %I SET statement_timeout = ''60s''', v_role);
        EXECUTE format('ALTER ROLE %I SET lock_timeout = ''20s''', v_role);
        EXECUTE format('ALTER ROLE %I SET idle_in_transaction_session_timeout = ''30s''', v_role);
      EXCEPTION WHEN duplicate_object OR unique_violation THEN
        NULL;   -- another database of this cluster, or another installer, made it
      END;
    END IF;
    -- from nothing, so that what an earlier version granted is gone
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA public, accs FROM %I', v_role);
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA accs FROM %I', v_role);
    EXECUTE format('GRANT USAGE ON SCHEMA public, accs TO %I', v_role);
    EXECUTE format('GRANT SELECT ON accs.schema_versions TO %I', v_role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION accs.clock(), accs.channel_prefix(), accs.backoff_base() TO %I', v_role);
  END LOOP;

  FOREACH v_role IN ARRAY ARRAY['accs_scheduler', 'accs_archive', 'accs_api', 'accs_reader'] LOOP
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA public, accs TO %I', v_role);
    -- what lets somebody in, or seals a cursor, is read by verbs only, even as a digest
    EXECUTE format('REVOKE ALL ON accs.cursor_keys, accs.tokens, accs.live_tokens, accs.sessions, accs.live_sessions, accs.login_codes '
                   'FROM %I', v_role);
  END LOOP;

  -- what a verb says of itself (accs.is_verb)
  FOR v_verb, v_role IN SELECT v.name, 'accs_' || r.name FROM accs.verbs v, unnest(v.may) AS r (name) ORDER BY 1, 2 LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION accs.%I TO %I', v_verb, v_role);
  END LOOP;

  IF NOT (pg_has_role('accs_gateway', 'accs_api', 'MEMBER') AND pg_has_role('accs_gateway', 'accs_agent', 'MEMBER')) THEN
    BEGIN
      GRANT accs_api, accs_agent TO accs_gateway;
    EXCEPTION WHEN insufficient_privilege THEN   -- somebody else has made the roles
      RAISE WARNING 'a gateway with a door needs it: GRANT accs_api, accs_agent TO accs_gateway, as whoever has made these roles';
    END;
  END IF;

  IF to_regrole('accs_probe') IS NULL THEN
    BEGIN
      CREATE ROLE accs_probe NOLOGIN;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;
    END;
  END IF;
  -- Not by SET ROLE, which a statement could take back: a function that runs with its owner's rights lets nobody change the role
  -- while it runs. The owner of the schema has to be a member of accs_probe to give it the function; nobody else has to.
  BEGIN
    -- Who has made a role is a member that may not act as it (from PostgreSQL 16 on), until he grants it to himself.
    IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
      BEGIN
        EXECUTE format('GRANT accs_probe TO %I', current_user);
      EXCEPTION WHEN insufficient_privilege THEN
        NULL;   -- somebody else has made the role, and may have granted it
      END;
    END IF;
    DROP FUNCTION IF EXISTS accs.probe(text);
    -- The one value of one statement. A cursor takes one statement, and only one that gives rows.
    CREATE FUNCTION accs.probe(p_statement text) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER AS $probe$
    DECLARE
      v_cursor refcursor;
      v_first  record;
      v_next   record;
      v_row    json;
      v_names  text[];
    BEGIN
      OPEN v_cursor NO SCROLL FOR EXECUTE p_statement;
      FETCH v_cursor INTO v_first;
      IF NOT FOUND THEN
        RAISE EXCEPTION 'it gives no row' USING ERRCODE = 'cardinality_violation';
      END IF;
      v_row := pg_catalog.row_to_json(v_first);
      v_names := ARRAY(SELECT pg_catalog.json_object_keys(v_row));
      IF pg_catalog.cardinality(v_names) OPERATOR(pg_catalog.<>) 1 THEN
        RAISE EXCEPTION 'it gives % columns, not one', pg_catalog.cardinality(v_names) USING ERRCODE = 'cardinality_violation';
      END IF;
      FETCH v_cursor INTO v_next;
      IF FOUND THEN
        RAISE EXCEPTION 'it gives more than one row' USING ERRCODE = 'cardinality_violation';
      END IF;
      RETURN v_row::pg_catalog.jsonb OPERATOR(pg_catalog.->) v_names[1];
    END $probe$;
    REVOKE ALL ON FUNCTION accs.probe(text) FROM PUBLIC;
    GRANT EXECUTE ON FUNCTION accs.probe(text) TO accs_scheduler;
    GRANT CREATE ON SCHEMA accs TO accs_probe;   -- who is no superuser may not give it to a role without this
    ALTER FUNCTION accs.probe(text) OWNER TO accs_probe;
    REVOKE CREATE ON SCHEMA accs FROM accs_probe;
  EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'statements of conditions have the rights of the builder: GRANT accs_probe TO %, and install the roles again',
      current_user;
  END;

  -- by column: what belongs to the state machine has its defaults
  GRANT INSERT (id, name, version, is_active, steps, created_by, notify, params, options_schema, files, title),
        UPDATE (name, version, is_active, steps, notify, params, options_schema, files, title)
    ON public.workflows TO accs_scheduler;
  GRANT INSERT (id, workflow_id, priority, options, scheduled_at, idempotency_key, created_by, trace_id, trigger)
    ON public.jobs TO accs_scheduler;
  -- the definition of a schedule; its state belongs to the verbs
  GRANT INSERT (id, name, title, description, schedule_kind, schedule_expr, timezone, workflow, version, options, priority, missed, grace,
                catch_up, catch_up_max, overlap, run_key, spread, exclude, only_on, start_at, end_at, max_runs, pause_after, pause_for,
                anchor, filter, gather, cooldown, cooldown_trailing, reenter, condition, created_by, changed_by, change_reason),
        UPDATE (name, title, description, schedule_kind, schedule_expr, timezone, workflow, version, options, priority, missed, grace,
                catch_up, catch_up_max, overlap, run_key, spread, exclude, only_on, start_at, end_at, max_runs, pause_after, pause_for,
                anchor, filter, gather, cooldown, cooldown_trailing, reenter, condition, changed_by, change_reason)
    ON public.schedules TO accs_scheduler, accs_api;
  -- the sum over what an archive holds
  GRANT EXECUTE ON FUNCTION accs.mark_of(public.task_events), accs.mark_of(public.firings), accs.mark_of(public.events) TO accs_archive;
  GRANT INSERT, UPDATE, DELETE ON public.calendars TO accs_scheduler, accs_api;
  GRANT USAGE ON SEQUENCE accs.id_seq, accs.judge_problems TO accs_api;
  GRANT EXECUTE ON FUNCTION accs.new_id(), accs.unix_ms(timestamptz), accs.in_verb() TO accs_api;
  -- what the defaults and triggers of those tables call in the name of the writer
  GRANT USAGE ON SEQUENCE accs.order_seq, accs.id_seq TO accs_scheduler;
  GRANT EXECUTE ON FUNCTION accs.new_id(), accs.unix_ms(timestamptz), accs.in_verb() TO accs_scheduler;
END $roles$;
