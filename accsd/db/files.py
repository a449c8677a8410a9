"""Files of workflow versions: which objects of the store they name."""

from collections.abc import Sequence

from accsd.db.pool import Database


async def named_files(db: Database, keys: Sequence[str]) -> set[str]:
    """Those of the keys that a version names, or that jobs of a version which was written anew still get."""
    rows = await db.fetch(
        """SELECT DISTINCT f ->> 'key' AS key
             FROM (SELECT files FROM accs.file_sets UNION ALL
                   SELECT files FROM public.workflows WHERE files <> '[]') s, jsonb_array_elements(s.files) f
            WHERE f ->> 'key' = ANY ($1)""",
        list(keys),
        repeatable=True,
    )
    return {row["key"] for row in rows}
