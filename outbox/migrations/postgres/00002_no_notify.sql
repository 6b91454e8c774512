-- A transaction that notifies holds a lock of the whole server from before its
-- commit until that is on disk: commits took turns instead of sharing a sync. A
-- relay learns of commits from its process, from the log, or by a look.
DROP TRIGGER IF EXISTS {prefix}outbox_wake ON {prefix}outbox;
DROP FUNCTION IF EXISTS {prefix}outbox_wake();
