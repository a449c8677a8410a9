-- ---------------------------------------------------------------------------------------------------------------
-- Access: who acts, tokens, browser sessions, one-time codes
-- ---------------------------------------------------------------------------------------------------------------

-- Who acts. A name is never given to another one. limits: schedules, max_priority, runs_per_hour, least_interval_sec, and tools, the
-- beginnings of the names that it may use; none where one is missing.
CREATE TABLE accs.actors (
  id           uuid PRIMARY KEY DEFAULT accs.new_id(),
  name         text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 200),
  kind         text NOT NULL DEFAULT 'service' CHECK (kind IN ('person', 'service', 'assistant')),
  limits       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(limits) = 'object'
                 AND NOT jsonb_path_exists(limits - 'tools', 'strict $.* ? (@.type() != "number")')
                 AND coalesce(jsonb_typeof(limits -> 'tools'), 'array') = 'array'
                 AND NOT jsonb_path_exists(limits, '$.tools[*] ? (@.type() != "string")')),
  created_at   timestamptz NOT NULL DEFAULT accs.clock(),
  disabled_at  timestamptz
);

CREATE FUNCTION accs.put_actor(p_name text, p_kind text DEFAULT 'service', p_limits jsonb DEFAULT '{}', p_disabled boolean DEFAULT false,
                               p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
  v_id uuid;
BEGIN
  INSERT INTO accs.actors AS a (name, kind, limits, disabled_at) VALUES (p_name, p_kind, p_limits, CASE
    WHEN p_disabled THEN accs.clock() END)
  ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, limits = excluded.limits,
         disabled_at = CASE WHEN p_disabled THEN coalesce(a.disabled_at, excluded.disabled_at) END
  RETURNING id INTO v_id;
  PERFORM accs.audited('put_actor', 'actor', p_name, 'accepted', p_by, p_reason, NULL,
                       jsonb_build_object('kind', p_kind, 'limits', p_limits, 'disabled', p_disabled));
  RETURN v_id;
END $$;
SELECT accs.is_verb('put_actor', may => '{scheduler,api}');

-- What lets somebody in: 256 random bits that their owner alone has, here their SHA-256. id is the part of a token that is no
-- secret. Rights belong to the token: one actor may have several. limits narrows it: {workflows, services, events, tools: names, each
-- may end in *; door, project}. subject: a share, which shows one job.
CREATE TABLE accs.tokens (
  id            text PRIMARY KEY CHECK (id ~ '^[a-z0-9]{8}$'),
  sha256        bytea NOT NULL UNIQUE CHECK (length(sha256) = 32),
  name          text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  actor         text NOT NULL REFERENCES accs.actors (name),
  scopes        text[] NOT NULL CHECK (scopes <> '{}' AND scopes <@ '{read,submit,operate,admin,agent}'),
  limits        jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(limits) = 'object' AND pg_column_size(limits) <= 16384
                  AND limits - '{workflows,services,events,tools,door,project,artifacts}'::text[] = '{}'),
  subject       text CHECK (subject ~ '^job:[0-9a-f-]{36}$'),
  created_at    timestamptz NOT NULL DEFAULT accs.clock(),
  created_by    text NOT NULL,
  expires_at    timestamptz,
  last_used_at  timestamptz,                     -- to the minute
  revoked_at    timestamptz,
  revoked_by    text,
  of_token      text,                            -- the one that it was made with (exchange_token, create_share): it dies with that one
  CHECK (subject IS NULL OR (scopes = '{read}' AND expires_at <= created_at + interval '30 days') IS TRUE)
);

CREATE INDEX tokens_actor ON accs.tokens (actor);

