-- ---------------------------------------------------------------------------------------------------------------
-- History that outlives the database: archives of months, retention of finished jobs (docs/history.md)
-- ---------------------------------------------------------------------------------------------------------------

-- One row for each month of a table that was written to the object store, in the order of the chain; it stays for ever. A month is
-- sorted by its subjects: the jobs of task_events, the schedules of firings, the topics of events.
CREATE TABLE accs.archives (
  id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  partition      text NOT NULL,
  from_ts        timestamptz NOT NULL,
  to_ts          timestamptz NOT NULL,
  rows           bigint NOT NULL CHECK (rows >= 0),
  mark_sum       numeric NOT NULL,           -- of accs.mark_of(row): with the count, whether the table still holds the same rows
  bytes          bigint NOT NULL,            -- of the JSONL, whose checksum follows
  sha256         text NOT NULL,
  bucket         text NOT NULL,
  key            text NOT NULL,
  size_bytes     bigint NOT NULL,            -- of the object
  index_sha256   text NOT NULL,              -- of the object beside it that says where the rows of each subject are
  first_subject  text COLLATE "C",           -- whoever asks for another one needs no look into it
  last_subject   text COLLATE "C",
  previous       text NOT NULL,              -- the digest before this one; empty for the first
  digest         text NOT NULL UNIQUE,
  created_at     timestamptz NOT NULL DEFAULT accs.clock(),
  verified_at    timestamptz,                -- when it was last read back and was what it should be
  refused        text,                       -- what was wrong with it when it was looked at last
  superseded_at  timestamptz,                -- rows came after it was written: another archive holds them all
  dropped_at     timestamptz                 -- since then the store has the only copy
);

CREATE UNIQUE INDEX archives_open ON accs.archives (partition) WHERE dropped_at IS NULL AND superseded_at IS NULL;

CREATE FUNCTION accs.refuse_archive_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'accs.archives is the record of what was archived: % is refused', TG_OP
    USING ERRCODE = 'AC005', HINT = 'accsd history verify says whether the chain of digests holds.';
END $$;
CREATE TRIGGER append_only BEFORE INSERT OR UPDATE OR DELETE ON accs.archives
  FOR EACH ROW WHEN (NOT accs.in_verb()) EXECUTE FUNCTION accs.refuse_archive_change();
CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON accs.archives
  FOR EACH STATEMENT EXECUTE FUNCTION accs.refuse_archive_change();

