-- ---------------------------------------------------------------------------------------------------------------
-- The guard: whoever writes a state does it through a verb, and only along a legal transition
-- ---------------------------------------------------------------------------------------------------------------

-- True while a verb of ours runs: it acts as the schema's owner and has pinned exactly this search_path. Another login may set the same
-- path, but it may not create in this schema; the owner needs no privilege for it (docs/decisions/0007).
CREATE FUNCTION accs.in_verb() RETURNS boolean LANGUAGE sql STABLE AS
$$ SELECT current_setting('search_path') = 'pg_catalog, accs, pg_temp' AND has_schema_privilege('accs', 'CREATE') $$;

CREATE FUNCTION accs.refuse_write() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_entity text := CASE TG_TABLE_NAME WHEN 'jobs' THEN 'job' ELSE 'task' END;
  v_verbs  text;
BEGIN
  IF TG_OP = 'UPDATE' AND OLD.status IS DISTINCT FROM NEW.status THEN
    SELECT verb INTO v_verbs FROM accs.transitions
     WHERE entity = v_entity AND from_status = OLD.status AND to_status = NEW.status AND via IS NULL;
    IF v_verbs IS NULL THEN
      RAISE EXCEPTION '% %: % → % is not a legal transition', v_entity, OLD.id, OLD.status, NEW.status
        USING ERRCODE = 'AC002', HINT = 'SELECT * FROM accs.transitions lists the legal ones.';
    END IF;
    RAISE EXCEPTION '% %: % → % must not be written by a plain UPDATE', v_entity, OLD.id, OLD.status, NEW.status
      USING ERRCODE = 'AC002', HINT = format('Call the verb in schema accs that does it: %s.', v_verbs);
  ELSIF TG_OP = 'UPDATE' THEN
    RAISE EXCEPTION '% %: this column belongs to the state machine and must not be written by a plain UPDATE', v_entity, OLD.id
      USING ERRCODE = 'AC002', HINT = 'Call a verb in schema accs; accs.change_jobs changes a job''s priority, options and scheduled_at.';
  ELSIF TG_OP = 'INSERT' THEN
    RAISE EXCEPTION '%: tasks are made from the steps of a workflow, not inserted', TG_TABLE_NAME
      USING ERRCODE = 'AC002', HINT = 'INSERT INTO jobs (workflow_id) or call accs.submit.';
  END IF;
  RAISE EXCEPTION '%: % is refused, because rows of the state machine are removed by retention only', TG_TABLE_NAME, TG_OP
    USING ERRCODE = 'AC002', HINT = 'To stop a job call accs.cancel_jobs.';
END $$;

-- The condition is generated from accs.transitions, so that it is written once, and evaluated inside the trigger's WHEN:
-- a row trigger that looked the transition up cost 25–55 % of the throughput. AFTER, because a BEFORE trigger locks
-- every row a second time. PostgreSQL reads the text of a WHEN anew for each statement, so it is short: no function to
-- inline, and a legal move is the first letters of both states. (As a CASE it took an eighth of the time of a single claim.)
DO $guard$
DECLARE
  v_legal text;
BEGIN
  SELECT string_agg(left(from_status, 2) || left(to_status, 2), ' ') INTO v_legal FROM accs.transitions WHERE entity = 'task';
  EXECUTE format($$
    CREATE TRIGGER guard_transition AFTER UPDATE OF
      id, job_id, task_key, service_name, status, depends_on, attempt, next_attempt_at, priority, progress, results,
      assigned_node, claimed_by, claimed_at, started_at, finished_at, created_at, attempt_id, lease_owner, lease_until,
      lost, generation, step_no, lane, remaining, dependants, given, outcome, outcome_attempt_id, error_code,
      error_message, requires, concurrency_key, notify ON public.job_tasks
    FOR EACH ROW WHEN (current_setting('search_path') <> 'pg_catalog, accs, pg_temp'
                       OR (OLD.status <> NEW.status AND strpos(%L, left(OLD.status, 2) || left(NEW.status, 2)) = 0))
    EXECUTE FUNCTION accs.refuse_write()$$, v_legal);
  SELECT string_agg(left(from_status, 2) || left(to_status, 2), ' ') INTO v_legal FROM accs.transitions WHERE entity = 'job';
  EXECUTE format($$
    CREATE TRIGGER guard_transition AFTER UPDATE OF
      id, workflow_id, status, progress, current_task_key, order_seq, error_code, error_message, created_at, started_at,
      finished_at, generation, task_count, open_tasks, task_progress, trigger ON public.jobs
    FOR EACH ROW WHEN (current_setting('search_path') <> 'pg_catalog, accs, pg_temp'
                       OR (OLD.status <> NEW.status AND strpos(%L, left(OLD.status, 2) || left(NEW.status, 2)) = 0))
    EXECUTE FUNCTION accs.refuse_write()$$, v_legal);
