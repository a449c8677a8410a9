-- ---------------------------------------------------------------------------------------------------------------
-- Artifacts: the objects that attempts leave in storage and are given from there
-- ---------------------------------------------------------------------------------------------------------------

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
  -- addition, of a part of a log: how many lines it has, of which levels, from when to when
  facts         jsonb,
  UNIQUE (bucket, key)
);

CREATE INDEX task_artifacts_job ON public.task_artifacts (job_id);
CREATE INDEX task_artifacts_task ON public.task_artifacts (job_task_id);
CREATE INDEX task_artifacts_input ON public.task_artifacts (job_id) WHERE kind = 'input' AND job_task_id IS NULL;   -- task_inputs

CREATE FUNCTION accs.refuse_stray_artifacts() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_bad record;
BEGIN
  SELECT f.id, f.job_id, f.job_task_id INTO v_bad FROM fresh f
    LEFT JOIN public.jobs j ON j.id = f.job_id LEFT JOIN public.job_tasks t ON t.id = f.job_task_id
   WHERE j.id IS NULL OR t.id IS NULL AND f.job_task_id IS NOT NULL LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'artifact %: there is no job %, or it has no task %', v_bad.id, v_bad.job_id, v_bad.job_task_id
      USING ERRCODE = 'foreign_key_violation';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER refuse_stray AFTER INSERT ON public.task_artifacts REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT
  EXECUTE FUNCTION accs.refuse_stray_artifacts();
CREATE TRIGGER refuse_stray_again AFTER UPDATE ON public.task_artifacts REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT
  EXECUTE FUNCTION accs.refuse_stray_artifacts();

