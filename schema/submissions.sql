-- ---------------------------------------------------------------------------------------------------------------
-- Submissions to an online judge: jobs of the workflows judge.<id>, each of which is a problem (docs/doors/judge.md)
-- ---------------------------------------------------------------------------------------------------------------

CREATE SEQUENCE accs.judge_problems AS int;   -- the ids of problems: clients want small integers

-- One row for each submission, as the tables of other judges have them. A rejudged one is pending again, in the next attempt.
CREATE VIEW public.submissions (job_id, status, state, attempt_id, result, created_at, updated_at) AS
  SELECT j.id, CASE s.state WHEN 'pending' THEN 'pending' WHEN 'processing' THEN 'running' ELSE v.verdict END, s.state,
         coalesce(t.attempt_id, 0),
         CASE WHEN s.state = 'done' THEN jsonb_strip_nulls(jsonb_build_object(
           'job_id', j.id, 'attempt_id', coalesce(t.attempt_id, 0), 'status', v.verdict,
           'time_used', coalesce(r.results -> 'time_used', r.results -> 'time_ms'),
           'memory_used', coalesce(r.results -> 'memory_used', r.results -> 'mem_kb'),
           'language', upper(j.options ->> 'language'), 'trace_id', coalesce(j.trace_id, replace(j.id::text, '-', '')),
           'cases', r.results -> 'cases', 'case', r.results -> 'case', 'exit_signal', r.results -> 'exit_signal',
           'error_code', CASE WHEN v.verdict IN ('System Error', 'Cancelled') THEN coalesce(t.error_code, j.error_code) END,
           'error_message', CASE v.verdict WHEN 'System Error' THEN coalesce(t.error_message, j.error_message, 'the judge gave no verdict')
                                           WHEN 'Cancelled' THEN t.error_message
                                           ELSE r.results ->> 'error' END)) END,
         j.created_at, greatest(j.updated_at, t.updated_at)
    FROM public.workflows w
    JOIN public.jobs j ON j.workflow_id = w.id
    LEFT JOIN public.job_tasks t ON t.job_id = j.id AND t.task_key = 'judge',
         LATERAL (SELECT CASE coalesce(t.status, CASE j.status WHEN 'queued' THEN 'queued' ELSE 'error' END)
                           WHEN 'queued' THEN 'pending' WHEN 'starting' THEN 'processing' WHEN 'running' THEN 'processing'
                           ELSE 'done' END AS state) s,
         LATERAL (SELECT CASE WHEN t.status = 'done' THEN t.results END AS results) r,
         LATERAL (SELECT CASE WHEN 'cancelled' IN (t.status, j.status) THEN 'Cancelled'
                              WHEN r.results ->> 'status' IN ('Accepted', 'Wrong Answer', 'Compile Error', 'Time Limit Exceeded',
                                'Memory Limit Exceeded', 'Output Limit Exceeded', 'Runtime Error') THEN r.results ->> 'status'
                              -- of a judge that says no more than what its sandbox saw; OK alone is no judgement
                              ELSE CASE r.results ->> 'verdict' WHEN 'TLE' THEN 'Time Limit Exceeded' WHEN 'RE' THEN 'Runtime Error'
                                     WHEN 'MLE' THEN 'Memory Limit Exceeded' WHEN 'OLE' THEN 'Output Limit Exceeded'
                                     ELSE 'System Error' END END AS verdict) v
   WHERE w.name ~ '^judge\.[0-9]+$';
