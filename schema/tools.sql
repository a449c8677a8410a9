-- ---------------------------------------------------------------------------------------------------------------
-- Tools: what a step may use, with the types of its input and its result
-- ---------------------------------------------------------------------------------------------------------------

-- A version of a tool never changes: workflows name it, and their jobs must mean tomorrow what they mean today. What changes is
-- written as the next version.
CREATE TABLE public.tools (
  id             uuid PRIMARY KEY DEFAULT accs.new_id(),
  name           text NOT NULL CHECK (name ~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$' AND length(name) <= 100),
  version        int NOT NULL CHECK (version >= 1),
  kind           text NOT NULL CHECK (kind IN ('service', 'http', 'builtin')),
  service        text NOT NULL CHECK (service ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$' AND service <> 'builder'),
  input_schema   jsonb NOT NULL CHECK (jsonb_typeof(input_schema) = 'object' AND pg_column_size(input_schema) <= 262144),
  output_schema  jsonb CHECK (jsonb_typeof(output_schema) = 'object' AND pg_column_size(output_schema) <= 262144),
  request        jsonb CHECK (jsonb_typeof(request) = 'object' AND pg_column_size(request) <= 65536),   -- kind http: url, method, headers
  defaults       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(defaults) = 'object'),   -- of steps that use it
  description    text NOT NULL DEFAULT '' CHECK (octet_length(description) <= 16384),
  examples       jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(examples) = 'array' AND pg_column_size(examples) <= 65536),
  scopes         text[] NOT NULL DEFAULT '{}',
  is_active      boolean NOT NULL DEFAULT true,
  created_at     timestamptz NOT NULL DEFAULT accs.clock(),
  created_by     text,
  UNIQUE (name, version),
  CHECK ((kind = 'service') = (service <> 'accs')),   -- the control host does the others
  CHECK ((kind = 'http') = (request IS NOT NULL)),
  CHECK ((kind = 'builtin') = starts_with(name, 'accs.'))
);

CREATE FUNCTION accs.keep_tool() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND (to_jsonb(OLD) - 'is_active') IS DISTINCT FROM (to_jsonb(NEW) - 'is_active') THEN
    RAISE EXCEPTION 'tool "%@%" can''t be changed', OLD.name, OLD.version
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'accs.put_tool writes what has changed as its next version.';
  ELSIF TG_OP = 'DELETE' AND EXISTS (
    SELECT FROM public.workflows w
     WHERE w.steps @> jsonb_build_array(jsonb_build_object('uses', format('%s@%s', OLD.name, OLD.version)))) THEN
    RAISE EXCEPTION 'tool "%@%" is used by a workflow', OLD.name, OLD.version
      USING ERRCODE = 'foreign_key_violation', HINT = 'accs.retire_tool keeps new workflows from using it.';
  END IF;
  RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER keep_tool BEFORE UPDATE OR DELETE ON public.tools FOR EACH ROW EXECUTE FUNCTION accs.keep_tool();

