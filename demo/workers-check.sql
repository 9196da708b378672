-- 8 workers, 5 groups each, 8 rows in a group: 320 rows, whoever was first.
SELECT content AS written, count(*) AS rows, count(DISTINCT problem_id) AS groups
FROM rollouts WHERE policy_step = 4 GROUP BY content ORDER BY content;
