-- ---------------------------------------------------------------------------------------------------------------
-- Files of workflow versions: objects in the store that are laid into every task of a version
-- ---------------------------------------------------------------------------------------------------------------

-- The files that tasks of a workflow are given: [{name, key, size, sha256}], as they stand in workflows.files or as a step has chosen from
-- them. A set never changes: a version that is written anew gets new sets, and its jobs keep those that they were submitted with. All of
-- them stay until the workflow goes, so what is named here is never taken out of the store.
CREATE TABLE accs.file_sets (
  id           int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  workflow_id  uuid NOT NULL REFERENCES public.workflows (id) ON DELETE CASCADE,
  files        jsonb NOT NULL
);

CREATE UNIQUE INDEX file_sets_workflow ON accs.file_sets (workflow_id, md5(files::text));   -- file_workflow; hashed, because lists are long

-- What is wrong with one file; null: nothing. A name is a path beneath the task's folder `files`.
CREATE FUNCTION accs.flaw_of_file(f jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN jsonb_typeof(f) <> 'object' THEN 'must be a JSON object'
    WHEN jsonb_typeof(f -> 'name') IS DISTINCT FROM 'string' THEN 'name is missing'
    WHEN octet_length(f ->> 'name') > 500 OR f ->> 'name' ~ '(^|/)\.{0,2}(/|$)|[^/]{255}[^/]|[[:cntrl:]\\]'
      THEN 'name must be a relative path without ".", ".." and "\", of up to 500 bytes'
    WHEN f ? 'source' THEN 'source is a path on the machine of its author: `accsd workflows apply` puts that file into the store'
    WHEN f - '{name,key,size,sha256}'::text[] <> '{}'
      THEN format('unknown field "%s"', (SELECT k FROM jsonb_object_keys(f - '{name,key,size,sha256}'::text[]) k LIMIT 1))
    WHEN jsonb_typeof(f -> 'key') IS DISTINCT FROM 'string' OR octet_length(f ->> 'key') NOT BETWEEN 1 AND 1024
      THEN 'key must be that of an object in the store'
    WHEN jsonb_typeof(f -> 'sha256') IS DISTINCT FROM 'string' OR f ->> 'sha256' !~ '^[0-9a-f]{64}$' THEN 'sha256 must be 64 hex digits'
    WHEN jsonb_typeof(f -> 'size') IS DISTINCT FROM 'number' OR f ->> 'size' !~ '^[0-9]{1,15}$' THEN 'size must be a number of bytes'
  END
$$;

CREATE FUNCTION accs.check_files(p_name text, p_files jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_problem text;
BEGIN
  IF jsonb_typeof(p_files) <> 'array' OR jsonb_array_length(p_files) > 1000 THEN
    PERFORM accs.invalid(p_name, 'files must be a list of up to 1,000 files');
  END IF;
  SELECT CASE WHEN f ->> 'name' <> '' THEN format('file "%s": ', left(f ->> 'name', 100)) ELSE format('file number %s: ', n) END
         || accs.flaw_of_file(f) INTO v_problem
    FROM jsonb_array_elements(p_files) WITH ORDINALITY e (f, n) WHERE accs.flaw_of_file(f) IS NOT NULL ORDER BY n LIMIT 1;
  IF v_problem IS NULL THEN
    WITH file AS MATERIALIZED (
      SELECT f ->> 'name' AS name, string_to_array(f ->> 'name', '/') AS parts FROM jsonb_array_elements(p_files) f)
    SELECT format('file "%s": the name is used twice', name) INTO v_problem FROM file GROUP BY name HAVING count(*) > 1
     UNION ALL
    SELECT format('file "%s": there is a file "%s", which is no folder', a.name, b.name)
      FROM file a, generate_series(1, cardinality(a.parts) - 1) i, file b WHERE b.name = array_to_string(a.parts[:i], '/') LIMIT 1;
  END IF;
  IF v_problem IS NULL AND (SELECT sum((f ->> 'size')::bigint) FROM jsonb_array_elements(p_files) f) > 107374182400 THEN
    v_problem := 'its files have more than 100 GiB together';
  END IF;
  IF v_problem IS NOT NULL THEN
    PERFORM accs.invalid(p_name, v_problem);
  END IF;
END $$;

-- The files that a step has chosen by their names, or by the folders that they are in; all where it has not chosen.
CREATE FUNCTION accs.chosen_files(p_files jsonb, p_wanted jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN p_wanted IS NULL THEN p_files ELSE (
    SELECT coalesce(jsonb_agg(f ORDER BY n), '[]') FROM jsonb_array_elements(p_files) WITH ORDINALITY e (f, n)
     WHERE EXISTS (SELECT FROM jsonb_array_elements_text(p_wanted) w
                    WHERE f ->> 'name' = w OR starts_with(f ->> 'name', rtrim(w, '/') || '/'))) END
$$;

-- Gives each compiled step the set of its files. After compile_workflow, whose name comes before this one's.
CREATE FUNCTION accs.file_workflow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_problem text;
BEGIN
  IF NEW.files = '[]' AND NOT jsonb_path_exists(NEW.steps, '$[*].files') THEN
    UPDATE accs.steps SET files = NULL WHERE workflow_id = NEW.id AND files IS NOT NULL;
    RETURN NULL;
  END IF;
  PERFORM accs.check_files(NEW.name, NEW.files);
  WITH wish AS MATERIALIZED (   -- 100,000 steps may wish for the same
    SELECT s -> 'files' AS wanted, min(n) AS n FROM jsonb_array_elements(NEW.steps) WITH ORDINALITY e (s, n) WHERE s ? 'files' GROUP BY 1)
  SELECT format('step "%s": files: there is neither a file nor a folder "%s" among the files of the workflow',
                NEW.steps -> (wish.n - 1)::int ->> 'key', left(w, 200)) INTO v_problem
    FROM wish, jsonb_array_elements_text(wish.wanted) w
   WHERE accs.chosen_files(NEW.files, jsonb_build_array(w)) = '[]' ORDER BY wish.n LIMIT 1;
  IF v_problem IS NOT NULL THEN
    PERFORM accs.invalid(NEW.name, v_problem);
  END IF;
  INSERT INTO accs.file_sets (workflow_id, files)
  SELECT DISTINCT NEW.id, c.files
    FROM (SELECT DISTINCT s -> 'files' AS wanted FROM jsonb_array_elements(NEW.steps) s) w, accs.chosen_files(NEW.files, w.wanted) c (files)
   WHERE c.files <> '[]'
  ON CONFLICT DO NOTHING;
  WITH step AS MATERIALIZED (
    SELECT n, s -> 'files' AS wanted FROM jsonb_array_elements(NEW.steps) WITH ORDINALITY e (s, n)
  ), choice AS MATERIALIZED (
    SELECT w.wanted, f.id FROM (SELECT DISTINCT wanted FROM step) w
      LEFT JOIN accs.file_sets f ON f.workflow_id = NEW.id AND md5(f.files::text) = md5(accs.chosen_files(NEW.files, w.wanted)::text))
  UPDATE accs.steps s SET files = choice.id FROM step JOIN choice ON coalesce(choice.wanted, 'null') = coalesce(step.wanted, 'null')
   WHERE s.workflow_id = NEW.id AND s.step_no = step.n AND s.files IS DISTINCT FROM choice.id;
  RETURN NULL;
END $$;
CREATE TRIGGER file_workflow AFTER INSERT OR UPDATE OF steps, notify, options_schema, files ON public.workflows
  FOR EACH ROW EXECUTE FUNCTION accs.file_workflow();
