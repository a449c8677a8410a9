-- ---------------------------------------------------------------------------------------------------------------
-- Months: the tables that grow with time are partitioned by month; months are made ahead of time and leave through the archive
-- ---------------------------------------------------------------------------------------------------------------

-- Each has a default partition as the net, and a function accs.mark_of(row): the sum of the marks says, with the count, whether a month
-- still holds the rows that were archived.
CREATE TABLE accs.monthly (
  name     text PRIMARY KEY,            -- in schema public; its months are NAME_YYYY_MM, in UTC
  at       text NOT NULL,               -- the column by which it is partitioned
  refuse   text NOT NULL,               -- the trigger function that refuses to empty it
  aged_by  text NOT NULL,               -- the column by which a row is old: one that was written late stays as long as others
  stays    text NOT NULL DEFAULT 'false'   -- a condition on a row e: somebody still needs it here, however old it is
);

-- The table of a month; null: no month has that name.
CREATE FUNCTION accs.table_of(p_month text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT m.name FROM accs.monthly m WHERE p_month ~ ('^' || m.name || '_[0-9]{4}_(0[1-9]|1[0-2])$')
$$;

-- Begin and end of a month, in UTC: what follows is read as timestamp or as timestamptz alike.
CREATE FUNCTION accs.begin_of(p_month text) RETURNS timestamp LANGUAGE sql IMMUTABLE AS $$
  SELECT make_timestamp(left(right(p_month, 7), 4)::int, right(p_month, 2)::int, 1, 0, 0, 0)
$$;
CREATE FUNCTION accs.bounds_of(p_month text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY[to_char(accs.begin_of(p_month), 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
               to_char(accs.begin_of(p_month) + interval '1 month', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')]
$$;

-- Makes the months of a table from this one to p_ahead later, and those of past months whose rows are in the default partition;
-- returns the names of those it made. Rows that fell into the default partition are moved. ATTACH needs no lock that stops
-- writers of other months; the lock timeout keeps it from queueing behind a long reader of the default partition, and the next
-- pass tries again. One table at a time: a transaction that writes to two of them must not wait for us while we wait for it.
CREATE FUNCTION accs.make_months(p_table text, p_ahead int DEFAULT 3) RETURNS SETOF text LANGUAGE plpgsql
SET lock_timeout = '2s' SET timezone = 'UTC' AS $$
DECLARE
  v_now    timestamp := accs.clock() AT TIME ZONE 'UTC';
  v_table  accs.monthly;
  v_past   timestamp[];
  v_from   timestamp;
  v_month  text;
  v_bounds text[];
  v_moves  boolean;
BEGIN
  SELECT * INTO v_table FROM accs.monthly WHERE name = p_table;
  IF NOT FOUND THEN
    RAISE EXCEPTION '"%" is no table that has months', left(p_table, 100) USING ERRCODE = 'invalid_parameter_value';
  ELSIF p_ahead > 120 THEN
    RAISE EXCEPTION 'partitions are made for at most 120 months ahead, not for %', p_ahead USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM accs.lock('months');
  EXECUTE format('SELECT array_agg(m) FROM (SELECT DISTINCT date_trunc(''month'', %1$I)::timestamp AS m FROM public.%2$I
                   WHERE %1$I >= ''1970-01-01Z'' AND %1$I < $1 LIMIT 12) past', v_table.at, p_table || '_default')
    INTO v_past USING v_now;
  FOR v_from IN SELECT generate_series(date_trunc('month', v_now), date_trunc('month', v_now) + make_interval(months => p_ahead), '1 month')
                UNION SELECT unnest(v_past) ORDER BY 1 LOOP
    v_month := p_table || '_' || to_char(v_from, 'YYYY_MM');
    CONTINUE WHEN to_regclass('public.' || v_month) IS NOT NULL;
    v_bounds := accs.bounds_of(v_month);
    IF v_from <= v_now THEN
      -- too late to be ahead: an INSERT that has chosen the default partition already would fail there. Nobody may be under way.
      EXECUTE format('LOCK TABLE ONLY public.%I IN SHARE ROW EXCLUSIVE MODE', p_table);
    END IF;
    EXECUTE format('CREATE TABLE public.%I (LIKE public.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', v_month, p_table);
    -- ATTACH takes this lock anyway; before the look at the rows, so that none can come in between
    EXECUTE format('LOCK TABLE public.%I IN ACCESS EXCLUSIVE MODE', p_table || '_default');
    EXECUTE format('SELECT EXISTS (SELECT FROM public.%1$I WHERE %2$I >= %3$L AND %2$I < %4$L)', p_table || '_default', v_table.at,
                   v_bounds[1], v_bounds[2]) INTO v_moves;
    IF v_moves THEN
      EXECUTE format('WITH moved AS (DELETE FROM public.%1$I WHERE %2$I >= %3$L AND %2$I < %4$L RETURNING *)
                      INSERT INTO public.%5$I SELECT * FROM moved', p_table || '_default', v_table.at, v_bounds[1], v_bounds[2], v_month);
    END IF;
    EXECUTE format('ALTER TABLE public.%I ATTACH PARTITION public.%I FOR VALUES FROM (%L) TO (%L)', p_table, v_month, v_bounds[1],
                   v_bounds[2]);
    EXECUTE format('CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON public.%I
                    FOR EACH STATEMENT EXECUTE FUNCTION accs.%I()', v_month, v_table.refuse);
    RETURN NEXT v_month;
  END LOOP;
END $$;
SELECT accs.is_verb('make_months', may => '{scheduler,archive}');

-- The months of a table that are in the database, oldest first; with p_age only those whose rows are all older, and no
-- longer needed.
CREATE FUNCTION accs.months_of(p_table text, p_age interval DEFAULT NULL) RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_table accs.monthly;
  v_month text;
  v_young boolean;
BEGIN
  SELECT * INTO v_table FROM accs.monthly WHERE name = p_table;
  FOR v_month IN SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                  WHERE i.inhparent = to_regclass('public.' || p_table) AND accs.table_of(c.relname) = p_table ORDER BY 1 LOOP
    v_young := (accs.begin_of(v_month) + interval '1 month') AT TIME ZONE 'UTC' > accs.clock() - p_age;
    IF NOT v_young AND (v_table.aged_by, v_table.stays) <> (v_table.at, 'false') THEN
      EXECUTE format('SELECT EXISTS (SELECT FROM public.%I e WHERE e.%I > $1 OR %s)', v_month, v_table.aged_by, v_table.stays) INTO v_young
        USING accs.clock() - p_age;
    END IF;
    IF v_young IS NOT TRUE THEN
      RETURN NEXT v_month;
    END IF;
  END LOOP;
END $$;
SELECT accs.is_verb('months_of', may => '{scheduler,archive,api,reader}');