-- Records an object that exists in storage already, for a running attempt: fenced like its other writes. The same object
-- again is repeated.
CREATE FUNCTION accs.record_artifact(
  p_task uuid, p_attempt_id int, p_owner text, p_kind text, p_bucket text, p_key text, p_size_bytes bigint DEFAULT NULL,
  p_content_type text DEFAULT NULL, p_checksum text DEFAULT NULL, p_facts jsonb DEFAULT NULL
) RETURNS TABLE (artifact_id bigint, answer text, reason text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_job uuid;
  v_service text;
  v_id  bigint;
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_owner);
  END IF;
  -- the lock keeps the attempt from ending between the check and the row
  SELECT job_id, service_name INTO v_job, v_service FROM public.job_tasks
   WHERE id = p_task AND attempt_id = p_attempt_id AND lease_owner = p_owner AND lease_until > accs.clock()
     AND status IN ('starting', 'running') FOR SHARE;
  IF NOT FOUND THEN
    SELECT id INTO v_id FROM public.task_artifacts
     WHERE bucket = p_bucket AND key = p_key AND job_task_id = p_task AND attempt_id = p_attempt_id;
    IF FOUND THEN
      RETURN QUERY SELECT v_id, 'repeated'::text, NULL::text;
    ELSE
      RETURN QUERY SELECT NULL::bigint, e.answer, e.reason
        FROM accs.explain(ARRAY[p_task], ARRAY[p_attempt_id], p_owner, ARRAY[NULL::text]) e;
    END IF;
    RETURN;
  END IF;
  INSERT INTO public.task_artifacts (job_id, job_task_id, kind, bucket, key, size_bytes, content_type, checksum, attempt_id, facts)
  VALUES (v_job, p_task, p_kind, p_bucket, p_key, p_size_bytes, p_content_type, p_checksum, p_attempt_id, p_facts)
  ON CONFLICT (bucket, key) DO NOTHING RETURNING id INTO v_id;
  IF v_id IS NULL THEN
    RETURN QUERY SELECT a.id, CASE WHEN a.job_task_id = p_task AND a.attempt_id = p_attempt_id THEN 'repeated' ELSE 'refused' END,
                        CASE WHEN a.job_task_id = p_task AND a.attempt_id = p_attempt_id THEN NULL ELSE 'key_taken' END
                   FROM public.task_artifacts a WHERE a.bucket = p_bucket AND a.key = p_key;
    RETURN;
  END IF;
  INSERT INTO public.task_events (job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
  VALUES (v_job, p_task, accs.clock(), 'agent:' || v_service, 'info', 'artifact', p_key,
          jsonb_strip_nulls(jsonb_build_object('artifact_id', v_id, 'kind', p_kind, 'bucket', p_bucket, 'key', p_key,
                                               'size_bytes', p_size_bytes)), p_attempt_id);
  RETURN QUERY SELECT v_id, 'accepted'::text, NULL::text;
END $$;
SELECT accs.is_verb('record_artifact', may => '{agent}');

-- Outputs that a task has because it is done with the result of another one (cache.sql). They stay in the folder of the job that made
-- them, and an object stays in the store while a row here or of task_artifacts names it.
CREATE TABLE accs.borrowed_files (
  job_task_id   uuid NOT NULL,
  bucket        text NOT NULL,
  key           text NOT NULL,
  job_id        uuid NOT NULL,
  owner         uuid NOT NULL,           -- the job that made it
  artifact_id   bigint NOT NULL,         -- its row in task_artifacts; that may be gone
  name          text NOT NULL,           -- what its task called it
  size_bytes    bigint,
  content_type  text,
  checksum      text,
  created_at    timestamptz NOT NULL,
  PRIMARY KEY (job_task_id, bucket, key)
);

CREATE INDEX borrowed_files_job ON accs.borrowed_files (job_id);                 -- retention, a job's list
CREATE INDEX borrowed_files_object ON accs.borrowed_files (bucket, key);         -- who else has it

-- What its task called it: a key without what is put before it (accsd/storage/base.py, build_key). As accsd/work/files.py lays it.
CREATE FUNCTION accs.name_of_file(p_key text, p_of_task boolean) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT regexp_replace(p_key, '^(in|out)puts/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/'
                               || CASE WHEN p_of_task THEN '[^/]+/([0-9]+/)?' ELSE '' END, '')
$$;

-- The objects that a task may need: what the steps that it depends on have put out, each by the attempt that finished it, and the inputs
-- of the job and of this task. n: in which order.
CREATE FUNCTION accs.files_for(p_task public.job_tasks)
RETURNS TABLE (n bigint, id bigint, task_key text, kind text, bucket text, key text, size_bytes bigint, content_type text, checksum text)
LANGUAGE sql STABLE AS $$
  SELECT k.n, a.id, d.task_key, a.kind, a.bucket, a.key, a.size_bytes, a.content_type, a.checksum
    FROM unnest(p_task.depends_on) WITH ORDINALITY AS k (key, n), LATERAL (   -- one look-up for each key, as in claim_tasks
      SELECT t.id, t.items FROM public.job_tasks t
       WHERE t.job_id = p_task.job_id AND t.task_key = k.key AND t.status = 'done' OFFSET 0) m, LATERAL (
      SELECT t.id, t.task_key, t.outcome_attempt_id FROM public.job_tasks t WHERE t.id = m.id
      UNION ALL   -- of a step that was multiplied, those of its tasks
      SELECT t.id, t.task_key, t.outcome_attempt_id FROM public.job_tasks t
       WHERE m.items > 0 AND t.parent = m.id AND t.status = 'done' AND p_task.parent IS DISTINCT FROM m.id) d
    CROSS JOIN LATERAL (
      SELECT a.id, a.kind, a.bucket, a.key, a.size_bytes, a.content_type, a.checksum FROM public.task_artifacts a
       WHERE a.job_task_id = d.id AND a.kind = 'output' AND a.attempt_id = d.outcome_attempt_id
      UNION ALL
      SELECT b.artifact_id, 'output', b.bucket, b.key, b.size_bytes, b.content_type, b.checksum FROM accs.borrowed_files b
       WHERE b.job_task_id = d.id) a
  UNION ALL
  SELECT 0, a.id, NULL, a.kind, a.bucket, a.key, a.size_bytes, a.content_type, a.checksum
    FROM public.task_artifacts a WHERE a.job_id = p_task.job_id AND a.job_task_id IS NULL AND a.kind = 'input'
  UNION ALL
  SELECT 0, a.id, p_task.task_key, a.kind, a.bucket, a.key, a.size_bytes, a.content_type, a.checksum
    FROM public.task_artifacts a WHERE a.job_task_id = p_task.id AND a.kind = 'input'
$$;

-- The objects that an attempt may need, and the files of its workflow (kind "file", with a name). Raises where the attempt does not
-- hold its lease: no rows would mean that there are no inputs.
CREATE FUNCTION accs.task_inputs(p_task uuid, p_attempt_id int, p_owner text)
RETURNS TABLE (task_key text, kind text, bucket text, key text, size_bytes bigint, content_type text, checksum text, name text)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  v_task public.job_tasks;
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_owner);
  END IF;
  SELECT t.* INTO v_task FROM public.job_tasks t
   WHERE t.id = p_task AND t.attempt_id = p_attempt_id AND t.lease_owner = p_owner AND t.lease_until > accs.clock()
     AND t.status IN ('starting', 'running');
  IF NOT FOUND THEN
    RAISE EXCEPTION 'attempt % of task %: %', p_attempt_id, p_task,
        (SELECT e.reason FROM accs.explain(ARRAY[p_task], ARRAY[p_attempt_id], p_owner, ARRAY[NULL::text]) e)
      USING ERRCODE = 'AC002', HINT = 'Stop this attempt and write nothing: the task is not its own any more.';
  END IF;
  RETURN QUERY
  SELECT f.task_key, f.kind, f.bucket, f.key, f.size_bytes, f.content_type, f.checksum, NULL::text FROM accs.files_for(v_task) f
   ORDER BY f.n, f.id;
  IF v_task.files IS NOT NULL THEN
    RETURN QUERY
    SELECT NULL::text, 'file'::text, NULL::text, f ->> 'key', (f ->> 'size')::bigint, NULL::text, 'sha256:' || (f ->> 'sha256'),
           f ->> 'name'
      FROM accs.file_sets s, jsonb_array_elements(s.files) WITH ORDINALITY e (f, n) WHERE s.id = v_task.files ORDER BY n;
  END IF;
END $$;
SELECT accs.is_verb('task_inputs', pinned => true, may => '{agent}');
