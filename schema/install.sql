-- ---------------------------------------------------------------------------------------------------------------
-- The end of the installation: references, functions closed to the public, the first partitions
-- ---------------------------------------------------------------------------------------------------------------

-- PostgreSQL 18 lets a foreign key be declared without being checked row by row, which was a third of the cost of a submission
-- and a tenth of that of everything else (docs/performance.md). Triggers check it once a statement (note_new_jobs,
-- refuse_used_workflow, refuse_stray_artifacts); job_tasks is written by the verbs only.
DO $keys$
DECLARE
  v_key record;
BEGIN
  IF current_setting('server_version_num')::int >= 180000 THEN
    FOR v_key IN SELECT conrelid::regclass AS tab, conname FROM pg_constraint
                  WHERE contype = 'f' AND confrelid IN ('public.workflows'::regclass, 'public.jobs'::regclass, 'public.job_tasks'::regclass)
                    AND conrelid IN ('public.jobs'::regclass, 'public.job_tasks'::regclass, 'public.task_artifacts'::regclass) LOOP
      EXECUTE format('ALTER TABLE %s ALTER CONSTRAINT %I NOT ENFORCED', v_key.tab, v_key.conname);
    END LOOP;
  END IF;
END $keys$;

-- What is no verb is not for calling, and a verb only for the roles that it names (accsd/db/roles.sql).
DO $close$
DECLARE
  v_function text;
BEGIN
  FOR v_function IN SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'accs'::regnamespace LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', v_function);
  END LOOP;
END $close$;

SELECT accs.make_months(name) FROM accs.monthly;
INSERT INTO accs.schema_versions (version) VALUES (1);
