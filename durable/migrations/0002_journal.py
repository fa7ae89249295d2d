"""The functions and triggers that keep the engine's invariants in the database.

Names carry a version: during a rolling upgrade old workers go on calling the old one.
Errors: SF001 lease lost, SF002 cancel requested, SF003 not approved (raised by a gate),
SF004 a row is no longer as it was read, SF010 the key is taken (message says how, detail whose), SF011 the key was met before,
SF020 something was received that must be moved into the log first.
"""

from typing import ClassVar

from django.db import migrations

STORAGE = """
-- Room on the page for the next version of the row: every step updates its lease (HOT).
ALTER TABLE durable_lease SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE durable_idempotencyrecord SET (fillfactor = 70);
ALTER TABLE durable_run SET (fillfactor = 80);
"""

APPEND_ONLY = """
CREATE FUNCTION durable_append_only_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER durable_event_append_only BEFORE UPDATE OR DELETE ON durable_event
    FOR EACH ROW EXECUTE FUNCTION durable_append_only_v1();
CREATE TRIGGER durable_event_no_truncate BEFORE TRUNCATE ON durable_event
    FOR EACH STATEMENT EXECUTE FUNCTION durable_append_only_v1();
CREATE TRIGGER durable_checkpoint_append_only BEFORE UPDATE OR DELETE ON durable_checkpoint
    FOR EACH ROW EXECUTE FUNCTION durable_append_only_v1();
CREATE TRIGGER durable_checkpoint_no_truncate BEFORE TRUNCATE ON durable_checkpoint
    FOR EACH STATEMENT EXECUTE FUNCTION durable_append_only_v1();
CREATE TRIGGER durable_evidence_append_only BEFORE UPDATE OR DELETE ON durable_evidence
    FOR EACH ROW EXECUTE FUNCTION durable_append_only_v1();
CREATE TRIGGER durable_evidence_no_truncate BEFORE TRUNCATE ON durable_evidence
    FOR EACH STATEMENT EXECUTE FUNCTION durable_append_only_v1();
"""

MOVES = """
-- The tables of moves in statuses.py, once more: no code path may invent a state.
CREATE FUNCTION durable_run_moves_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.status, NEW.status) NOT IN (
        ('pending', 'running'),
        ('running', 'waiting'), ('running', 'blocked'), ('running', 'succeeded'),
        ('running', 'failed'), ('running', 'cancelled'),
        ('waiting', 'running'), ('blocked', 'running')
    ) THEN
        RAISE EXCEPTION 'a run cannot go from % to %', OLD.status, NEW.status
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER durable_run_moves BEFORE UPDATE OF status ON durable_run
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION durable_run_moves_v1();

CREATE FUNCTION durable_record_moves_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN (
        ('prepared', 'running'), ('prepared', 'void'), ('void', 'prepared'),
        ('running', 'succeeded'), ('running', 'failed'), ('running', 'unknown'),
        ('unknown', 'succeeded'), ('unknown', 'failed'), ('failed', 'running'),
        ('succeeded', 'compensating'), ('compensating', 'compensated')
    ) THEN
        RAISE EXCEPTION 'an action cannot go from % to %', OLD.status, NEW.status
            USING ERRCODE = 'check_violation';
    END IF;
    IF OLD.request_hash IS NOT NULL AND NEW.request_hash IS DISTINCT FROM OLD.request_hash
       OR (OLD.tenant, OLD.operation, OLD.key, OLD.generation)
          IS DISTINCT FROM (NEW.tenant, NEW.operation, NEW.key, NEW.generation) THEN
        RAISE EXCEPTION 'the key and request of an action never change once sent'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER durable_record_moves BEFORE UPDATE ON durable_idempotencyrecord
    FOR EACH ROW EXECUTE FUNCTION durable_record_moves_v1();
"""

HASH = """
-- Invariant 3: one frame, computed only here. Every part is fixed-width or length-prefixed, so
-- that no two different events share a frame; microseconds since 1970 know no time zone.
CREATE FUNCTION durable_event_hash_v1(
    previous bytea, run uuid, seq bigint, epoch bigint, at timestamptz,
    type text, node text, task_key text, actor text, payload text
) RETURNS bytea LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT sha256(
        '\\x01'::bytea || int4send(octet_length(previous)) || previous
        || uuid_send(run) || int8send(seq) || int8send(epoch)
        || int8send((extract(epoch FROM at) * 1000000)::bigint)
        || int4send(octet_length(type)) || convert_to(type, 'UTF8')
        || int4send(octet_length(node)) || convert_to(node, 'UTF8')
        || int4send(octet_length(task_key)) || convert_to(task_key, 'UTF8')
        || int4send(octet_length(actor)) || convert_to(actor, 'UTF8')
        || sha256(convert_to(payload, 'UTF8')))
$$;
"""

