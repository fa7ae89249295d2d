"""The functions and triggers that keep approvals binding, single-use and append-only.

Names carry a version: during a rolling upgrade old workers go on calling the old one. Times are
compared with clock_timestamp(), because now() stands still in a transaction that waits. Every
function locks the approval first and checks it in later statements: after a lock wait, a
sub-query of the locking statement still sees the past.

SF003: not approved; the message says why, for people, and the detail says it in one word.
"""

from typing import ClassVar

from django.db import migrations

APPEND_ONLY = """
-- For each statement, so that one function serves TRUNCATE too. A restore or a test's flush passes
-- with session_replication_role = replica.
CREATE FUNCTION approvals_append_only_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on % is refused: what was asked and said is never rewritten',
        TG_OP, TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER approvals_decision_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON approvals_decision
    FOR EACH STATEMENT EXECUTE FUNCTION approvals_append_only_v1();
CREATE TRIGGER approvals_refusal_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON approvals_refusal
    FOR EACH STATEMENT EXECUTE FUNCTION approvals_append_only_v1();
CREATE TRIGGER approvals_approval_stays
    BEFORE DELETE OR TRUNCATE ON approvals_approval
    FOR EACH STATEMENT EXECUTE FUNCTION approvals_append_only_v1();
-- Without its permit a used approval would look unused.
CREATE TRIGGER approvals_permit_stays
    BEFORE DELETE OR TRUNCATE ON approvals_permit
    FOR EACH STATEMENT EXECUTE FUNCTION approvals_append_only_v1();
"""

MOVES = """
CREATE FUNCTION approvals_approval_born_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status <> 'pending' OR NEW.decided_at IS NOT NULL OR NEW.valid_until IS NOT NULL THEN
        RAISE EXCEPTION 'a request for approval begins as pending'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approvals_approval_born BEFORE INSERT ON approvals_approval
    FOR EACH ROW EXECUTE FUNCTION approvals_approval_born_v1();

-- APPROVAL_MOVES of statuses.py, once more: no code path may invent a state, decide without a
-- decision, or change what was shown.
CREATE FUNCTION approvals_approval_moves_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN (
        ('pending', 'approved'), ('pending', 'rejected'), ('pending', 'expired'),
        ('pending', 'void'), ('pending', 'superseded'),
        ('approved', 'expired'), ('approved', 'void'), ('approved', 'superseded')
    ) THEN
        RAISE EXCEPTION 'an approval cannot go from % to %', OLD.status, NEW.status
            USING ERRCODE = 'check_violation';
    END IF;
    IF OLD.status <> NEW.status AND NEW.status IN ('approved', 'rejected') AND NOT EXISTS (
        SELECT 1 FROM approvals_decision WHERE approval_id = NEW.id AND version = NEW.version
            AND choice = CASE NEW.status WHEN 'approved' THEN 'approve' ELSE 'reject' END
    ) THEN
        RAISE EXCEPTION 'nobody decided that this is %', NEW.status
            USING ERRCODE = 'check_violation';
    END IF;
    IF (OLD.id, OLD.tenant, OLD.run_id, OLD.workflow, OLD.task_key, OLD.operation_id, OLD.version,
        OLD.action, OLD.operation, OLD.key, OLD.target, OLD.amount, OLD.title, OLD.parameters,
        OLD.digest, OLD.policy, OLD.policy_snapshot, OLD.requested_by, OLD.requested_at,
        OLD.decide_by)
        IS DISTINCT FROM
       (NEW.id, NEW.tenant, NEW.run_id, NEW.workflow, NEW.task_key, NEW.operation_id, NEW.version,
        NEW.action, NEW.operation, NEW.key, NEW.target, NEW.amount, NEW.title, NEW.parameters,
        NEW.digest, NEW.policy, NEW.policy_snapshot, NEW.requested_by, NEW.requested_at,
        NEW.decide_by)
    THEN
        RAISE EXCEPTION 'what a person was asked to approve never changes'
            USING ERRCODE = 'check_violation';
    END IF;
    -- Both clocks are set once, by the decision.
    IF OLD.status <> 'pending' AND (OLD.decided_at, OLD.valid_until)
        IS DISTINCT FROM (NEW.decided_at, NEW.valid_until) THEN
        RAISE EXCEPTION 'the times of a decision never change' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approvals_approval_moves BEFORE UPDATE ON approvals_approval
    FOR EACH ROW EXECUTE FUNCTION approvals_approval_moves_v1();

-- A decision is about exactly what the person saw.
CREATE FUNCTION approvals_decision_bound_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM approvals_approval WHERE id = NEW.approval_id
        AND version = NEW.version AND digest = NEW.digest AND status = 'pending') THEN
        RAISE EXCEPTION 'a decision needs a pending request with the same version and digest'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approvals_decision_bound BEFORE INSERT ON approvals_decision
    FOR EACH ROW EXECUTE FUNCTION approvals_decision_bound_v1();

-- PERMIT_MOVES of statuses.py. A permit never changes hands.
CREATE FUNCTION approvals_permit_moves_v1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status <> NEW.status AND (OLD.status, NEW.status) NOT IN (
        ('reserved', 'consumed'), ('reserved', 'released'), ('released', 'reserved')
    ) THEN
        RAISE EXCEPTION 'a permit cannot go from % to %', OLD.status, NEW.status
            USING ERRCODE = 'check_violation';
    END IF;
    IF (OLD.approval_id, OLD.version, OLD.operation_id)
        IS DISTINCT FROM (NEW.approval_id, NEW.version, NEW.operation_id) THEN
        RAISE EXCEPTION 'a permit never changes hands' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approvals_permit_moves BEFORE UPDATE ON approvals_permit
    FOR EACH ROW EXECUTE FUNCTION approvals_permit_moves_v1();
"""

