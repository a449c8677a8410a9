-- ---------------------------------------------------------------------------------------------------------------
-- Audit: who did what, when, by which way, and why
-- ---------------------------------------------------------------------------------------------------------------

-- One count for the audit and for schedule_history: accs.audit_trail, which unites them, has an order.
CREATE SEQUENCE accs.audit_seq;

-- What people did, or asked for in vain: one row a call, written by the verb itself, so that psql leaves it too. Append-only.
CREATE TABLE accs.audit (
  id          bigint PRIMARY KEY DEFAULT nextval('accs.audit_seq'),
  ts          timestamptz NOT NULL DEFAULT accs.clock(),
  actor       text NOT NULL,                     -- who says to have done it (p_by), or the login
  via         text NOT NULL CHECK (via IN ('cli', 'http', 'mcp', 'sql')),
  action      text NOT NULL,                     -- the verb, as a rule
  kind        text NOT NULL,                     -- of what target names: job, node, service, workflow …
  target      text,                              -- null where a call named several, or none
  reason      text,
  answer      text NOT NULL CHECK (answer IN ('accepted', 'repeated', 'refused')),
  detail      jsonb,                             -- of several: how many of each answer, and the first ids; why one was refused
  request_id  text
);

CREATE FUNCTION accs.refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the audit is append-only: % is refused', TG_OP
    USING ERRCODE = 'AC005', HINT = 'The builder removes what is older than 400 days.';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON accs.audit
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_audit_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON accs.audit FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_audit_change();

-- By which way a call came: the gateway sets it for its transaction, the commands are known by the name of their connection. For the
-- record only: any login can set both, and nothing is allowed or refused because of them.
CREATE FUNCTION accs.via() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN current_setting('accs.via', true) IN ('cli', 'http', 'mcp', 'sql') THEN current_setting('accs.via')
              WHEN current_setting('application_name') IN ('accsd cli', 'accsd run', 'accsd demo') THEN 'cli' ELSE 'sql' END
$$;

-- Writes the row of a call and returns its answer, so that a verb can end with it. p_refusal says why it was refused.
CREATE FUNCTION accs.audited(p_action text, p_kind text, p_target text, p_answer text, p_by text, p_reason text,
                             p_refusal text DEFAULT NULL, p_detail jsonb DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
  INSERT INTO accs.audit (actor, via, action, kind, target, reason, answer, detail, request_id)
  VALUES (left(coalesce(nullif(p_by, ''), session_user), 200), accs.via(), p_action, p_kind, left(p_target, 300),
          left(p_reason, 2000), p_answer,
          nullif(coalesce(p_detail, '{}') || jsonb_strip_nulls(jsonb_build_object('refused', p_refusal)), '{}'),
          left(nullif(current_setting('accs.request_id', true), ''), 200))
  RETURNING answer
$$;

-- The same for a call that named several: one row, with how many of each answer, why which were refused, and the first ids.
CREATE FUNCTION accs.audit_each(p_action text, p_kind text, p_ids text[], p_answers text[], p_refusals text[], p_by text, p_reason text,
                                p_detail jsonb DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_n record;
BEGIN
  IF coalesce(cardinality(p_ids), 0) = 0 THEN   -- nothing was asked for
    RETURN;
  ELSIF cardinality(p_ids) = 1 THEN
    PERFORM accs.audited(p_action, p_kind, p_ids[1], p_answers[1], p_by, p_reason, p_refusals[1], p_detail);
    RETURN;
  END IF;
  SELECT count(*) FILTER (WHERE a = 'accepted') AS accepted, count(*) FILTER (WHERE a = 'repeated') AS repeated,
         count(*) FILTER (WHERE a = 'refused') AS refused INTO v_n FROM unnest(p_answers) a;
  PERFORM accs.audited(p_action, p_kind, NULL,
    CASE WHEN v_n.accepted > 0 THEN 'accepted' WHEN v_n.repeated > 0 THEN 'repeated' ELSE 'refused' END, p_by, p_reason, NULL,
    coalesce(p_detail, '{}') || jsonb_strip_nulls(jsonb_build_object(
      'count', cardinality(p_ids), 'accepted', v_n.accepted, 'repeated', nullif(v_n.repeated, 0),
      'refused', (SELECT jsonb_object_agg(r.why, r.n) FROM (SELECT coalesce(why, 'unknown') AS why, count(*) AS n
                    FROM unnest(p_answers, p_refusals) AS u (answer, why) WHERE u.answer = 'refused' GROUP BY 1) r),
      'ids', to_jsonb(p_ids[1:20]))));
END $$;

-- The same for verbs that answer row by row: the answers go through it.
CREATE FUNCTION accs.audit_answers(p_action text, p_kind text, p_answers accs.answer[], p_by text, p_reason text,
                                   p_detail jsonb DEFAULT NULL)
RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$
BEGIN
  PERFORM accs.audit_each(p_action, p_kind, ARRAY(SELECT a.id::text FROM unnest(p_answers) a),
    ARRAY(SELECT a.answer FROM unnest(p_answers) a), ARRAY(SELECT a.reason FROM unnest(p_answers) a), p_by, p_reason, p_detail);
  RETURN QUERY SELECT * FROM unnest(p_answers);
END $$;

-- Somebody was shown what is masked for others.
CREATE FUNCTION accs.note_reveal(p_kind text, p_target text, p_by text, p_reason text DEFAULT NULL, p_detail jsonb DEFAULT NULL)
RETURNS void LANGUAGE sql AS $$ SELECT accs.audited('reveal', p_kind, p_target, 'accepted', p_by, p_reason, NULL, p_detail) $$;
SELECT accs.is_verb('note_reveal', may => '{scheduler,api}');

-- Removes the oldest rows that are older than p_keep, up to p_limit. Their ids tell their order: no index on ts is needed.
CREATE FUNCTION accs.prune_audit(p_keep interval DEFAULT '400 days', p_limit int DEFAULT 10000) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_gone int;
BEGIN
  IF p_keep < interval '30 days' THEN
    RAISE EXCEPTION 'the audit is kept for 30 days at least' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  DELETE FROM accs.audit WHERE ts < accs.clock() - p_keep AND id = ANY (ARRAY(SELECT id FROM accs.audit ORDER BY id LIMIT p_limit));
  GET DIAGNOSTICS v_gone = ROW_COUNT;
  RETURN v_gone;
END $$;
SELECT accs.is_verb('prune_audit', may => '{scheduler}');