LEASE = """
-- Invariant 1. Locks the lease and checks the whole fence; everything after it in the
-- transaction sees a fresh snapshot and may rely on the run being ours until COMMIT.
CREATE FUNCTION durable_hold_v1(p_run uuid, p_owner uuid, p_epoch bigint, p_seq bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE lease durable_lease;
BEGIN
    SELECT * INTO lease FROM durable_lease WHERE run_id = p_run FOR NO KEY UPDATE;
    IF NOT FOUND OR lease.owner IS DISTINCT FROM p_owner OR lease.epoch <> p_epoch
       OR lease.last_seq <> p_seq OR lease.expires_at <= clock_timestamp() THEN
        RAISE EXCEPTION 'lease lost' USING ERRCODE = 'SF001';
    END IF;
    RETURN lease.cancel_requested;
END $$;

-- Invariant 1, for what the lease row alone decides: fence, renewal, chain and event. Returns the
-- cancel flag, or no row when the fence does not hold. The commit may be relaxed: WAL is ordered,
-- so that the next synchronous commit hardens this one too, and `last_seq` refuses an executor
-- that remembers more than the database.
CREATE FUNCTION durable_append_v1(
    p_run uuid, p_owner uuid, p_epoch bigint, p_seq bigint, p_ttl interval, p_sync boolean,
    p_type text, p_node text, p_task_key text, p_actor text, p_payload text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    now_at timestamptz := clock_timestamp();
    hash bytea;
    cancel boolean;
BEGIN
    IF NOT p_sync THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    UPDATE durable_lease SET
        last_seq = last_seq + 1,
        expires_at = clock_timestamp() + p_ttl,
        head_hash = durable_event_hash_v1(
            head_hash, run_id, last_seq + 1, epoch, now_at,
            p_type, p_node, p_task_key, p_actor, p_payload)
    WHERE run_id = p_run AND owner = p_owner AND epoch = p_epoch AND last_seq = p_seq
        AND expires_at > clock_timestamp()
    RETURNING head_hash, cancel_requested INTO hash, cancel;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO durable_event
        (run_id, seq, epoch, at, hash, type, node, task_key, actor, payload)
    VALUES (p_run, p_seq + 1, p_epoch, now_at, hash,
        p_type, p_node, p_task_key, p_actor, p_payload);
    RETURN cancel;
END $$;

-- Appends one event at the head of a log whose lease row this transaction holds, and renews.
CREATE FUNCTION durable_write_v1(
    p_run uuid, p_ttl interval, p_type text, p_node text, p_task_key text, p_actor text,
    p_payload text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    lease durable_lease;
    now_at timestamptz := clock_timestamp();
BEGIN
    UPDATE durable_lease SET
        last_seq = last_seq + 1,
        head_hash = durable_event_hash_v1(
            head_hash, run_id, last_seq + 1, epoch, now_at,
            p_type, p_node, p_task_key, p_actor, p_payload),
        expires_at = CASE WHEN owner IS NULL THEN expires_at ELSE now_at + p_ttl END
    WHERE run_id = p_run RETURNING * INTO STRICT lease;
    INSERT INTO durable_event
        (run_id, seq, epoch, at, hash, type, node, task_key, actor, payload)
    VALUES (p_run, lease.last_seq, lease.epoch, now_at, lease.head_hash,
        p_type, p_node, p_task_key, p_actor, p_payload);
    RETURN lease.last_seq;
END $$;

-- Whether a cancel is a stored fact, moved into the log or not yet (invariant 9).
CREATE FUNCTION durable_cancelled_v1(p_run uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM durable_lease WHERE run_id = p_run AND cancel_requested)
        OR EXISTS (SELECT 1 FROM durable_inboxitem
                   WHERE run_id = p_run AND moved_seq IS NULL AND type = 'cancel.requested');
END $$;

-- Moves what outsiders left into the log, in the order they left it. The lease is held.
CREATE FUNCTION durable_move_v1(p_run uuid, p_ttl interval) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    item durable_inboxitem;
    moved integer := 0;
BEGIN
    FOR item IN SELECT * FROM durable_inboxitem
        WHERE run_id = p_run AND moved_seq IS NULL ORDER BY id FOR NO KEY UPDATE
    LOOP
        UPDATE durable_inboxitem SET moved_seq = durable_write_v1(
            p_run, p_ttl, item.type, '', item.task_key, item.actor, item.payload)
        WHERE id = item.id;
        IF item.type = 'cancel.requested' THEN
            UPDATE durable_lease SET cancel_requested = true WHERE run_id = p_run;
        END IF;
        moved := moved + 1;
    END LOOP;
    RETURN moved;
END $$;

CREATE FUNCTION durable_nothing_received_v1(p_run uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM durable_inboxitem WHERE run_id = p_run AND moved_seq IS NULL) THEN
        RAISE EXCEPTION 'something was received' USING ERRCODE = 'SF020';
    END IF;
END $$;
"""

