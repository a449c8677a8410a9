-- ---------------------------------------------------------------------------------------------------------------
-- The end of the installation: references, what every verb carries, the first partitions
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

-- Runs as the owner with a fixed search_path, so that the roles need no right on the tables; opens the guard while it
-- runs; and has its plans pinned. Generic plans by index and nested loop touch as many rows as the arrays name, whatever
-- the statistics say; without the pins a batch of 1,000 fell into a hash join over the whole table.
DO $verbs$
DECLARE
  v_verb  text;
  v_inner text;
BEGIN
  FOREACH v_verb IN ARRAY ARRAY[
    'lock_workflows', 'submit_jobs', 'submit', 'change_jobs', 'instantiate_due_jobs', 'claim_tasks', 'adopt_tasks', 'start_tasks',
    'heartbeat', 'report_progress',
    'finish_tasks', 'release_tasks', 'reclaim_tasks', 'skip_tasks', 'cancel_jobs', 'close_jobs', 'redrive', 'dismiss', 'retry_jobs',
    'pause', 'resume', 'recheck_holds', 'set_concurrency_limit', 'register_node', 'forget_node', 'wake_demand', 'wake_nodes', 'claim_wake',
    'record_wake',
    'health_evidence', 'quarantine', 'lift_quarantine', 'node_quarantines', 'note_probe', 'note_obstacle', 'mark_steps',
    'prune_conclusions',
    'note_not_woken', 'note_awake', 'ask_node', 'take_orders', 'answer_order', 'record_artifact', 'append_events', 'select_runnable',
    'ensure_event_partitions', 'record_archive', 'check_archive', 'drop_archived', 'delete_finished_jobs', 'forget_objects',
    'append_task_events', 'task_inputs', 'node_leaves', 'agent_outlook', 'builder_outlook', 'repair',
    'register_outbox_target', 'forget_outbox_target', 'claim_outbox', 'settle_outbox', 'redrive_outbox', 'prune_outbox', 'outbox_outlook',
    'why'] LOOP
    EXECUTE format('ALTER FUNCTION accs.%I SECURITY DEFINER SET search_path = pg_catalog, accs, pg_temp', v_verb);
  END LOOP;
  FOREACH v_verb IN ARRAY ARRAY[
    'submit_jobs', 'claim_tasks', 'adopt_tasks', 'start_tasks', 'heartbeat', 'report_progress', 'finish_tasks', 'release_tasks',
    'reclaim_tasks', 'wake_demand',
    'append_task_events', 'claim_outbox', 'settle_outbox', 'outbox_outlook', 'task_inputs', 'agent_outlook', 'builder_outlook',
    'repair'] LOOP
    EXECUTE format('ALTER FUNCTION accs.%I SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
                    SET enable_hashjoin = off SET enable_mergejoin = off SET random_page_cost = 0.1 SET jit = off', v_verb);
  END LOOP;
  -- the pieces are not for calling
  FOR v_inner IN SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'accs'::regnamespace LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', v_inner);
  END LOOP;
END $verbs$;

SELECT accs.ensure_event_partitions();
INSERT INTO accs.schema_versions (version) VALUES (1);
