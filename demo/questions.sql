-- Which groups are complete (8 attempts), by policy step?
SELECT policy_step, count(*) AS groups, count(*) FILTER (WHERE attempts = 8) AS complete
FROM (SELECT policy_step, problem_id, count(*) AS attempts FROM rollouts
      WHERE dataset = 'multiply' GROUP BY policy_step, problem_id)
GROUP BY policy_step ORDER BY policy_step;

-- Which complete groups teach something, their rewards not being all the same?
SELECT policy_step, count(*) AS groups_with_variance, round(avg(spread), 3) AS mean_spread
FROM (SELECT policy_step, problem_id, stddev(reward) AS spread FROM rollouts
      WHERE dataset = 'multiply' GROUP BY policy_step, problem_id
      HAVING count(*) = 8 AND min(reward) < max(reward))
GROUP BY policy_step ORDER BY policy_step;

-- How does the newest policy step do?
SELECT policy_step, count(*) AS rows, count(DISTINCT problem_id) AS problems, round(avg(reward), 3) AS mean_reward
FROM rollouts
WHERE policy_step = (SELECT max(policy_step) FROM rollouts)
GROUP BY policy_step;