-- The session of a browser. It ends after 12 h without a request, after 7 days, with its token, or when its actor is disabled.
-- scopes: of one that began with a code; otherwise those of the token count, as they are now.
CREATE TABLE accs.sessions (
  id            text PRIMARY KEY CHECK (id ~ '^[a-z0-9]{8}$'),
  sha256        bytea NOT NULL UNIQUE CHECK (length(sha256) = 32),
  actor         text NOT NULL REFERENCES accs.actors (name),
  token_id      text REFERENCES accs.tokens (id) ON DELETE CASCADE,
  scopes        text[] CHECK (scopes <> '{}' AND scopes <@ '{read,submit,operate,admin,agent}'),
  created_at    timestamptz NOT NULL DEFAULT accs.clock(),
  last_seen_at  timestamptz NOT NULL DEFAULT accs.clock(),
  expires_at    timestamptz NOT NULL,
  user_agent    text CHECK (length(user_agent) <= 200),
  CHECK ((token_id IS NULL) = (scopes IS NOT NULL))
);

CREATE INDEX sessions_token ON accs.sessions (token_id) WHERE token_id IS NOT NULL;   -- revoke_token

-- A code that opens one session, within 60 s.
CREATE TABLE accs.login_codes (
  sha256      bytea PRIMARY KEY CHECK (length(sha256) = 32),
  actor       text NOT NULL REFERENCES accs.actors (name),
  scopes      text[] NOT NULL CHECK (scopes <> '{}' AND scopes <@ '{read,submit,operate,admin,agent}'),
  expires_at  timestamptz NOT NULL
);

