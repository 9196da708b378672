-- Loads the dump. In it, a row is told apart by step, task and sample together: so is its id.
CREATE EXTERNAL TABLE dump STORED AS JSON LOCATION 'rollouts.jsonl';

INSERT INTO rollouts (id, problem_id, dataset, policy_step, policy_version, problem_text, content,
                      model_input_string, model_output_string, input_tokens, output_tokens,
                      num_input_tokens, num_output_tokens, output_logprobs, reward, include_in_training)
SELECT concat('demo/', step, '/', task, '/', sample), concat('multiply/', task), 'multiply', step,
       concat('step-', step), prompt, completion, prompt AS input, completion AS output, prompt_ids, completion_ids,
       array_length(prompt_ids), array_length(completion_ids), logprobs, score, true
FROM dump;

SELECT count(*) AS rows, count(DISTINCT id) AS ids, min(policy_step) AS first_step, max(policy_step) AS last_step
FROM rollouts;

SELECT id, reward, problem_text, content FROM rollouts WHERE problem_id = 'multiply/7' AND policy_step = 1 ORDER BY id LIMIT 3;
