-- The settable clock of the tests: UPDATE accs.test_clock SET shift = '1 hour' moves the database's time, for every session.
CREATE TABLE accs.test_clock (shift interval NOT NULL);
INSERT INTO accs.test_clock VALUES ('0');
GRANT SELECT ON accs.test_clock TO PUBLIC;
CREATE OR REPLACE FUNCTION accs.clock() RETURNS timestamptz LANGUAGE sql STABLE AS
$$ SELECT now() + (SELECT shift FROM accs.test_clock) $$;
