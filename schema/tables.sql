-- ---------------------------------------------------------------------------------------------------------------
-- The tables that people read
-- ---------------------------------------------------------------------------------------------------------------

CREATE TABLE public.workflows (
  id          uuid PRIMARY KEY DEFAULT accs.new_id(),
  name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  version     int NOT NULL DEFAULT 1 CHECK (version >= 1),
  is_active   boolean NOT NULL DEFAULT true,
  steps       jsonb NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT accs.clock(),
  updated_at  timestamptz NOT NULL DEFAULT accs.clock(),
  created_by  text,
  notify      text[] NOT NULL DEFAULT '{}',     -- accs.outgoing_events that targets of the outbox are told beside their own
  UNIQUE (name, version)
);

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
  scheduled_at      timestamptz CHECK (scheduled_at BETWEEN '0001-01-02Z' AND '9999-12-30Z' OR NOT isfinite(scheduled_at)),
  error_code        text,
  error_message     text,
  created_at        timestamptz NOT NULL DEFAULT accs.clock() CHECK (created_at BETWEEN '0001-01-02Z' AND '9999-12-30Z'),
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
  trigger           jsonb CHECK (jsonb_typeof(trigger) = 'object'),   -- what brought it about, where that was not a plain submission
  -- No larger and no deeper than what a task can be handed. 64 levels are at least 512 bytes: small ones are not looked at, because every
  -- UPDATE of a job checks this again.
  CONSTRAINT jobs_options_check CHECK (jsonb_typeof(options) = 'object' AND (pg_column_size(options) < 512 OR pg_column_size(options) <= 1048576
    AND NOT jsonb_path_exists(options, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")')))
) WITH (fillfactor = 48);   -- a page has room for what its jobs end as

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
  max_attempts        int NOT NULL DEFAULT 3 CHECK (max_attempts >= 1),
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
  remaining           int NOT NULL DEFAULT 0 CHECK (remaining >= 0),   -- dependencies not satisfied yet
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
  CONSTRAINT lease_while_live CHECK (
    (status = ANY ('{starting,running}')) = (lease_owner IS NOT NULL)
    AND (lease_owner IS NULL) = (lease_until IS NULL)),
  -- serves "the tasks of a job" and refuses a step twice
  UNIQUE (job_id, task_key)
) WITH (fillfactor = 38);   -- and here for two, longer ones: at 50 every seventh update left its page, and the table ended larger

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
CREATE INDEX task_events_ts ON public.task_events USING brin (ts) WITH (autosummarize = on);   -- what has happened lately; costs nothing to write

CREATE TABLE public.task_artifacts (
  id            bigserial PRIMARY KEY,
  job_id        uuid NOT NULL REFERENCES public.jobs (id),
  job_task_id   uuid REFERENCES public.job_tasks (id),
  kind          text NOT NULL CHECK (kind IN ('input', 'output', 'log')),
  bucket        text NOT NULL,
  key           text NOT NULL,
  size_bytes    bigint CHECK (size_bytes >= 0),
  content_type  text,
  checksum      text,
  created_at    timestamptz NOT NULL DEFAULT accs.clock(),
  -- addition: which attempt made it
  attempt_id    int,
  UNIQUE (bucket, key)
);

CREATE INDEX task_artifacts_job ON public.task_artifacts (job_id);
CREATE INDEX task_artifacts_task ON public.task_artifacts (job_task_id);
CREATE INDEX task_artifacts_input ON public.task_artifacts (job_id) WHERE kind = 'input' AND job_task_id IS NULL;   -- task_inputs

CREATE TABLE public.nodes (
  name             text PRIMARY KEY CHECK (name <> ''),
  labels           jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object'),
  last_seen        timestamptz CHECK (last_seen BETWEEN '0001-01-02Z' AND '9999-12-30Z'),
  awake_state      text NOT NULL DEFAULT 'unknown' CHECK (awake_state IN ('unknown', 'awake', 'sleep')),
  wake_method      text CHECK (wake_method IN ('wol', 'provider', 'script')),
  mac              text,
  provider_ref     text,
  script           text,
  max_concurrency  jsonb NOT NULL DEFAULT '{}'
                   CHECK (jsonb_typeof(max_concurrency) = 'object'
                          AND NOT jsonb_path_exists(max_concurrency, '$.* ? (@.type() != "number" || @ < 0 || @ > 1000000 || @.floor() != @)')),
  -- additions: whose it is, and which machine and process last registered it
  login            text,
  machine_id       text,
  boot_id          text,
  instance         text,
  CONSTRAINT bounded CHECK (octet_length(name) <= 200 AND pg_column_size(labels) <= 65536 AND pg_column_size(max_concurrency) <= 65536
    AND octet_length(concat(mac, provider_ref, script, machine_id, boot_id, instance)) <= 8192)
) WITH (fillfactor = 50);

-- Every task that ended in error, until it is redriven or dismissed.
CREATE TABLE public.dead_letters (
  id             bigserial PRIMARY KEY,
  job_id         uuid NOT NULL,
  job_task_id    uuid NOT NULL,
  generation     int NOT NULL,
  service_name   text NOT NULL,
  reason         text NOT NULL CHECK (reason IN ('attempts_exhausted', 'permanent_error', 'lost_too_often', 'poison')),
  error_code     text,
  error_message  text,
  created_at     timestamptz NOT NULL DEFAULT accs.clock(),
  redriven_at    timestamptz,
  dismissed_at   timestamptz,
  UNIQUE (job_task_id, generation)
);

CREATE INDEX dead_letters_open ON public.dead_letters (id) WHERE redriven_at IS NULL AND dismissed_at IS NULL;

-- One row for each event and target (D9). Claimed: claim_id is set, and next_attempt_at is when the claim has run out. One that was
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

CREATE INDEX outbox_events_due ON public.outbox_events (target, next_attempt_at, id) WHERE status = 'pending' AND dead_at IS NULL;  -- claim_outbox
CREATE INDEX outbox_events_order ON public.outbox_events (target, job_id, id) WHERE status = 'pending' AND dead_at IS NULL;  -- who comes first
CREATE INDEX outbox_events_delivered ON public.outbox_events (dispatched_at) WHERE status = 'delivered';    -- prune_outbox
CREATE INDEX outbox_events_dead ON public.outbox_events (dead_at) WHERE status = 'pending' AND dead_at IS NOT NULL;