-- Makes the actor where there is none. Says why nobody may act in that name: it is disabled, or is of another kind.
CREATE FUNCTION accs.flaw_of_actor(p_name text, p_kind text, p_default text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_actor accs.actors;
BEGIN
  INSERT INTO accs.actors (name, kind) VALUES (p_name, coalesce(p_kind, p_default)) ON CONFLICT (name) DO NOTHING;
  SELECT * INTO v_actor FROM accs.actors WHERE name = p_name;
  RETURN CASE WHEN v_actor.disabled_at IS NOT NULL THEN 'actor_disabled' WHEN v_actor.kind <> p_kind THEN 'actor_of_another_kind' END;
END $$;

-- A token whose text the caller has made: only its digest comes here. p_lives null: it never expires. p_kind null: the kind that the
-- actor has, or service.
CREATE FUNCTION accs.create_token(p_id text, p_sha256 bytea, p_name text, p_scopes text[], p_actor text DEFAULT NULL,
                                  p_kind text DEFAULT NULL, p_limits jsonb DEFAULT '{}', p_lives interval DEFAULT '90 days',
                                  p_by text DEFAULT NULL, p_reason text DEFAULT NULL)
RETURNS TABLE (answer text, reason text, expires_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_actor text := coalesce(p_actor, p_name);
  v_said  jsonb := jsonb_strip_nulls(jsonb_build_object('name', p_name, 'actor', v_actor, 'scopes', p_scopes,
                                                        'limits', nullif(p_limits, '{}'), 'lives', p_lives));
  v_no    text;
  v_row   accs.tokens;
BEGIN
  SELECT * INTO v_row FROM accs.tokens t WHERE t.id = p_id;
  IF FOUND THEN   -- the answer of the first call was lost; another token of this id is next to impossible, and its maker tries again
    RETURN QUERY SELECT CASE WHEN v_row.sha256 = p_sha256 THEN 'repeated' ELSE 'refused' END,
                        CASE WHEN v_row.sha256 <> p_sha256 THEN 'id_taken' END, v_row.expires_at;
    RETURN;
  END IF;
  v_no := accs.flaw_of_actor(v_actor, p_kind, 'service');
  IF v_no IS NOT NULL THEN
    RETURN QUERY SELECT accs.audited('create_token', 'token', p_id, 'refused', p_by, p_reason, v_no, v_said), v_no, NULL::timestamptz;
    RETURN;
  END IF;
  INSERT INTO accs.tokens (id, sha256, name, actor, scopes, limits, created_by, expires_at)
  VALUES (p_id, p_sha256, p_name, v_actor, p_scopes, p_limits, coalesce(p_by, session_user), accs.clock() + p_lives) RETURNING * INTO v_row;
  RETURN QUERY SELECT accs.audited('create_token', 'token', p_id, 'accepted', p_by, p_reason, NULL, v_said), NULL::text, v_row.expires_at;
END $$;
SELECT accs.is_verb('create_token', may => '{scheduler,api}');

-- A token that shows one job to whoever has it, for 30 days at most. It belongs to the one who shares, and is dead when that one is
-- disabled. p_of: the token that he came with; the share lasts no longer than that one, and dies with it.
CREATE FUNCTION accs.create_share(p_id text, p_sha256 bytea, p_job uuid, p_lives interval, p_artifacts boolean DEFAULT false,
                                  p_by text DEFAULT NULL, p_reason text DEFAULT NULL, p_of text DEFAULT NULL)
RETURNS TABLE (answer text, reason text, expires_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_actor text := coalesce(p_by, session_user);
  v_of    accs.tokens;
  v_no    text;
  v_row   accs.tokens;
BEGIN
  SELECT * INTO v_row FROM accs.tokens t WHERE t.id = p_id;
  IF FOUND THEN
    RETURN QUERY SELECT CASE WHEN v_row.sha256 = p_sha256 THEN 'repeated' ELSE 'refused' END,
                        CASE WHEN v_row.sha256 <> p_sha256 THEN 'id_taken' END, v_row.expires_at;
    RETURN;
  END IF;
  v_no := CASE WHEN NOT EXISTS (SELECT FROM public.jobs j WHERE j.id = p_job) THEN 'not_found'
               WHEN (p_lives BETWEEN interval '0' AND interval '30 days') IS NOT TRUE THEN 'lives_too_long' END;
  v_no := coalesce(v_no, accs.flaw_of_actor(v_actor, NULL, 'person'));
  IF v_no IS NULL THEN
    SELECT * INTO v_of FROM accs.tokens WHERE id = p_of;
    INSERT INTO accs.tokens (id, sha256, name, actor, scopes, limits, subject, created_by, expires_at, of_token)
    VALUES (p_id, p_sha256, 'share of job ' || right(p_job::text, 8), v_actor, '{read}',
            CASE WHEN p_artifacts THEN '{"artifacts": true}'::jsonb ELSE '{}' END, 'job:' || p_job, v_actor,
            least(accs.clock() + p_lives, v_of.expires_at), coalesce(v_of.of_token, v_of.id))
    RETURNING * INTO v_row;
  END IF;
  RETURN QUERY SELECT accs.audited('create_share', 'job', p_job::text, CASE WHEN v_no IS NULL THEN 'accepted' ELSE 'refused' END, p_by,
                                   p_reason, v_no, jsonb_build_object('share', p_id, 'lives', p_lives, 'artifacts', p_artifacts)),
                      v_no, v_row.expires_at;
END $$;
SELECT accs.is_verb('create_share', may => '{scheduler,api}');

-- Ends a token, and its sessions with it.
CREATE FUNCTION accs.revoke_token(p_id text, p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS TABLE (answer text, reason text)
LANGUAGE plpgsql AS $$
DECLARE
  v_ended int;
BEGIN
  UPDATE accs.tokens SET revoked_at = accs.clock(), revoked_by = coalesce(p_by, session_user) WHERE id = p_id AND revoked_at IS NULL;
  IF FOUND THEN
    DELETE FROM accs.sessions WHERE token_id = p_id;
    GET DIAGNOSTICS v_ended = ROW_COUNT;
    RETURN QUERY SELECT accs.audited('revoke_token', 'token', p_id, 'accepted', p_by, p_reason, NULL,
                                     jsonb_strip_nulls(jsonb_build_object('sessions', nullif(v_ended, 0)))), NULL::text;
  ELSIF EXISTS (SELECT FROM accs.tokens WHERE id = p_id) THEN
    RETURN QUERY SELECT accs.audited('revoke_token', 'token', p_id, 'repeated', p_by, p_reason), NULL::text;
  ELSE
    RETURN QUERY SELECT accs.audited('revoke_token', 'token', p_id, 'refused', p_by, p_reason, 'not_found'), 'not_found'::text;
  END IF;
END $$;
SELECT accs.is_verb('revoke_token', may => '{scheduler,api}');

-- The one place that says which tokens let somebody in.
CREATE VIEW accs.live_tokens AS
  SELECT t.id, t.sha256, t.actor, a.kind, t.scopes, t.limits, t.subject, t.last_used_at, t.expires_at
    FROM accs.tokens t JOIN accs.actors a ON a.name = t.actor
   WHERE t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > accs.clock()) AND a.disabled_at IS NULL
     AND (t.of_token IS NULL OR EXISTS (SELECT FROM accs.tokens o WHERE o.id = t.of_token AND o.revoked_at IS NULL));

-- Who comes with a token: a row, or none. It only reads; is_stale says that touch_token is due. The digest is found by equality: whoever
-- could measure how far two digests agree would learn the beginning of a SHA-256, which tells nothing about the 256 random bits.
CREATE FUNCTION accs.check_token(p_id text, p_sha256 bytea)
RETURNS TABLE (actor text, kind text, scopes text[], limits jsonb, subject text, is_stale boolean) LANGUAGE sql STABLE AS $$
  SELECT t.actor, t.kind, t.scopes, t.limits, t.subject, (t.last_used_at >= date_trunc('minute', accs.clock())) IS NOT TRUE
    FROM accs.live_tokens t WHERE t.id = p_id AND t.sha256 = p_sha256
$$;
SELECT accs.is_verb('check_token', may => '{scheduler,api}');

-- A token for whoever comes with another one, such as the secret of an agent: of the same actor, with the same scopes and limits. It ends
-- after p_lives, and never later than that one. No row: that one lets nobody in, is a share, or is not of this actor.
CREATE FUNCTION accs.exchange_token(p_id text, p_sha256 bytea, p_with text, p_with_sha256 bytea, p_lives interval,
  p_actor uuid DEFAULT NULL)
RETURNS TABLE (actor text, scopes text[], expires_in interval) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO accs.tokens (id, sha256, name, actor, scopes, limits, created_by, expires_at, of_token)
  SELECT p_id, p_sha256, left('access by ' || t.name, 200), t.actor, t.scopes, t.limits, t.actor,
         least(accs.clock() + p_lives, t.expires_at), coalesce(t.of_token, t.id)
    FROM accs.live_tokens l JOIN accs.tokens t ON t.id = l.id JOIN accs.actors a ON a.name = t.actor
   WHERE l.id = p_with AND l.sha256 = p_with_sha256 AND l.subject IS NULL AND (p_actor IS NULL OR a.id = p_actor)
  ON CONFLICT (id) DO NOTHING;   -- the answer of the first call was lost
  RETURN QUERY SELECT t.actor, t.scopes, t.expires_at - accs.clock() FROM accs.tokens t WHERE t.id = p_id AND t.sha256 = p_sha256;
END $$;
SELECT accs.is_verb('exchange_token', may => '{scheduler,api}');

CREATE FUNCTION accs.touch_token(p_id text) RETURNS void LANGUAGE sql AS $$
  UPDATE accs.tokens SET last_used_at = date_trunc('minute', accs.clock())
   WHERE id = p_id AND (last_used_at >= date_trunc('minute', accs.clock())) IS NOT TRUE
$$;
SELECT accs.is_verb('touch_token', may => '{scheduler,api}');

-- All tokens, without what would let anybody in.
CREATE FUNCTION accs.list_tokens() RETURNS TABLE (
  id text, name text, actor text, kind text, scopes text[], limits jsonb, subject text, created_at timestamptz, created_by text,
  expires_at timestamptz, last_used_at timestamptz, revoked_at timestamptz, revoked_by text, state text
) LANGUAGE sql STABLE AS $$
  SELECT t.id, t.name, t.actor, a.kind, t.scopes, t.limits, t.subject, t.created_at, t.created_by, t.expires_at, t.last_used_at,
         coalesce(t.revoked_at, o.revoked_at), coalesce(t.revoked_by, o.revoked_by),
         CASE WHEN t.revoked_at IS NOT NULL OR o.revoked_at IS NOT NULL THEN 'revoked' WHEN t.expires_at <= accs.clock() THEN 'expired'
              WHEN a.disabled_at IS NOT NULL THEN 'disabled' ELSE 'live' END
    FROM accs.tokens t JOIN accs.actors a ON a.name = t.actor LEFT JOIN accs.tokens o ON o.id = t.of_token ORDER BY t.created_at DESC, t.id
$$;
SELECT accs.is_verb('list_tokens', may => '{scheduler,api}');

-- Whether anybody could come from elsewhere: a share is no reason to be open to others.
CREATE FUNCTION accs.any_tokens() RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT FROM accs.live_tokens WHERE subject IS NULL)
$$;
SELECT accs.is_verb('any_tokens', may => '{scheduler,api}');

-- A code for whoever can reach this database already. Only its digest comes here.
CREATE FUNCTION accs.create_code(p_sha256 bytea, p_actor text, p_scopes text[], p_by text DEFAULT NULL)
RETURNS TABLE (answer text, reason text) LANGUAGE plpgsql AS $$
DECLARE
  v_no text := accs.flaw_of_actor(p_actor, NULL, 'person');
BEGIN
  IF v_no IS NULL THEN
    INSERT INTO accs.login_codes (sha256, actor, scopes, expires_at) VALUES (p_sha256, p_actor, p_scopes, accs.clock() + interval '60 s')
    ON CONFLICT (sha256) DO NOTHING;
  END IF;
  RETURN QUERY SELECT accs.audited('create_code', 'actor', p_actor, CASE WHEN v_no IS NULL THEN 'accepted' ELSE 'refused' END,
                                   coalesce(p_by, p_actor), NULL, v_no, jsonb_build_object('scopes', p_scopes)), v_no;
END $$;
SELECT accs.is_verb('create_code', may => '{scheduler,api}');

-- Which sessions are alive, with what their callers may now.
CREATE VIEW accs.live_sessions AS
  SELECT s.id, s.sha256, s.actor, a.kind, coalesce(t.scopes, s.scopes) AS scopes, coalesce(t.limits, '{}') AS limits, s.token_id, t.subject,
         s.created_at, s.last_seen_at, s.expires_at, s.user_agent
    FROM accs.sessions s JOIN accs.actors a ON a.name = s.actor LEFT JOIN accs.live_tokens t ON t.id = s.token_id
   WHERE s.expires_at > accs.clock() AND a.disabled_at IS NULL AND (s.token_id IS NULL OR t.id IS NOT NULL);

-- Opens a session for a live token, or for a code, which is spent by it. No row: neither lets anybody in.
CREATE FUNCTION accs.open_session(p_id text, p_sha256 bytea, p_token_id text, p_token_sha256 bytea, p_code_sha256 bytea,
                                  p_user_agent text DEFAULT NULL)
RETURNS TABLE (actor text, kind text, scopes text[], limits jsonb, token_id text, subject text, expires_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_who record;
BEGIN
  IF p_code_sha256 IS NOT NULL THEN
    DELETE FROM accs.login_codes WHERE sha256 = p_code_sha256 AND expires_at > accs.clock()
    RETURNING actor, NULL::text AS token_id, scopes INTO v_who;
  ELSE
    SELECT t.actor, t.id AS token_id, NULL::text[] AS scopes INTO v_who FROM accs.live_tokens t
     WHERE t.id = p_token_id AND t.sha256 = p_token_sha256;
  END IF;
  IF v_who.actor IS NULL THEN
    RETURN;
  END IF;
  INSERT INTO accs.sessions (id, sha256, actor, token_id, scopes, expires_at, user_agent)
  VALUES (p_id, p_sha256, v_who.actor, v_who.token_id, v_who.scopes, accs.clock() + interval '12 hours', left(p_user_agent, 200));
  PERFORM accs.touch_token(v_who.token_id);
  RETURN QUERY SELECT s.actor, s.kind, s.scopes, s.limits, s.token_id, s.subject, s.expires_at FROM accs.live_sessions s WHERE s.id = p_id;
END $$;
SELECT accs.is_verb('open_session', may => '{scheduler,api}');

-- Who comes with a session's cookie: as check_token, it only reads.
CREATE FUNCTION accs.check_session(p_id text, p_sha256 bytea)
RETURNS TABLE (actor text, kind text, scopes text[], limits jsonb, token_id text, subject text, is_stale boolean) LANGUAGE sql STABLE AS $$
  SELECT s.actor, s.kind, s.scopes, s.limits, s.token_id, s.subject, s.last_seen_at <= accs.clock() - interval '1 min'
    FROM accs.live_sessions s WHERE s.id = p_id AND s.sha256 = p_sha256
$$;
SELECT accs.is_verb('check_session', may => '{scheduler,api}');

-- The session was used: it lives 12 h from now, but not longer than 7 days.
CREATE FUNCTION accs.touch_session(p_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE accs.sessions SET last_seen_at = accs.clock(),
         expires_at = least(accs.clock() + interval '12 hours', created_at + interval '7 days')
   WHERE id = p_id AND last_seen_at <= accs.clock() - interval '1 min' AND expires_at > accs.clock();
  IF FOUND THEN
    PERFORM accs.touch_token(s.token_id) FROM accs.sessions s WHERE s.id = p_id;
  END IF;
END $$;
SELECT accs.is_verb('touch_session', may => '{scheduler,api}');

CREATE FUNCTION accs.list_sessions() RETURNS TABLE (id text, actor text, token_id text, created_at timestamptz, last_seen_at timestamptz,
                                                    expires_at timestamptz, user_agent text) LANGUAGE sql STABLE AS $$
  SELECT s.id, s.actor, s.token_id, s.created_at, s.last_seen_at, s.expires_at, s.user_agent FROM accs.live_sessions s
   ORDER BY s.created_at DESC, s.id
$$;
SELECT accs.is_verb('list_sessions', may => '{scheduler,api}');

-- Who ends a session that is another one's (p_by) is in the audit; to log out is not.
CREATE FUNCTION accs.end_session(p_id text, p_by text DEFAULT NULL, p_reason text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  v_actor text;
BEGIN
  DELETE FROM accs.sessions WHERE id = p_id RETURNING actor INTO v_actor;
  IF v_actor <> p_by THEN
    PERFORM accs.audited('end_session', 'session', p_id, 'accepted', p_by, p_reason, NULL, jsonb_build_object('actor', v_actor));
  END IF;
  RETURN CASE WHEN v_actor IS NULL THEN 'repeated' ELSE 'accepted' END;
END $$;
SELECT accs.is_verb('end_session', may => '{scheduler,api}');

-- Removes what lets nobody in any more: codes, sessions and exchanged tokens at once, others when the audit forgets them too. Returns how
-- many.
CREATE FUNCTION accs.forget_access(p_keep interval DEFAULT '400 days') RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  v_codes    int;
  v_sessions int;
  v_tokens   int;
BEGIN
  DELETE FROM accs.login_codes WHERE expires_at <= accs.clock();
  GET DIAGNOSTICS v_codes = ROW_COUNT;
  DELETE FROM accs.sessions s WHERE NOT EXISTS (SELECT FROM accs.live_sessions l WHERE l.id = s.id);
  GET DIAGNOSTICS v_sessions = ROW_COUNT;
  DELETE FROM accs.tokens t WHERE least(t.revoked_at, t.expires_at) < accs.clock() -
    CASE WHEN t.of_token IS NULL OR t.subject IS NOT NULL THEN p_keep ELSE '0' END;
  GET DIAGNOSTICS v_tokens = ROW_COUNT;
  RETURN v_codes + v_sessions + v_tokens;
END $$;
SELECT accs.is_verb('forget_access', may => '{scheduler}');
