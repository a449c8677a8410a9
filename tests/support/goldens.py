"""What others rely on, as files: a review sees a change of it, and nobody makes one by the way.

`ACC_TEST_WRITE_GOLDENS=1 pytest -k golden` writes the files anew. `catalog` is what a database holds, read from
PostgreSQL's catalogs and said alike by all its versions.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from tests.support.cluster import Connection

_FOLDER = Path(__file__).parents[1] / "goldens"


def compare(name: str, lines: Iterable[str]) -> None:
    file = _FOLDER / f"{name}.txt"
    now = sorted({" ".join(line.split()) for line in lines})
    if os.environ.get("ACC_TEST_WRITE_GOLDENS") == "1":
        file.write_text("".join(f"{line}\n" for line in now), encoding="utf-8")
    before = file.read_text(encoding="utf-8").splitlines()
    gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    assert not gone, f"{file.name} has what is no longer there: {gone}"
    assert not new, f"{file.name} does not have {new}"


# Partitions are left out: their names tell the month in which the schema was installed.
_OURS = "n.nspname IN ('public', 'accs')"
_TABLES = f"c.relkind IN ('r', 'p', 'v', 'S') AND NOT c.relispartition AND {_OURS}"

QUERIES = {
    "columns": f"""
        SELECT format('%s.%s %s %s%s%s', c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod),
                      CASE WHEN a.attnotnull THEN 'not null ' END, a.attidentity, pg_get_expr(d.adbin, d.adrelid))
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
          LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE a.attnum > 0 AND NOT a.attisdropped AND {_TABLES}""",
    "tables": f"""
        SELECT format('%s %s %s %s', c.oid::regclass, c.relkind, c.reloptions, pg_get_partkeydef(c.oid))
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {_TABLES}""",
    # From 18 on, not-null is a constraint too, which the columns tell already, and foreign keys are not checked row by
    # row (tests/db/test_install_references.py).
    "constraints": f"""
        SELECT format('%s %s %s', o.conrelid::regclass, o.conname,
                      replace(pg_get_constraintdef(o.oid), ' NOT ENFORCED', ''))
          FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE o.contype <> 'n' AND {_TABLES}""",
    "indexes": f"""
        SELECT pg_get_indexdef(i.indexrelid)
          FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE {_TABLES}""",
    "triggers": f"""
        SELECT pg_get_triggerdef(t.oid)
          FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE NOT t.tgisinternal AND {_TABLES}""",
    # Comments and white space are no part of what a function does.
    "functions": rf"""
        SELECT format('%s returns %s %s %s %s %s', p.oid::regprocedure, pg_get_function_result(p.oid), p.provolatile,
                      CASE WHEN p.prosecdef THEN 'definer' END, p.proconfig,
                      md5(regexp_replace(regexp_replace(p.prosrc, '--[^\n]*', '', 'g'), '\s+', '', 'g')))
          FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE {_OURS}""",
    "views": f"""
        SELECT format('%s %s', c.oid::regclass, array_agg(a.attname ORDER BY a.attnum))
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
         WHERE c.relkind = 'v' AND {_OURS} GROUP BY c.oid""",
}


async def catalog(conn: Connection) -> dict[str, list[str]]:
    return {name: sorted(row[0] for row in await conn.fetch(query)) for name, query in QUERIES.items()}