START = """
CREATE FUNCTION durable_start_v1(
    p_id uuid, p_tenant text, p_workflow text, p_version text, p_schema_version integer,
    p_thread_id text, p_goal text, p_input text, p_input_digest text, p_key text,
    p_generation integer, p_priority integer, p_labels jsonb, p_run_at timestamptz,
    p_actor text, p_payload text
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO durable_run (
        id, tenant, workflow, version, schema_version, thread_id, goal, input, input_digest,
        start_key, generation, priority, labels, wake_at, started_by, status, code,
        failure_class, requires_operator, reason, queue, attempts, claimed_seq, waiting_for)
    VALUES (
        p_id, p_tenant, p_workflow, p_version, p_schema_version, p_thread_id, p_goal, p_input,
        p_input_digest, p_key, p_generation, p_priority, p_labels,
        coalesce(p_run_at, clock_timestamp()), p_actor, 'pending', '', '', false, '',
        'default', 0, 0, '')
    ON CONFLICT (start_key, workflow, tenant) WHERE start_key IS NOT NULL DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO durable_lease
        (run_id, epoch, last_seq, cancel_requested, phase, head_hash, worker, activity)
    VALUES (p_id, 0, 0, false, 'forward', ''::bytea, '', '');
    PERFORM durable_write_v1(p_id, interval '0', 'run.created', '', '', p_actor, p_payload);
    RETURN true;
END $$;
"""

CLAIM = """
-- Takes one run, or returns no row. A claim is the only thing that raises the epoch, and the only
-- thing that turns a dead executor's `running` actions into `unknown` (invariant 5).
CREATE FUNCTION durable_claim_v1(
    p_run uuid, p_owner uuid, p_previous uuid, p_worker text, p_ttl interval, p_known text[],
    p_max_attempts integer
) RETURNS SETOF durable_lease LANGUAGE plpgsql AS $$
DECLARE
    lease durable_lease;
    run durable_run;
    record durable_idempotencyrecord;
    taken_over boolean;
    progressed boolean;
    unknown boolean := false;
BEGIN
    -- A look without a lock first: a late or repeated wake-up must not cost a flush of the disk.
    IF NOT EXISTS (
        SELECT 1 FROM durable_lease AS held JOIN durable_run AS due ON due.id = held.run_id
        WHERE held.run_id = p_run AND CASE WHEN held.owner IS NULL
            THEN due.wake_at <= clock_timestamp()
            ELSE held.expires_at <= clock_timestamp() OR held.owner = p_previous END) THEN
        RETURN;
    END IF;
    -- SKIP LOCKED: of twenty wake-ups for one run, nineteen return at once.
    SELECT * INTO lease FROM durable_lease WHERE run_id = p_run FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN; END IF;
    taken_over := lease.owner IS NOT NULL;
    -- An executor that lost its connection may take its own lease back at once.
    IF taken_over AND lease.expires_at > clock_timestamp()
        AND lease.owner IS DISTINCT FROM p_previous THEN RETURN; END IF;
    SELECT * INTO run FROM durable_run WHERE id = p_run FOR NO KEY UPDATE;
    IF NOT taken_over AND (run.wake_at IS NULL OR run.wake_at > clock_timestamp()) THEN
        RETURN;
    END IF;
    IF run.status IN ('succeeded', 'failed', 'cancelled') THEN RETURN; END IF;
    IF NOT run.workflow || '@' || run.version = ANY (p_known) THEN RETURN; END IF;

    progressed := NOT taken_over OR lease.last_seq > run.claimed_seq;
    UPDATE durable_lease SET owner = p_owner, worker = p_worker, epoch = epoch + 1,
        expires_at = clock_timestamp() + p_ttl, activity = ''
        WHERE run_id = p_run;
    IF taken_over THEN
        PERFORM durable_write_v1(p_run, p_ttl, 'lease.lost', '', '', '',
            '{"epoch":' || lease.epoch || ',"owner":' || to_json(lease.owner::text)::text
            || ',"worker":' || to_json(lease.worker)::text || '}');
    END IF;
    PERFORM durable_write_v1(p_run, p_ttl, 'lease.acquired', '', '', '',
        '{"owner":' || to_json(p_owner::text)::text || ',"worker":'
        || to_json(p_worker)::text || '}');
    FOR record IN SELECT * FROM durable_idempotencyrecord
        WHERE run_id = p_run AND status = 'running' ORDER BY operation_id FOR NO KEY UPDATE
    LOOP
        unknown := true;
        UPDATE durable_idempotencyrecord SET status = 'unknown'
            WHERE operation_id = record.operation_id;
        PERFORM durable_write_v1(p_run, p_ttl, 'external.unknown', '', record.task_key, '',
            '{"key":' || to_json(record.key)::text || ',"operation":'
            || to_json(record.operation)::text || ',"operation_id":'
            || to_json(record.operation_id::text)::text || '}');
    END LOOP;
    IF run.status = 'pending' THEN
        PERFORM durable_write_v1(p_run, p_ttl, 'run.started', '', '', '', '{}');
    ELSE
        PERFORM durable_write_v1(p_run, p_ttl, 'run.resumed', '', '', '',
            '{"after":' || to_json(run.waiting_for)::text || ',"recovery":"'
            || CASE WHEN unknown OR run.waiting_for = 'reconcile' THEN 'business'
                WHEN taken_over THEN 'process'
                WHEN run.waiting_for = 'retry' THEN 'node' ELSE 'wait' END || '"}');
    END IF;
    PERFORM durable_move_v1(p_run, p_ttl);
    IF NOT progressed AND run.attempts >= p_max_attempts THEN
        PERFORM durable_block_v1(p_run, p_ttl, 'WORKER_LOST', 'retryable',
            'The worker died ' || run.attempts || ' times in a row without any progress.');
        RETURN;
    END IF;
    SELECT * INTO lease FROM durable_lease WHERE run_id = p_run;
    UPDATE durable_run SET status = 'running', wake_at = NULL, waiting_for = '',
        waiting_on = NULL, code = '', failure_class = '', requires_operator = false, reason = '',
        started_at = coalesce(started_at, clock_timestamp()),
        -- Charged at claim: an executor that dies without a trace still counts.
        attempts = CASE WHEN progressed THEN 1 ELSE attempts + 1 END,
        claimed_seq = lease.last_seq
        WHERE id = p_run;
    RETURN NEXT lease;
END $$;
"""