END $guard$;

CREATE TRIGGER guard_insert AFTER INSERT ON public.job_tasks
  FOR EACH ROW WHEN (current_setting('search_path') <> 'pg_catalog, accs, pg_temp') EXECUTE FUNCTION accs.refuse_write();
CREATE TRIGGER guard_delete BEFORE DELETE ON public.job_tasks
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_write();
CREATE TRIGGER guard_delete BEFORE DELETE ON public.jobs
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_write();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON public.job_tasks
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_write();
CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON public.jobs
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_write();

-- Who has set the path of the verbs and is not their owner: asked once for each statement, because it costs more than the path.
CREATE FUNCTION accs.refuse_forgery() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '%: rows of the state machine are written by its verbs, and "%" does not own them', TG_TABLE_NAME, current_user
    USING ERRCODE = 'AC002', HINT = 'Call a verb in schema accs.';
END $$;
CREATE TRIGGER guard_owner BEFORE INSERT OR UPDATE OR DELETE ON public.job_tasks FOR EACH STATEMENT
  WHEN (current_setting('search_path') = 'pg_catalog, accs, pg_temp' AND NOT has_schema_privilege('accs', 'CREATE')) EXECUTE FUNCTION accs.refuse_forgery();
CREATE TRIGGER guard_owner BEFORE UPDATE OR DELETE ON public.jobs FOR EACH STATEMENT
  WHEN (current_setting('search_path') = 'pg_catalog, accs, pg_temp' AND NOT has_schema_privilege('accs', 'CREATE')) EXECUTE FUNCTION accs.refuse_forgery();

CREATE FUNCTION accs.refuse_begun_jobs() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_bad uuid;
BEGIN
  SELECT id INTO v_bad FROM fresh
   WHERE status <> 'queued' OR task_count <> 0 OR open_tasks <> 0 OR generation <> 0 OR task_progress <> 0
      OR progress IS DISTINCT FROM 0 OR started_at IS NOT NULL OR finished_at IS NOT NULL
      OR error_code IS NOT NULL OR error_message IS NOT NULL OR current_task_key IS NOT NULL
   LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'job %: a job begins as queued, with nothing done', v_bad
      USING ERRCODE = 'AC002', HINT = 'Insert workflow_id, options, priority and scheduled_at, and leave the rest to the defaults.';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER guard_insert AFTER INSERT ON public.jobs
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_begun_jobs();

-- A plain INSERT INTO jobs is a submission. Whoever inserts it: a queued job is noted as pending and the builder is told.
CREATE FUNCTION accs.note_new_jobs() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_bad   record;
  v_told  boolean;
  v_known uuid[];
BEGIN
  SELECT bool_or(w.notify && ARRAY['job.submitted', 'job.started']), array_agg(w.id) INTO v_told, v_known
    FROM (SELECT id, notify FROM public.workflows WHERE id IN (SELECT workflow_id FROM fresh) FOR KEY SHARE) w;   -- as a foreign key does
  SELECT id, workflow_id INTO v_bad FROM fresh WHERE workflow_id <> ALL (coalesce(v_known, '{}')) LIMIT 1;   -- a join is 0.4 µs a job more
  IF FOUND THEN
    RAISE EXCEPTION 'job %: there is no workflow %', v_bad.id, v_bad.workflow_id
      USING ERRCODE = 'foreign_key_violation', HINT = 'SELECT id, name, version FROM workflows lists them.';
  END IF;
  INSERT INTO accs.pending_jobs (job_id, due_at) SELECT id, coalesce(scheduled_at, created_at) FROM fresh WHERE status = 'queued';
  IF FOUND THEN
    PERFORM pg_notify(accs.channel_prefix() || 'builder', '');
  END IF;
  IF v_told THEN
    PERFORM accs.announce_subscribed_jobs(ARRAY(SELECT id FROM fresh ORDER BY order_seq));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER note_new_jobs AFTER INSERT ON public.jobs
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION accs.note_new_jobs();

