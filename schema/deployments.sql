-- ---------------------------------------------------------------------------------------------------------------
-- Deployments: announced by SeqPulse's clients, sampled before and after, judged once
-- ---------------------------------------------------------------------------------------------------------------

-- That a deployment is analyzed stands nowhere: its analysis is a job, which has the deployment's id, and that job is done.
CREATE TABLE accs.seqpulse_deployments (
  id                uuid PRIMARY KEY DEFAULT accs.new_id(),
  number            int NOT NULL,
  project           text NOT NULL CHECK (length(project) BETWEEN 1 AND 200),
  env               text NOT NULL CHECK (length(env) BETWEEN 1 AND 255),
  idempotency_key   text CHECK (length(idempotency_key) BETWEEN 1 AND 255),
  branch            text CHECK (length(branch) <= 255),
  metrics_endpoint  text CHECK (length(metrics_endpoint) BETWEEN 1 AND 2000),   -- null: nothing is sampled
  window_minutes    int NOT NULL CHECK (window_minutes BETWEEN 1 AND 1440),     -- a sample a minute
  delay_minutes     int NOT NULL CHECK (delay_minutes BETWEEN 0 AND 10080),     -- from the end to the analysis
  state             text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished')),
  pipeline_result   text CHECK (pipeline_result IN ('success', 'failed')),
  created_by        text,
  started_at        timestamptz NOT NULL DEFAULT accs.clock(),
  finished_at       timestamptz,
  duration_ms       bigint,
  UNIQUE (project, number),
  UNIQUE (project, idempotency_key),
  CHECK ((state = 'finished') = (finished_at IS NOT NULL) AND (finished_at IS NULL) = (pipeline_result IS NULL))
);

CREATE UNIQUE INDEX seqpulse_deployments_running ON accs.seqpulse_deployments (project, env) WHERE state = 'running';

INSERT INTO accs.locks VALUES ('deployments');

-- The newest active version of a workflow of deployments: an operator may have written one of his own.
CREATE FUNCTION accs.deployment_workflow(p_name text) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
  v_id uuid;
BEGIN
  SELECT w.id INTO v_id FROM public.workflows w WHERE w.name = p_name AND w.is_active ORDER BY w.version DESC LIMIT 1;
  IF v_id IS NULL THEN
    RAISE EXCEPTION 'there is no active workflow "%"', p_name
      USING ERRCODE = 'AC004', HINT = 'A gateway with a section [gateway.seqpulse] writes it when it starts.';
  END IF;
  RETURN v_id;
END $$;

