-- The next process under the same shard name replays the write-ahead log of the killed one.
SELECT * FROM rollout_flush('rollouts');
SELECT id, content FROM rollouts WHERE dataset = 'crash' ORDER BY id;