-- Each digest covers the one before it: who changes an archive, or takes one out, has to change all that follow.
CREATE FUNCTION accs.archive_digest(p_previous text, p_partition text, p_rows bigint, p_sha256 text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT encode(sha256(convert_to(concat_ws(E'\n', p_previous, p_partition, p_rows, p_sha256), 'UTF8')), 'hex') $$;

-- A month of a table in accs.monthly, and no other table; returns that table. One that is gone is none any more; its name still is.
CREATE FUNCTION accs.check_month(p_partition text) RETURNS accs.monthly LANGUAGE plpgsql AS $$
DECLARE
  v_table accs.monthly;
BEGIN
  SELECT * INTO v_table FROM accs.monthly WHERE name = accs.table_of(p_partition);
  IF NOT FOUND OR to_regclass('public.' || p_partition) IS NOT NULL AND NOT EXISTS (
       SELECT FROM pg_inherits WHERE inhparent = to_regclass('public.' || v_table.name)
                                 AND inhrelid = to_regclass('public.' || p_partition)) THEN
    RAISE EXCEPTION '"%" is no month of a table that is archived', left(p_partition, 100) USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN v_table;
END $$;

-- Puts an archive whose objects are in the store on record. The same one again (after a crash) is the same row; other
-- content takes the place of what was not dropped yet. Who has not seen the end of the chain is refused and looks again.
CREATE FUNCTION accs.record_archive(
  p_partition text, p_rows bigint, p_mark_sum numeric, p_bytes bigint, p_sha256 text, p_bucket text, p_key text, p_size_bytes bigint,
  p_index_sha256 text, p_first_subject text, p_last_subject text, p_previous text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_from timestamptz;
  v_open accs.archives;
  v_head text;
  v_id   bigint;
BEGIN
  PERFORM accs.check_month(p_partition);
  PERFORM accs.lock('archives');
  SELECT * INTO v_open FROM accs.archives a WHERE a.partition = p_partition AND a.dropped_at IS NULL AND a.superseded_at IS NULL;
  IF FOUND AND (v_open.sha256, v_open.rows, v_open.bucket, v_open.key) = (p_sha256, p_rows, p_bucket, p_key) THEN
    -- another version may write its index in another way; one with another place in the chain is not this archive's
    UPDATE accs.archives SET size_bytes = p_size_bytes, index_sha256 = p_index_sha256, verified_at = NULL
     WHERE id = v_open.id AND previous = p_previous AND (size_bytes, index_sha256) <> (p_size_bytes, p_index_sha256);
    RETURN v_open.id;
  END IF;
  IF to_regclass('public.' || p_partition) IS NULL THEN
    RAISE EXCEPTION '% is gone: another builder has archived and dropped it', p_partition USING ERRCODE = 'AC004';
  END IF;
  v_from := accs.begin_of(p_partition) AT TIME ZONE 'UTC';
  SELECT a.digest INTO v_head FROM accs.archives a ORDER BY a.id DESC LIMIT 1;
  IF coalesce(v_head, '') <> p_previous THEN
    RAISE EXCEPTION '%: another archive was recorded meanwhile', p_partition USING ERRCODE = 'AC005', HINT = 'Try again.';
  END IF;
  UPDATE accs.archives SET superseded_at = accs.clock() WHERE id = v_open.id;
  INSERT INTO accs.archives (partition, from_ts, to_ts, rows, mark_sum, bytes, sha256, bucket, key, size_bytes, index_sha256, first_subject,
                             last_subject, previous, digest)
  VALUES (p_partition, v_from, (v_from AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC', p_rows, p_mark_sum, p_bytes, p_sha256,
          p_bucket, p_key, p_size_bytes, p_index_sha256, p_first_subject, p_last_subject, p_previous,
          accs.archive_digest(p_previous, p_partition, p_rows, p_sha256))
  RETURNING id INTO v_id;
  RETURN v_id;
END $$;
SELECT accs.is_verb('record_archive', may => '{archive}');

-- What was found when an archive was read back. Null: it is what was recorded; else what is wrong with it.
CREATE FUNCTION accs.check_archive(p_id bigint, p_rows bigint, p_bytes bigint, p_sha256 text, p_problem text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  v_archive accs.archives;
  v_problem text := p_problem;
BEGIN
  SELECT * INTO v_archive FROM accs.archives WHERE id = p_id FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no archive %', p_id USING ERRCODE = 'AC004';
  END IF;
  IF v_problem IS NULL AND p_rows IS DISTINCT FROM v_archive.rows THEN
    v_problem := format('it holds %s rows, and %s were archived', p_rows, v_archive.rows);
  ELSIF v_problem IS NULL AND (p_bytes, p_sha256) IS DISTINCT FROM (v_archive.bytes, v_archive.sha256) THEN
    v_problem := format('its checksum is %s, and %s was archived', p_sha256, v_archive.sha256);
  END IF;
  UPDATE accs.archives SET refused = v_problem, verified_at = CASE WHEN v_problem IS NULL THEN accs.clock() ELSE verified_at END
   WHERE id = p_id;
  RETURN v_problem;
END $$;
SELECT accs.is_verb('check_archive', may => '{archive}');

-- Drops a partition whose archive was just read back. Null: it is gone; else why it is not. Counted under a lock that keeps
-- writers of that month out and nobody else. DETACH CONCURRENTLY is not for tables with a default partition; so everybody
-- waits for the drop, but never longer than a fifth of a second: behind a long reader it gives up, and the next pass tries.
CREATE FUNCTION accs.drop_archived(p_id bigint) RETURNS text LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
  v_archive accs.archives;
  v_table   accs.monthly;
  v_rows    bigint;
  v_marks   numeric;
  v_needed  boolean;
  v_reason  text;
BEGIN
  SELECT * INTO v_archive FROM accs.archives WHERE id = p_id FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no archive %', p_id USING ERRCODE = 'AC004';
  ELSIF v_archive.dropped_at IS NOT NULL THEN
    RETURN NULL;
  END IF;
  v_reason := CASE WHEN v_archive.superseded_at IS NOT NULL THEN 'a newer archive has taken its place'
                   WHEN v_archive.refused IS NOT NULL THEN v_archive.refused
                   WHEN v_archive.verified_at IS NULL OR v_archive.verified_at < accs.clock() - interval '1 hour'
                     THEN 'it was not read back within the last hour'
                   WHEN v_archive.to_ts > accs.clock() - interval '1 day' THEN 'its month has not been over for a day' END;
  IF v_reason IS NOT NULL THEN
    RETURN v_reason;
  END IF;
  v_table := accs.check_month(v_archive.partition);
  BEGIN
    IF to_regclass('public.' || v_archive.partition) IS NOT NULL THEN
      EXECUTE format('LOCK TABLE public.%I IN SHARE MODE', v_archive.partition);
      -- of the parent, within the bounds of the month: marks are those of its rows
      EXECUTE format('SELECT count(*), coalesce(sum(accs.mark_of(e)), 0) FROM public.%1$I e WHERE %2$I >= %3$L AND %2$I < %4$L',
                     v_table.name, v_table.at, (accs.bounds_of(v_archive.partition))[1], (accs.bounds_of(v_archive.partition))[2])
        INTO v_rows, v_marks;
      IF (v_rows, v_marks) <> (v_archive.rows, v_archive.mark_sum) THEN
        v_reason := CASE WHEN v_rows = v_archive.rows THEN 'the table has other rows than were archived'
                         ELSE format('the table has %s rows, and %s were archived', v_rows, v_archive.rows) END;
        UPDATE accs.archives SET refused = v_reason WHERE id = p_id;
        RETURN v_reason;
      END IF;
      PERFORM set_config('lock_timeout', '200ms', true);
      -- the parent first, as its readers do; then nobody is under way who has found a row here and is about to need it
      EXECUTE format('LOCK TABLE ONLY public.%I IN ACCESS EXCLUSIVE MODE', v_table.name);
      EXECUTE format('LOCK TABLE public.%I IN ACCESS EXCLUSIVE MODE', v_archive.partition);
      EXECUTE format('SELECT EXISTS (SELECT FROM public.%I e WHERE %s)', v_archive.partition, v_table.stays) INTO v_needed;
      IF v_needed THEN
        RETURN 'some of its rows are still needed; the next pass tries again';
      END IF;
      EXECUTE format('DROP TABLE public.%I', v_archive.partition);
    END IF;
  EXCEPTION WHEN lock_not_available THEN
    RETURN format('somebody reads %s all the time; the next pass tries again', v_table.name);
  END;
  UPDATE accs.archives SET dropped_at = accs.clock() WHERE id = p_id;
  RETURN NULL;
END $$;
SELECT accs.is_verb('drop_archived', may => '{archive}');

-- Objects of jobs that were removed: noted in the same transaction, taken out of the store afterwards.
CREATE TABLE accs.doomed_objects (
  bucket  text NOT NULL,
  key     text NOT NULL,
  since   timestamptz NOT NULL DEFAULT accs.clock(),
  PRIMARY KEY (bucket, key)
);

-- Gives back what these tasks have borrowed. An object that nobody has any more, the job that made it included, is taken out of the store.
CREATE FUNCTION accs.return_files(p_task_ids uuid[]) RETURNS void LANGUAGE sql AS $$
  WITH gone AS (DELETE FROM accs.borrowed_files WHERE job_task_id = ANY (p_task_ids) RETURNING *)
  INSERT INTO accs.doomed_objects (bucket, key)
  SELECT DISTINCT g.bucket, g.key FROM gone g
   WHERE starts_with(g.key, 'outputs/' || g.owner || '/')
     AND NOT EXISTS (SELECT FROM public.task_artifacts a WHERE a.bucket = g.bucket AND a.key = g.key)
     AND NOT EXISTS (SELECT FROM accs.borrowed_files b WHERE b.bucket = g.bucket AND b.key = g.key AND b.job_task_id <> ALL (p_task_ids))
  ON CONFLICT DO NOTHING
$$;

-- Removes jobs that ended longer ago than p_age, or than p_ages of their workflow says (null: never), with their tasks,
-- dead letters and artifacts. Walks along the global order: p_scan jobs after p_after, fewer where they have many tasks (a
-- million rows in one call would never end in time); next_after of the last row (its workflow
-- is null) is where to go on, null at the end. Kept in any case is what somebody still has to do with: an open dead
-- letter, an undelivered outgoing event. Events stay; they leave with their month. p_dry_run counts and removes nothing.
CREATE FUNCTION accs.delete_finished_jobs(
  p_age interval, p_workflows text[] DEFAULT '{}', p_ages interval[] DEFAULT '{}', p_after bigint DEFAULT 0, p_scan int DEFAULT 1000,
  p_dry_run boolean DEFAULT false
) RETURNS TABLE (workflow text, jobs bigint, tasks bigint, artifacts bigint, bytes bigint, kept bigint, next_after bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   timestamptz := accs.clock();
  v_seen  uuid[];
  v_due   uuid[];
  v_next  bigint;
  v_first timestamptz;
BEGIN
  SELECT array_agg(s.id) FILTER (WHERE s.before < 20000), min(s.created_at),
         CASE WHEN count(*) = p_scan OR bool_or(s.before >= 20000) THEN max(s.order_seq) FILTER (WHERE s.before < 20000) END
    INTO v_seen, v_first, v_next
    FROM (SELECT j.*, sum(j.task_count) OVER (ORDER BY j.order_seq) - j.task_count AS before
            FROM (SELECT j.id, j.order_seq, j.created_at, j.task_count FROM public.jobs j
                   WHERE j.order_seq > p_after ORDER BY j.order_seq LIMIT p_scan) j) s;
  IF v_first > v_now - (SELECT min(a) FROM unnest(p_ages || p_age) a) THEN
    v_next := NULL;   -- who was submitted later has not ended long ago
  END IF;
  SELECT array_agg(l.id) INTO v_due FROM (
    SELECT j.id FROM public.jobs j JOIN public.workflows f ON f.id = j.workflow_id
     WHERE j.id = ANY (v_seen) AND j.status IN ('done', 'error', 'cancelled')
       AND coalesce(j.finished_at, j.updated_at)
           < v_now - CASE WHEN f.name = ANY (p_workflows)
                          THEN (SELECT o.age FROM unnest(p_workflows, p_ages) AS o (name, age) WHERE o.name = f.name LIMIT 1)
                          ELSE p_age END
     ORDER BY j.id FOR UPDATE OF j SKIP LOCKED) l;
  RETURN QUERY
  WITH due AS (
    SELECT j.id, f.name,
           EXISTS (SELECT FROM public.job_tasks t JOIN public.dead_letters d ON d.job_task_id = t.id
                    WHERE t.job_id = j.id AND d.redriven_at IS NULL AND d.dismissed_at IS NULL)
           OR EXISTS (SELECT FROM public.outbox_events o WHERE o.job_id = j.id AND o.status = 'pending') AS is_kept
      FROM public.jobs j JOIN public.workflows f ON f.id = j.workflow_id WHERE j.id = ANY (v_due)
  )
  SELECT d.name, count(*) FILTER (WHERE NOT d.is_kept), coalesce(sum(t.n) FILTER (WHERE NOT d.is_kept), 0)::bigint,
         coalesce(sum(a.n) FILTER (WHERE NOT d.is_kept), 0)::bigint, coalesce(sum(a.bytes) FILTER (WHERE NOT d.is_kept), 0)::bigint,
         count(*) FILTER (WHERE d.is_kept), NULL::bigint
    FROM due d
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM public.job_tasks t WHERE t.job_id = d.id) t
    CROSS JOIN LATERAL (SELECT count(*) AS n, sum(a.size_bytes) AS bytes FROM public.task_artifacts a WHERE a.job_id = d.id) a
   GROUP BY d.name ORDER BY d.name;
  IF NOT p_dry_run AND v_due IS NOT NULL THEN
    SELECT array_agg(j.id) INTO v_due FROM unnest(v_due) AS j (id)
     WHERE NOT EXISTS (SELECT FROM public.job_tasks t JOIN public.dead_letters d ON d.job_task_id = t.id
                        WHERE t.job_id = j.id AND d.redriven_at IS NULL AND d.dismissed_at IS NULL)
       AND NOT EXISTS (SELECT FROM public.outbox_events o WHERE o.job_id = j.id AND o.status = 'pending');
    -- only what lies where accsd puts a job's objects: an input may be somebody's own file elsewhere
    INSERT INTO accs.doomed_objects (bucket, key)
    SELECT a.bucket, a.key FROM public.task_artifacts a
     WHERE a.job_id = ANY (v_due) AND starts_with(a.key, a.kind || 's/' || a.job_id || '/')
       AND NOT EXISTS (SELECT FROM accs.borrowed_files b WHERE b.bucket = a.bucket AND b.key = a.key AND b.job_id <> ALL (v_due))
    ON CONFLICT DO NOTHING;
    DELETE FROM public.dead_letters d USING public.job_tasks t WHERE t.job_id = ANY (v_due) AND d.job_task_id = t.id;
    DELETE FROM public.task_artifacts a WHERE a.job_id = ANY (v_due);
    PERFORM accs.return_files(ARRAY(SELECT b.job_task_id FROM accs.borrowed_files b WHERE b.job_id = ANY (v_due)));
    DELETE FROM accs.concurrency_keys k USING public.job_tasks t
     WHERE t.job_id = ANY (v_due) AND t.resolve IS NOT NULL AND k.key = 'map/' || t.id;
    DELETE FROM accs.cached_results c USING public.job_tasks t
     WHERE t.job_id = ANY (v_due) AND (t.resolve IS NOT NULL OR t.parent IS NOT NULL) AND c.task_id = t.id;
    DELETE FROM public.job_tasks t WHERE t.job_id = ANY (v_due);
    DELETE FROM public.jobs j WHERE j.id = ANY (v_due);
    PERFORM accs.forget_deployments(v_due);
  END IF;
  RETURN QUERY SELECT NULL::text, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, v_next;
END $$;
SELECT accs.is_verb('delete_finished_jobs', may => '{archive}');

-- These objects are out of the store.
CREATE FUNCTION accs.forget_objects(p_bucket text, p_keys text[]) RETURNS bigint LANGUAGE sql AS $$
  WITH gone AS (DELETE FROM accs.doomed_objects WHERE bucket = p_bucket AND key = ANY (p_keys) RETURNING 1) SELECT count(*) FROM gone
$$;
SELECT accs.is_verb('forget_objects', may => '{archive}');
