#!/usr/bin/env bash
# A real standalone cluster on this machine: one master and two workers, each a JVM of its own, on the loopback
# interface. The three jobs are submitted to it exactly as the README shows, and the cluster is taken down again.
#
#   deploy/standalone/demo.sh [FOLDER]      tables, logs and scratch space go to FOLDER (default: demo/standalone)
#
# WORKER_CORES, WORKER_MEMORY, MASTER_PORT and WEB_PORT may be set in the environment.
set -eu -o pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
folder=$(realpath -m "${1:-demo/standalone}")
python=${PYTHON:-$root/.venv/bin/python}
port=${MASTER_PORT:-7077}
web=${WEB_PORT:-8080}

[ -x "$python" ] || { echo "demo.sh: $python does not exist: run \`make setup\` first" >&2; exit 2; }
make --no-print-directory dist/cbmm_spark.zip PYTHON="$python"
mkdir -p "$folder/logs" "$folder/work"

SPARK_HOME=$("$python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
export SPARK_HOME
# Master and workers keep to the loopback interface, and both sides of a job run the same Python.
export SPARK_LOCAL_IP=127.0.0.1 PYSPARK_PYTHON=$python PYSPARK_DRIVER_PYTHON=$python

started=()
stop() {
    # Only what this script started, by its process number.
    for each in ${started[@]+"${started[@]}"}; do kill "$each" 2>/dev/null || true; done
    wait || true
}
trap stop EXIT
trap 'exit 130' INT TERM

daemon() { # NAME CLASS ARGUMENTS…
    local name=$1
    shift
    "$SPARK_HOME/bin/spark-class" "$@" >"$folder/logs/$name.log" 2>&1 &
    started+=($!)
}

daemon master org.apache.spark.deploy.master.Master --host 127.0.0.1 --port "$port" --webui-port "$web"
for number in 1 2; do
    daemon "worker-$number" org.apache.spark.deploy.worker.Worker --host 127.0.0.1 --webui-port "$((web + number))" \
        --cores "${WORKER_CORES:-1}" --memory "${WORKER_MEMORY:-2g}" --work-dir "$folder/work/$number" \
        "spark://127.0.0.1:$port"
done

"$python" - "http://127.0.0.1:$web/json/" <<'PYTHON'
import json, sys, time, urllib.request

deadline = time.monotonic() + 60
while True:
    try:
        with urllib.request.urlopen(sys.argv[1], timeout=5) as answer:
            alive = json.load(answer)["aliveworkers"]
    except OSError:
        alive = 0
    if alive == 2:
        break
    if time.monotonic() > deadline:
        sys.exit("demo.sh: the two workers did not register within a minute; see the logs folder")
    time.sleep(0.3)
PYTHON

submit() { # JOB ARGUMENTS…
    local job=$1
    shift
    "$SPARK_HOME/bin/spark-submit" --master "spark://127.0.0.1:$port" \
        --properties-file conf/spark-defaults.conf --py-files dist/cbmm_spark.zip \
        --driver-memory 2g --executor-memory "${WORKER_MEMORY:-2g}" \
        --conf spark.sql.shuffle.partitions=4 \
        "jobs/$job.py" --config conf/local.toml "$@" 2>>"$folder/logs/$job.log" # the job's own lines are on stdout
}

submit simulate --out "$folder/history" ${SIMULATE_ARGS:-}
submit ingest --warehouse "$folder/warehouse" --input "$folder/history/history.parquet"
submit rescore --warehouse "$folder/warehouse" --output "${OUTPUT:-text}"
