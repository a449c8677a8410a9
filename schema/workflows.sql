-- ---------------------------------------------------------------------------------------------------------------
-- Workflows: checked and compiled when they are written
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
  params      jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(params) = 'object'),   -- expressions: params, where options say nothing
  options_schema  jsonb CHECK (jsonb_typeof(options_schema) = 'object'),            -- JSON Schema of jobs.options
  files       jsonb NOT NULL DEFAULT '[]',      -- what its tasks are given: [{name, key, size, sha256}], objects in the store
  title       text CHECK (length(title) BETWEEN 1 AND 200),   -- for people, who find it beside the name
  meta        jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(meta) = 'object'),   -- what doors keep with it: {"joblib": {"schema": …}}
  UNIQUE (name, version)
);

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

-- A workflow that passed every check, and its steps.
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
  resolve          boolean,          -- true: its tasks wait for the resolver before they can be claimed
  files            int,              -- accs.file_sets, where its tasks are given files
  PRIMARY KEY (workflow_id, step_no)
);

CREATE INDEX steps_roots ON accs.steps (workflow_id, lane, concurrency_key) WHERE depends_on = '{}' AND resolve IS NULL;   -- wake_demand

CREATE FUNCTION accs.invalid(p_workflow text, p_problem text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'workflow "%": %', p_workflow, p_problem USING ERRCODE = 'AC001';
END $$;

CREATE FUNCTION accs.backoff_is_valid(p jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE jsonb_typeof(p)
    WHEN 'array' THEN jsonb_array_length(p) > 0
                      AND NOT jsonb_path_exists(p, 'strict $[*] ? (@.type() != "number" || @ < 0 || @ > 31622400)', silent => true)
    WHEN 'object' THEN (NOT p ? 'strategy' OR p ->> 'strategy' IN ('exponential', 'linear', 'fixed'))
                       AND (p - '{strategy,base,cap}'::text[]) = '{}'
                       AND NOT jsonb_path_exists(p, 'strict $.* ? (@.type() == "number" && (@ < 0 || @ > 31622400))')
                       AND coalesce(jsonb_typeof(p -> 'base'), 'null') IN ('number', 'null')
                       AND coalesce(jsonb_typeof(p -> 'cap'), 'null') IN ('number', 'null')
    ELSE false END
$$;

CREATE FUNCTION accs.step_fields() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT '{key,service,depends_on,default_params,max_attempts,backoff,timeout,requires,node,concurrency_key,concurrency_limit,
           uses,with,save_as,if,delay,for_each,if_item,max_parallel,max_items,tolerate,cache,files}'::text[]
$$;

-- What is wrong with a step's cache; null: nothing. A text such as 7d is read in Python.
CREATE FUNCTION accs.flaw_of_cache(s jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN jsonb_typeof(s -> 'cache') NOT IN ('number', 'string', 'object') OR jsonb_typeof(c.lasts) IS NULL
         OR jsonb_typeof(c.lasts) NOT IN ('number', 'string')
         OR jsonb_typeof(s -> 'cache') = 'object' AND (s -> 'cache') - '{for,salt}'::text[] <> '{}'
         OR s -> 'cache' ? 'salt' AND (jsonb_typeof(s -> 'cache' -> 'salt') <> 'string' OR length(s -> 'cache' ->> 'salt') > 200)
      THEN 'cache must be a number of seconds, a text such as 7d, or {"for": seconds, "salt": text}'
    WHEN jsonb_typeof(c.lasts) = 'number' AND (c.lasts #>> '{}')::numeric NOT BETWEEN 1 AND 31536000
      THEN 'cache must be at least 1 second and at most 365 days'
    WHEN s ? 'delay' THEN 'cache and delay exclude each other'
    WHEN starts_with(s ->> 'uses', 'accs.') THEN 'the result of a tool of accsd itself is not cached'
  END
    FROM (SELECT CASE jsonb_typeof(s -> 'cache') WHEN 'object' THEN s -> 'cache' -> 'for' ELSE s -> 'cache' END AS lasts) c
$$;

-- What is wrong with the shape of the fields by which data flows; null: nothing. What their expressions say is Python's to check: before a
-- workflow is written, or else by the resolver.
CREATE FUNCTION accs.flaw_of_flow(s jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN coalesce(jsonb_typeof(s -> 'with'), 'object') <> 'object' THEN 'with must be a JSON object'
    WHEN pg_column_size(s -> 'with') > 65536 AND octet_length((s -> 'with')::text) > 98304 THEN 'with is larger than 64 KiB'
    WHEN jsonb_path_exists(s -> 'with', 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")')
      THEN 'with is nested deeper than 64 levels'
    WHEN s ? 'save_as' AND (jsonb_typeof(s -> 'save_as') <> 'string' OR s ->> 'save_as' !~ '^[A-Za-z_][A-Za-z0-9_]{0,99}$')
      THEN 'save_as must be a name: letters, digits and "_", not beginning with a digit, no longer than 100'
    WHEN s ? 'if' AND jsonb_typeof(s -> 'if') NOT IN ('string', 'boolean') THEN 'if must be an expression'
    WHEN s ? 'if_item' AND jsonb_typeof(s -> 'if_item') NOT IN ('string', 'boolean') THEN 'if_item must be an expression'
    WHEN s ? 'delay' AND jsonb_typeof(s -> 'delay') NOT IN ('string', 'number')
      THEN 'delay must be a number of seconds, a text such as 10m, or an expression'
    WHEN s ? 'for_each' AND jsonb_typeof(s -> 'for_each') NOT IN ('string', 'number', 'array', 'object')
      THEN 'for_each must be an expression, a list, an object or a whole number'
    WHEN NOT s ? 'for_each' AND s ?| '{if_item,max_parallel,max_items,tolerate}'
      THEN format('%s needs a for_each', (SELECT k FROM unnest('{if_item,max_parallel,max_items,tolerate}'::text[]) k WHERE s ? k LIMIT 1))
    WHEN s ? 'max_parallel' AND (jsonb_typeof(s -> 'max_parallel') <> 'number' OR s ->> 'max_parallel' !~ '^([1-9][0-9]{0,5}|1000000)$')
      THEN 'max_parallel must be a whole number from 1 to 1,000,000'
    WHEN s ? 'max_parallel' AND s ->> 'concurrency_key' IS NOT NULL THEN 'max_parallel and concurrency_key exclude each other'
    WHEN s ? 'max_items' AND (jsonb_typeof(s -> 'max_items') <> 'number' OR s ->> 'max_items' !~ '^([1-9][0-9]{0,3}|10000)$')
      THEN 'max_items must be a whole number from 1 to 10,000'
    WHEN s ? 'tolerate' AND s ->> 'tolerate' !~ CASE jsonb_typeof(s -> 'tolerate') WHEN 'number' THEN '^[0-9]{1,5}$'
                                                     WHEN 'string' THEN '^([0-9]|[1-9][0-9]|100)%$' ELSE '^$' END
      THEN 'tolerate must be a number of items, or a share of them such as 10%'
    WHEN s ? 'cache' THEN accs.flaw_of_cache(s)
  END
$$;

-- Each step is looked at once; the first problem in the order of the steps is reported. Speaks of step "key" where
-- there is one, else of step number n. (The planner takes a JSON array for 100 rows: nested loops would be quadratic.
-- PostgreSQL before 18 prices what is disabled so high that it would compile the plan, for a second each time.)
CREATE FUNCTION accs.check_steps(p_name text, p_steps jsonb) RETURNS void LANGUAGE plpgsql SET enable_nestloop = off SET jit = off AS $$
DECLARE
  v_problem text;
BEGIN
  IF jsonb_typeof(p_steps) IS DISTINCT FROM 'array' THEN
    PERFORM accs.invalid(p_name, 'steps must be a JSON array');
  ELSIF jsonb_array_length(p_steps) = 0 THEN
    PERFORM accs.invalid(p_name, 'there is no step');
  ELSIF jsonb_array_length(p_steps) > 100000 THEN
    PERFORM accs.invalid(p_name, format('%s steps are more than the 100,000 that a job may have', jsonb_array_length(p_steps)));
  END IF;

  WITH step AS MATERIALIZED (
    SELECT n, s, CASE WHEN jsonb_typeof(s) = 'object' THEN s ->> 'key' END AS key
      FROM jsonb_array_elements(p_steps) WITH ORDINALITY AS e (s, n)
  ), flaw AS (
    SELECT n, CASE WHEN key <> '' THEN format('step "%s"', key) ELSE format('step number %s', n) END || ': ' ||
      CASE
        WHEN jsonb_typeof(s) <> 'object' THEN 'must be a JSON object'
        WHEN jsonb_typeof(s -> 'key') IS DISTINCT FROM 'string' OR s ->> 'key' = '' THEN 'key is missing or empty'
        WHEN key !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'
          THEN 'a key has letters, digits, ".", "_" and "-" only, begins with a letter or digit, and is no longer than 100'
        WHEN s - accs.step_fields() <> '{}'
          THEN format('unknown field "%s"', (SELECT k FROM jsonb_object_keys(s - accs.step_fields()) k LIMIT 1))
        WHEN jsonb_typeof(s -> 'service') IS DISTINCT FROM 'string' OR s ->> 'service' = '' THEN 'service is missing or empty'
        WHEN s ->> 'service' !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$'
          THEN format('"%s" is no service name: letters, digits, ".", "_" and "-" only, beginning with a letter or digit, '
                      'no longer than 40', s ->> 'service')
        WHEN s ->> 'service' = 'builder' THEN 'the service name "builder" is reserved'
        WHEN s ->> 'service' = 'accs' AND NOT s ? 'uses' THEN 'the service "accs" is for tools: say which one (uses)'
        WHEN s ? 'uses' AND accs.flaw_of_use(s) IS NOT NULL THEN accs.flaw_of_use(s)
        WHEN coalesce(jsonb_typeof(s -> 'depends_on'), 'array') <> 'array'
             OR jsonb_path_exists(s, 'strict $.depends_on[*] ? (@.type() != "string")', silent => true)
          THEN 'depends_on must be a list of step keys'
        WHEN coalesce(jsonb_typeof(s -> 'default_params'), 'object') <> 'object' THEN 'default_params must be a JSON object'
        -- by either measure: jsonb is large for small numbers, its text for large ones, and the text has spaces
        WHEN pg_column_size(s -> 'default_params') > 65536 AND octet_length((s -> 'default_params')::text) > 98304
          THEN 'default_params are larger than 64 KiB'
        WHEN jsonb_path_exists(s -> 'default_params', 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")')
          THEN 'default_params are nested deeper than 64 levels'
        WHEN s ? 'max_attempts' AND (jsonb_typeof(s -> 'max_attempts') <> 'number' OR s ->> 'max_attempts' !~ '^([1-9][0-9]{0,5}|1000000)$')
          THEN 'max_attempts must be a whole number from 1 to 1,000,000'
        WHEN coalesce(jsonb_typeof(s -> 'timeout'), 'null') <> 'null'
             AND (jsonb_typeof(s -> 'timeout') <> 'number' OR (s ->> 'timeout')::numeric NOT BETWEEN 5e-324 AND 1e308)
          THEN 'timeout must be a number of seconds above 0'
        WHEN coalesce(jsonb_typeof(s -> 'requires'), 'object') <> 'object'
             OR jsonb_path_exists(s, 'strict $.requires.* ? (@.type() == "object" || @.type() == "array" || @.type() == "null")',
                                  silent => true)
          THEN 'requires must be a JSON object of labels, which are texts, numbers, true or false'
        WHEN coalesce(jsonb_typeof(s -> 'node'), 'null') NOT IN ('string', 'null') OR length(s ->> 'node') NOT BETWEEN 1 AND 200
          THEN 'node must be the name of a node'
        WHEN coalesce(jsonb_typeof(s -> 'concurrency_key'), 'null') NOT IN ('string', 'null')
             OR length(s ->> 'concurrency_key') NOT BETWEEN 1 AND 200
          THEN 'concurrency_key must be a text of up to 200 characters'
        WHEN coalesce(jsonb_typeof(s -> 'concurrency_limit'), 'null') <> 'null'
             AND (jsonb_typeof(s -> 'concurrency_limit') <> 'number' OR s ->> 'concurrency_limit' !~ '^([1-9][0-9]{0,5}|1000000)$')
          THEN 'concurrency_limit must be a whole number from 1 to 1,000,000'
        WHEN s ->> 'concurrency_limit' IS NOT NULL AND s ->> 'concurrency_key' IS NULL THEN 'concurrency_limit needs a concurrency_key'
        WHEN starts_with(s ->> 'concurrency_key', 'map/') THEN 'a concurrency_key that begins with "map/" is reserved'
        WHEN coalesce(jsonb_typeof(s -> 'backoff'), 'null') <> 'null' AND accs.backoff_is_valid(s -> 'backoff') IS NOT TRUE
          THEN 'backoff must be {"strategy": "exponential" | "linear" | "fixed", "base": seconds, "cap": seconds} '
               'or a list of seconds, none above 366 days'
        WHEN s ? 'files' AND (jsonb_typeof(s -> 'files') <> 'array' OR jsonb_array_length(s -> 'files') > 1000
                              OR jsonb_path_exists(s, 'strict $.files[*] ? (@.type() != "string")', silent => true))
          THEN 'files must be a list of up to 1,000 names of files of the workflow, or of folders of them'
        WHEN s ?| '{with,save_as,if,delay,for_each,if_item,max_parallel,max_items,tolerate,cache}' THEN accs.flaw_of_flow(s)
      END AS problem
      FROM step
  ), twice AS (
    SELECT max(n) AS n, format('step "%s": the key is used by %s steps', key, count(*)) AS problem
      FROM step WHERE key IS NOT NULL GROUP BY key HAVING count(*) > 1
  ), needs AS (
    SELECT n, key, d FROM step, LATERAL jsonb_array_elements_text(
      CASE WHEN jsonb_typeof(s) = 'object' AND jsonb_typeof(s -> 'depends_on') = 'array' THEN s -> 'depends_on' ELSE '[]' END) d
  ), needs_flaw AS (
    SELECT n, format(CASE WHEN d = key THEN 'step "%s": depends on itself'
                          WHEN o.found IS NULL THEN 'step "%s": depends on "%s", which does not exist'
                          ELSE 'step "%s": names "%s" more than once in depends_on' END, key, d) AS problem
      FROM (SELECT n, key, d, count(*) AS times FROM needs GROUP BY 1, 2, 3) x
      LEFT JOIN (SELECT DISTINCT key AS found FROM step) o ON o.found = x.d
     WHERE d = key OR o.found IS NULL OR times > 1
  )
  SELECT problem INTO v_problem
    FROM (SELECT * FROM flaw WHERE problem IS NOT NULL UNION ALL SELECT * FROM twice UNION ALL SELECT * FROM needs_flaw) f
   ORDER BY n LIMIT 1;
  IF v_problem IS NOT NULL THEN
    PERFORM accs.invalid(p_name, v_problem);
  END IF;
END $$;

-- Peels off the steps whose dependencies are all peeled; what is left contains a cycle. Arrays indexed by step number
-- keep it linear: 100,000 steps take well under a second.
CREATE FUNCTION accs.check_acyclic(p_name text, p_workflow uuid) RETURNS void LANGUAGE plpgsql SET enable_nestloop = on SET jit = off AS $$
DECLARE
  v_left   int[];        -- unfinished dependencies by step
  v_first  int[];        -- where a step's dependants begin in v_dependant
  v_dependant int[];
  v_todo   int[];
  v_done   int := 0;
  v_step   int;
  v_child  int;
  v_at     int;
  v_path   int[] := '{}';
BEGIN
  SELECT array_agg(cardinality(depends_on) ORDER BY step_no), array_agg(before ORDER BY step_no),
         coalesce(array_agg(step_no ORDER BY step_no) FILTER (WHERE depends_on = '{}'), '{}')
    INTO v_left, v_first, v_todo
    FROM (SELECT *, 1 + (sum(coalesce(cardinality(dependants), 0)) OVER (ORDER BY step_no))::int
                      - coalesce(cardinality(dependants), 0) AS before
            FROM accs.steps WHERE workflow_id = p_workflow) s;
  SELECT array_agg(d ORDER BY step_no, d) INTO v_dependant
    FROM accs.steps, unnest(dependants) d WHERE workflow_id = p_workflow;
  v_first := v_first || (1 + coalesce(cardinality(v_dependant), 0));
  WHILE v_done < cardinality(v_todo) LOOP
    v_done := v_done + 1;
    v_step := v_todo[v_done];
    FOR v_at IN v_first[v_step] .. v_first[v_step + 1] - 1 LOOP
      v_child := v_dependant[v_at];
      v_left[v_child] := v_left[v_child] - 1;
      IF v_left[v_child] = 0 THEN
        v_todo := v_todo || v_child;
      END IF;
    END LOOP;
  END LOOP;
  IF v_done = cardinality(v_left) THEN
    RETURN;
  END IF;
  -- walk upwards among the steps that are left until one comes again: that is a cycle to show
  SELECT i INTO v_step FROM unnest(v_left) WITH ORDINALITY u (n, i) WHERE n > 0 ORDER BY i LIMIT 1;
  -- (bounded: a cycle longer than anybody would read is only named by where it was met)
  WHILE array_position(v_path, v_step) IS NULL AND cardinality(v_path) < 50 LOOP
    v_path := v_path || v_step;
    SELECT p.step_no INTO v_step FROM accs.steps s JOIN accs.steps p ON p.workflow_id = s.workflow_id AND p.task_key = ANY (s.depends_on)
     WHERE s.workflow_id = p_workflow AND s.step_no = v_path[cardinality(v_path)] AND v_left[p.step_no] > 0
     ORDER BY p.step_no LIMIT 1;
  END LOOP;
  IF array_position(v_path, v_step) IS NOT NULL THEN
    v_path := v_path[array_position(v_path, v_step):] || v_step;
  END IF;
  PERFORM accs.invalid(p_name, format('step "%s" depends on itself in a cycle: %s',
    (SELECT task_key FROM accs.steps WHERE workflow_id = p_workflow AND step_no = v_step),
    (SELECT string_agg(s.task_key, ' → ' ORDER BY i DESC) FROM unnest(v_path) WITH ORDINALITY u (n, i)
       JOIN accs.steps s ON s.workflow_id = p_workflow AND s.step_no = u.n)));
END $$;

CREATE FUNCTION accs.check_notify(p_name text, p_notify text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_event text;
BEGIN
  FOREACH v_event IN ARRAY p_notify LOOP
    IF v_event = ANY (accs.outgoing_events()) IS NOT TRUE THEN
      PERFORM accs.invalid(p_name, format('notify: "%s" is no event; there are %s', v_event,
                                          array_to_string(accs.outgoing_events(), ', ')));
    END IF;
  END LOOP;
END $$;

CREATE FUNCTION accs.compile_workflow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_nestloop = off SET jit = off AS $$
DECLARE
  v_keys text[];
BEGIN
  PERFORM accs.check_steps(NEW.name, NEW.steps);
  PERFORM accs.check_notify(NEW.name, NEW.notify);

  DELETE FROM accs.plans WHERE workflow_id = NEW.id;
  INSERT INTO accs.plans (workflow_id, step_count, first_key)
  VALUES (NEW.id, jsonb_array_length(NEW.steps),
          coalesce((SELECT s ->> 'key' FROM jsonb_array_elements(NEW.steps) WITH ORDINALITY e (s, n)
                     WHERE coalesce(s -> 'depends_on', '[]') = '[]' ORDER BY n LIMIT 1), ''));

  -- in order, here and below: two workflows written at once must not wait for each other
  WITH changed AS (
    INSERT INTO accs.concurrency_keys AS k (key, max_running)
    SELECT s ->> 'concurrency_key', max(coalesce((s ->> 'concurrency_limit')::int, 1))
      FROM jsonb_array_elements(NEW.steps) s WHERE s ->> 'concurrency_key' IS NOT NULL GROUP BY 1 ORDER BY 1
    ON CONFLICT (key) DO UPDATE SET max_running = excluded.max_running
      WHERE k.max_running <> excluded.max_running
        AND EXISTS (SELECT FROM jsonb_array_elements(NEW.steps) s
                     WHERE s ->> 'concurrency_key' = k.key AND s ->> 'concurrency_limit' IS NOT NULL)
    RETURNING key)
  SELECT array_agg(key) INTO v_keys FROM changed;
  PERFORM accs.admit(v_keys);

  INSERT INTO accs.lanes (service, requires, node)
  SELECT DISTINCT s ->> 'service', coalesce(s -> 'requires', '{}'), s ->> 'node'
    FROM jsonb_array_elements(NEW.steps) s ORDER BY 1, 2, 3
  ON CONFLICT DO NOTHING;

  INSERT INTO accs.steps (workflow_id, step_no, task_key, service, depends_on, dependants, params, max_attempts, timeout_sec,
                          backoff, requires, node, concurrency_key, lane, notify, resolve)
  WITH step AS MATERIALIZED (
    SELECT n::int AS n, s, s ->> 'key' AS key, s ->> 'service' AS service, s ->> 'node' AS node,
           coalesce(s -> 'requires', '{}') AS requires,
           ARRAY(SELECT jsonb_array_elements_text(coalesce(s -> 'depends_on', '[]'))) AS depends_on,
           (s -> 'with')::text LIKE '%${%' AS templated,
           -- its result is checked, or the control host does it: the resolver notes the tool with the task
           s ? 'uses' AND (SELECT t.output_schema IS NOT NULL OR t.kind <> 'service' FROM accs.tool_named(s ->> 'uses') t) AS typed
      FROM jsonb_array_elements(NEW.steps) WITH ORDINALITY e (s, n)
  ), edge AS (
    SELECT p.n AS parent, array_agg(c.n ORDER BY c.n) AS children, p.s ? 'for_each' AS fans
      FROM (SELECT n, unnest(depends_on) AS needs FROM step) c JOIN step p ON p.key = c.needs GROUP BY p.n, p.s
  ), joins AS (   -- what depends on a fan-out is given the list of its results by the resolver
    SELECT DISTINCT unnest(children) AS n FROM edge WHERE fans
  )
  SELECT NEW.id, step.n, step.key, step.service, step.depends_on, edge.children,
         coalesce(s -> 'default_params', '{}') || CASE WHEN templated THEN '{}' ELSE coalesce(s -> 'with', '{}') END,
         coalesce((s ->> 'max_attempts')::int, 3),
         (s ->> 'timeout')::double precision, nullif(s -> 'backoff', 'null'), step.requires, step.node, s ->> 'concurrency_key', l.id,
         nullif(ARRAY(SELECT n FROM unnest(NEW.notify) n WHERE n LIKE 'task.%'), '{}'),
         nullif(s ?| '{if,delay,for_each,cache}' OR templated IS TRUE OR joins.n IS NOT NULL
                OR step.depends_on = '{}' AND NEW.options_schema IS NOT NULL OR typed, false)
    FROM step LEFT JOIN edge ON edge.parent = step.n LEFT JOIN joins ON joins.n = step.n
    JOIN accs.lanes l ON l.service = step.service AND l.requires = step.requires AND l.node IS NOT DISTINCT FROM step.node;

  PERFORM accs.check_acyclic(NEW.name, NEW.id);
  RETURN NULL;
END $$;
CREATE TRIGGER compile_workflow AFTER INSERT OR UPDATE OF steps, notify, options_schema ON public.workflows
  FOR EACH ROW EXECUTE FUNCTION accs.compile_workflow();

CREATE FUNCTION accs.touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.updated_at := accs.clock();
  RETURN NEW;
END $$;
CREATE TRIGGER touch BEFORE UPDATE ON public.workflows FOR EACH ROW EXECUTE FUNCTION accs.touch();

CREATE FUNCTION accs.refuse_used_workflow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM public.jobs WHERE workflow_id = OLD.id) THEN
    RAISE EXCEPTION 'workflow "%" version % has jobs', OLD.name, OLD.version
      USING ERRCODE = 'foreign_key_violation', HINT = 'UPDATE workflows SET is_active = false keeps it from being submitted.';
  END IF;
  RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER refuse_used_workflow BEFORE DELETE OR UPDATE OF id ON public.workflows FOR EACH ROW
  EXECUTE FUNCTION accs.refuse_used_workflow();

-- Whoever writes new versions waits here for the others, until the end of the transaction: two must not make the same next version.
CREATE FUNCTION accs.lock_workflows() RETURNS void LANGUAGE sql AS $$ SELECT accs.lock('workflows') $$;
SELECT accs.is_verb('lock_workflows', may => '{scheduler,api}');

-- A workflow is in the audit however it was written, after it was checked: triggers fire by name. Who wrote it: as apply_workflow was
-- told, the row says, or the login.
CREATE FUNCTION accs.audit_workflow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_row  public.workflows := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
  v_said text := nullif(current_setting('accs.by', true), '');
BEGIN
  PERFORM accs.audited(CASE TG_OP WHEN 'DELETE' THEN 'delete_workflow' ELSE 'apply_workflow' END, 'workflow', v_row.name, 'accepted',
    CASE WHEN TG_OP = 'INSERT' THEN coalesce(v_said, v_row.created_by) ELSE v_said END,
    nullif(current_setting('accs.reason', true), ''), NULL,
    jsonb_build_object('version', v_row.version, 'is_active', v_row.is_active, 'steps', jsonb_array_length(v_row.steps),
                       'made', TG_OP = 'INSERT'));
  RETURN NULL;
END $$;
CREATE TRIGGER record_new AFTER INSERT OR DELETE ON public.workflows FOR EACH ROW EXECUTE FUNCTION accs.audit_workflow();
CREATE TRIGGER record_change AFTER UPDATE ON public.workflows FOR EACH ROW
  WHEN (to_jsonb(OLD) - 'updated_at' IS DISTINCT FROM to_jsonb(NEW) - 'updated_at') EXECUTE FUNCTION accs.audit_workflow();

-- Writes a workflow under its name and version; what stands there already is replaced. p_workflow: name, version, steps, notify,
-- params, options_schema, files, title, meta. Without meta, what stands there stays: a file knows nothing of doors.
CREATE FUNCTION accs.apply_workflow(p_workflow jsonb, p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
  v_id uuid;
BEGIN
  PERFORM set_config('accs.by', coalesce(p_by, ''), true), set_config('accs.reason', coalesce(p_reason, ''), true);
  INSERT INTO public.workflows (name, version, steps, created_by, notify, params, options_schema, files, title, meta)
  SELECT w.name, coalesce(w.version, 1), w.steps, p_by, coalesce(w.notify, '{}'), coalesce(w.params, '{}'), w.options_schema,
         coalesce(w.files, '[]'), w.title, coalesce(w.meta, '{}')
    FROM jsonb_populate_record(NULL::public.workflows, p_workflow) w
  ON CONFLICT (name, version) DO UPDATE SET steps = excluded.steps, notify = excluded.notify, is_active = true, params = excluded.params,
         options_schema = excluded.options_schema, files = excluded.files, title = excluded.title,
         meta = CASE WHEN p_workflow ? 'meta' THEN excluded.meta ELSE workflows.meta END
  RETURNING id INTO v_id;
  PERFORM set_config('accs.by', '', true), set_config('accs.reason', '', true);   -- not for what else this transaction writes
  RETURN v_id;
END $$;
SELECT accs.is_verb('apply_workflow', may => '{scheduler,api}');

-- Nobody can submit it any more, in any version; its jobs go on. Written anew, it is there again.
CREATE FUNCTION accs.retire_workflow(p_name text, p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM public.workflows w WHERE w.name = p_name) THEN
    RETURN QUERY SELECT accs.audited('retire_workflow', 'workflow', p_name, 'refused', p_by, p_reason, 'not_found'), 'not_found'::text;
    RETURN;
  END IF;
  PERFORM set_config('accs.by', coalesce(p_by, ''), true), set_config('accs.reason', coalesce(p_reason, ''), true);
  -- each version leaves its row in the audit
  UPDATE public.workflows w SET is_active = false WHERE w.name = p_name AND w.is_active;
  RETURN QUERY SELECT CASE WHEN FOUND THEN 'accepted'
                           ELSE accs.audited('retire_workflow', 'workflow', p_name, 'repeated', p_by, p_reason) END, NULL::text;
  PERFORM set_config('accs.by', '', true), set_config('accs.reason', '', true);
END $$;
SELECT accs.is_verb('retire_workflow', may => '{scheduler,api}');
