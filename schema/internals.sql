-- ---------------------------------------------------------------------------------------------------------------
-- Internals
-- ---------------------------------------------------------------------------------------------------------------

-- A lane is a set of nodes that may take a task: those that serve it, have these labels and, if named, this name.
-- Tasks that only some nodes may take stand in a lane of their own, never at the head of one that all scan.
CREATE TABLE accs.lanes (
  id        int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  service   text NOT NULL,
  requires  jsonb NOT NULL,
  node      text
);

-- claim_tasks, by service; hashed, because labels may be longer than an index takes
CREATE UNIQUE INDEX lanes_service ON accs.lanes (service, md5(requires::text), coalesce(node, ''));

CREATE TABLE accs.concurrency_keys (
  key          text PRIMARY KEY,
  max_running  int NOT NULL DEFAULT 1 CHECK (max_running >= 1)
);

-- What one transaction at a time may do, and what one claim at a time may take: whoever locks a row here has to be able to write it. (An
-- advisory lock is anybody's: a login that may only read could hold it for ever.)
CREATE TABLE accs.locks (name text PRIMARY KEY);
INSERT INTO accs.locks VALUES ('archives'), ('event_partitions'), ('node_leaves'), ('outbox_targets'), ('quarantines'), ('repair'), ('workflows');

CREATE FUNCTION accs.lock(p_name text) RETURNS void LANGUAGE sql AS $$ SELECT FROM accs.locks WHERE name = p_name FOR UPDATE $$;

CREATE TABLE accs.slots (
  node     text NOT NULL,
  service  text NOT NULL,
  PRIMARY KEY (node, service)
);

CREATE TABLE accs.plans (
  workflow_id  uuid PRIMARY KEY REFERENCES public.workflows (id) ON DELETE CASCADE,
  step_count   int NOT NULL,
  first_key    text NOT NULL
);

CREATE TABLE accs.steps (
  workflow_id      uuid NOT NULL REFERENCES accs.plans (workflow_id) ON DELETE CASCADE,
  step_no          int NOT NULL,
  task_key         text NOT NULL,
  service          text NOT NULL,
  depends_on       text[] NOT NULL,
  dependants       int[],
  params           jsonb NOT NULL,
  max_attempts     int NOT NULL,
  timeout_sec      double precision,
  backoff          jsonb,
  requires         jsonb NOT NULL,
  node             text,
  concurrency_key  text,
  lane             int NOT NULL,
  notify           text[],
  PRIMARY KEY (workflow_id, step_no)
);

CREATE INDEX steps_roots ON accs.steps (workflow_id, lane, concurrency_key) WHERE depends_on = '{}';   -- wake_demand

CREATE TABLE accs.pauses (
  kind    text NOT NULL CHECK (kind IN ('service', 'workflow', 'node')),
  name    text NOT NULL CHECK (length(name) BETWEEN 1 AND CASE kind WHEN 'service' THEN 40 ELSE 200 END),
  since   timestamptz NOT NULL DEFAULT accs.clock(),
  reason  text,
  by      text,
  PRIMARY KEY (kind, name)
);

CREATE TABLE accs.pending_jobs (
  job_id  uuid PRIMARY KEY,
  due_at  timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX pending_jobs_due ON accs.pending_jobs (due_at);             -- instantiate_due_jobs

CREATE TABLE accs.waiting (
  task_id     uuid PRIMARY KEY,
  lane        int NOT NULL,
  rank        int NOT NULL,          -- minus the job's priority, so that one ascending index is the global order
  order_seq   bigint NOT NULL,
  created_at  timestamptz NOT NULL,
  hold        text CHECK (hold IN ('backoff', 'key', 'paused')),
  due_at      timestamptz,
  key         text,
  CHECK ((hold IS NOT DISTINCT FROM 'backoff') = (due_at IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX waiting_claim ON accs.waiting (lane, rank, order_seq, created_at, task_id) WHERE hold IS NULL;  -- claim_tasks
CREATE INDEX waiting_due ON accs.waiting (lane, due_at) WHERE hold = 'backoff';                              -- promote
CREATE INDEX waiting_key ON accs.waiting (key, lane, rank, order_seq, created_at, task_id)                   -- admit
  WHERE key IS NOT NULL AND (hold IS NULL OR hold = 'key');
CREATE INDEX waiting_paused ON accs.waiting (task_id) WHERE hold = 'paused';                                 -- resume

CREATE TABLE accs.live (
  task_id      uuid PRIMARY KEY,
  job_id       uuid NOT NULL,
  service      text NOT NULL,
  node         text NOT NULL,
  owner        text NOT NULL,
  attempt_id   int NOT NULL,
  key          text,
  progress     numeric NOT NULL DEFAULT 0,
  lease_until  timestamptz NOT NULL
) WITH (fillfactor = 70,
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- none on lease_until: what is live is little, reclaim reads all of it, and heartbeats stay HOT
CREATE INDEX live_node ON accs.live (node, service);                     -- capacity; an owner's own leases
CREATE INDEX live_key ON accs.live (key) WHERE key IS NOT NULL;          -- admit, claim_tasks

-- Waking and sleeping, beside nodes.awake_state. try_id is the fence of whoever makes the last call; ok is null until he has
-- said whether it got through. A node that is seen is ready, whatever was before.
CREATE TABLE accs.power (
  node          text PRIMARY KEY REFERENCES public.nodes (name) ON DELETE CASCADE,
  state         text NOT NULL CHECK (state IN ('unknown', 'asleep', 'waking', 'booting', 'ready', 'failed')),
  since         timestamptz NOT NULL DEFAULT accs.clock(),
  because       text,                       -- why it is awake (its agent says it), or is not woken (the builder does)
  try_id        uuid,
  tried_at      timestamptz,
  method        text,
  ok            boolean,
  error         text,                       -- why that call did not get through
  tries         int NOT NULL DEFAULT 0,     -- since the node was last seen
  called_at     timestamptz,                -- the last call since then that got through
  called_by     text,                       -- by which method
  brought_by    text,                       -- the method that brought it when it came last
  latency       interval,                   -- usual: from the call until the node is seen
  last_latency  interval,
  networks      cidr[] NOT NULL DEFAULT '{}'   -- the segments that it is in: who shares one can wake it
) WITH (fillfactor = 50);

-- What happened to each node, the last 1,000 things.
CREATE TABLE accs.node_history (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  node     text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  ts       timestamptz NOT NULL DEFAULT accs.clock(),
  state    text NOT NULL,
  message  text NOT NULL,
  data     jsonb NOT NULL DEFAULT '{}'
);

CREATE INDEX node_history_node ON accs.node_history (node, id);

CREATE TABLE accs.node_orders (
  id           uuid PRIMARY KEY,
  node         text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,   -- who is asked
  kind         text NOT NULL CHECK (kind IN ('relay', 'sleep')),
  target       text REFERENCES public.nodes (name) ON DELETE CASCADE,            -- relay: who is to be woken
  asked_by     text,
  asked_at     timestamptz NOT NULL DEFAULT accs.clock(),
  good_until   timestamptz NOT NULL,
  taken_at     timestamptz,
  answered_at  timestamptz,
  ok           boolean,
  output       text,
  CHECK ((kind = 'relay') = (target IS NOT NULL))
);

CREATE INDEX node_orders_open ON accs.node_orders (node) WHERE taken_at IS NULL;   -- take_orders

-- How attempts ended, as long as it matters: every failure, and of the steps that failed what passed since then. Empty
-- while nothing fails.
CREATE TABLE accs.conclusions (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ts           timestamptz NOT NULL,
  node         text NOT NULL,
  service      text NOT NULL,
  workflow_id  uuid NOT NULL,
  task_key     text NOT NULL,
  task_id      uuid NOT NULL,
  passed       boolean NOT NULL,
  lost         boolean NOT NULL DEFAULT false,   -- for a reason that is not the task's
  permanent    boolean NOT NULL DEFAULT false,
  code         text,
  message      text
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX conclusions_failed ON accs.conclusions (workflow_id, task_key, id) WHERE NOT passed;        -- finish_tasks, note_passes
CREATE INDEX conclusions_passed ON accs.conclusions (workflow_id, task_key, node, id) WHERE passed;      -- note_passes

-- A service that a node must not take tasks of: 'shut' until a probe passes, then on 'trial' with one task at a time.
CREATE TABLE accs.quarantines (
  node         text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  service      text NOT NULL,
  state        text NOT NULL DEFAULT 'shut' CHECK (state IN ('shut', 'trial')),
  since        timestamptz NOT NULL DEFAULT accs.clock(),
  reason       text NOT NULL,
  detail       jsonb NOT NULL DEFAULT '{}',
  times        int NOT NULL DEFAULT 1,        -- how often it was shut: +1 when a trial fails
  probes       int NOT NULL DEFAULT 0,        -- those that failed since it was shut
  probe_at     timestamptz NOT NULL,
  probe_error  text,
  trial_at     timestamptz,
  PRIMARY KEY (node, service),
  CHECK ((state = 'trial') = (trial_at IS NOT NULL))
);

-- Why an agent that lives takes no tasks of a service now: its disk is full, its engine is away, the service says "not now".
CREATE TABLE accs.obstacles (
  node         text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  service      text NOT NULL,
  since        timestamptz NOT NULL DEFAULT accs.clock(),
  reason       text NOT NULL,
  PRIMARY KEY (node, service)
);

-- The steps that fail wherever they run.
CREATE TABLE accs.step_health (
  workflow_id  uuid NOT NULL REFERENCES public.workflows (id) ON DELETE CASCADE,
  task_key     text NOT NULL,
  since        timestamptz NOT NULL DEFAULT accs.clock(),
  reason       text NOT NULL,
  PRIMARY KEY (workflow_id, task_key)
);

-- How a verb answers one row. The db_ columns are what the database holds when it refuses (D5).
CREATE TYPE accs.answer AS (
  id              uuid,
  answer          text,          -- accepted | repeated | refused
  reason          text,          -- why refused
  db_status       text,
  db_attempt_id   int,
  db_lease_owner  text,
  db_lease_until  timestamptz
);