-- Writes a tool: as its next version where it differs from the newest one, which is in use again otherwise.
CREATE FUNCTION accs.put_tool(p_tool jsonb, p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (tool text, tool_version int, answer text) LANGUAGE plpgsql AS $$
DECLARE
  v_was public.tools;
  v_new public.tools;
BEGIN
  PERFORM accs.lock('tools');
  SELECT * INTO v_was FROM public.tools t WHERE t.name = p_tool ->> 'name' ORDER BY t.version DESC LIMIT 1;
  v_new := jsonb_populate_record(NULL::public.tools, jsonb_build_object('defaults', '{}'::jsonb, 'description', '', 'examples', '[]'::jsonb,
             'scopes', '[]'::jsonb) || jsonb_strip_nulls(p_tool) || jsonb_build_object(
             'id', accs.new_id(), 'version', coalesce(v_was.version, 0) + 1, 'is_active', true, 'created_at', accs.clock(),
             'created_by', coalesce(p_by, session_user)));
  IF v_new.kind = 'builtin' THEN
    RAISE EXCEPTION 'a tool of kind builtin comes with accsd' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF to_jsonb(v_was) - '{id,version,is_active,created_at,created_by}'::text[]
     = to_jsonb(v_new) - '{id,version,is_active,created_at,created_by}'::text[] THEN
    UPDATE public.tools t SET is_active = true WHERE t.id = v_was.id AND NOT t.is_active;
    RETURN QUERY SELECT v_was.name, v_was.version, accs.audited('put_tool', 'tool', format('%s@%s', v_was.name, v_was.version),
      CASE WHEN FOUND THEN 'accepted' ELSE 'repeated' END, p_by, p_reason);
    RETURN;
  END IF;
  INSERT INTO public.tools SELECT v_new.*;
  RETURN QUERY SELECT v_new.name, v_new.version,
    accs.audited('put_tool', 'tool', format('%s@%s', v_new.name, v_new.version), 'accepted', p_by, p_reason);
END $$;
SELECT accs.is_verb('put_tool', may => '{scheduler,api}');

-- No new workflow can use it, in this version or in any (null). What uses it goes on.
CREATE FUNCTION accs.retire_tool(p_name text, p_version int DEFAULT NULL, p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
DECLARE
  v_which text := concat_ws('@', p_name, p_version);
BEGIN
  PERFORM accs.lock('tools');
  IF NOT EXISTS (SELECT FROM public.tools t WHERE t.name = p_name AND t.version = coalesce(p_version, t.version)) THEN
    RETURN QUERY SELECT accs.audited('retire_tool', 'tool', v_which, 'refused', p_by, p_reason, 'not_found'), 'not_found'::text;
    RETURN;
  ELSIF starts_with(p_name, 'accs.') THEN
    RETURN QUERY SELECT accs.audited('retire_tool', 'tool', v_which, 'refused', p_by, p_reason, 'builtin'), 'builtin'::text;
    RETURN;
  END IF;
  UPDATE public.tools t SET is_active = false WHERE t.name = p_name AND t.version = coalesce(p_version, t.version) AND t.is_active;
  RETURN QUERY SELECT accs.audited('retire_tool', 'tool', v_which, CASE WHEN FOUND THEN 'accepted' ELSE 'repeated' END, p_by, p_reason),
                      NULL::text;
END $$;
SELECT accs.is_verb('retire_tool', may => '{scheduler,api}');

CREATE FUNCTION accs.tool_named(p_uses text) RETURNS public.tools LANGUAGE sql STABLE AS $$
  SELECT t.* FROM public.tools t
   WHERE t.name = split_part(p_uses, '@', 1)
     AND t.version = CASE WHEN split_part(p_uses, '@', 2) ~ '^[1-9][0-9]{0,8}$' THEN split_part(p_uses, '@', 2)::int END
$$;

-- What is wrong with the tool of a step; null: nothing. Who writes a workflow chooses the version, so that it stays the same.
CREATE FUNCTION accs.flaw_of_use(s jsonb) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN jsonb_typeof(s -> 'uses') <> 'string' OR s ->> 'uses' !~ '^[a-z][a-z0-9_.]{0,99}@[1-9][0-9]{0,8}$'
      THEN 'uses must be a tool and its version, such as media.probe@1'
    WHEN t.id IS NULL THEN format('there is no tool "%s"', s ->> 'uses')
    WHEN s ->> 'service' IS DISTINCT FROM t.service THEN format('the tool "%s" needs the service "%s"', s ->> 'uses', t.service)
  END
    FROM (SELECT) one LEFT JOIN accs.tool_named(s ->> 'uses') t ON true
$$;

-- Whether limits of an actor allow a tool: it begins with one of the names under "tools", where there are some.
CREATE FUNCTION accs.may_use(p_limits jsonb, p_tool text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT NOT p_limits ? 'tools'
      OR EXISTS (SELECT FROM jsonb_array_elements_text(p_limits -> 'tools') AS u (name) WHERE starts_with(p_tool, rtrim(u.name, '*')))
$$;

-- Who writes a workflow may use its tools; for those who write without accsd.
CREATE FUNCTION accs.check_use() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_by   text := coalesce(NEW.created_by, session_user);
  v_step jsonb;
BEGIN
  SELECT s INTO v_step FROM accs.actors a, jsonb_array_elements(NEW.steps) s
   WHERE a.name = v_by AND s ? 'uses' AND NOT accs.may_use(a.limits, split_part(s ->> 'uses', '@', 1)) LIMIT 1;
  IF FOUND THEN
    PERFORM accs.invalid(NEW.name, format('step "%s": %s may not use the tool "%s"', v_step ->> 'key', v_by, v_step ->> 'uses'));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER use_of_tools AFTER INSERT OR UPDATE OF steps, created_by ON public.workflows
  FOR EACH ROW WHEN (NEW.steps @? '$[*].uses') EXECUTE FUNCTION accs.check_use();

-- Of these jobs and tools: those that the owner of the workflow, or who submitted the job, may not use any more.
CREATE FUNCTION accs.refused_tools(p_jobs uuid[], p_tools text[]) RETURNS TABLE (job_id uuid, tool text, actor text)
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN QUERY
  SELECT u.job_id, u.tool, a.name
    FROM unnest(p_jobs, p_tools) AS u (job_id, tool)
    JOIN public.jobs j ON j.id = u.job_id JOIN public.workflows f ON f.id = j.workflow_id
    JOIN accs.actors a ON a.name IN (f.created_by, j.created_by)
   WHERE NOT accs.may_use(a.limits, u.tool) ORDER BY a.name;
END $$;
SELECT accs.is_verb('refused_tools', may => '{scheduler}');

-- What every installation has. The control host does it; assert and transform need nobody but the resolver.
INSERT INTO public.tools (name, version, kind, service, description, input_schema, output_schema) VALUES
  ('accs.emit_event', 1, 'builtin', 'accs', 'Emits an event. A repeated attempt emits it once.',
   '{"type": "object", "required": ["topic"], "additionalProperties": false, "properties": {
       "topic": {"type": "string", "minLength": 1, "maxLength": 200}, "payload": {"type": "object"},
       "key": {"type": "string", "minLength": 1, "maxLength": 200}}}',
   '{"type": "object", "required": ["event_id"], "properties": {"event_id": {"type": "integer"}}}'),
  ('accs.submit', 1, 'builtin', 'accs', 'Submits a job. With wait the step ends with that job, and fails if it fails.',
   '{"type": "object", "required": ["workflow"], "additionalProperties": false, "properties": {
       "workflow": {"type": "string", "minLength": 1, "maxLength": 200}, "version": {"type": "integer", "minimum": 1},
       "options": {"type": "object"}, "priority": {"type": "integer", "minimum": -2147483648, "maximum": 2147483647},
       "wait": {"type": "boolean"}}}',
   '{"type": "object", "required": ["job_id"], "properties": {"job_id": {"type": "string"}, "status": {"type": "string"}}}'),
  ('accs.wait_event', 1, 'builtin', 'accs', 'Ends when an event of a topic comes that matches, or when so much time has passed.',
   '{"type": "object", "required": ["topic"], "additionalProperties": false, "properties": {
       "topic": {"type": "string", "minLength": 1, "maxLength": 200}, "match": {"type": "string", "minLength": 1, "maxLength": 4096},
       "values": {"type": "object"}, "timeout": {"type": ["string", "number"]}}}',
   '{"type": "object", "required": ["timed_out"], "properties": {"timed_out": {"type": "boolean"}, "event": {"type": "object"}}}'),
  ('accs.assert', 1, 'builtin', 'accs', 'Fails, for good, where a condition does not hold.',
   '{"type": "object", "required": ["that"], "additionalProperties": false, "properties": {
       "that": {"type": "boolean"}, "message": {"type": "string", "maxLength": 1000}}}', NULL),
  ('accs.transform', 1, 'builtin', 'accs', 'Its result is its input: with is worked out, and no node is needed.',
   '{"type": "object", "additionalProperties": true}', NULL);
