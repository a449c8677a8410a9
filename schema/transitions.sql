-- ---------------------------------------------------------------------------------------------------------------
-- The legal transitions, complete. Creation is not one: a task begins as queued, a job as queued.
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