REQUEST = """
-- Asks anew for one action of one run. What was open for it before is superseded; returns the
-- version of the new request.
CREATE FUNCTION approvals_request_v1(
    p_id uuid, p_tenant text, p_run uuid, p_operation_id uuid, p_workflow text, p_task_key text,
    p_action text, p_operation text, p_key text, p_target text, p_amount text, p_title text,
    p_parameters text, p_digest text, p_policy text, p_snapshot jsonb, p_requested_by text,
    p_decide_by timestamptz
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    older record;
    next_version integer;
BEGIN
    PERFORM 1 FROM approvals_approval
        WHERE (operation_id = p_operation_id
            OR (run_id = p_run AND operation = p_operation AND key = p_key))
            AND status IN ('pending', 'approved')
        ORDER BY id FOR NO KEY UPDATE;
    FOR older IN
        SELECT approval.id, approval.status, approval.digest, approval.policy_snapshot,
            permit.status AS permit_status
        FROM approvals_approval AS approval
        LEFT JOIN approvals_permit AS permit ON permit.approval_id = approval.id
        WHERE (approval.operation_id = p_operation_id OR (approval.run_id = p_run
            AND approval.operation = p_operation AND approval.key = p_key))
            AND approval.status IN ('pending', 'approved')
    LOOP
        IF older.permit_status IN ('reserved', 'consumed') THEN
            RAISE EXCEPTION 'an earlier approval of this action is in use'
                USING ERRCODE = 'SF003', DETAIL = 'used';
        END IF;
        IF older.status = 'pending' AND older.digest = p_digest
            AND older.policy_snapshot = p_snapshot THEN
            RAISE EXCEPTION 'somebody was already asked about exactly this'
                USING ERRCODE = 'SF003', DETAIL = 'pending';
        END IF;
        UPDATE approvals_approval SET status = 'superseded' WHERE id = older.id;
    END LOOP;
    -- A worker whose clock is far behind would ask for what nobody can answer any more.
    IF p_decide_by <= clock_timestamp() THEN
        RAISE EXCEPTION 'the time to decide is over before anyone was asked'
            USING ERRCODE = 'SF003', DETAIL = 'late';
    END IF;
    SELECT coalesce(max(version), 0) + 1 INTO next_version FROM approvals_approval
        WHERE operation_id = p_operation_id
            OR (run_id = p_run AND operation = p_operation AND key = p_key);
    INSERT INTO approvals_approval (
        id, tenant, run_id, operation_id, workflow, task_key, version, action, operation, key,
        target, amount, title, parameters, digest, policy, policy_snapshot, requested_by, status,
        requested_at, decide_by)
    VALUES (
        p_id, p_tenant, p_run, p_operation_id, p_workflow, p_task_key, next_version, p_action,
        p_operation, p_key, p_target, p_amount, p_title, p_parameters, p_digest, p_policy,
        p_snapshot, p_requested_by, 'pending', clock_timestamp(), p_decide_by);
    RETURN next_version;
END $$;
"""

