-- ---------------------------------------------------------------------------------------------------------------
-- The legal transitions, and the guard: whoever writes a state does it through a verb, and only along one of them
-- ---------------------------------------------------------------------------------------------------------------

CREATE TABLE accs.transitions (
  entity       text NOT NULL CHECK (entity IN ('task', 'job')),
  from_status  text NOT NULL,
  to_status    text NOT NULL,
  verb         text NOT NULL,
  via          text,              -- two transitions in one write, with the events of both
  PRIMARY KEY (entity, from_status, to_status)
);

INSERT INTO accs.transitions (entity, from_status, to_status, verb) VALUES
  ('task', 'queued',    'starting',  'claim_tasks'),
  ('task', 'starting',  'running',   'start_tasks'),
  ('task', 'running',   'done',      'finish_tasks'),
  ('task', 'running',   'error',     'finish_tasks'),
  ('task', 'starting',  'error',     'finish_tasks'),
  ('task', 'starting',  'queued',    'release_tasks, reclaim_tasks, finish_tasks'),
  ('task', 'running',   'queued',    'release_tasks, reclaim_tasks, finish_tasks'),
  ('task', 'queued',    'skipped',   'skip_tasks'),
  ('task', 'queued',    'cancelled', 'cancel_jobs'),
  ('task', 'starting',  'cancelled', 'cancel_jobs'),
  ('task', 'running',   'cancelled', 'cancel_jobs'),
  ('task', 'error',     'queued',    'redrive, retry_jobs'),
  ('task', 'skipped',   'queued',    'redrive, retry_jobs'),
  ('task', 'cancelled', 'queued',    'retry_jobs'),
  ('task', 'done',      'queued',    'retry_jobs'),
  ('job',  'queued',    'running',   'instantiate_due_jobs'),
  ('job',  'running',   'done',      'finish_tasks, close_jobs'),
  ('job',  'running',   'error',     'finish_tasks, close_jobs'),
  ('job',  'running',   'cancelled', 'cancel_jobs'),
  ('job',  'queued',    'error',     'instantiate_due_jobs'),
  ('job',  'queued',    'cancelled', 'cancel_jobs'),
  ('job',  'done',      'running',   'retry_jobs'),
  ('job',  'error',     'running',   'redrive, retry_jobs'),
  ('job',  'cancelled', 'running',   'redrive, retry_jobs');
INSERT INTO accs.transitions (entity, from_status, to_status, verb, via) VALUES ('task', 'queued', 'running', 'claim_tasks', 'starting');

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
      error_message, requires, concurrency_key, notify, resolve, items, tolerate, parent, item_no, tolerated, files ON public.job_tasks
    FOR EACH ROW WHEN (current_setting('search_path') <> 'pg_catalog, accs, pg_temp'
                       OR (OLD.status <> NEW.status AND strpos(%L, left(OLD.status, 2) || left(NEW.status, 2)) = 0))
    EXECUTE FUNCTION accs.refuse_write()$$, v_legal);
  SELECT string_agg(left(from_status, 2) || left(to_status, 2), ' ') INTO v_legal FROM accs.transitions WHERE entity = 'job';
  EXECUTE format($$
    CREATE TRIGGER guard_transition AFTER UPDATE OF
      id, workflow_id, status, progress, current_task_key, order_seq, error_code, error_message, created_at, started_at,
      finished_at, generation, task_count, open_tasks, task_progress, trigger, schedule_id, run_key ON public.jobs
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

-- Who has set the path of the verbs and is not their owner: asked once for each statement, because it costs more than the path, and
-- here, because the text of a WHEN is read anew for each statement.
CREATE FUNCTION accs.refuse_forgery() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('search_path') <> 'pg_catalog, accs, pg_temp' OR has_schema_privilege('accs', 'CREATE') THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION '%: rows of the state machine are written by its verbs, and "%" does not own them', TG_TABLE_NAME, current_user
    USING ERRCODE = 'AC002', HINT = 'Call a verb in schema accs.';
END $$;
CREATE TRIGGER guard_owner BEFORE INSERT OR UPDATE OR DELETE ON public.job_tasks FOR EACH STATEMENT
  EXECUTE FUNCTION accs.refuse_forgery();
CREATE TRIGGER guard_owner BEFORE UPDATE OR DELETE ON public.jobs FOR EACH STATEMENT
  EXECUTE FUNCTION accs.refuse_forgery();

CREATE FUNCTION accs.refuse_begun_jobs() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_bad uuid;
BEGIN
  SELECT id INTO v_bad FROM fresh
   WHERE status <> 'queued' OR task_count <> 0 OR open_tasks <> 0 OR generation <> 0 OR task_progress <> 0
      OR progress IS DISTINCT FROM 0 OR started_at IS NOT NULL OR finished_at IS NOT NULL
      OR error_code IS NOT NULL OR error_message IS NOT NULL OR current_task_key IS NOT NULL OR schedule_id IS NOT NULL
        OR run_key IS NOT NULL
   LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'job %: a job begins as queued, with nothing done', v_bad
      USING ERRCODE = 'AC002', HINT = 'Insert workflow_id, options, priority and scheduled_at, and leave the rest to the defaults.';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER guard_insert AFTER INSERT ON public.jobs
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_begun_jobs();
