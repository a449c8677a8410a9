"""What a long past leaves behind, written at once: the rows that the verbs would have written, events included."""

# One-step jobs of the workflow "noop" that ended a day ago, {done} of them.
FINISHED = """
SET session_replication_role = replica;
CREATE TABLE filler AS
  SELECT g, i.id AS job, accs.task_id(i.id, 1) AS task, now() - interval '1 day' AS at
    FROM generate_series(1, {done}) g, LATERAL (SELECT accs.new_id() AS id WHERE g > 0) i;
INSERT INTO jobs (id, workflow_id, status, progress, current_task_key, created_at, started_at, finished_at, updated_at,
                  task_count, task_progress)
  SELECT job, (SELECT id FROM workflows WHERE name = 'noop'), 'done', 1, 'a', at, at, at, at, 1, 1 FROM filler;
INSERT INTO job_tasks (id, job_id, task_key, service_name, status, progress, results, claimed_by, claimed_at,
                       started_at, finished_at, created_at, updated_at, attempt_id, step_no, lane, outcome,
                       outcome_attempt_id)
  SELECT task, job, 'a', 'noop', 'done', 1, '{{}}', 'w', at, at, at, at, at, 1, 1,
         (SELECT lane FROM accs.steps JOIN workflows ON id = workflow_id WHERE name = 'noop'), 'done', 1 FROM filler;
INSERT INTO task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
  SELECT job, CASE WHEN of = 'task' THEN task END, at, CASE of WHEN 'task' THEN 'agent:noop' ELSE 'builder' END, 'info',
         'status', a || ' → ' || b, jsonb_build_object('from', a, 'to', b), CASE WHEN of = 'task' THEN 1 END
    FROM filler, (VALUES (1, 'job', 'queued', 'running'), (2, 'task', 'queued', 'starting'),
                         (3, 'task', 'starting', 'running'), (4, 'task', 'running', 'done'),
                         (5, 'job', 'running', 'done')) AS move (n, of, a, b) ORDER BY g, n;
DROP TABLE filler;
RESET session_replication_role
"""
# Jobs that are due tomorrow, {future} of them.
FUTURE = """
INSERT INTO jobs (workflow_id, scheduled_at)
  SELECT (SELECT id FROM workflows WHERE name = 'noop'), now() + interval '1 day' + g * interval '1 ms'
    FROM generate_series(1, {future}) g
"""
