-- Writes what a trainer dumps: 40 multiplication problems, 8 attempts at each, 3 policy steps.
-- One problem in five is too hard for the policy, one in five too easy; some attempts never came back.
COPY (
    WITH attempts AS (
        SELECT step, task, sample,
               11 + task * 7 % 89 AS a,
               12 + task * 13 % 83 AS b,
               (task * 31 + sample * 17 + step * 7) * 2654435761 % 4294967296 % 100 AS luck
        FROM (SELECT value AS step FROM generate_series(1, 3))
        CROSS JOIN (SELECT value AS task FROM generate_series(1, 40))
        CROSS JOIN (SELECT value AS sample FROM generate_series(0, 7))
        WHERE NOT (task % 11 = 0 AND sample = 7)
    ),
    graded AS (
        SELECT *, CASE task % 5 WHEN 0 THEN false
                                WHEN 1 THEN true
                                ELSE luck < 25 + 15 * step END AS solved
        FROM attempts
    )
    SELECT step, task, sample,
           concat('What is ', a, ' times ', b, '?') AS prompt,
           concat('Split it: ', a, ' x ', b / 10 * 10, ' and ', a, ' x ', b % 10, '. The answer is ',
                  CASE WHEN solved THEN a * b ELSE a * b + sample + 1 END, '.') AS completion,
           CASE WHEN solved THEN 1.0 ELSE 0.0 END AS score,
           range(1000 + task, 1000 + task + 12) AS prompt_ids,
           range(2000 + sample, 2000 + sample + 24 + luck % 16) AS completion_ids,
           [-0.02 * (sample + 1), -0.4, -0.001 * luck] AS logprobs
    FROM graded
    ORDER BY step, task, sample
) TO 'rollouts.jsonl' STORED AS JSON;
