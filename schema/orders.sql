-- ---------------------------------------------------------------------------------------------------------------
-- Orders: what a node is asked to do by somebody who can't do it for it
-- ---------------------------------------------------------------------------------------------------------------

-- One row for each order. It is given out once, while it is good.
CREATE TABLE accs.node_orders (
  id           uuid PRIMARY KEY,
  node         text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,   -- who is asked
  kind         text NOT NULL CHECK (kind IN ('relay', 'sleep')),
  target       text REFERENCES public.nodes (name) ON DELETE CASCADE,            -- relay: who is to be woken
  asked_by     text,
  asked_at     timestamptz NOT NULL DEFAULT accs.clock(),
  good_until   timestamptz NOT NULL,
  taken_at     timestamptz,
  answered_at  timestamptz,
  ok           boolean,
  output       text,
  CHECK ((kind = 'relay') = (target IS NOT NULL))
);

CREATE INDEX node_orders_open ON accs.node_orders (node) WHERE taken_at IS NULL;   -- take_orders

-- Asks a node to do something soon: 'relay' sends a magic packet for p_target, 'sleep' goes to sleep. Orders of yesterday go.
CREATE FUNCTION accs.ask_node(p_id uuid, p_node text, p_kind text, p_target text, p_by text, p_within interval, p_reason text DEFAULT NULL)
RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM accs.node_orders WHERE asked_at < accs.clock() - interval '1 day';
  INSERT INTO accs.node_orders (id, node, kind, target, asked_by, good_until)
  VALUES (p_id, p_node, p_kind, p_target, p_by, accs.clock() + p_within)
  ON CONFLICT (id) DO NOTHING;
  IF NOT FOUND THEN
    RETURN 'repeated';
  END IF;
  PERFORM pg_notify(accs.channel_prefix() || 'orders', p_node);
  IF p_kind = 'sleep' THEN   -- a person asks for it; a relay is part of a wake call
    PERFORM accs.audited('sleep', 'node', p_node, 'accepted', p_by, p_reason);
  END IF;
  RETURN 'accepted';
END $$;
SELECT accs.is_verb('ask_node', may => '{scheduler,api}');

-- What a node is asked to do; each order is given out once.
CREATE FUNCTION accs.take_orders(p_node text) RETURNS TABLE (id uuid, kind text, target text, mac text, asked_by text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  RETURN QUERY
  WITH taken AS (
    UPDATE accs.node_orders SET taken_at = accs.clock() WHERE node = p_node AND taken_at IS NULL AND good_until > accs.clock() RETURNING *
  )
  SELECT t.id, t.kind, t.target, n.mac, t.asked_by FROM taken t LEFT JOIN public.nodes n ON n.name = t.target ORDER BY t.asked_at;
END $$;
SELECT accs.is_verb('take_orders', may => '{agent}');

CREATE FUNCTION accs.answer_order(p_id uuid, p_node text, p_ok boolean, p_output text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  UPDATE accs.node_orders SET answered_at = accs.clock(), ok = p_ok, output = left(p_output, 2000)
   WHERE id = p_id AND node = p_node AND answered_at IS NULL;
  IF FOUND THEN
    RETURN 'accepted';
  END IF;
  RETURN CASE WHEN EXISTS (SELECT FROM accs.node_orders WHERE id = p_id AND node = p_node) THEN 'repeated' ELSE 'refused' END;
END $$;
SELECT accs.is_verb('answer_order', may => '{agent}');
