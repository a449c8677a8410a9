-- ---------------------------------------------------------------------------------------------------------------
-- Nodes: who registers one and may speak for it, whether it is there, awake or asleep
-- ---------------------------------------------------------------------------------------------------------------

CREATE TABLE public.nodes (
  name             text PRIMARY KEY CHECK (name <> ''),
  labels           jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object'),
  last_seen        timestamptz CHECK (last_seen BETWEEN '0001-01-02Z' AND '9999-12-30Z'),
  awake_state      text NOT NULL DEFAULT 'unknown' CHECK (awake_state IN ('unknown', 'awake', 'sleep')),
  wake_method      text CHECK (wake_method IN ('wol', 'provider', 'script')),
  mac              text,
  provider_ref     text,
  script           text,
  max_concurrency  jsonb NOT NULL DEFAULT '{}'
                   CHECK (jsonb_typeof(max_concurrency) = 'object'
                          AND NOT jsonb_path_exists(max_concurrency,
                                                    '$.* ? (@.type() != "number" || @ < 0 || @ > 1000000 || @.floor() != @)')),
  -- additions: whose it is, and which machine and process last registered it
  login            text,
  machine_id       text,
  boot_id          text,
  instance         text,
  CONSTRAINT bounded CHECK (octet_length(name) <= 200 AND pg_column_size(labels) <= 65536 AND pg_column_size(max_concurrency) <= 65536
    AND octet_length(concat(mac, provider_ref, script, machine_id, boot_id, instance)) <= 8192)
) WITH (fillfactor = 50);

-- A row for each service that a node offers. Two claims of one node lock it in turn, so that they do not both see the last free
-- slot; a row, for the reason that accs.locks has.
CREATE TABLE accs.slots (
  node     text NOT NULL,
  service  text NOT NULL,
  PRIMARY KEY (node, service)
);

-- Waking and sleeping, beside nodes.awake_state. try_id is the fence of whoever makes the last call; ok is null until he has
-- said whether it got through. A node that is seen is ready, whatever was before.
CREATE TABLE accs.power (
  node          text PRIMARY KEY REFERENCES public.nodes (name) ON DELETE CASCADE,
  state         text NOT NULL CHECK (state IN ('unknown', 'asleep', 'waking', 'booting', 'ready', 'failed')),
  since         timestamptz NOT NULL DEFAULT accs.clock(),
  because       text,                       -- why it is awake (its agent says it), or is not woken (the builder does)
  try_id        uuid,
  tried_at      timestamptz,
  method        text,
  ok            boolean,
  error         text,                       -- why that call did not get through
  tries         int NOT NULL DEFAULT 0,     -- since the node was last seen
  called_at     timestamptz,                -- the last call since then that got through
  called_by     text,                       -- by which method
  brought_by    text,                       -- the method that brought it when it came last
  latency       interval,                   -- usual: from the call until the node is seen
  last_latency  interval,
  networks      cidr[] NOT NULL DEFAULT '{}',  -- the segments that it is in: who shares one can wake it
  watts         jsonb CHECK (jsonb_typeof(watts) = 'object'   -- what it draws: asleep, booting, idle, busy; null: nobody has said
                             AND NOT jsonb_path_exists(watts, '$.* ? (@.type() != "number" || @ < 0)'))
) WITH (fillfactor = 50);

-- What happened to each node, the last 1,000 things.
CREATE TABLE accs.node_history (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  node     text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  ts       timestamptz NOT NULL DEFAULT accs.clock(),
  state    text NOT NULL,
  message  text NOT NULL,
  data     jsonb NOT NULL DEFAULT '{}'
);

CREATE INDEX node_history_node ON accs.node_history (node, id);

-- Why an agent that lives takes no tasks of a service now: its disk is full, its engine is away, the service says "not now".
CREATE TABLE accs.obstacles (
  node         text NOT NULL REFERENCES public.nodes (name) ON DELETE CASCADE,
  service      text NOT NULL,
  since        timestamptz NOT NULL DEFAULT accs.clock(),
  reason       text NOT NULL,
  PRIMARY KEY (node, service)
);

-- Whoever is the owner, or the control host, acts for every node. A verb runs as the owner; session_user is who has logged in.
CREATE FUNCTION accs.speaks_for_all() RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT pg_has_role(session_user, current_user, 'MEMBER')
         OR coalesce(pg_has_role(session_user, to_regrole('accs_scheduler'), 'MEMBER'), false)
