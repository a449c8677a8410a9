-- ---------------------------------------------------------------------------------------------------------------
-- Quarantine: a node on which a service fails, a step that fails everywhere
-- ---------------------------------------------------------------------------------------------------------------

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

-- The steps that fail wherever they run.
CREATE TABLE accs.step_health (
  workflow_id  uuid NOT NULL REFERENCES public.workflows (id) ON DELETE CASCADE,
  task_key     text NOT NULL,
  since        timestamptz NOT NULL DEFAULT accs.clock(),
  reason       text NOT NULL,
  PRIMARY KEY (workflow_id, task_key)
);

-- Of what has just passed (p_was: while it was live) that which tells something: its step has failed lately, or this service
-- is on trial here. Of each node no more than 20 since the step's last failure, or the trial began: they would tell nothing new.
CREATE FUNCTION accs.note_passes(p_was accs.live[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO accs.conclusions (ts, node, service, workflow_id, task_key, task_id, passed)
  WITH done AS MATERIALIZED (
    SELECT l.node, l.service, j.workflow_id, t.task_key, l.task_id,
           row_number() OVER (PARTITION BY l.node, j.workflow_id, t.task_key) AS nth
      FROM unnest(p_was) l JOIN public.job_tasks t ON t.id = l.task_id JOIN public.jobs j ON j.id = l.job_id
  ), room AS MATERIALIZED (   -- once for each node and step
    SELECT d.node, d.workflow_id, d.task_key, (SELECT count(*) FROM (
             SELECT FROM accs.conclusions c WHERE c.workflow_id = d.workflow_id AND c.task_key = d.task_key AND c.node = d.node
                AND c.passed AND c.id > coalesce(f.id, 0) AND (q.trial_at IS NULL OR c.ts > q.trial_at) LIMIT 20) n) AS kept
      FROM done d
      LEFT JOIN accs.quarantines q ON q.node = d.node AND q.service = d.service AND q.state = 'trial'
      LEFT JOIN LATERAL (SELECT c.id FROM accs.conclusions c
                          WHERE c.workflow_id = d.workflow_id AND c.task_key = d.task_key AND NOT c.passed
                          ORDER BY c.id DESC LIMIT 1) f ON true
     WHERE d.nth = 1 AND (f.id IS NOT NULL OR q.node IS NOT NULL)
  )
  SELECT accs.clock(), d.node, d.service, d.workflow_id, d.task_key, d.task_id, true
    FROM room r JOIN done d ON d.node = r.node AND d.workflow_id = r.workflow_id AND d.task_key = r.task_key WHERE d.nth <= 20 - r.kept;
  IF FOUND THEN
    PERFORM pg_notify(accs.channel_prefix() || '_health', '');
  END IF;
END $$;
SELECT accs.pin('note_passes');

-- Another one after each decision about the place; null where it is not in quarantine.
CREATE FUNCTION accs.quarantine_version(p accs.quarantines) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p.node IS NOT NULL THEN concat_ws('/', extract(epoch FROM p.since), p.times, extract(epoch FROM p.trial_at)) END
$$;

-- What is known about nodes and steps that fail, the oldest first. is_trial: it ended after its node's service was let in on
-- trial. offered: how many nodes offer the service.
CREATE FUNCTION accs.health_evidence(p_window interval) RETURNS TABLE (
  id bigint, node text, service text, workflow_id uuid, workflow text, task_key text, task_id uuid, passed boolean, lost boolean,
  permanent boolean, code text, message text, quarantine text, version text, times int, is_trial boolean, offered int
) LANGUAGE sql STABLE AS $$
  SELECT c.id, c.node, c.service, c.workflow_id, w.name, c.task_key, c.task_id, c.passed, c.lost, c.permanent, c.code, c.message,
         q.state, accs.quarantine_version(q), coalesce(q.times, 0), coalesce(c.ts > q.trial_at, false), coalesce(o.nodes, 0)
    FROM accs.conclusions c JOIN public.workflows w ON w.id = c.workflow_id
    LEFT JOIN (SELECT s.name, count(*)::int AS nodes FROM public.nodes n, LATERAL jsonb_each_text(n.max_concurrency) AS s (name, slots)
                WHERE s.slots::int > 0 GROUP BY s.name) o ON o.name = c.service
    LEFT JOIN accs.quarantines q ON q.node = c.node AND q.service = c.service
   WHERE c.ts > accs.clock() - p_window OR q.node IS NOT NULL
   ORDER BY c.id
$$;
SELECT accs.is_verb('health_evidence', may => '{scheduler}');

-- Shuts a node's service, or shuts it again: its trial failed. What runs goes on. p_probe_in: when the node may look whether it
-- is well again. Who has judged says by what: p_seen is the last conclusion that he knew of the place, p_version that of its
-- quarantine. He is refused where somebody has decided since then, what he held against it was forgiven, or something has passed.
-- (More failures change nothing: a place that fails all the time could never be shut.)
CREATE FUNCTION accs.quarantine(p_node text, p_service text, p_reason text, p_detail jsonb, p_probe_in interval,
                                p_version text DEFAULT NULL, p_seen bigint DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  -- what follows sees all that others have decided; there may be no row to lock
  PERFORM accs.lock('quarantines');
  IF p_seen IS NOT NULL AND (
       p_version IS DISTINCT FROM (SELECT accs.quarantine_version(q) FROM accs.quarantines q
                                    WHERE q.node = p_node AND q.service = p_service)
       OR NOT EXISTS (SELECT FROM accs.conclusions c WHERE c.node = p_node AND c.service = p_service AND NOT c.passed AND c.id <= p_seen)
       OR EXISTS (SELECT FROM accs.conclusions c WHERE c.node = p_node AND c.service = p_service AND c.passed AND c.id > p_seen)) THEN
    RETURN 'refused';
  END IF;
  INSERT INTO accs.quarantines AS q (node, service, reason, detail, since, probe_at)
  SELECT n.name, p_service, p_reason, p_detail, v_now, v_now + p_probe_in FROM public.nodes n WHERE n.name = p_node
  ON CONFLICT (node, service) DO UPDATE SET state = 'shut', reason = excluded.reason, detail = excluded.detail, times = q.times + 1,
         probes = 0, probe_at = excluded.probe_at, probe_error = NULL, trial_at = NULL
   WHERE q.state = 'trial';
  IF NOT FOUND THEN
    RETURN 'repeated';   -- or the node is not registered any more
  END IF;
  PERFORM accs.note_node(p_node, 'quarantined', format('%s is in quarantine: %s', p_service, p_reason), p_detail);
  PERFORM pg_notify(accs.channel_prefix() || '_quarantines', p_node);
  RETURN 'accepted';
END $$;
SELECT accs.is_verb('quarantine', may => '{scheduler}');

-- Lets a service work again on a node (null: all of them), and forgets what was held against it. Answers how many. p_version and
-- p_seen as above, for who has judged that a trial passed: none, where somebody has decided since, or something has failed.
CREATE FUNCTION accs.lift_quarantine(p_node text, p_service text, p_because text, p_by text DEFAULT NULL,
                                     p_version text DEFAULT NULL, p_seen bigint DEFAULT NULL)
RETURNS TABLE (node text, service text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_nodes    text[];
  v_services text[];
BEGIN
  PERFORM accs.lock('quarantines');
  WITH lifted AS (
    DELETE FROM accs.quarantines q WHERE (p_node IS NULL OR q.node = p_node) AND (p_service IS NULL OR q.service = p_service)
       AND (p_seen IS NULL OR accs.quarantine_version(q) = p_version AND NOT EXISTS (
             SELECT FROM accs.conclusions c WHERE c.node = q.node AND c.service = q.service AND NOT c.passed AND c.id > p_seen))
    RETURNING q.node, q.service
  ), forgotten AS (
    DELETE FROM accs.conclusions c USING lifted l WHERE c.node = l.node AND c.service = l.service AND NOT c.passed
  )
  SELECT array_agg(l.node), array_agg(l.service) INTO v_nodes, v_services FROM lifted l,
         LATERAL accs.note_node(l.node, 'resumed', format('%s is out of quarantine: %s', l.service, p_because),
                                jsonb_build_object('by', p_by)),
         LATERAL pg_notify(accs.channel_prefix() || l.service, '');
  IF p_seen IS NULL THEN   -- somebody wants it; it was not earned by a trial
    PERFORM accs.audit_each('lift_quarantine', 'quarantine', ARRAY(SELECT u.node || '/' || u.service FROM unnest(v_nodes, v_services)
      AS u (node, service)), array_fill('accepted'::text, ARRAY[coalesce(cardinality(v_nodes), 0)]), NULL, p_by, p_because);
  END IF;
  RETURN QUERY SELECT * FROM unnest(v_nodes, v_services);
END $$;
SELECT accs.is_verb('lift_quarantine', may => '{scheduler,api}');

-- For a node: what it is to probe, and in what time.
CREATE FUNCTION accs.node_quarantines(p_node text)
RETURNS TABLE (service text, state text, reason text, times int, probes int, probe_in interval)
LANGUAGE sql STABLE AS $$
  SELECT q.service, q.state, q.reason, q.times, q.probes, greatest(q.probe_at - accs.clock(), '0') FROM accs.quarantines q
   WHERE q.node = p_node ORDER BY q.service
$$;
SELECT accs.is_verb('node_quarantines', may => '{agent}');

-- What a probe of its own says: well, so that the next task is a trial; or not, and when it looks again.
CREATE FUNCTION accs.note_probe(p_node text, p_service text, p_problem text, p_again interval) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := accs.clock();
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  UPDATE accs.quarantines q SET state = CASE WHEN p_problem IS NULL THEN 'trial' ELSE 'shut' END,
         probes = q.probes + (p_problem IS NOT NULL)::int, probe_error = left(p_problem, 2000), probe_at = v_now + p_again,
         trial_at = CASE WHEN p_problem IS NULL THEN v_now END
   WHERE q.node = p_node AND q.service = p_service AND q.state = 'shut' AND q.probe_at <= v_now;
  IF NOT FOUND THEN
    RETURN 'repeated';
  ELSIF p_problem IS NULL THEN
    PERFORM accs.note_node(p_node, 'trial', format('%s is let in on trial: its probe passed', p_service), '{}');
    PERFORM pg_notify(accs.channel_prefix() || p_service, '');
  END IF;
  RETURN 'accepted';
END $$;
SELECT accs.is_verb('note_probe', may => '{agent}');

-- The steps that fail everywhere are these, and no others. Answers those that are news: found failing, or not any more.
CREATE FUNCTION accs.mark_steps(p_workflows uuid[], p_keys text[], p_reasons text[])
RETURNS TABLE (workflow_id uuid, task_key text, failing boolean)
LANGUAGE sql AS $$
  WITH said AS MATERIALIZED (
    SELECT DISTINCT ON (s.workflow_id, s.task_key) s.* FROM unnest(p_workflows, p_keys, p_reasons) AS s (workflow_id, task_key, reason)
      JOIN public.workflows w ON w.id = s.workflow_id ORDER BY s.workflow_id, s.task_key
  ), well AS (
    DELETE FROM accs.step_health h WHERE NOT EXISTS (SELECT FROM said s WHERE s.workflow_id = h.workflow_id AND s.task_key = h.task_key)
    RETURNING h.workflow_id, h.task_key
  ), ill AS (
    INSERT INTO accs.step_health AS h (workflow_id, task_key, reason) SELECT workflow_id, task_key, reason FROM said ORDER BY 1, 2
    ON CONFLICT (workflow_id, task_key) DO UPDATE SET reason = excluded.reason WHERE h.reason <> excluded.reason
    RETURNING h.workflow_id, h.task_key
  )
  SELECT workflow_id, task_key, false FROM well
  UNION ALL   -- step_health as it was before: another reason is no news
  SELECT workflow_id, task_key, true FROM ill i
   WHERE NOT EXISTS (SELECT FROM accs.step_health h WHERE h.workflow_id = i.workflow_id AND h.task_key = i.task_key)
$$;
SELECT accs.is_verb('mark_steps', may => '{scheduler}');

-- Forgets what is older than p_window, unless it keeps a service in quarantine, and of each step on each node all but the last p_keep.
CREATE FUNCTION accs.prune_conclusions(p_window interval, p_keep int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_gone int;
BEGIN
  DELETE FROM accs.conclusions WHERE id IN (
    SELECT c.id FROM (SELECT c.*, row_number() OVER (PARTITION BY c.node, c.workflow_id, c.task_key ORDER BY c.id DESC) AS nth
                        FROM accs.conclusions c) c
     WHERE c.nth > p_keep OR c.ts <= accs.clock() - p_window
       AND NOT EXISTS (SELECT FROM accs.quarantines q WHERE q.node = c.node AND q.service = c.service));
  GET DIAGNOSTICS v_gone = ROW_COUNT;
  RETURN v_gone;
END $$;
SELECT accs.is_verb('prune_conclusions', may => '{scheduler}');
