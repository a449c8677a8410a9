-- ---------------------------------------------------------------------------------------------------------------
-- Offers: tools that the services of a node declare, until an operator accepts them
-- ---------------------------------------------------------------------------------------------------------------

-- What a node says of itself, and no more: nothing here is a tool, and nobody has checked the document. Who accepts an offer checks it and
-- calls put_tool.
CREATE TABLE accs.tool_offers (
  node      text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  service   text NOT NULL CHECK (octet_length(service) <= 200),
  tool      text NOT NULL CHECK (octet_length(tool) <= 200),
  document  jsonb NOT NULL CHECK (jsonb_typeof(document) = 'object'),
  since     timestamptz NOT NULL DEFAULT accs.clock(),   -- said so, in these words
  PRIMARY KEY (node, service)
);

-- The tools that a node offers, in place of those that it offered before: [{name, service, input_schema, …}]. For register_node, which
-- must not fail for the size of one: what is too large, or names no service, is left out.
CREATE FUNCTION accs.note_offers(p_node text, p_tools jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF jsonb_typeof(p_tools) <> 'array' OR jsonb_array_length(p_tools) > 50 THEN
    RAISE EXCEPTION 'a node offers a list of at most 50 tools' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  p_tools := (SELECT coalesce(jsonb_agg(u.tool ORDER BY u.n), '[]') FROM jsonb_array_elements(p_tools) WITH ORDINALITY AS u (tool, n)
               WHERE jsonb_typeof(u.tool) = 'object' AND octet_length(u.tool ->> 'service') <= 200
                 AND octet_length(u.tool ->> 'name') <= 200
                 AND coalesce(octet_length((u.tool -> 'input_schema')::text), 0) <= 65536
                 AND coalesce(octet_length((u.tool -> 'output_schema')::text), 0) <= 65536
                 AND octet_length((u.tool - '{input_schema,output_schema}'::text[])::text) <= 65536);
  DELETE FROM accs.tool_offers o WHERE o.node = p_node
     AND NOT EXISTS (SELECT FROM jsonb_array_elements(p_tools) AS u (tool) WHERE u.tool ->> 'service' = o.service);
  INSERT INTO accs.tool_offers AS o (node, service, tool, document)
  SELECT DISTINCT ON (u.tool ->> 'service') p_node, u.tool ->> 'service', u.tool ->> 'name', u.tool
    FROM jsonb_array_elements(p_tools) WITH ORDINALITY AS u (tool, n) ORDER BY u.tool ->> 'service', u.n
  ON CONFLICT (node, service) DO UPDATE SET tool = excluded.tool, document = excluded.document, since = excluded.since
   WHERE o.document <> excluded.document;
END $$;
