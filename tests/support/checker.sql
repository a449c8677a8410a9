-- The history checker: what can be recounted from the rows and the events must agree with what the verbs have kept.
-- One query, one snapshot: no row when all is well, else (rule, id, detail).
--   $1 interval  how long past its lease a live task may stand; null: as long as it likes
--   $2 text[]    keys whose limit was lowered while their tasks ran: those may be over it until they end
--   $3 uuid[]    jobs whose submission was acknowledged: they must exist
WITH
moves AS MATERIALIZED (   -- the transitions as the events tell them, each with what came before it in its task or job
  SELECT e.id, e.job_id, e.job_task_id, coalesce(e.job_task_id, e.job_id) AS subject,
         CASE WHEN e.job_task_id IS NULL THEN 'job' ELSE 'task' END AS entity, e.type,
         e.data ->> 'from' AS from_status, e.data ->> 'to' AS to_status, e.attempt_id,
         e.data ->> 'owner' AS owner, e.data ->> 'reason' AS reason, e.ts, (e.data -> 'tolerated') = 'true' AS tolerated,
         lag(e.data ->> 'to', 1, 'queued') OVER past AS state_before,
         lead(e.id) OVER past AS until,
         count(*) FILTER (WHERE e.data ->> 'from' IN ('done', 'error', 'skipped', 'cancelled')) OVER past AS generation,
         coalesce(max(e.attempt_id) FILTER (WHERE e.data ->> 'to' = 'starting')
                    OVER (past ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS claimed_before
    FROM public.task_events e
   WHERE e.type IN ('status', 'retry') AND e.data ? 'from' AND e.data ? 'to'
  WINDOW past AS (PARTITION BY e.job_id, e.job_task_id ORDER BY e.id)
), told AS MATERIALIZED (   -- where the events leave each task and job
  SELECT subject, (array_agg(to_status ORDER BY id DESC))[1] AS status, max(generation) AS generation,
         coalesce(max(attempt_id) FILTER (WHERE to_status = 'starting'), 0) AS attempt_id
    FROM moves GROUP BY subject
), task AS MATERIALIZED (
  SELECT t.*, t.status IN ('queued', 'starting', 'running') AS is_open, t.status IN ('starting', 'running') AS is_live
    FROM public.job_tasks t
), edge AS MATERIALIZED (   -- every step that a task names
  SELECT t.id, t.status, t.remaining, t.parent, m.id AS step
    FROM task t CROSS JOIN LATERAL unnest(t.depends_on) AS k (task_key) LEFT JOIN task m ON m.job_id = t.job_id AND m.task_key = k.task_key
), need AS MATERIALIZED (   -- every dependency: satisfied by done, by skipped unless that means that it can never run, and by what is tolerated
  SELECT e.id, e.status, e.remaining, d.id AS needs, d.created_at, e.parent IS NULL OR e.parent = e.step AS counts,   -- an item waits for its step alone
         d.status = 'done' OR d.status = 'skipped' AND d.error_code IS DISTINCT FROM 'upstream_failed' OR coalesce(d.tolerated, false) AS satisfied
    FROM (SELECT e.*, e.step AS needs FROM edge e
          UNION ALL   -- of a step that was multiplied, each of its tasks
          SELECT e.*, c.id FROM edge e JOIN task c ON c.parent = e.step WHERE e.parent IS NULL) e
    LEFT JOIN task d ON d.id = e.needs
), counted AS MATERIALIZED (   -- what a job's tasks add up to
  SELECT job_id, count(*) AS tasks, count(*) FILTER (WHERE is_open) AS open,
         sum(CASE WHEN status IN ('done', 'skipped', 'error') THEN 1 WHEN status = 'queued' THEN 0 ELSE progress END) AS progress,
         count(*) FILTER (WHERE status IN ('error', 'cancelled') AND tolerated IS NULL) AS failed,
         (array_agg(coalesce(error_code, 'error') ORDER BY finished_at, id)
            FILTER (WHERE status IN ('error', 'cancelled') AND tolerated IS NULL))[1] AS first_code
    FROM task GROUP BY job_id
), room AS MATERIALIZED (
  SELECT k.key, k.max_running, k.max_running - (SELECT count(*) FROM accs.live l WHERE l.key = k.key) AS free
    FROM accs.concurrency_keys k
)

-- Events
SELECT 'an attempt has one owner' AS rule, subject::text AS id,
       format('attempt %s was claimed %s times, by %s', attempt_id, count(*), string_agg(owner, ', ')) AS detail
  FROM moves WHERE to_status = 'starting' GROUP BY subject, attempt_id HAVING count(*) > 1
UNION ALL
SELECT 'every claim has a new attempt_id', subject::text, format('event %s claims attempt %s after %s', id, attempt_id, claimed_before)
  FROM moves WHERE to_status = 'starting' AND attempt_id IS DISTINCT FROM claimed_before + 1
UNION ALL
SELECT 'a generation is done once', subject::text, format('generation %s is done %s times', generation, count(*))
  FROM moves WHERE entity = 'task' AND to_status = 'done' GROUP BY subject, generation HAVING count(*) > 1
UNION ALL
SELECT 'events chain', subject::text, format('event %s moves a %s from %s, which was %s', id, entity, from_status, state_before)
  FROM moves WHERE from_status IS DISTINCT FROM state_before
UNION ALL
SELECT 'every move is legal', m.subject::text, format('event %s: %s %s → %s', m.id, m.entity, m.from_status, m.to_status)
  FROM moves m WHERE NOT EXISTS (SELECT FROM accs.transitions t WHERE (t.entity, t.from_status, t.to_status) = (m.entity, m.from_status, m.to_status) AND t.via IS NULL)
UNION ALL
SELECT 'terminal is final but for a retry', subject::text, format('event %s of type %s: %s → %s', id, type, from_status, to_status)
  FROM moves WHERE from_status IN ('done', 'error', 'skipped', 'cancelled') AND type <> 'retry'
UNION ALL
SELECT 'no attempt ends after a newer claim', subject::text, format('event %s ends attempt %s, %s was claimed', id, attempt_id, claimed_before)
  FROM moves WHERE entity = 'task' AND to_status <> 'starting' AND attempt_id <> claimed_before
UNION ALL
SELECT 'events end at the state of the task', t.id::text, format('the events say %s, generation %s, attempt %s; the row says %s, %s, %s',
       coalesce(o.status, 'queued'), coalesce(o.generation, 0), coalesce(o.attempt_id, 0), t.status, t.generation, t.attempt_id)
  FROM task t LEFT JOIN told o ON o.subject = t.id
 WHERE (t.status, t.generation, t.attempt_id) IS DISTINCT FROM (coalesce(o.status, 'queued'), coalesce(o.generation, 0), coalesce(o.attempt_id, 0))
UNION ALL
SELECT 'events end at the state of the job', j.id::text, format('the events say %s, the row says %s', coalesce(o.status, 'queued'), j.status)
  FROM public.jobs j LEFT JOIN told o ON o.subject = j.id WHERE j.status <> coalesce(o.status, 'queued')
UNION ALL
SELECT 'dependencies are satisfied before the claim', c.subject::text,
       format('event %s claims it while %s is %s', c.id, n.needs, coalesce(d.to_status, 'queued'))
  FROM moves c JOIN need n ON n.id = c.subject
  LEFT JOIN moves d ON d.subject = n.needs AND d.id < c.id AND (d.until > c.id OR d.until IS NULL)
 WHERE c.to_status = 'starting' AND n.created_at <= c.ts   -- a step may be multiplied again later, and by more
   AND (d.id IS NULL OR d.to_status NOT IN ('done', 'skipped') AND d.tolerated IS NOT TRUE OR d.reason = 'upstream_failed')
UNION ALL
SELECT 'a refusal has a reason of D5', coalesce(job_task_id, job_id)::text, format('event %s: %s', id, coalesce(data ->> 'reason', 'none'))
  FROM public.task_events
 WHERE type = 'refused' AND coalesce(data ->> 'reason', '') NOT IN ('stale_attempt', 'already_finished', 'not_in_expected_state',
       'lease_lost_or_owner_mismatch', 'db_error', 'result_too_large', 'not_found')

-- Waiting, live, pending
UNION ALL
SELECT 'waiting ⇔ queued and nothing remaining', coalesce(t.id, w.task_id)::text,
       format('%s, %s remaining, %s', coalesce(t.status, 'no task'), t.remaining, CASE WHEN w.task_id IS NULL THEN 'not waiting' ELSE 'waiting' END)
  FROM task t FULL JOIN accs.waiting w ON w.task_id = t.id
 WHERE coalesce(t.status = 'queued' AND t.remaining = 0, false) <> (w.task_id IS NOT NULL)
UNION ALL
SELECT 'a waiting row repeats its task', t.id::text, format('lane %s, rank %s, order_seq %s, created_at %s, key %s', w.lane, w.rank, w.order_seq, w.created_at, w.key)
  FROM accs.waiting w JOIN task t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id JOIN accs.lanes l ON l.id = t.lane
 WHERE (w.lane, w.rank, w.order_seq, w.created_at, w.key) IS DISTINCT FROM (t.lane, -j.priority, j.order_seq, t.created_at, t.concurrency_key)
    OR (l.service, l.requires, l.node) IS DISTINCT FROM (t.service_name, t.requires, t.assigned_node) OR t.priority <> j.priority
UNION ALL
SELECT 'a hold has its reason', t.id::text, format('hold %s, due %s, next attempt %s, key %s', w.hold, w.due_at, t.next_attempt_at, w.key)
  FROM accs.waiting w JOIN task t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id JOIN public.workflows f ON f.id = j.workflow_id
 WHERE CASE w.hold WHEN 'backoff' THEN w.due_at IS DISTINCT FROM t.next_attempt_at
                   WHEN 'key' THEN w.key IS NULL
                   WHEN 'resolve' THEN t.resolve IS NOT TRUE
                   WHEN 'paused' THEN NOT EXISTS (SELECT FROM accs.pauses p WHERE p.kind = 'workflow' AND p.name = f.name) END
    OR w.hold IS DISTINCT FROM 'backoff' AND t.next_attempt_at > accs.clock()
    OR t.resolve AND (w.hold IS NULL OR w.hold NOT IN ('resolve', 'paused'))
UNION ALL
SELECT 'a key with room lets its first tasks stand', h.key, format('%s free, lane %s: %s of %s may be claimed', r.free, h.lane, h.claimable, h.all)
  FROM (SELECT key, lane, count(*) FILTER (WHERE hold IS NULL) AS claimable, count(*) AS all
          FROM accs.waiting WHERE key IS NOT NULL AND (hold IS NULL OR hold = 'key') GROUP BY key, lane) h
  LEFT JOIN room r ON r.key = h.key WHERE r.key IS NULL OR h.claimable < least(r.free, h.all)
UNION ALL
SELECT 'a key keeps its limit', key, format('%s running, %s allowed', max_running - free, max_running)
  FROM room WHERE free < 0 AND key <> ALL ($2::text[])
UNION ALL
SELECT 'live ⇔ starting or running', coalesce(t.id, l.task_id)::text,
       format('%s, %s', coalesce(t.status, 'no task'), CASE WHEN l.task_id IS NULL THEN 'not live' ELSE 'live' END)
  FROM task t FULL JOIN accs.live l ON l.task_id = t.id
 WHERE coalesce(t.is_live, false) <> (l.task_id IS NOT NULL)
UNION ALL
SELECT 'a live row repeats its task', t.id::text,
       format('%s, attempt %s, lease %s, progress %s, key %s', l.owner, l.attempt_id, l.lease_until, l.progress, l.key)
  FROM accs.live l JOIN task t ON t.id = l.task_id
 WHERE (l.job_id, l.service, l.owner, l.attempt_id, l.lease_until, l.progress, l.key)
       IS DISTINCT FROM (t.job_id, t.service_name, t.lease_owner, t.attempt_id, t.lease_until, t.progress, t.concurrency_key)
UNION ALL
SELECT 'nothing runs long past its lease', task_id::text, format('%s had it until %s, now is %s', owner, lease_until, accs.clock())
  FROM accs.live WHERE lease_until < accs.clock() - $1::interval
UNION ALL
SELECT 'pending ⇔ a queued job', coalesce(j.id, p.job_id)::text,
       format('%s, due %s, pending until %s', coalesce(j.status, 'no job'), coalesce(j.scheduled_at, j.created_at), p.due_at)
  FROM public.jobs j FULL JOIN accs.pending_jobs p ON p.job_id = j.id
 WHERE coalesce(j.status = 'queued', false) <> (p.job_id IS NOT NULL)
    OR p.due_at <> CASE WHEN EXISTS (SELECT FROM accs.open_runs o WHERE o.job_id = p.job_id AND o.waits) THEN 'infinity'
                        ELSE coalesce(j.scheduled_at, j.created_at) END
UNION ALL
SELECT 'an event waits in a window ⇔ the window closes some time', coalesce(i.schedule_id, a.schedule_id)::text,
       format('window %s: %s events, closes %s', coalesce(i.gathering, a.key), coalesce(i.n, 0), a.due_at)
  FROM (SELECT schedule_id, gathering, count(*) AS n FROM accs.inbox WHERE gathering IS NOT NULL GROUP BY 1, 2) i
  FULL JOIN (SELECT * FROM accs.agenda WHERE what = 'gather') a ON a.schedule_id = i.schedule_id AND a.key = i.gathering
 WHERE i.n IS NULL OR a.due_at IS NULL
UNION ALL
SELECT 'an event that waits is kept', i.schedule_id::text, format('event %s', i.event_id)
  FROM accs.inbox i WHERE NOT EXISTS (SELECT FROM public.events e WHERE e.id = i.event_id)
UNION ALL
SELECT 'an active schedule of kind event listens', s.id::text, format('to %s, not to %s', k.topic, s.schedule_expr)
  FROM (SELECT * FROM public.schedules WHERE schedule_kind = 'event' AND state <> 'ended' AND accs.is_topic_pattern(schedule_expr)) s
  FULL JOIN accs.subscriptions k ON k.schedule_id = s.id
 WHERE k.topic IS DISTINCT FROM s.schedule_expr OR k.plain IS DISTINCT FROM accs.is_plain(s)

-- Steps that were multiplied
UNION ALL
SELECT 'a step that was multiplied has all of its tasks', m.id::text, format('%s items, %s tasks with one', m.items, count(c.id) FILTER (WHERE c.item_no < m.items))
  FROM task m LEFT JOIN task c ON c.parent = m.id WHERE m.items IS NOT NULL AND m.status = 'done' GROUP BY m.id, m.items
HAVING count(c.id) FILTER (WHERE c.item_no < m.items) <> m.items OR bool_or(c.item_no >= m.items AND c.error_code IS DISTINCT FROM 'not_in_list')
UNION ALL
SELECT 'a task of an item has its step', c.id::text, format('parent %s, %s', c.parent, c.task_key)
  FROM task c LEFT JOIN task m ON m.id = c.parent
 WHERE c.parent IS NOT NULL AND (m.id IS NULL OR m.job_id <> c.job_id OR c.task_key <> format('%s[%s]', m.task_key, c.item_no) OR NOT c.id = ANY (m.dependants))
UNION ALL
SELECT 'no more failures are tolerated than may be', m.id::text, format('%s of %s', count(*), coalesce(m.tolerate, 0))
  FROM task c JOIN task m ON m.id = c.parent WHERE c.tolerated GROUP BY m.id, m.tolerate HAVING count(*) > coalesce(m.tolerate, 0)
UNION ALL
SELECT 'what runs was resolved', id::text, status FROM task WHERE resolve AND status NOT IN ('queued', 'skipped', 'cancelled')

-- Steps with cache
UNION ALL
SELECT 'a cached result is of a task that was done with the same input, and not too long ago', e.job_task_id::text, format('event %s: %s', e.id, e.data)
  FROM public.task_events e
 WHERE e.type = 'cache' AND (e.data ->> 'hit')::boolean AND NOT EXISTS (
   SELECT FROM moves m JOIN public.task_events c ON c.job_task_id = m.job_task_id AND c.type = 'cache'
    WHERE m.job_task_id = (e.data ->> 'task_id')::uuid AND m.to_status = 'done' AND m.ts = (e.data ->> 'finished_at')::timestamptz
      AND m.ts > e.ts - make_interval(secs => (e.data ->> 'seconds')::float8) AND c.id < m.id AND c.data ->> 'key' = e.data ->> 'key'
      AND NOT (c.data ->> 'hit')::boolean)
UNION ALL
SELECT 'a task is done with the result of its source', t.id::text, format('%s, its source has %s', t.results, s.results)
  FROM task t JOIN task s ON s.id = (t.given #>> '{cached,task_id}')::uuid AND s.finished_at = (t.given #>> '{cached,finished_at}')::timestamptz
 WHERE t.status <> 'done' OR t.results IS DISTINCT FROM s.results OR t.claimed_by IS NOT NULL
UNION ALL
SELECT 'a borrowed file is of a task that is done with the result of another one', b.job_task_id::text, format('%s, while it is %s', b.key, t.status)
  FROM accs.borrowed_files b LEFT JOIN task t ON t.id = b.job_task_id WHERE t.status IS DISTINCT FROM 'done' OR NOT t.given ? 'cached'
UNION ALL
SELECT 'no object is taken out of the store that a job has', d.key, 'its row is there' FROM accs.doomed_objects d
 WHERE EXISTS (SELECT FROM public.task_artifacts a WHERE a.bucket = d.bucket AND a.key = d.key)
    OR EXISTS (SELECT FROM accs.borrowed_files b WHERE b.bucket = d.bucket AND b.key = d.key)
UNION ALL
SELECT 'a row of the cache has its task', d.id::text, d.found::text FROM accs.damage d WHERE d.what = 'cache_row'

-- Counts
UNION ALL
SELECT 'remaining dependencies', id::text,
       format('%s kept, %s counted, while it is %s', remaining, count(*) FILTER (WHERE counts AND satisfied IS NOT TRUE), status)
  FROM need GROUP BY id, status, remaining
HAVING status IN ('starting', 'running') AND bool_or(satisfied IS NOT TRUE)
    OR status IN ('queued', 'starting', 'running') AND remaining <> count(*) FILTER (WHERE counts AND satisfied IS NOT TRUE)
UNION ALL
SELECT 'the counts of a job', j.id::text, format('%s of %s tasks open, progress %s of %s; counted %s of %s, %s',
       j.open_tasks, j.task_count, j.task_progress, j.progress, c.open, c.tasks, c.progress)
  FROM public.jobs j LEFT JOIN counted c ON c.job_id = j.id
 WHERE (j.task_count, j.open_tasks, j.task_progress) IS DISTINCT FROM (coalesce(c.tasks, 0), coalesce(c.open, 0), coalesce(c.progress, 0))
    OR abs(coalesce(j.progress, 0) - coalesce(c.progress / c.tasks, 0)) > 0.000001
UNION ALL
SELECT 'a job is closed ⇔ its tasks are', j.id::text, format('it is %s with %s of %s tasks open', j.status, c.open, c.tasks)
  FROM public.jobs j LEFT JOIN counted c ON c.job_id = j.id
 WHERE CASE j.status WHEN 'queued' THEN c.tasks > 0 WHEN 'running' THEN coalesce(c.open, 0) = 0 WHEN 'done' THEN c.tasks IS NULL OR c.open > 0 ELSE c.open > 0 END
    OR (j.status IN ('done', 'error', 'cancelled')) <> (j.finished_at IS NOT NULL)
UNION ALL
SELECT 'a job is in error ⇔ a task is, or was cancelled before', j.id::text, format('it is %s with %s; %s tasks failed, the first with %s', j.status, j.error_code, c.failed, c.first_code)
  FROM public.jobs j LEFT JOIN counted c ON c.job_id = j.id
 WHERE j.status IN ('running', 'done', 'error') AND c.tasks > 0
   AND (j.error_code IS DISTINCT FROM c.first_code OR j.status = 'done' AND c.failed > 0 OR j.status = 'error' AND c.failed = 0)
    OR j.status = 'error' AND c.tasks IS NULL AND j.error_code IS NULL
UNION ALL
SELECT 'attempts and losses are bounded', id::text, format('%s of %s attempts, %s lost, while it is %s', attempt, max_attempts, lost, status)
  FROM task WHERE attempt > max_attempts OR lost > accs.max_lost()
    OR is_open AND (attempt >= max_attempts OR lost >= accs.max_lost())
UNION ALL
SELECT 'error ⇔ a dead letter', coalesce(t.id, d.job_task_id)::text, format('%s, generation %s, letter %s', t.status, t.generation, d.id)
  FROM task t FULL JOIN (SELECT * FROM public.dead_letters WHERE redriven_at IS NULL) d ON d.job_task_id = t.id AND d.generation = t.generation
 WHERE coalesce(t.status = 'error', false) <> (d.id IS NOT NULL)
UNION ALL
SELECT 'an output belongs to the attempt that finished', t.id::text, format('artifact %s is of attempt %s, %s finished', a.id, a.attempt_id, t.outcome_attempt_id)
  FROM public.task_artifacts a JOIN task t ON t.id = a.job_task_id
 WHERE t.status = 'done' AND a.kind = 'output' AND a.attempt_id IS DISTINCT FROM t.outcome_attempt_id
UNION ALL
SELECT 'what was acknowledged exists', u.id::text, 'no such job'
  FROM unnest($3::uuid[]) AS u (id) WHERE NOT EXISTS (SELECT FROM public.jobs j WHERE j.id = u.id)

-- Schedules
UNION ALL
SELECT 'a firing has its job', f.schedule_id::text, format('%s %s of %s', f.outcome, f.reason, f.nominal)
  FROM public.firings f LEFT JOIN public.jobs j ON j.id = f.job_id WHERE f.outcome IN ('fired', 'caught_up') AND j.id IS NULL
UNION ALL
SELECT 'a job of a schedule has its row in the ledger', j.id::text, j.trigger ->> 'nominal'
  FROM public.jobs j WHERE j.schedule_id IS NOT NULL AND NOT EXISTS (
    SELECT FROM public.firings f WHERE f.schedule_id = j.schedule_id
       AND (f.job_id = j.id OR date_trunc('second', f.nominal) = (j.trigger ->> 'nominal')::timestamp))
UNION ALL
SELECT 'two firings do not share a job', f.job_id::text, format('%s rows', count(*))
  FROM public.firings f WHERE f.job_id IS NOT NULL GROUP BY f.job_id HAVING count(*) > 1
UNION ALL
SELECT 'an active schedule waits for something', s.id::text, s.name
  FROM public.schedules s WHERE s.state = 'active' AND s.schedule_kind IN ('cron', 'rrule', 'once', 'interval')
   AND NOT EXISTS (SELECT FROM accs.agenda a WHERE a.schedule_id = s.id AND a.what IN ('occurrence', 'snoozed', 'replan'))
UNION ALL
SELECT 'the agenda is not later than its plan', a.schedule_id::text, format('%s, planned for %s', a.due_at, p.dues[a.pos])
  FROM accs.agenda a JOIN accs.plan_of p ON p.schedule_id = a.schedule_id JOIN public.schedules s ON s.id = a.schedule_id
 WHERE a.what = 'occurrence' AND s.state = 'active' AND a.due_at > p.dues[a.pos]
   AND NOT EXISTS (SELECT FROM accs.agenda r WHERE r.schedule_id = a.schedule_id AND r.what = 'replan')
UNION ALL
SELECT 'an open run ⇔ an open job with a run key', coalesce(o.job_id, j.id)::text, format('%s, %s', j.status, o.key)
  FROM accs.open_runs o FULL JOIN (SELECT * FROM public.jobs WHERE run_key IS NOT NULL AND status IN ('queued', 'running')) j ON j.id = o.job_id
 WHERE o.job_id IS NULL OR j.id IS NULL OR o.key <> j.run_key OR o.waits AND j.status <> 'queued'
UNION ALL
SELECT 'no more runs are open than their key allows', k.key, format('%s of %s', o.n, k.max_open)
  FROM accs.run_keys k, LATERAL (SELECT count(*) AS n FROM accs.open_runs o WHERE o.key = k.key AND NOT o.waits AND NOT o.forced) o
 WHERE o.n > k.max_open
UNION ALL
SELECT 'no run waits while its key has room', k.key, format('%s of %s', o.n, k.max_open)
  FROM accs.run_keys k, LATERAL (SELECT count(*) FILTER (WHERE NOT o.waits AND NOT o.forced) AS n, bool_or(o.waits) AS waits
                                   FROM accs.open_runs o WHERE o.key = k.key) o
 WHERE o.waits AND o.n < k.max_open AND NOT EXISTS (SELECT FROM accs.agenda a WHERE a.what = 'release' AND starts_with(a.key, k.key))