-- A deployment begins, and with it the sample before it, if there is an address to ask. A known key is that deployment, whatever became
-- of it; so is one that runs in this environment: repeated.
CREATE FUNCTION accs.trigger_deployment(
  p_project text, p_env text, p_endpoint text DEFAULT NULL, p_window int DEFAULT 5, p_delay int DEFAULT 5, p_key text DEFAULT NULL,
  p_branch text DEFAULT NULL, p_by text DEFAULT NULL
) RETURNS TABLE (deployment_id uuid, answer text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_id uuid;
BEGIN
  PERFORM accs.lock('deployments');   -- two with one key, and the numbers of a project
  v_id := coalesce(
    (SELECT d.id FROM accs.seqpulse_deployments d WHERE d.project = p_project AND d.idempotency_key = p_key),
    (SELECT d.id FROM accs.seqpulse_deployments d WHERE d.project = p_project AND d.env = p_env AND d.state = 'running'));
  IF v_id IS NOT NULL THEN
    RETURN QUERY SELECT v_id, 'repeated';
    RETURN;
  END IF;
  INSERT INTO accs.seqpulse_deployments (number, project, env, idempotency_key, branch, metrics_endpoint, window_minutes, delay_minutes,
                                         created_by)
  SELECT coalesce(max(d.number), 0) + 1, p_project, p_env, p_key, p_branch, p_endpoint, p_window, p_delay, p_by
    FROM accs.seqpulse_deployments d WHERE d.project = p_project
  RETURNING id INTO v_id;
  IF p_endpoint IS NOT NULL THEN
    PERFORM accs.submit_jobs(ARRAY[accs.deployment_workflow('seqpulse.pre_collect')],
      ARRAY[jsonb_build_object('deployment_id', v_id, 'project', p_project, 'phase', 'pre', 'sequence_index', NULL)],
      p_scheduled_at => ARRAY[accs.clock()], p_keys => ARRAY[format('seqpulse:%s:pre', v_id)], p_created_by => p_by);
  END IF;
  RETURN QUERY SELECT v_id, 'accepted';
END $$;
SELECT accs.is_verb('trigger_deployment', may => '{gateway}');

-- A deployment has ended: a sample a minute for as long as its window, and one analysis, all or nothing. p_endpoint counts where it began
-- without an address.
CREATE FUNCTION accs.finish_deployment(
  p_project text, p_deployment uuid, p_result text, p_endpoint text DEFAULT NULL, p_by text DEFAULT NULL
) RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_row   accs.seqpulse_deployments;
  v_posts int;
BEGIN
  SELECT * INTO v_row FROM accs.seqpulse_deployments WHERE id = p_deployment AND project = p_project FOR NO KEY UPDATE;
  IF v_row.id IS NULL OR v_row.state <> 'running' THEN
    RETURN QUERY SELECT CASE WHEN v_row.id IS NULL THEN 'refused' ELSE 'repeated' END,
                        CASE WHEN v_row.id IS NULL THEN 'not_found' END;
    RETURN;
  END IF;
  UPDATE accs.seqpulse_deployments SET state = 'finished', pipeline_result = p_result, finished_at = v_now,
         metrics_endpoint = coalesce(metrics_endpoint, p_endpoint),
         duration_ms = greatest(0, date_part('epoch', v_now - started_at) * 1000)::bigint
   WHERE id = p_deployment RETURNING * INTO v_row;
  v_posts := CASE WHEN v_row.metrics_endpoint IS NULL THEN 0 ELSE v_row.window_minutes END;
  PERFORM accs.submit_jobs(
    array_fill(accs.deployment_workflow('seqpulse.post_collect'), ARRAY[v_posts]),
    ARRAY(SELECT jsonb_build_object('deployment_id', v_row.id, 'project', p_project, 'phase', 'post', 'sequence_index', i)
            FROM generate_series(0, v_posts - 1) i ORDER BY i),
    p_scheduled_at => ARRAY(SELECT v_now + i * interval '1 min' FROM generate_series(0, v_posts - 1) i ORDER BY i),
    p_keys => ARRAY(SELECT format('seqpulse:%s:post:%s', v_row.id, i) FROM generate_series(0, v_posts - 1) i ORDER BY i),
    p_created_by => p_by) WHERE v_posts > 0;
  PERFORM accs.submit_jobs(
    ARRAY[accs.deployment_workflow('seqpulse.analysis')], ARRAY[jsonb_build_object('deployment_id', v_row.id, 'project', p_project)],
    p_scheduled_at => ARRAY[v_now + v_row.delay_minutes * interval '1 min'],
    p_keys => ARRAY[format('seqpulse:%s:analysis', v_row.id)], p_job_ids => ARRAY[v_row.id], p_created_by => p_by);
  RETURN QUERY SELECT 'accepted', NULL::text;
END $$;
SELECT accs.is_verb('finish_deployment', may => '{gateway}');

-- Deployments leave with their analyses, which retention has removed just now. The newest of a project stays until it is not the newest
-- any more, and is taken with the next: numbers are given once.
CREATE FUNCTION accs.forget_deployments(p_job_ids uuid[]) RETURNS void LANGUAGE sql AS $$
  DELETE FROM accs.seqpulse_deployments d
   WHERE d.project IN (SELECT project FROM accs.seqpulse_deployments WHERE id = ANY (p_job_ids)) AND d.state = 'finished'
     AND NOT EXISTS (SELECT FROM public.jobs j WHERE j.id = d.id)
     AND EXISTS (SELECT FROM accs.seqpulse_deployments n WHERE n.project = d.project AND n.number > d.number)
$$;

-- The jobs of deployments by the keys that they were given, with the one task of each.
CREATE VIEW accs.deployment_jobs AS
SELECT d.id AS deployment_id, d.project, d.number, k.job_type, k.phase, k.sequence_index, j.id AS job_id,
       CASE WHEN j.status = 'done' THEN 'completed' WHEN j.status IN ('error', 'cancelled') THEN 'failed'
            WHEN t.status IN ('starting', 'running') THEN 'running' ELSE 'pending' END AS status,
       j.scheduled_at, j.created_at, j.error_message AS job_error, j.options, t.id AS task_id, t.attempt,
       t.max_attempts, t.error_message, t.results, t.finished_at, greatest(j.updated_at, t.updated_at) AS updated_at, d.metrics_endpoint
  FROM accs.seqpulse_deployments d
 CROSS JOIN LATERAL (
   SELECT 'pre_collect' AS job_type, 'pre' AS phase, NULL::int AS sequence_index, 'pre' AS key
   UNION ALL SELECT 'post_collect', 'post', i, 'post:' || i FROM generate_series(0, d.window_minutes - 1) i
   UNION ALL SELECT 'analysis', NULL, NULL, 'analysis') k
  JOIN public.jobs j ON j.idempotency_key = 'seqpulse:' || d.id || ':' || k.key
  LEFT JOIN public.job_tasks t ON t.job_id = j.id AND t.task_key = CASE k.job_type WHEN 'analysis' THEN 'analyse' ELSE 'collect' END;

-- What SeqPulse's own tables show, under their names and with their columns.
CREATE VIEW public.scheduled_jobs AS
SELECT job_id AS id, deployment_id, job_type, phase, sequence_index, scheduled_at,
       status, coalesce(least(attempt, max_attempts - 1), 0) AS retry_count,
       CASE WHEN status <> 'completed' THEN coalesce(error_message, job_error) END AS last_error,
       options - 'deployment_id' || jsonb_build_object('metrics_endpoint', metrics_endpoint) AS job_metadata, created_at, updated_at
  FROM accs.deployment_jobs;

CREATE VIEW public.metric_samples AS
SELECT task_id AS id, deployment_id, phase, (results -> 'requests_per_sec')::double precision AS requests_per_sec,
       (results -> 'latency_p95')::double precision AS latency_p95, (results -> 'error_rate')::double precision AS error_rate,
       (results -> 'cpu_usage')::double precision AS cpu_usage, (results -> 'memory_usage')::double precision AS memory_usage,
       (results ->> 'collected_at')::timestamptz AS collected_at, sequence_index, scheduled_at,
       results -> 'warm_up' IS NOT DISTINCT FROM 'true' AS warm_up
  FROM accs.deployment_jobs WHERE status = 'completed' AND job_type <> 'analysis' AND results ? 'collected_at';

CREATE VIEW public.deployment_verdicts AS
SELECT task_id AS id, deployment_id, results ->> 'verdict' AS verdict, (results -> 'confidence')::double precision AS confidence,
       results ->> 'summary' AS summary, results -> 'details' AS details, (results -> 'quality')::double precision AS quality,
       finished_at AS created_at
  FROM accs.deployment_jobs WHERE status = 'completed' AND job_type = 'analysis' AND results ? 'verdict';

CREATE VIEW public.sdh_hints AS
SELECT md5(j.task_id || (h.hint ->> 'metric'))::uuid AS id, j.deployment_id, h.hint ->> 'metric' AS metric,
       h.hint ->> 'severity' AS severity, (nullif(h.hint -> 'observed_value', 'null'))::double precision AS observed_value,
       (nullif(h.hint -> 'threshold', 'null'))::double precision AS threshold,
       (nullif(h.hint -> 'secured_threshold', 'null'))::double precision AS secured_threshold,
       (nullif(h.hint -> 'exceed_ratio', 'null'))::double precision AS exceed_ratio,
       (nullif(h.hint -> 'tolerance', 'null'))::double precision AS tolerance,
       (nullif(h.hint -> 'confidence', 'null'))::double precision AS confidence, h.hint ->> 'title' AS title,
       h.hint ->> 'diagnosis' AS diagnosis, h.hint -> 'suggested_actions' AS suggested_actions, h.hint -> 'audit_data' AS audit_data,
       j.finished_at AS created_at
  FROM accs.deployment_jobs j CROSS JOIN LATERAL jsonb_array_elements(coalesce(j.results -> 'hints', '[]')) h (hint)
 WHERE j.status = 'completed' AND j.job_type = 'analysis';
