-- The table of this demo. A session names the tables it uses; the data stays in the folder.
CREATE EXTERNAL TABLE IF NOT EXISTS rollouts STORED AS ROLLOUT LOCATION 'rollouts';
