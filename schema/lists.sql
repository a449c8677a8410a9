-- ---------------------------------------------------------------------------------------------------------------
-- Lists that people page through: the key of their cursors, and views that somebody has saved
-- ---------------------------------------------------------------------------------------------------------------

-- What the gateways of this installation seal cursors with. Only the verb reads it.
CREATE TABLE accs.cursor_keys (
  one  boolean PRIMARY KEY DEFAULT true CHECK (one),
  key  bytea NOT NULL CHECK (length(key) = 32)
);
INSERT INTO accs.cursor_keys (key) VALUES (sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())));

CREATE FUNCTION accs.cursor_key() RETURNS bytea LANGUAGE sql STABLE AS $$ SELECT key FROM accs.cursor_keys $$;
SELECT accs.is_verb('cursor_key', may => '{api}');

-- A query under a name: of one actor, or shared by all, where owner is null.
CREATE TABLE accs.views (
  name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  owner       text CHECK (length(owner) BETWEEN 1 AND 200),
  query       jsonb NOT NULL CHECK (jsonb_typeof(query) = 'object' AND pg_column_size(query) <= 16384),
  revision    int NOT NULL DEFAULT 1,
  saved_by    text NOT NULL,
  saved_at    timestamptz NOT NULL DEFAULT accs.clock(),
  UNIQUE NULLS NOT DISTINCT (owner, name)
);

-- Saves a view. With a revision only if the view is still that one (0: there is none yet); the answer has the revision that stands.
CREATE FUNCTION accs.save_view(p_name text, p_query jsonb, p_owner text, p_by text, p_if_revision int DEFAULT NULL)
RETURNS TABLE (answer text, reason text, revision int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_found accs.views;
BEGIN
  INSERT INTO accs.views (name, owner, query, saved_by) SELECT p_name, p_owner, p_query, p_by
   WHERE coalesce(p_if_revision, 0) = 0 ON CONFLICT DO NOTHING;
  IF FOUND THEN
    PERFORM accs.audited('save_view', 'view', p_name, 'accepted', p_by, NULL);
    RETURN QUERY SELECT 'accepted', NULL::text, 1;
    RETURN;
  END IF;
  SELECT * INTO v_found FROM accs.views WHERE name = p_name AND owner IS NOT DISTINCT FROM p_owner FOR UPDATE;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'refused', 'not_found'::text, 0;
  ELSIF v_found.query = p_query THEN
    RETURN QUERY SELECT 'repeated', NULL::text, v_found.revision;
  ELSIF p_if_revision <> v_found.revision THEN
    RETURN QUERY SELECT 'refused', 'revised'::text, v_found.revision;
  ELSE
    UPDATE accs.views SET query = p_query, revision = v_found.revision + 1, saved_by = p_by, saved_at = accs.clock()
     WHERE name = p_name AND owner IS NOT DISTINCT FROM p_owner;
    PERFORM accs.audited('save_view', 'view', p_name, 'accepted', p_by, NULL);
    RETURN QUERY SELECT 'accepted', NULL::text, v_found.revision + 1;
  END IF;
END $$;
SELECT accs.is_verb('save_view', may => '{api}');

CREATE FUNCTION accs.drop_view(p_name text, p_owner text, p_by text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM accs.views WHERE name = p_name AND owner IS NOT DISTINCT FROM p_owner;
  RETURN accs.audited('drop_view', 'view', p_name, CASE WHEN FOUND THEN 'accepted' ELSE 'repeated' END, p_by, NULL);
END $$;
SELECT accs.is_verb('drop_view', may => '{api}');
