-- ---------------------------------------------------------------------------------------------------------------
-- Jobs and their tasks
-- ---------------------------------------------------------------------------------------------------------------

CREATE SEQUENCE accs.order_seq;

CREATE TABLE public.jobs (
  id                uuid PRIMARY KEY DEFAULT accs.new_id(),
  workflow_id       uuid NOT NULL REFERENCES public.workflows (id),
  status            text NOT NULL DEFAULT 'queued' CHECK (status = ANY ('{queued,running,done,error,cancelled}')),
  progress          numeric DEFAULT 0 CHECK (progress BETWEEN 0 AND 1),
  current_task_key  text,
  priority          int NOT NULL DEFAULT 0,
  order_seq         bigint NOT NULL DEFAULT nextval('accs.order_seq'),
  options           jsonb DEFAULT '{}',
  scheduled_at      timestamptz,
  error_code        text,
  error_message     text,
  created_at        timestamptz NOT NULL DEFAULT accs.clock(),
  started_at        timestamptz,
  finished_at       timestamptz,
  updated_at        timestamptz NOT NULL DEFAULT accs.clock(),
  -- additions
  idempotency_key   text,                       -- the same key submitted again is the same job
  created_by        text,
  trace_id          text,
  generation        int NOT NULL DEFAULT 0,     -- +1 at every retry
  task_count        int NOT NULL DEFAULT 0,
  open_tasks        int NOT NULL DEFAULT 0 CHECK (open_tasks BETWEEN 0 AND task_count),
  task_progress     numeric NOT NULL DEFAULT 0, -- the sum of its tasks' progress; jobs.progress is this / task_count
  trigger           jsonb,                      -- what brought it about, where that was not a plain submission
  schedule_id       uuid,                       -- the schedule that started it
  no_cache          boolean,                    -- true: its steps run, although a result of the same input is known
  run_key           text                        -- of the jobs of a key only so many are open at once: accs.open_runs
) WITH (fillfactor = 40);   -- room for what its jobs become, twice: at 48 every tenth update of a job that was inserted left its page

