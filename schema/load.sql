-- ---------------------------------------------------------------------------------------------------------------
-- What the queries of A4 and A21 ask, without an index on a status that changes all the time
-- ---------------------------------------------------------------------------------------------------------------

CREATE VIEW accs.service_load AS
  SELECT service, coalesce(sum(claimable), 0)::bigint AS claimable, coalesce(sum(backoff), 0)::bigint AS in_backoff,
         coalesce(sum(key), 0)::bigint AS held_by_key, coalesce(sum(paused), 0)::bigint AS paused, coalesce(sum(live), 0)::bigint AS live
    FROM (SELECT l.service, count(*) FILTER (WHERE w.hold IS NULL) AS claimable, count(*) FILTER (WHERE w.hold = 'backoff') AS backoff,
                 count(*) FILTER (WHERE w.hold = 'key') AS key, count(*) FILTER (WHERE w.hold = 'paused') AS paused, NULL::bigint AS live
            FROM accs.waiting w JOIN accs.lanes l ON l.id = w.lane GROUP BY l.service
          UNION ALL
          SELECT service, NULL, NULL, NULL, NULL, count(*) FROM accs.live GROUP BY service) x
   GROUP BY service;
