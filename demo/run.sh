#!/usr/bin/env bash
# The demo: a table of rollouts on a local folder, from the first row to a trainer's questions.
#
#   ROLLOUTS=path/to/rollouts DEMO_DIR=folder demo/run.sh     (make demo)
#   DEMO_DIR=folder demo/run.sh --clean                       (make clean-demo)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=${DEMO_DIR:-demo-rollouts}
marker=.made-by-rollouts-demo

# Only a folder that the demo has made is ever removed.
clean() {
    if [ -e "$dir/$marker" ]; then
        rm -rf "$dir"
    elif [ -e "$dir" ] && { [ ! -d "$dir" ] || [ -n "$(ls -A "$dir")" ]; }; then
        echo "$dir exists and was not made by this demo: set DEMO_DIR to another folder" >&2
        exit 1
    fi
}

if [ "${1:-}" = --clean ]; then
    clean
    exit
fi

rollouts=${ROLLOUTS:-rollouts}
case $rollouts in
    */*) rollouts=$(cd "$(dirname "$rollouts")" && pwd)/$(basename "$rollouts") ;;
esac
# The demo shows its own settings, not the caller's.
unset "${!ROLLOUT_@}"

clean
mkdir -p "$dir"
touch "$dir/$marker"
dir=$(cd "$dir" && pwd)

title() { printf '\n\n=== %s\n' "$*"; }

session() { "$rollouts" --quiet --data-path "$dir" --file "$here/table.sql" "$@"; }

# Prints a script and what it answers.
show() {
    local script=$1
    shift
    printf '\n'
    sed 's/^/  /' "$here/$script"
    printf '\n'
    session "$here/$script" "$@"
}

title "A trainer's dump, made up in SQL: $dir/rollouts.jsonl"
"$rollouts" --quiet --data-path "$dir" --file "$here/generate.sql" >/dev/null
head -n 1 "$dir/rollouts.jsonl"

title "Create the table and load the dump"
show table.sql </dev/null
show load.sql

title "Eight processes insert at once, five statements each"
workers=()
for worker in 0 1 2 3 4 5 6 7; do
    cat "$here/table.sql" <(sed "s/:worker/$worker/g" "$here/worker.sql") |
        "$rollouts" --quiet --data-path "$dir" >/dev/null &
    workers+=($!)
done
for pid in "${workers[@]}"; do
    wait "$pid"
done
show workers-check.sql

title "Rows are durable when INSERT returns, and visible to everybody after a flush"
show visibility.sql

title "Durable means: not even kill -9 loses an acknowledged row"
sed 's/^/  /' "$here/crash-write.sql"
answer=$(mktemp)
mkfifo "$dir/statements"
"$rollouts" --quiet --data-path "$dir" --rollout-shard-id demo-crash --rollout-flush-interval-secs 0 \
    <"$dir/statements" >"$answer" &
victim=$!
count_crashed="SELECT count(*) FROM rollouts WHERE dataset = 'crash'"
exec 3>"$dir/statements"
cat "$here/table.sql" "$here/crash-write.sql" >&3
until grep -q acknowledged "$answer"; do
    kill -0 "$victim"
    sleep 0.1
done
kill -9 "$victim"
wait "$victim" 2>/dev/null || true
exec 3>&-
rm -f "$answer" "$dir/statements"
printf '\nThe process was killed after its INSERT was acknowledged.\n'
tries=0
until [ "$(session --rollout-shard-id demo-crash --format csv --command "$count_crashed" | tail -n 1)" = 2 ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { echo "the killed session's rows did not come back" >&2; exit 1; }
    sleep 0.2
done
show crash-read.sql

title "An id inserted twice is read once"
show same-id.sql

title "Three questions of a trainer"
show questions.sql

title "Done"
cat <<END
The table is in $dir/rollouts. Next, look around in it:

  $rollouts -p $dir -r $here/table.sql

and try
  SELECT problem_id, avg(reward) FROM rollouts GROUP BY problem_id ORDER BY 2 DESC LIMIT 5;
END
