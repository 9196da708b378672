-- A process that started since, under the same shard name, has replayed the killed one's log and flushed it.
SELECT id, content FROM rollouts WHERE dataset = 'crash' ORDER BY id;