REST = """
-- Whoever settled the record before this looked for waiting runs too early to find this one.
CREATE FUNCTION durable_still_taken_v1(p_operation_id uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM durable_idempotencyrecord
        WHERE operation_id = p_operation_id FOR NO KEY UPDATE;
    IF EXISTS (
        SELECT 1 FROM durable_idempotencyrecord AS record
        JOIN durable_run AS holder ON holder.id = record.run_id
        WHERE record.operation_id = p_operation_id
            AND (record.status IN ('succeeded', 'compensated', 'void')
                OR (record.status IN ('failed', 'prepared')
                    AND holder.status IN ('succeeded', 'failed', 'cancelled')))) THEN
        RAISE EXCEPTION 'the action was settled' USING ERRCODE = 'SF020';
    END IF;
END $$;

-- Lets go of a run until `p_wake_at` or until something is received. The lease is held.
CREATE FUNCTION durable_park_v1(
    p_run uuid, p_wake_at timestamptz, p_waiting_for text, p_waiting_on uuid
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM durable_run WHERE id = p_run FOR NO KEY UPDATE;
    PERFORM durable_nothing_received_v1(p_run);
    PERFORM durable_still_taken_v1(p_waiting_on);
    UPDATE durable_lease SET owner = NULL, activity = '' WHERE run_id = p_run;
    UPDATE durable_run SET status = 'waiting', wake_at = p_wake_at,
        waiting_for = p_waiting_for, waiting_on = p_waiting_on, attempts = 0 WHERE id = p_run;
END $$;

-- Stops a run until a person acts. The lease is held.
CREATE FUNCTION durable_block_v1(
    p_run uuid, p_ttl interval, p_code text, p_class text, p_reason text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM durable_run WHERE id = p_run FOR NO KEY UPDATE;
    PERFORM durable_nothing_received_v1(p_run);
    PERFORM durable_write_v1(p_run, p_ttl, 'run.blocked', '', '', '',
        '{"code":' || to_json(p_code)::text || ',"failure_class":' || to_json(p_class)::text
        || ',"reason":' || to_json(p_reason)::text || ',"requires_operator":true}');
    UPDATE durable_lease SET owner = NULL, activity = '' WHERE run_id = p_run;
    UPDATE durable_run SET status = 'blocked', wake_at = NULL, waiting_for = '', attempts = 0,
        code = p_code, failure_class = p_class, reason = p_reason, requires_operator = true,
        checkpoint_seq = (SELECT max(seq) FROM durable_checkpoint WHERE run_id = p_run)
        WHERE id = p_run;
END $$;

-- Ends a run for good. The lease is held. Returns the runs that wait for one of its actions.
CREATE FUNCTION durable_finish_v1(
    p_run uuid, p_ttl interval, p_status text, p_payload text, p_output text, p_error text,
    p_code text, p_reason text
) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM durable_run WHERE id = p_run FOR NO KEY UPDATE;
    PERFORM durable_nothing_received_v1(p_run);
    IF EXISTS (SELECT 1 FROM durable_idempotencyrecord
        WHERE run_id = p_run AND status = 'running') THEN
        -- A call may be on its way: the run must be claimed again, which makes it unknown.
        RAISE EXCEPTION 'an action is still running' USING ERRCODE = 'SF004';
    END IF;
    PERFORM durable_write_v1(p_run, p_ttl, 'run.' || p_status, '', '', '', p_payload);
    UPDATE durable_lease SET owner = NULL, activity = '' WHERE run_id = p_run;
    UPDATE durable_run SET status = p_status, output = p_output, error = p_error, code = p_code,
        reason = p_reason, wake_at = NULL, waiting_for = '', ended_at = clock_timestamp()
        WHERE id = p_run;
    UPDATE durable_interrupt SET status = 'void' WHERE run_id = p_run AND status = 'open';
    UPDATE durable_idempotencyrecord SET status = 'void'
        WHERE run_id = p_run AND status = 'prepared';
    RETURN QUERY SELECT waiting.id FROM durable_run AS waiting
        JOIN durable_idempotencyrecord AS record ON record.operation_id = waiting.waiting_on
        WHERE record.run_id = p_run;
END $$;

-- An outsider's nudge, after its own commit. The inbox is the truth; this only saves a sweep.
CREATE FUNCTION durable_poke_v1(p_run uuid) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    lease durable_lease;
    run durable_run;
BEGIN
    SELECT * INTO lease FROM durable_lease WHERE run_id = p_run FOR NO KEY UPDATE;
    SELECT * INTO run FROM durable_run WHERE id = p_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    IF run.status IN ('succeeded', 'failed', 'cancelled') THEN
        -- Too late: seen, and never part of a log that has ended.
        UPDATE durable_inboxitem SET moved_seq = 0 WHERE run_id = p_run AND moved_seq IS NULL;
        RETURN false;
    END IF;
    IF NOT lease.cancel_requested AND EXISTS (
        SELECT 1 FROM durable_inboxitem WHERE run_id = p_run AND moved_seq IS NULL
            AND type = 'cancel.requested') THEN
        UPDATE durable_lease SET cancel_requested = true WHERE run_id = p_run;
    END IF;
    IF lease.owner IS NULL THEN
        UPDATE durable_run SET wake_at = least(wake_at, clock_timestamp()) WHERE id = p_run;
    END IF;
    RETURN lease.owner IS NULL;
END $$;

CREATE FUNCTION durable_checkpoint_v1(
    p_run uuid, p_ttl interval, p_super_step integer, p_state text, p_digest text,
    p_next jsonb, p_completed jsonb, p_schema_version integer, p_graph_version text,
    p_payload text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    written bigint;
BEGIN
    written := durable_write_v1(
        p_run, p_ttl, 'checkpoint.committed', '', '', '', p_payload);
    INSERT INTO durable_checkpoint (
        run_id, seq, parent_seq, super_step, epoch, kind, state, digest, next_nodes, completed,
        schema_version, graph_version, metadata)
    SELECT p_run, written,
        (SELECT max(seq) FROM durable_checkpoint WHERE run_id = p_run),
        p_super_step, epoch, 'full', p_state, p_digest, p_next, p_completed,
        p_schema_version, p_graph_version, '{}'
    FROM durable_lease WHERE run_id = p_run;
    RETURN written;
END $$;
"""