CREATE INDEX jobs_order_seq ON public.jobs (order_seq);                  -- lists in the global order
CREATE UNIQUE INDEX jobs_idempotency_key ON public.jobs (idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE public.job_tasks (
  id                  uuid PRIMARY KEY,
  job_id              uuid NOT NULL REFERENCES public.jobs (id),
  task_key            text NOT NULL,
  service_name        text NOT NULL,
  status              text NOT NULL DEFAULT 'queued'
                      CHECK (status = ANY ('{queued,starting,running,done,error,skipped,cancelled}')),
  depends_on          text[] NOT NULL DEFAULT '{}',
  attempt             int NOT NULL DEFAULT 0,    -- failures that spent the budget
  max_attempts        int NOT NULL DEFAULT 3,
  next_attempt_at     timestamptz,
  priority            int NOT NULL DEFAULT 0,    -- the job's, copied at instantiation
  progress            numeric DEFAULT 0,
  params              jsonb DEFAULT '{}',        -- the step's default_params, never overridden
  results             jsonb,
  assigned_node       text,
  claimed_by          text,
  claimed_at          timestamptz,
  started_at          timestamptz,
  finished_at         timestamptz,
  created_at          timestamptz NOT NULL DEFAULT accs.clock(),
  updated_at          timestamptz NOT NULL DEFAULT accs.clock(),
  -- additions
  attempt_id          int NOT NULL DEFAULT 0,    -- the fence: +1 at every claim, never reused
  lease_owner         text,
  lease_until         timestamptz,
  lost                int NOT NULL DEFAULT 0,    -- owners lost; bounded by accs.max_lost()
  generation          int NOT NULL DEFAULT 0,    -- +1 at every redrive or retry
  step_no             int NOT NULL,
  lane                int NOT NULL,              -- accs.lanes: the nodes that may take it
  remaining           int NOT NULL DEFAULT 0,    -- dependencies not satisfied yet
  dependants          uuid[],                    -- the tasks that wait for this one
  given               jsonb,                     -- what the attempt received beside params and job options
  outcome             text,                      -- how the attempt outcome_attempt_id ended, to answer "repeated"
  outcome_attempt_id  int,
  error_code          text,
  error_message       text,
  requires            jsonb NOT NULL DEFAULT '{}',
  concurrency_key     text,
  timeout_sec         double precision,
  backoff             jsonb,
  notify              text[],                    -- what its workflow's notify says of tasks, if anything: announce_subscribed
  -- null but for steps with expressions, which the resolver looks at: null costs a row nothing
  resolve             boolean,                   -- true: it waits for the resolver; false: the resolver has given it what it needs
  items               int,                       -- of a step that was multiplied: how many tasks it became
  tolerate            int,                       -- and how many of them may fail for good
  parent              uuid,                      -- of such a task: the step that became it, and
  item_no             int,                       --   which item it is for, from 0
  tolerated           boolean,                   -- it failed for good, and the steps below go on without it
  files               int,                       -- accs.file_sets: the files of its workflow that it is given, if there are any
  CONSTRAINT lease_while_live CHECK (
    (status = ANY ('{starting,running}')) = (lease_owner IS NOT NULL)
    AND (lease_owner IS NULL) = (lease_until IS NULL)),
  -- serves "the tasks of a job" and refuses a step twice
  UNIQUE (job_id, task_key)
) WITH (fillfactor = 38);   -- and here for two, longer ones: at 50 every seventh update left its page, and the table ended larger

-- the tasks of a step that was multiplied
CREATE UNIQUE INDEX job_tasks_parent ON public.job_tasks (parent, item_no) WHERE parent IS NOT NULL;

-- What is asked of columns that hardly change is asked by triggers when they are written. Every UPDATE of any column reads the text of
-- every CHECK of its table anew, which was 8 % of a single claim and finish.
CREATE FUNCTION accs.refuse_value() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% %: %', CASE TG_TABLE_NAME WHEN 'jobs' THEN 'job' ELSE 'task' END, NEW.id, TG_ARGV[0]
    USING ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
END $$;
-- no larger and no deeper than what a task can be handed; 64 levels are at least 512 bytes, so small ones are not searched
CREATE TRIGGER jobs_options_check AFTER INSERT OR UPDATE OF options ON public.jobs FOR EACH ROW
  WHEN (NOT (jsonb_typeof(NEW.options) = 'object'
             AND (pg_column_size(NEW.options) < 512 OR pg_column_size(NEW.options) <= 1048576
                  AND NOT jsonb_path_exists(NEW.options, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")'))))
  EXECUTE FUNCTION accs.refuse_value('options must be a JSON object of at most 1 MiB and 64 levels');
CREATE TRIGGER jobs_trigger_check AFTER INSERT OR UPDATE OF trigger ON public.jobs FOR EACH ROW
  WHEN (jsonb_typeof(NEW.trigger) <> 'object') EXECUTE FUNCTION accs.refuse_value('trigger must be a JSON object');
CREATE TRIGGER jobs_times_check AFTER INSERT OR UPDATE OF scheduled_at, created_at ON public.jobs FOR EACH ROW
  WHEN (NOT (NEW.created_at BETWEEN '0001-01-02Z' AND '9999-12-30Z')
        OR NOT (NEW.scheduled_at BETWEEN '0001-01-02Z' AND '9999-12-30Z' OR NOT isfinite(NEW.scheduled_at)))
  EXECUTE FUNCTION accs.refuse_value('scheduled_at and created_at must be in the years 1 to 9999');
CREATE TRIGGER job_tasks_counts_check AFTER INSERT OR UPDATE OF max_attempts, remaining ON public.job_tasks FOR EACH ROW
  WHEN (NEW.max_attempts < 1 OR NEW.remaining < 0)
  EXECUTE FUNCTION accs.refuse_value('max_attempts must be at least 1 and remaining at least 0');
