-- 'flushed' reads what every process sees, 'latest' adds what this one has inserted since the last flush.
INSERT INTO rollouts (id, dataset, content, reward) VALUES ('demo/late/1', 'late', 'just in', 0.5), ('demo/late/2', 'late', 'just in', 1.0);

SET rollout.freshness = 'flushed';
SELECT count(*) AS before_the_flush FROM rollouts WHERE dataset = 'late';

SET rollout.freshness = 'latest';
SELECT count(*) AS with_own_unflushed_rows FROM rollouts WHERE dataset = 'late';

SELECT * FROM rollout_flush('rollouts');

SET rollout.freshness = 'flushed';
SELECT count(*) AS after_the_flush FROM rollouts WHERE dataset = 'late';
