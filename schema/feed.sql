-- ---------------------------------------------------------------------------------------------------------------
-- The feed: events by id, for those who follow everything
-- ---------------------------------------------------------------------------------------------------------------

-- The highest id that an event was given, whether or not its transaction has come to an end yet; 0: none was. A reader begins here, and
-- finds out here that the database is another one than a moment ago (restored, failed over), because its ids have gone back.
CREATE FUNCTION accs.feed_head() RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM public.task_events_id_seq s
$$;
SELECT accs.is_verb('feed_head', may => '{api}');
