-- An id inserted twice is one row, the newer one, before and after it is merged.
INSERT INTO rollouts (id, dataset, content, reward) VALUES ('demo/same', 'same', 'first attempt', 0.0);
SELECT * FROM rollout_flush('rollouts');
INSERT INTO rollouts (id, dataset, content, reward) VALUES ('demo/same', 'same', 'graded again', 1.0);
SELECT id, content, reward FROM rollouts WHERE dataset = 'same';
SELECT count(*) AS with_the_old_reward FROM rollouts WHERE dataset = 'same' AND reward = 0.0;
SELECT * FROM rollout_merge('rollouts');
SELECT id, content, reward FROM rollouts WHERE dataset = 'same';
