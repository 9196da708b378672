-- Acknowledged means durable: this session is killed right after its INSERT returns, long before any flush.
INSERT INTO rollouts (id, dataset, content) VALUES ('demo/crash/1', 'crash', 'acknowledged'), ('demo/crash/2', 'crash', 'acknowledged');
SELECT 'acknowledged' AS insert_is;
