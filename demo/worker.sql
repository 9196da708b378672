-- One of 8 workers; :worker is its number. It takes five problems of policy step 4 and writes each group as it is done.
INSERT INTO rollouts (id, problem_id, dataset, policy_step, policy_version, content, reward, include_in_training)
SELECT concat('demo/4/', 1 + :worker, '/', value), concat('multiply/', 1 + :worker), 'multiply', 4, 'step-4', 'by worker :worker', value % 2, true
FROM generate_series(0, 7);
INSERT INTO rollouts (id, problem_id, dataset, policy_step, policy_version, content, reward, include_in_training)
SELECT concat('demo/4/', 9 + :worker, '/', value), concat('multiply/', 9 + :worker), 'multiply', 4, 'step-4', 'by worker :worker', 1, true
FROM generate_series(0, 7);
INSERT INTO rollouts (id, problem_id, dataset, policy_step, policy_version, content, reward, include_in_training)
SELECT concat('demo/4/', 17 + :worker, '/', value), concat('multiply/', 17 + :worker), 'multiply', 4, 'step-4', 'by worker :worker', CASE WHEN value % 3 = 0 THEN 1 ELSE 0 END, true
FROM generate_series(0, 7);
INSERT INTO rollouts (id, problem_id, dataset, policy_step, policy_version, content, reward, include_in_training)
SELECT concat('demo/4/', 25 + :worker, '/', value), concat('multiply/', 25 + :worker), 'multiply', 4, 'step-4', 'by worker :worker', 0, true
FROM generate_series(0, 7);
INSERT INTO rollouts (id, problem_id, dataset, policy_step, policy_version, content, reward, include_in_training)
SELECT concat('demo/4/', 33 + :worker, '/', value), concat('multiply/', 33 + :worker), 'multiply', 4, 'step-4', 'by worker :worker', value % 2, true
FROM generate_series(0, 7);