CREATE FUNCTION accs.refuse_used_workflow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM public.jobs WHERE workflow_id = OLD.id) THEN
    RAISE EXCEPTION 'workflow "%" version % has jobs', OLD.name, OLD.version
      USING ERRCODE = 'foreign_key_violation', HINT = 'UPDATE workflows SET is_active = false keeps it from being submitted.';
  END IF;
  RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER refuse_used_workflow BEFORE DELETE OR UPDATE OF id ON public.workflows FOR EACH ROW EXECUTE FUNCTION accs.refuse_used_workflow();

CREATE FUNCTION accs.refuse_stray_artifacts() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_bad record;
BEGIN
  SELECT f.id, f.job_id, f.job_task_id INTO v_bad FROM fresh f
    LEFT JOIN public.jobs j ON j.id = f.job_id LEFT JOIN public.job_tasks t ON t.id = f.job_task_id
   WHERE j.id IS NULL OR t.id IS NULL AND f.job_task_id IS NOT NULL LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'artifact %: there is no job %, or it has no task %', v_bad.id, v_bad.job_id, v_bad.job_task_id USING ERRCODE = 'foreign_key_violation';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER refuse_stray AFTER INSERT ON public.task_artifacts REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_stray_artifacts();
CREATE TRIGGER refuse_stray_again AFTER UPDATE ON public.task_artifacts REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_stray_artifacts();

-- PostgreSQL 18 lets a foreign key be declared without being checked row by row, which was a third of the cost of a submission and a tenth of
-- that of everything else (docs/performance.md). The triggers above check it once a statement; job_tasks is written by the verbs only.
DO $keys$
DECLARE
  v_key record;
BEGIN
  IF current_setting('server_version_num')::int >= 180000 THEN
    FOR v_key IN SELECT conrelid::regclass AS tab, conname FROM pg_constraint WHERE contype = 'f' AND confrelid IN ('public.workflows'::regclass, 'public.jobs'::regclass, 'public.job_tasks'::regclass)
                    AND conrelid IN ('public.jobs'::regclass, 'public.job_tasks'::regclass, 'public.task_artifacts'::regclass) LOOP
      EXECUTE format('ALTER TABLE %s ALTER CONSTRAINT %I NOT ENFORCED', v_key.tab, v_key.conname);
    END LOOP;
  END IF;
END $keys$;

-- Priority, options and the due time may be changed by hand while the job is queued.
CREATE FUNCTION accs.note_changed_job() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF OLD.status <> 'queued' THEN
    RAISE EXCEPTION 'job % is %: priority, options and scheduled_at are fixed once it has started', OLD.id, OLD.status
      USING ERRCODE = 'AC002', HINT = 'accs.change_jobs changes the priority; for other options, submit another job.';
  END IF;
  UPDATE accs.pending_jobs SET due_at = coalesce(NEW.scheduled_at, NEW.created_at) WHERE job_id = NEW.id;
  PERFORM pg_notify(accs.channel_prefix() || 'builder', '');
  RETURN NULL;
END $$;
CREATE TRIGGER note_changed_job AFTER UPDATE OF priority, options, scheduled_at ON public.jobs
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.note_changed_job();

-- One NOTIFY for each service that got something claimable, once per statement.
CREATE FUNCTION accs.notify_services() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_notify(accs.channel_prefix() || service, '')
     FROM (SELECT DISTINCT l.service FROM (SELECT DISTINCT lane FROM fresh WHERE hold IS NULL) f
             JOIN accs.lanes l ON l.id = f.lane) s;
  RETURN NULL;
END $$;
CREATE TRIGGER notify_services AFTER INSERT ON accs.waiting
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION accs.notify_services();
CREATE TRIGGER notify_services_again AFTER UPDATE ON accs.waiting
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION accs.notify_services();