EFFECT = """
-- Meets the key of an outside action (invariant 6), with the lease held: returns with the record
-- locked and startable by this run, or raises SF010 with how the key is taken and by whom.
CREATE FUNCTION durable_effect_open_v1(
    p_run uuid, p_operation_id uuid, p_tenant text, p_operation text, p_key text,
    p_generation integer, p_hash text, p_request text, p_task_key text, p_phase text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    record durable_idempotencyrecord;
    ended boolean;
    taken text;
BEGIN
    IF p_phase = 'forward' AND durable_cancelled_v1(p_run) THEN
        RAISE EXCEPTION 'the run is cancelled' USING ERRCODE = 'SF002';
    END IF;
    INSERT INTO durable_idempotencyrecord (
        operation_id, tenant, operation, key, generation, status, proposed_request, run_id,
        task_key, attempt, epoch, deduplicates)
    VALUES (p_operation_id, p_tenant, p_operation, p_key, p_generation, 'prepared', p_request,
        p_run, p_task_key, 0, 0, false)
    ON CONFLICT (key, operation, tenant, generation) WHERE status <> 'void' DO NOTHING;
    SELECT * INTO record FROM durable_idempotencyrecord
        WHERE tenant = p_tenant AND operation = p_operation AND key = p_key
            AND generation = p_generation AND status <> 'void' FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'voided meanwhile' USING ERRCODE = 'SF004';
    END IF;
    SELECT status IN ('succeeded', 'failed', 'cancelled') INTO ended
        FROM durable_run WHERE id = record.run_id;
    IF record.request_hash IS NOT NULL AND record.request_hash <> p_hash THEN
        taken := 'other_request';
    ELSIF record.status IN ('succeeded', 'compensated') THEN
        taken := record.status;
    ELSIF record.run_id = p_run AND record.status = 'failed' THEN
        taken := 'own';
    ELSIF record.run_id = p_run AND record.task_key = p_task_key THEN
        taken := CASE record.status WHEN 'prepared' THEN 'own' ELSE record.status END;
    ELSIF ended AND record.status IN ('prepared', 'failed') THEN
        taken := 'free';
    ELSE
        taken := 'busy';
    END IF;
    -- The caller names the record it knows; another one is first shown to it.
    IF taken NOT IN ('own', 'free') OR record.operation_id <> p_operation_id THEN
        RAISE EXCEPTION '%', taken
            USING ERRCODE = 'SF010', DETAIL = record.operation_id::text;
    END IF;
    UPDATE durable_idempotencyrecord SET run_id = p_run, task_key = p_task_key,
        proposed_request = p_request
        WHERE operation_id = p_operation_id
            AND (run_id <> p_run OR task_key <> p_task_key OR proposed_request <> p_request);
END $$;

-- Intent first (invariant 4): the opened record becomes `running`, on disk before the call.
CREATE FUNCTION durable_effect_start_v1(
    p_run uuid, p_operation_id uuid, p_epoch bigint, p_hash text, p_request text,
    p_timeout interval, p_settle interval, p_deduplicates boolean, p_approval_version integer,
    p_phase text, p_ttl interval, p_node text, p_task_key text, p_payload text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_phase = 'forward' AND durable_cancelled_v1(p_run) THEN
        RAISE EXCEPTION 'the run is cancelled' USING ERRCODE = 'SF002';
    END IF;
    UPDATE durable_idempotencyrecord SET status = 'running', request_hash = p_hash,
        sent_request = p_request, attempt = attempt + 1, epoch = p_epoch, error = NULL,
        call_deadline = clock_timestamp() + p_timeout,
        settle_until = clock_timestamp() + p_timeout + p_settle,
        deduplicates = p_deduplicates, approval_version = p_approval_version,
        started_at = clock_timestamp(), settled_at = NULL
        WHERE operation_id = p_operation_id AND run_id = p_run
            AND status IN ('prepared', 'failed')
            AND coalesce(request_hash, p_hash) = p_hash;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the action cannot start' USING ERRCODE = 'SF004';
    END IF;
    PERFORM durable_write_v1(
        p_run, p_ttl, 'external.requested', p_node, p_task_key, '', p_payload);
END $$;

-- Stores what the call returned. Only the epoch that started it may (invariant 5).
-- Returns the runs that wait for this action.
CREATE FUNCTION durable_effect_settle_v1(
    p_run uuid, p_operation_id uuid, p_epoch bigint, p_status text, p_response text,
    p_error text, p_resource text, p_ttl interval, p_type text, p_node text, p_task_key text,
    p_payload text
) RETURNS uuid[] LANGUAGE plpgsql AS $$
BEGIN
    UPDATE durable_idempotencyrecord SET status = p_status, response = p_response,
        error = p_error, external_resource_id = coalesce(p_resource, external_resource_id),
        settled_at = CASE WHEN p_status = 'unknown' THEN NULL ELSE clock_timestamp() END
        WHERE operation_id = p_operation_id AND run_id = p_run AND epoch = p_epoch
            AND status = 'running';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the action is not running' USING ERRCODE = 'SF004';
    END IF;
    PERFORM durable_write_v1(p_run, p_ttl, p_type, p_node, p_task_key, '', p_payload);
    RETURN ARRAY(SELECT id FROM durable_run WHERE waiting_on = p_operation_id);
END $$;

CREATE FUNCTION durable_effect_resource_v1(
    p_run uuid, p_operation_id uuid, p_epoch bigint, p_resource text, p_ttl interval,
    p_node text, p_task_key text, p_payload text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE durable_idempotencyrecord SET external_resource_id = p_resource
        WHERE operation_id = p_operation_id AND run_id = p_run AND epoch = p_epoch
            AND status = 'running';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the action is not running' USING ERRCODE = 'SF004';
    END IF;
    PERFORM durable_write_v1(
        p_run, p_ttl, 'external.resource', p_node, p_task_key, '', p_payload);
END $$;

-- The two transactions of an ordinary outside action, each as one statement of few: the fence's
-- UPDATE locks the lease, and every later statement sees a fresh snapshot. Its head is written
-- first and its event last; a failure in between takes both back.
CREATE FUNCTION durable_effect_begin_v1(
    p_run uuid, p_owner uuid, p_epoch bigint, p_seq bigint, p_lock_timeout text,
    p_operation_id uuid, p_tenant text, p_operation text, p_key text, p_generation integer,
    p_hash text, p_request text, p_task_key text, p_phase text, p_timeout interval,
    p_settle interval, p_deduplicates boolean, p_ttl interval, p_node text, p_payload text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_at timestamptz := clock_timestamp();
    hash bytea;
    cancelled boolean;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    UPDATE durable_lease SET last_seq = last_seq + 1, expires_at = clock_timestamp() + p_ttl,
        head_hash = durable_event_hash_v1(head_hash, run_id, last_seq + 1, epoch, now_at,
            'external.requested', p_node, p_task_key, '', p_payload)
    WHERE run_id = p_run AND owner = p_owner AND epoch = p_epoch AND last_seq = p_seq
        AND expires_at > clock_timestamp()
    RETURNING head_hash, cancel_requested INTO hash, cancelled;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease lost' USING ERRCODE = 'SF001';
    END IF;
    IF p_phase = 'forward' AND (cancelled OR EXISTS (
        SELECT 1 FROM durable_inboxitem
        WHERE run_id = p_run AND moved_seq IS NULL AND type = 'cancel.requested')) THEN
        RAISE EXCEPTION 'the run is cancelled' USING ERRCODE = 'SF002';
    END IF;
    INSERT INTO durable_idempotencyrecord (
        operation_id, tenant, operation, key, generation, status, request_hash, proposed_request,
        sent_request, run_id, task_key, attempt, epoch, deduplicates, started_at, call_deadline,
        settle_until)
    VALUES (p_operation_id, p_tenant, p_operation, p_key, p_generation, 'running', p_hash,
        p_request, p_request, p_run, p_task_key, 1, p_epoch, p_deduplicates, now_at,
        now_at + p_timeout, now_at + p_timeout + p_settle)
    ON CONFLICT (key, operation, tenant, generation) WHERE status <> 'void' DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the key was met before' USING ERRCODE = 'SF011';
    END IF;
    INSERT INTO durable_event
        (run_id, seq, epoch, at, hash, type, node, task_key, actor, payload)
    VALUES (p_run, p_seq + 1, p_epoch, now_at, hash,
        'external.requested', p_node, p_task_key, '', p_payload);
END $$;

CREATE FUNCTION durable_effect_end_v1(
    p_run uuid, p_owner uuid, p_epoch bigint, p_seq bigint, p_lock_timeout text,
    p_operation_id uuid, p_status text, p_response text, p_error text, p_ttl interval,
    p_type text, p_node text, p_task_key text, p_payload text
) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    now_at timestamptz := clock_timestamp();
    hash bytea;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    UPDATE durable_lease SET last_seq = last_seq + 1, expires_at = clock_timestamp() + p_ttl,
        head_hash = durable_event_hash_v1(head_hash, run_id, last_seq + 1, epoch, now_at,
            p_type, p_node, p_task_key, '', p_payload)
    WHERE run_id = p_run AND owner = p_owner AND epoch = p_epoch AND last_seq = p_seq
        AND expires_at > clock_timestamp()
    RETURNING head_hash INTO hash;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease lost' USING ERRCODE = 'SF001';
    END IF;
    UPDATE durable_idempotencyrecord SET status = p_status, response = p_response,
        error = p_error,
        settled_at = CASE WHEN p_status = 'unknown' THEN NULL ELSE now_at END
        WHERE operation_id = p_operation_id AND run_id = p_run AND epoch = p_epoch
            AND status = 'running';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the action is not running' USING ERRCODE = 'SF004';
    END IF;
    INSERT INTO durable_event
        (run_id, seq, epoch, at, hash, type, node, task_key, actor, payload)
    VALUES (p_run, p_seq + 1, p_epoch, now_at, hash, p_type, p_node, p_task_key, '', p_payload);
    RETURN ARRAY(SELECT id FROM durable_run WHERE waiting_on = p_operation_id);
END $$;

-- What the outside service says about an unknown action. "Not found" is believed only once the
-- first call can no longer land, or where the service itself deduplicates (invariant 5).
CREATE FUNCTION durable_effect_reconcile_v1(
    p_run uuid, p_operation_id uuid, p_outcome text, p_response text, p_resource text,
    p_ttl interval, p_node text, p_task_key text, p_payload text, p_completed text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    record durable_idempotencyrecord;
    verdict text := 'unknown';
BEGIN
    SELECT * INTO record FROM durable_idempotencyrecord
        WHERE operation_id = p_operation_id AND run_id = p_run FOR NO KEY UPDATE;
    IF NOT FOUND OR record.status <> 'unknown' THEN
        RAISE EXCEPTION 'the action is not unknown' USING ERRCODE = 'SF004';
    END IF;
    IF p_outcome = 'happened' THEN
        verdict := 'succeeded';
    ELSIF p_outcome = 'not_found' THEN
        IF NOT record.deduplicates AND record.settle_until > clock_timestamp() THEN
            RAISE EXCEPTION 'the first call may still land' USING ERRCODE = 'SF004';
        END IF;
        verdict := 'failed';
    END IF;
    PERFORM durable_write_v1(
        p_run, p_ttl, 'external.reconciled', p_node, p_task_key, '', p_payload);
    IF verdict <> 'unknown' THEN
        UPDATE durable_idempotencyrecord SET status = verdict, response = p_response,
            -- The time-out that made it unknown is not its answer.
            error = CASE verdict WHEN 'succeeded' THEN NULL ELSE error END,
            external_resource_id = coalesce(p_resource, external_resource_id),
            settled_at = clock_timestamp() WHERE operation_id = p_operation_id;
    END IF;
    IF verdict = 'succeeded' THEN
        PERFORM durable_write_v1(
            p_run, p_ttl, 'external.completed', p_node, p_task_key, '', p_completed);
    END IF;
    RETURN verdict;
END $$;

-- A stored response answers again: another path or run met the key of a finished action.
CREATE FUNCTION durable_effect_reuse_v1(
    p_run uuid, p_operation_id uuid, p_hash text, p_ttl interval, p_node text, p_task_key text,
    p_payload text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM durable_idempotencyrecord WHERE operation_id = p_operation_id
        AND status = 'succeeded' AND request_hash = p_hash FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the action changed' USING ERRCODE = 'SF004';
    END IF;
    PERFORM durable_write_v1(
        p_run, p_ttl, 'external.completed', p_node, p_task_key, '', p_payload);
END $$;

-- Closes a question nobody answered in time; an answer that came first stands.
CREATE FUNCTION durable_interrupt_expire_v1(p_run uuid, p_task_key text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE durable_interrupt SET status = 'expired' WHERE run_id = p_run
        AND task_key = p_task_key AND status = 'open' AND expires_at <= clock_timestamp();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the question is closed' USING ERRCODE = 'SF004';
    END IF;
END $$;

-- One guarded move of a record that is not part of a call's start or outcome.
CREATE FUNCTION durable_record_move_v1(p_operation_id uuid, p_from text[], p_to text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE durable_idempotencyrecord SET status = p_to
        WHERE operation_id = p_operation_id AND status = ANY (p_from);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the action changed' USING ERRCODE = 'SF004';
    END IF;
END $$;
"""