EXPIRE = """
-- Whether an approval's time is over: to decide, or to use what was approved. A reserved or
-- consumed permit has used it in time.
CREATE FUNCTION approvals_overdue_v1(p_id uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM approvals_approval AS approval WHERE approval.id = p_id AND (
            (approval.status = 'pending' AND approval.decide_by <= clock_timestamp())
            OR (approval.status = 'approved' AND approval.valid_until <= clock_timestamp()
                AND NOT EXISTS (SELECT 1 FROM approvals_permit AS permit
                    WHERE permit.approval_id = approval.id
                        AND permit.status IN ('reserved', 'consumed')))));
END $$;

-- Ends an approval whose time is over and leaves the fact for its run, in one transaction.
-- Returns the run, which then wants a nudge; null if there was nothing to do.
CREATE FUNCTION approvals_expire_v1(p_id uuid) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    expired approvals_approval;
BEGIN
    PERFORM 1 FROM approvals_approval WHERE id = p_id FOR NO KEY UPDATE;
    IF NOT approvals_overdue_v1(p_id) THEN
        RETURN NULL;
    END IF;
    UPDATE approvals_approval SET status = 'expired' WHERE id = p_id RETURNING * INTO expired;
    INSERT INTO durable_inboxitem (run_id, type, task_key, actor, payload, received_at)
    VALUES (expired.run_id, 'approval.decided', expired.task_key, 'system:approvals',
        '{"approval":' || to_json(p_id::text)::text || ',"by":"system:approvals","operation_id":'
        || to_json(expired.operation_id::text)::text || ',"reason":'
        || CASE WHEN expired.decided_at IS NULL THEN '"Nobody decided in time"'
            ELSE '"It was approved and not used in time"' END
        || ',"status":"expired"}', clock_timestamp());
    RETURN expired.run_id;
END $$;
"""

LOOK = """
-- The newest request for one action of one run, after ending what is overdue: the gate needs no
-- sweeper. Always one row, with the database's clock; without an id nobody was ever asked.
CREATE FUNCTION approvals_look_v1(p_run uuid, p_operation text, p_key text) RETURNS TABLE (
    at timestamptz, id uuid, tenant text, run_id uuid, operation_id uuid, operation text,
    key text, action text, target text, amount text, parameters text, version integer,
    digest text, policy_snapshot text, status text, decide_by timestamptz,
    decided_at timestamptz, permit_status text, decided_by text, reason text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    newest uuid;
BEGIN
    SELECT approval.id INTO newest FROM approvals_approval AS approval
        WHERE approval.run_id = p_run AND approval.operation = p_operation
            AND approval.key = p_key
        ORDER BY approval.version DESC LIMIT 1;
    -- Looked at first without the lock: a look must not wait for somebody who is deciding.
    IF approvals_overdue_v1(newest) THEN
        PERFORM approvals_expire_v1(newest);
    END IF;
    RETURN QUERY SELECT clock.at, approval.id, approval.tenant, approval.run_id,
            approval.operation_id, approval.operation, approval.key, approval.action,
            approval.target, approval.amount, approval.parameters, approval.version,
            approval.digest, approval.policy_snapshot::text, approval.status, approval.decide_by,
            approval.decided_at, permit.status, decision.actor, decision.reason
        FROM (SELECT clock_timestamp() AS at) AS clock
        LEFT JOIN approvals_approval AS approval ON approval.id = newest
        LEFT JOIN approvals_permit AS permit ON permit.approval_id = newest
        LEFT JOIN LATERAL (
            SELECT vote.actor, vote.reason FROM approvals_decision AS vote
            WHERE vote.approval_id = approval.id AND vote.version = approval.version
            ORDER BY vote.id DESC LIMIT 1) AS decision ON true;
END $$;
"""