$$;

CREATE FUNCTION accs.check_size(p_rows int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_rows > 10000 THEN
    RAISE EXCEPTION 'one call is for at most 10,000 rows, and this one has %', p_rows
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Divide it.';
  END IF;
END $$;

-- For the verbs of an attempt: who calls them may speak for this node, asks for no endless lease, and for a number of tasks that
-- one transaction can bear. A node belongs to the first login that registers it and does not speak for all.
-- (The verbs look themselves whether there is anything to check: a call costs as much as a small statement.)
CREATE FUNCTION accs.check_caller(p_node text, p_rows int DEFAULT 0, p_lease interval DEFAULT '1 s') RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_login text;
BEGIN
  PERFORM accs.check_size(p_rows);
  IF (p_lease > '0' AND p_lease <= accs.longest_lease()) IS NOT TRUE THEN
    RAISE EXCEPTION 'a lease of % is not possible: it lasts longer than 0 and at most %', p_lease, accs.longest_lease()
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF session_user <> current_user AND NOT accs.speaks_for_all() THEN
    SELECT coalesce(login, session_user) INTO v_login FROM public.nodes WHERE name = p_node;
    IF v_login IS DISTINCT FROM session_user::text THEN
      RAISE EXCEPTION 'not_your_node: "%" %, and this is the login "%"', p_node,
          CASE WHEN v_login IS NULL THEN 'is not registered' ELSE format('belongs to the login "%s"', v_login) END, session_user
        USING ERRCODE = 'AC006',
              HINT = format('To give it to this login: accsd db node-login %s; to start anew: accsd nodes remove %s.', p_node, p_node);
    END IF;
  END IF;
END $$;

-- The same for the verbs of an attempt. What the control host does itself are tools, as nodes of its own; nobody else may do them: they
-- have its secrets.
CREATE FUNCTION accs.check_attempt(p_node text, p_rows int DEFAULT 0, p_lease interval DEFAULT '1 s', p_service text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_control boolean := accs.is_control(p_node);
BEGIN
  PERFORM accs.check_caller(p_node, p_rows, p_lease);
  IF session_user = current_user OR pg_has_role(session_user, current_user, 'MEMBER') THEN
    RETURN;
  ELSIF p_service IS NOT NULL AND v_control <> (p_service = 'accs')
        OR NOT coalesce(pg_has_role(session_user, to_regrole(CASE WHEN v_control THEN 'accs_scheduler' ELSE 'accs_agent' END), 'MEMBER'),
                        true) THEN
    RAISE EXCEPTION 'not_your_node: "%" is for %, and this is the login "%"', p_node,
        CASE WHEN v_control THEN 'the tools of a control host' ELSE 'services of a node' END, session_user
      USING ERRCODE = 'AC006', HINT = 'A control host does tools (the service accs), and agents do everything else.';
  END IF;
END $$;

CREATE FUNCTION accs.is_control(p_node text) RETURNS boolean LANGUAGE sql STABLE AS $$ SELECT starts_with(p_node, 'control/') $$;

-- A thing that happened to a node.
CREATE FUNCTION accs.note_node(p_node text, p_state text, p_message text, p_data jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO accs.node_history (node, state, message, data) VALUES (p_node, p_state, p_message, jsonb_strip_nulls(p_data));
  DELETE FROM accs.node_history WHERE node = p_node
     AND id <= (SELECT id FROM accs.node_history WHERE node = p_node ORDER BY id DESC OFFSET 1000 LIMIT 1);
END $$;

-- A node's power takes a new state, and its history says so.
CREATE FUNCTION accs.note_power(p_node text, p_state text, p_message text, p_data jsonb DEFAULT '{}') RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE accs.power SET state = p_state, since = accs.clock() WHERE node = p_node AND state <> p_state;
  IF FOUND THEN
    PERFORM accs.log_power(p_node, p_state, p_message, p_data ->> 'method');
  END IF;
  INSERT INTO accs.node_history (node, state, message, data) VALUES (p_node, p_state, p_message, jsonb_strip_nulls(p_data));
  DELETE FROM accs.node_history WHERE node = p_node
     AND id <= (SELECT id FROM accs.node_history WHERE node = p_node ORDER BY id DESC OFFSET 1000 LIMIT 1);
END $$;

-- At each heartbeat, so it is little while nothing changes: whoever is seen is ready. How long it took since the last call is
-- what it is expected to take the next time; one slow start does not change that much. A call that is still under way counts,
-- too: a script may wait until the machine is up. Who comes much later than any machine takes to start was switched on by
-- somebody else: that is no measure, or it would be waited for as long the next time. The builder hears of it, because others
-- may be waiting to start.
CREATE FUNCTION accs.node_seen(p_node text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_was  accs.power;
  v_took interval;
  v_by   text;
BEGIN
  SELECT * INTO v_was FROM accs.power WHERE node = p_node AND state <> 'ready' FOR UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  IF v_was.called_at IS NOT NULL THEN
    v_took := accs.clock() - v_was.called_at;
    v_by := v_was.called_by;
  ELSIF v_was.try_id IS NOT NULL AND v_was.ok IS NULL THEN
    v_took := accs.clock() - v_was.tried_at;
    v_by := v_was.method;
  END IF;
  IF v_took > interval '30 min' THEN
    v_took := NULL;
    v_by := NULL;
  END IF;
  UPDATE accs.power SET because = NULL, try_id = NULL, tries = 0, error = NULL, called_at = NULL, called_by = NULL,
    brought_by = coalesce(v_by, brought_by), last_latency = coalesce(v_took, last_latency),
    latency = CASE WHEN v_took IS NULL THEN latency WHEN latency IS NULL THEN v_took ELSE latency + (v_took - latency) * 0.3 END
   WHERE node = p_node;
  PERFORM accs.note_power(p_node, 'ready',
    CASE WHEN v_took IS NULL THEN 'it is there'
         ELSE format('it is there, %s s after it was called by %s', round(extract(epoch FROM v_took), 1), v_by) END,
    jsonb_build_object('latency_ms', round(extract(epoch FROM v_took) * 1000), 'method', v_by, 'tries', nullif(v_was.tries, 0)));
  IF v_was.tries > 0 THEN
    PERFORM pg_notify(accs.channel_prefix() || 'builder', '');
  END IF;
END $$;

-- Of another process than the one that has registered the node.
CREATE FUNCTION accs.refuse_instance(p_node text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_node public.nodes;
BEGIN
  SELECT * INTO v_node FROM public.nodes WHERE name = p_node;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'node "%" is not registered', p_node USING ERRCODE = 'AC004', HINT = 'Call accs.register_node first.';
  END IF;
  RAISE EXCEPTION 'the name "%" is taken: machine %, boot %, process % was seen under it % s ago', p_node,
      coalesce(v_node.machine_id, 'unknown'), coalesce(v_node.boot_id, 'unknown'), coalesce(v_node.instance, 'unknown'),
      round(extract(epoch FROM accs.clock() - v_node.last_seen), 1)
    USING ERRCODE = 'AC007', HINT = 'Give one of the two machines another name: node.name in its settings, or ACC_NODE_NAME.';
END $$;

-- Registers a node or says anew what it offers. What is null stays as it is; watts of {} and tools of [] are forgotten. The
-- control host runs what `script` names, so an agent's login must not choose it: it could name any program there. Two machines
-- with one name would take each other's tasks for their own. Where the boot differs, another instance has to be silent for
-- p_lease, or to have said goodbye, before the name changes hands (a replaced disk, a power cut); clones of a disk share the
-- machine's id.
CREATE FUNCTION accs.register_node(
  p_name text, p_labels jsonb DEFAULT '{}', p_max_concurrency jsonb DEFAULT '{}', p_wake_method text DEFAULT NULL, p_mac text DEFAULT NULL,
  p_provider_ref text DEFAULT NULL, p_script text DEFAULT NULL, p_networks cidr[] DEFAULT NULL,
  p_machine_id text DEFAULT NULL, p_boot_id text DEFAULT NULL, p_instance text DEFAULT NULL, p_lease interval DEFAULT '2 min',
  p_watts jsonb DEFAULT NULL, p_tools jsonb DEFAULT NULL
) RETURNS SETOF public.nodes LANGUAGE plpgsql AS $$
DECLARE
  v_now   timestamptz := accs.clock();
  v_login text := CASE WHEN NOT accs.speaks_for_all() THEN session_user END;
  v_was   public.nodes;
BEGIN
  INSERT INTO public.nodes (name) VALUES (p_name) ON CONFLICT DO NOTHING;
  SELECT * INTO v_was FROM public.nodes WHERE name = p_name FOR NO KEY UPDATE;
  PERFORM accs.check_caller(p_name, 0, p_lease);
  IF p_instance <> v_was.instance AND p_boot_id IS DISTINCT FROM v_was.boot_id THEN
    IF v_was.awake_state = 'awake' AND v_was.last_seen > v_now - p_lease THEN
      PERFORM accs.refuse_instance(p_name);
    END IF;
    PERFORM accs.note_node(p_name, 'registered', CASE WHEN p_machine_id = v_was.machine_id THEN 'its machine has started anew'
        ELSE format('another machine has taken the name over: %s, before it %s',
                    coalesce(p_machine_id, 'unknown'), coalesce(v_was.machine_id, 'unknown')) END,
      jsonb_build_object('boot_id', p_boot_id, 'boot_id_before', v_was.boot_id));
  END IF;
  RETURN QUERY
  UPDATE public.nodes n SET last_seen = v_now, awake_state = 'awake', login = coalesce(n.login, v_login),
    labels = coalesce(p_labels, n.labels), max_concurrency = coalesce(p_max_concurrency, n.max_concurrency),
    wake_method = coalesce(p_wake_method, n.wake_method), mac = coalesce(p_mac, n.mac),
    provider_ref = coalesce(p_provider_ref, n.provider_ref),
    script = CASE WHEN v_login IS NULL THEN coalesce(p_script, n.script) ELSE n.script END,
    machine_id = CASE WHEN p_instance IS NULL THEN n.machine_id ELSE p_machine_id END,
    boot_id = CASE WHEN p_instance IS NULL THEN n.boot_id ELSE p_boot_id END, instance = coalesce(p_instance, n.instance)
   WHERE n.name = p_name
  RETURNING n.*;
  INSERT INTO accs.slots (node, service) SELECT p_name, k FROM jsonb_object_keys(p_max_concurrency) k ORDER BY k ON CONFLICT DO NOTHING;
  INSERT INTO accs.power AS w (node, state, networks) VALUES (p_name, 'unknown', coalesce(p_networks, '{}'))
  ON CONFLICT (node) DO UPDATE SET networks = p_networks WHERE p_networks IS NOT NULL AND w.networks <> p_networks;
  UPDATE accs.power SET watts = nullif(p_watts, '{}')
   WHERE node = p_name AND p_watts IS NOT NULL AND watts IS DISTINCT FROM nullif(p_watts, '{}');
  IF p_tools IS NOT NULL THEN
    PERFORM accs.note_offers(p_name, p_tools);
  END IF;
  IF v_was.awake_state = 'awake' AND v_was.last_seen < v_now - p_lease THEN
    PERFORM accs.log_silence(p_name, v_was.last_seen);
  END IF;
  PERFORM accs.node_seen(p_name);
END $$;
SELECT accs.is_verb('register_node', may => '{agent,scheduler}');

-- Some labels of a node, the others stay: two who label it at once lose nothing of each other. Null: the node is not there.
CREATE FUNCTION accs.label_node(p_node text, p_add jsonb DEFAULT '{}', p_remove text[] DEFAULT '{}') RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  v_labels jsonb;
BEGIN
  PERFORM FROM public.nodes WHERE name = p_node FOR NO KEY UPDATE;
  PERFORM accs.check_caller(p_node);
  UPDATE public.nodes SET labels = labels - p_remove || p_add WHERE name = p_node RETURNING labels INTO v_labels;
  RETURN v_labels;
END $$;
SELECT accs.is_verb('label_node', may => '{gateway,scheduler}');

-- A machine that is no more: its name, its history and what was held against it go. What runs there, or was seen within p_silent, stays.
CREATE FUNCTION accs.forget_node(p_name text, p_silent interval DEFAULT '2 min', p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
DECLARE
  v_node public.nodes;
  v_no   text;
BEGIN
  SELECT * INTO v_node FROM public.nodes WHERE name = p_name FOR UPDATE;
  IF NOT FOUND THEN
    v_no := 'not_found';
  ELSIF EXISTS (SELECT FROM accs.live WHERE node = p_name) THEN
    v_no := 'holds_tasks';
  ELSIF v_node.awake_state = 'awake' AND v_node.last_seen > accs.clock() - p_silent THEN
    v_no := 'is_here';
  ELSE
    DELETE FROM accs.slots WHERE node = p_name;
    DELETE FROM accs.conclusions WHERE node = p_name;
    DELETE FROM accs.pauses WHERE kind = 'node' AND name = p_name;
    DELETE FROM public.nodes WHERE name = p_name;
  END IF;
  -- what is no machine comes and goes with its process, and nobody has removed it
  IF NOT (coalesce(v_node.labels ? 'accs.kind', false) OR starts_with(p_name, 'control/')) THEN
    PERFORM accs.audited('forget_node', 'node', p_name, CASE WHEN v_no IS NULL THEN 'accepted' ELSE 'refused' END, p_by, p_reason, v_no);
  END IF;
  RETURN QUERY SELECT CASE WHEN v_no IS NULL THEN 'accepted' ELSE 'refused' END, v_no;
END $$;
SELECT accs.is_verb('forget_node', may => '{scheduler,api}');

-- Why a node stays awake, as its agent sees it.
CREATE FUNCTION accs.note_awake(p_node text, p_because text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  UPDATE accs.power SET because = left(p_because, 2000)
   WHERE node = p_node AND state = 'ready' AND because IS DISTINCT FROM left(p_because, 2000);
  RETURN CASE WHEN FOUND THEN 'accepted' ELSE 'repeated' END;
END $$;
SELECT accs.is_verb('note_awake', may => '{agent}');

-- An orderly goodbye: 'unknown' when the daemon stops, 'sleep' when the machine goes to sleep. When it was last seen stays. A node
-- that goes to sleep must hold no lease, and names the nodes that it relies on to be awake. The goodbye is refused if one of those
-- has left, so that two nodes that rely on each other do not both sleep.
CREATE FUNCTION accs.node_leaves(p_node text, p_awake_state text DEFAULT 'unknown', p_because text DEFAULT NULL,
                                 p_counting_on text[] DEFAULT '{}')
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_state text := CASE p_awake_state WHEN 'sleep' THEN 'asleep' ELSE 'unknown' END;
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  IF p_awake_state = 'sleep' THEN
    PERFORM accs.lock('node_leaves');
    IF EXISTS (SELECT FROM accs.live WHERE node = p_node)
       OR EXISTS (SELECT FROM public.nodes WHERE name = ANY (p_counting_on) AND awake_state <> 'awake') THEN
      RETURN 'refused';
    END IF;
  END IF;
  UPDATE public.nodes SET awake_state = p_awake_state WHERE name = p_node AND awake_state <> p_awake_state;
  IF FOUND THEN
    INSERT INTO accs.power (node, state) VALUES (p_node, 'ready') ON CONFLICT DO NOTHING;
    UPDATE accs.power SET because = NULL WHERE node = p_node;
    PERFORM accs.note_power(p_node, v_state,
      coalesce(p_because, CASE v_state WHEN 'asleep' THEN 'it goes to sleep' ELSE 'its agent stops' END));
    RETURN 'accepted';
  ELSIF EXISTS (SELECT FROM public.nodes WHERE name = p_node) THEN
    RETURN 'repeated';
  END IF;
  RAISE EXCEPTION 'node "%" is not registered', p_node USING ERRCODE = 'AC004', HINT = 'Call accs.register_node first.';
END $$;
SELECT accs.is_verb('node_leaves', may => '{agent,scheduler}');

-- What keeps this node from a service that it offers; null: nothing. For who asks why his task waits.
CREATE FUNCTION accs.note_obstacle(p_node text, p_service text, p_reason text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF session_user <> current_user THEN
    PERFORM accs.check_caller(p_node);
  END IF;
  IF p_reason IS NULL THEN
    DELETE FROM accs.obstacles WHERE node = p_node AND service = p_service;
  ELSE
    INSERT INTO accs.obstacles AS o (node, service, reason)
    SELECT n.name, left(p_service, 40), left(p_reason, 2000) FROM public.nodes n WHERE n.name = p_node
    ON CONFLICT (node, service) DO UPDATE SET reason = excluded.reason WHERE o.reason <> excluded.reason;
  END IF;
  RETURN CASE WHEN FOUND THEN 'accepted' ELSE 'repeated' END;
END $$;
SELECT accs.is_verb('note_obstacle', may => '{agent}');