FUNCTIONS = [
    "durable_append_v1",
    "durable_effect_end_v1",
    "durable_effect_begin_v1",
    "durable_interrupt_expire_v1",
    "durable_record_move_v1",
    "durable_effect_reuse_v1",
    "durable_effect_reconcile_v1",
    "durable_effect_resource_v1",
    "durable_effect_settle_v1",
    "durable_effect_start_v1",
    "durable_effect_open_v1",
    "durable_checkpoint_v1",
    "durable_poke_v1",
    "durable_finish_v1",
    "durable_block_v1",
    "durable_park_v1",
    "durable_still_taken_v1",
    "durable_claim_v1",
    "durable_start_v1",
    "durable_nothing_received_v1",
    "durable_move_v1",
    "durable_cancelled_v1",
    "durable_write_v1",
    "durable_hold_v1",
    "durable_event_hash_v1",
]
TRIGGER_FUNCTIONS = ["durable_append_only_v1", "durable_run_moves_v1", "durable_record_moves_v1"]

UNDO = "\n".join(
    [f"DROP FUNCTION IF EXISTS {name};" for name in FUNCTIONS]
    + [f"DROP FUNCTION IF EXISTS {name} CASCADE;" for name in TRIGGER_FUNCTIONS]
)


class Migration(migrations.Migration):
    dependencies: ClassVar = [("durable", "0001_tables")]

    operations: ClassVar = [
        migrations.RunSQL(
            "\n".join([STORAGE, APPEND_ONLY, MOVES, HASH, LEASE, START, REST, CLAIM, EFFECT]),
            UNDO,
        )
    ]