PERMIT = """
-- Uses an approval for one action: runs in the transaction that moves the action to `running`,
-- with lease and record locked. Returns the approval's version, or raises SF003.
CREATE FUNCTION approvals_reserve_v1(
    p_approval uuid, p_version integer, p_digest text, p_operation_id uuid, p_epoch bigint
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    approval approvals_approval;
    permit approvals_permit;
    reason text;
    word text;
BEGIN
    PERFORM 1 FROM approvals_approval WHERE id = p_approval FOR NO KEY UPDATE;
    PERFORM 1 FROM approvals_permit WHERE approval_id = p_approval FOR NO KEY UPDATE;
    SELECT * INTO approval FROM approvals_approval WHERE id = p_approval;
    SELECT * INTO permit FROM approvals_permit WHERE approval_id = p_approval;
    IF approval.id IS NULL THEN
        word := 'missing'; reason := 'there is no such approval';
    ELSIF approval.status IS DISTINCT FROM 'approved' THEN
        word := 'status'; reason := 'the approval is ' || approval.status;
    ELSIF approval.version IS DISTINCT FROM p_version THEN
        word := 'version'; reason := 'another version was approved';
    ELSIF approval.digest IS DISTINCT FROM p_digest THEN
        word := 'digest'; reason := 'something else was approved';
    ELSIF approval.operation_id IS DISTINCT FROM p_operation_id THEN
        word := 'operation'; reason := 'another action was approved';
    ELSIF approval.valid_until IS NULL OR approval.valid_until <= clock_timestamp() THEN
        word := 'late'; reason := 'the approval was not used in time';
    ELSIF permit.status IS NOT NULL AND permit.status <> 'released' THEN
        word := 'used'; reason := 'the approval is used: its permit is ' || permit.status;
    ELSIF permit.status IS NOT NULL AND (permit.operation_id IS DISTINCT FROM p_operation_id
        OR permit.epoch > p_epoch) THEN
        word := 'used'; reason := 'the permit belongs to another executor';
    END IF;
    IF reason IS NOT NULL THEN
        RAISE EXCEPTION '%', reason USING ERRCODE = 'SF003', DETAIL = word;
    END IF;
    IF permit.status IS NULL THEN
        INSERT INTO approvals_permit
            (approval_id, version, operation_id, epoch, status, reserved_at)
        VALUES (p_approval, p_version, p_operation_id, p_epoch, 'reserved', clock_timestamp());
    ELSE
        UPDATE approvals_permit SET status = 'reserved', epoch = p_epoch,
            reserved_at = clock_timestamp(), settled_at = NULL WHERE approval_id = p_approval;
    END IF;
    RETURN p_version;
END $$;

-- What becomes of the permit when the outcome is stored, in the same transaction. An action that
-- needed no permit has none. Returns the permit's status, or null.
CREATE FUNCTION approvals_settle_v1(p_operation_id uuid, p_outcome text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    permit approvals_permit;
BEGIN
    IF p_outcome IS NULL OR p_outcome NOT IN ('succeeded', 'failed', 'unknown') THEN
        RAISE EXCEPTION 'no such outcome: %', p_outcome USING ERRCODE = 'check_violation';
    END IF;
    PERFORM 1 FROM approvals_approval WHERE id IN (
        SELECT approval_id FROM approvals_permit
            WHERE operation_id = p_operation_id AND status <> 'released')
        ORDER BY id FOR NO KEY UPDATE;
    SELECT * INTO permit FROM approvals_permit
        WHERE operation_id = p_operation_id AND status <> 'released' FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- A consumed permit stays consumed; the moves trigger refuses to release it.
    IF p_outcome <> 'unknown' AND NOT (p_outcome = 'succeeded' AND permit.status = 'consumed') THEN
        UPDATE approvals_permit
            SET status = CASE p_outcome WHEN 'succeeded' THEN 'consumed' ELSE 'released' END,
                settled_at = clock_timestamp()
            WHERE approval_id = permit.approval_id RETURNING * INTO permit;
    END IF;
    RETURN permit.status;
END $$;

-- The run ends or is being cancelled: nobody needs to decide any more, and what was approved and
-- not used must not be. Returns how many requests that ended.
CREATE FUNCTION approvals_close_v1(p_run uuid) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    closed integer;
BEGIN
    PERFORM 1 FROM approvals_approval
        WHERE run_id = p_run AND status IN ('pending', 'approved')
        ORDER BY id FOR NO KEY UPDATE;
    UPDATE approvals_approval AS approval SET status = 'void'
        WHERE approval.run_id = p_run AND approval.status IN ('pending', 'approved')
            AND NOT EXISTS (SELECT 1 FROM approvals_permit AS permit
                WHERE permit.approval_id = approval.id
                    AND permit.status IN ('reserved', 'consumed'));
    GET DIAGNOSTICS closed = ROW_COUNT;
    RETURN closed;
END $$;
"""

UNDO = """
DROP FUNCTION approvals_close_v1, approvals_settle_v1, approvals_reserve_v1, approvals_look_v1,
    approvals_expire_v1, approvals_overdue_v1, approvals_request_v1;
DROP FUNCTION approvals_permit_moves_v1, approvals_decision_bound_v1, approvals_approval_moves_v1,
    approvals_approval_born_v1, approvals_append_only_v1 CASCADE;
"""


class Migration(migrations.Migration):
    dependencies: ClassVar = [("approvals", "0001_tables")]

    operations: ClassVar = [
        migrations.RunSQL(
            "\n".join([APPEND_ONLY, MOVES, REQUEST, EXPIRE, LOOK, PERMIT]),
            UNDO,
        ),
    ]
